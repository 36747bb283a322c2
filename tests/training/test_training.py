"""Training: the step is pure, the loop learns, runs hold what they say, and nothing is lost."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.accidents import Accident
from safeset import ArgumentError, CertifiedNet, Recipe, SafesetError, TrainingWarning, create_model, load, train
from safeset.data.dataset import Dataset, Split
from safeset.data.embedded import digits
from safeset.data.sources import load_data
from safeset.evaluation import evaluate
from safeset.recipes.sections import Data, Loss
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.training.estimates import choose_points
from safeset.training.interruption import Interrupted
from safeset.training.step import objective

QUICK = {"data": {"source": "digits"}, "epochs": 2, "guarantee": "rt3", "epsilon": 0.3}


def weights(path):
    return load_file(Run(Path(path)).model)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "digits"
    net = train({**QUICK, "augmentation": {"shift": 1}}, out=path)
    return path, net


# -- the step ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [Loss("cross-entropy"), Loss("trades", margins="floating", power_steps=1)])
def test_the_step_is_a_pure_function(net, loss):
    x, y = torch.rand(5, 2, 4, 4), torch.tensor([0, 1, 2, 0, 1])
    net.eval()
    parameters, vectors = dict(net.named_parameters()), net.start_vectors()
    before = {name: tensor.clone() for name, tensor in {**parameters, **vectors}.items()}
    value = objective(net, loss)
    first, following = value(parameters, vectors, x, y, 0.7)
    second, _ = value(parameters, vectors, x, y, 0.7)
    assert torch.equal(first, second)
    assert all(torch.equal(tensor, before[name]) for name, tensor in {**parameters, **vectors}.items())
    others = {name: 2 * tensor.detach() for name, tensor in parameters.items()}
    with torch.no_grad():
        changed, _ = value(others, vectors, x, y, 0.7)
    assert not torch.equal(first, changed)
    assert following.keys() == vectors.keys()
    constants, _ = net.estimate(None, vectors, loss.power_steps)
    instrumented = net.instrument(net(x), constants, method=loss.margins)
    if loss.name == "cross-entropy":
        assert torch.equal(first, nn.functional.cross_entropy(instrumented, y))
    gradients = torch.autograd.grad(first, list(parameters.values()))
    assert all(gradient.isfinite().all() for gradient in gradients)


def test_training_lowers_the_loss_and_the_seed_decides():
    one, two, other = (train({**QUICK, "seed": seed}) for seed in (0, 0, 1))
    assert same(one.state_dict(), two.state_dict())
    assert not same(one.state_dict(), other.state_dict())
    assert not one.training


def test_training_leaves_the_caller_s_random_numbers_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    train({**QUICK, "epochs": 1})
    assert torch.equal(torch.rand(3), expected)


# -- a run ------------------------------------------------------------------------------------------------------------


def test_a_run_holds_everything_and_loads_as_it_was(finished):
    path, net = finished
    names = {file.name for file in path.iterdir()}
    expected = {"recipe.toml", "model.safetensors", "bounds.json", "metrics.jsonl", "evaluation.json", "README.md"}
    expected |= {"witnesses.safetensors"}
    assert names == {*expected, ".lock"}
    again = load(path)
    assert same(again.state_dict(), net.state_dict())
    assert again.class_names == tuple("0123456789")
    assert (again.guarantee, again.epsilon) == (net.guarantee, 0.3)
    recipe = Run(path).read_recipe()
    assert (recipe.epochs, recipe.model, recipe.augmentation.shift) == (2, "cnn-1c1f", 1)
    records = Run(path).records()
    assert [record["epoch"] for record in records] == [1, 2]
    assert records[1]["loss"] < records[0]["loss"]
    assert {"vra", "rejection_rate", "accuracy", "seconds", "rate"} <= records[0].keys()


def test_the_evaluation_in_a_run_is_that_of_its_model(finished):
    path, _ = finished
    result = json.loads(Run(path).evaluation.read_text())
    fresh = evaluate(load(path), digits().test)
    assert result["rows"] == plain(fresh)
    assert (result["points"], result["split"], result["dtype"]) == (599, "test", "float64")
    assert {row["method"] for row in result["rows"]} == {"uniform", "floating", "joint"}
    assert result["commit"]
    card = Run(path).card.read_text()
    assert f"{result['rows'][0]['vra']:.3f}" in card
    assert "599 test points" in card


def test_validation_keeps_the_test_data_out(tmp_path):
    train({**QUICK, "epochs": 1, "validation": True}, out=tmp_path / "run")
    result = json.loads(Run(tmp_path / "run").evaluation.read_text())
    assert (result["split"], result["points"]) == ("validation", len(digits().for_choices().test))


def test_own_network_and_own_tensors(tmp_path):
    x = torch.rand(60, 3)
    y = (x[:, 0] > 0.5).long() + (x[:, 1] > 0.5).long()
    network = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    recipe = {"epochs": 1, "guarantee": "rt2", "epsilon": 0.01}
    net = train(recipe, network=network, data=(x, y), out=tmp_path / "run")
    assert net.network is network
    with pytest.raises(ArgumentError, match=r"Give it: safeset\.load"):
        load(tmp_path / "run")
    fresh = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))
    assert same(load(tmp_path / "run", network=fresh).state_dict(), net.state_dict())
    wrong = nn.Sequential(nn.Linear(3, 9), nn.ReLU(), nn.Linear(9, 3))
    with pytest.raises(ArgumentError, match=r"Expected '0.bias' of shape \(9,\)"):
        load(tmp_path / "run", network=wrong)
    with pytest.raises(ArgumentError, match="a Dataset, or inputs and labels"):
        train(recipe, data=x)


def test_batch_norm_and_dropout_train_as_they_are_certified(tmp_path):
    def network():
        torch.manual_seed(0)
        layers = [nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 10)]
        return nn.Sequential(*layers)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first = train({**QUICK, "epochs": 1}, network=network())
    assert torch.equal(first.network[2].running_mean, torch.zeros(16))
    assert same(train({**QUICK, "epochs": 1}, network=network()).state_dict(), first.state_dict())


def test_a_run_is_never_written_over(finished, tmp_path):
    path, _ = finished
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(ArgumentError, match="Choose another --out, or continue with --resume"):
        train(QUICK, out=path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(ArgumentError, match="which holds something else"):
        train(QUICK, out=tmp_path / "mine")
    with pytest.raises(ArgumentError, match="which is a file"):
        train(QUICK, out=tmp_path / "mine" / "thesis.txt")
    with pytest.raises(ArgumentError, match="the recipe of the run to continue: `epochs` 2, but got 3"):
        train({**QUICK, "augmentation": {"shift": 1}, "epochs": 3}, out=path, resume=True)
    with pytest.warns(TrainingWarning, match="has ended already"):
        train({**QUICK, "augmentation": {"shift": 1}}, out=path, resume=True)
    assert {file.name: file.read_bytes() for file in path.iterdir() if file.name != ".lock"} == {
        name: content for name, content in before.items() if name != ".lock"
    }


def test_a_model_whose_evaluation_is_gone_is_not_trained_over(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "run")
    run = Run(tmp_path / "run")
    run.evaluation.unlink()
    before = run.model.read_bytes()
    recipe = {**QUICK, "augmentation": {"shift": 1}}
    with pytest.raises(ArgumentError, match=r"safeset evaluate .*run writes one"):
        train(recipe, out=run.path, resume=True)
    assert run.model.read_bytes() == before
    shutil.copy(finished[0] / "evaluation.json", run.evaluation)
    run.model.unlink()
    with (
        pytest.warns(TrainingWarning, match="has ended already"),
        pytest.raises(ArgumentError, match="Remove the directory, and train it again"),
    ):
        train(recipe, out=run.path, resume=True)


def test_what_is_no_run_is_reported(tmp_path, finished):
    with pytest.raises(SafesetError, match=r"which has no recipe.toml"):
        load(tmp_path)
    path, _ = finished
    (tmp_path / "recipe.toml").write_text((path / "recipe.toml").read_text())
    with pytest.raises(ArgumentError, match="Continue with safeset train --resume"):
        load(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\x80\x04pickle")
    with pytest.raises(SafesetError, match="Expected a safetensors file"):
        load(tmp_path)
    (tmp_path / "recipe.toml").write_text('[data]\nsource = "digits"')
    with pytest.raises(ArgumentError, match="not fitted to data"):
        load(tmp_path)


# -- accidents --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_and_resuming_gives_the_same_weights(tmp_path, number, finished):
    recipe = {**QUICK, "augmentation": {"shift": 1}}
    handlers = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Interrupted) as caught:
        train(recipe, out=tmp_path / "run", watch=Accident(25, lambda: os.kill(os.getpid(), number)))
    assert caught.value.signal == number
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert Run(tmp_path / "run").checkpoint.exists()
    assert not Run(tmp_path / "run").has_ended
    train(recipe, out=tmp_path / "run", resume=True)
    assert same(weights(tmp_path / "run"), weights(finished[0]))
    assert [record["epoch"] for record in Run(tmp_path / "run").records()] == [1, 2]
    losses = [[record["loss"] for record in Run(path).records()] for path in (tmp_path / "run", finished[0])]
    assert losses[0] == losses[1]


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    network = create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=10)

    def poison():
        with torch.no_grad():
            network[0].weight.fill_(float("nan"))

    with pytest.raises(
        SafesetError, match=r"Expected finite numbers, but got .* in epoch 1, step (9|10).*last good"
    ) as error:
        train(QUICK, network=network, out=tmp_path / "run", watch=Accident(9, poison), checkpoint_minutes=0)
    assert "Try a lower rate" in str(error.value)
    saved = load_file(Run(tmp_path / "run").checkpoint)
    assert all(tensor.isfinite().all() for tensor in saved.values() if tensor.is_floating_point())


@pytest.mark.filterwarnings("ignore:This training has ended about at chance")
def test_a_run_with_affinity_sets_is_continued_whatever_the_order_of_the_names(tmp_path):
    split = Split(torch.rand(30, 2), torch.arange(30) % 3)
    data = Dataset("advisories", split, split, ("clear", "weak", "strong"), "metres")
    recipe = {"epochs": 2, "guarantee": {"neighbours": ["clear", "weak", "strong"]}, "epsilon": 0.01}
    stop = Accident(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe, data=data, out=tmp_path / "run", watch=stop)
    train(recipe, data=data, out=tmp_path / "run", resume=True)
    with pytest.warns(TrainingWarning, match="has ended already"):
        train(recipe, data=data, out=tmp_path / "run", resume=True)


def test_data_that_changed_is_not_trained_on(tmp_path):
    x, y = torch.rand(40, 2), torch.arange(40) % 2
    recipe = {"epochs": 2, "guarantee": "standard", "epsilon": 0.01, "model": "mlp-2x32"}
    stop = Accident(1, lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe, data=(x, y), out=tmp_path / "run", watch=stop)
    with pytest.raises(SafesetError, match="other data"):
        train(recipe, data=(x + 1, y), out=tmp_path / "run", resume=True)
    train(recipe, data=(x, y), out=tmp_path / "run", resume=True)


def test_a_directory_that_cannot_be_written_is_reported():
    with pytest.raises(SafesetError, match="Expected a directory that can be written at /proc/nowhere"):
        train(QUICK, out="/proc/nowhere")


SCRIPT = """
import resource, sys
import torch
torch.set_num_threads(1)
from safeset import train
from safeset.errors import SafesetError
recipe = {"data": {"source": "digits"}, "epochs": 3, "guarantee": "rt3", "epsilon": 0.3, "augmentation": {"shift": 1}}
if len(sys.argv) > 3:
    class Notes:
        def track(self, items, count): return items
        def introduce(self, text): pass
        def begin(self, *a): pass
        def epoch(self, record): pass
        def end(self): pass
        def note(self, text): print("note:", text, flush=True)
        steps = 0
        def step(self, loss):
            self.steps += 1
            if self.steps == 30:
                resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
    try:
        train(recipe, out=sys.argv[1], resume=True, checkpoint_minutes=float(sys.argv[2]), watch=Notes())
    except SafesetError as error:
        print("error:", error, flush=True)
        sys.exit(1)
else:
    train(recipe, out=sys.argv[1], resume=True, checkpoint_minutes=float(sys.argv[2]))
"""


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    process = start(path, 5)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return path


def test_a_full_disk_is_reported_and_the_last_good_checkpoint_stays(tmp_path, undisturbed):
    path = tmp_path / "run"
    process = start(path, 0, 20_000)  # from step 30 on no file may grow beyond 20 kB: what a full disk does
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1, output
    assert "note: No checkpoint could be written" in output
    assert "the last good one is kept" in output
    assert "error: Expected to write into" in output
    assert "Traceback" not in output
    run = Run(path)
    assert run.checkpoint.exists()
    assert not run.model.exists()
    assert not [file for file in path.iterdir() if file.suffix == ".tmp"]
    process = start(path, 5)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert same(weights(path), weights(undisturbed))


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_process_that_is_killed_again_and_again_ends_with_the_weights_of_an_undisturbed_one(
    tmp_path, undisturbed, times
):
    path, kills = tmp_path / "run", 0
    moments = torch.rand(200, generator=torch.Generator().manual_seed(0)).tolist()
    while kills < times:
        process = start(path, 0)  # a checkpoint after every step
        seen = os.stat(Run(path).checkpoint).st_mtime_ns if Run(path).checkpoint.exists() else 0
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None:  # until it has trained on
            if Run(path).checkpoint.exists() and os.stat(Run(path).checkpoint).st_mtime_ns != seen:
                break
            time.sleep(0.002)
        time.sleep(0.03 * moments[kills])
        assert process.poll() is None, process.stdout.read()
        process.kill()
        assert process.wait() == -signal.SIGKILL
        process.stdout.close()
        kills += 1
        assert not Run(path).model.exists()
    process = start(path, 5)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert same(weights(path), weights(undisturbed))
    assert [record["epoch"] for record in Run(path).records()] == [1, 2, 3]
    first, second = ([record["loss"] for record in Run(each).records()] for each in (path, undisturbed))
    assert first == second


def test_a_second_process_on_one_run_is_reported(tmp_path):
    holder = subprocess.Popen(
        [
            *(sys.executable, "-c"),
            "import sys\nfrom pathlib import Path\nfrom safeset.runs.run import Run\n"
            "with Run(Path(sys.argv[1])).lock():\n    print('locked', flush=True)\n    sys.stdin.read()",
            str(tmp_path / "run"),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout.readline() == "locked\n"
        with pytest.raises(SafesetError, match=f"a run that process {holder.pid} is training"):
            train(QUICK, out=tmp_path / "run")
    train({**QUICK, "epochs": 1}, out=tmp_path / "run")  # a lock ends with its process


# -- recipes that come with safeset -----------------------------------------------------------------------------------


def test_the_plane_is_learnt():
    net = train({**Recipe.read(Path("recipes/blobs2d/rt2.toml")).table(), "epochs": 20})
    row = evaluate(net, load_data("blobs2d").test, methods=["joint"])[0]
    assert row["vra"] > 0.8
    assert isinstance(net, CertifiedNet)
    assert Data("x").options == {}


def test_the_points_that_are_watched_are_of_all_classes():
    labels = torch.arange(50_000) % 100  # as sorted data may be: every fiftieth point has one of two labels
    watched = choose_points(Split(torch.zeros(50_000, 1), labels))
    assert len(watched) == 1000
    assert len(set(watched.y.tolist())) == 100
    assert len(choose_points(Split(torch.zeros(7, 1), torch.zeros(7, dtype=torch.int64)))) == 7
