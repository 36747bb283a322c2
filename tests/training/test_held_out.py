"""Held-out points: what each epoch is estimated on, the best and the last weights, early stopping, interrupted runs."""

import csv
import io
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from helpers.accidents import Accident
from helpers.commands import safeset
from safeset import ArgumentError, Recipe, SafesetError, TrainingWarning, load, train
from safeset.data.dataset import Dataset, Split
from safeset.data.embedded import digits
from safeset.recipes.sections import Data
from safeset.runs.run import Run
from safeset.training.best import Best, is_better
from safeset.training.interruption import Interrupted
from safeset.training.plan import at_chance

EPOCHS = 8
RECIPE = {"epochs": EPOCHS, "guarantee": "standard", "epsilon": 0.05, "model": "mlp-2x32", "batch": 50}
RECIPE |= {"optimiser": {"rate": 0.02}}


def points(count=400):
    x = torch.rand(count, 2, generator=torch.Generator().manual_seed(0))
    noise = 0.3 * torch.rand(count, generator=torch.Generator().manual_seed(1))
    return x, ((x[:, 0] + noise > 0.65).long() + (x[:, 1] > 0.5).long())


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def stop():
    os.kill(os.getpid(), signal.SIGTERM)


class Snapshots(Accident):
    """Keeps a network's weights after each epoch."""

    def __init__(self, network):
        super().__init__(0, lambda: None)
        self.network, self.weights = network, []

    def epoch(self, record):
        self.weights.append({name: tensor.clone() for name, tensor in self.network.state_dict().items()})


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    path = tmp_path_factory.mktemp("held-out") / "run"
    train(RECIPE, data=points(), out=path)
    return Run(path)


# -- what is estimated on what ----------------------------------------------------------------------------------------


def test_each_epoch_says_what_points_it_is_about(run, tmp_path):
    assert {record["on"] for record in run.records()} == {"held-out"}
    quick = {"data": {"source": "digits"}, "epochs": 1, "guarantee": "rt3", "epsilon": 0.3}
    for name, more, on in (("a", {}, "training"), ("b", {"validation": True}, "validation")):
        train({**quick, **more}, out=tmp_path / name)
        assert [record["on"] for record in Run(tmp_path / name).records()] == [on]
    assert "hold_out" not in Run(tmp_path / "a").recipe.read_text()


def test_how_much_is_held_out():
    def share(count, classes=2, source="mine.npz", **given):
        split = Split(torch.zeros(count, 2), torch.arange(count) % classes)
        names = tuple(map(str, range(classes)))
        return Recipe(Data(source), **given).fit(Dataset("fake", split, split, names, "units")).hold_out

    assert share(400) == 0.1
    assert share(100) == 0.0  # ten points say too little
    assert share(400, classes=40) == 0.0
    assert share(400, source="digits") is None
    assert share(400, source="digits", hold_out=0.2) == 0.2
    assert share(400, source="digits", patience=3) == 0.1
    assert share(400, hold_out=0.0) == 0.0
    with pytest.raises(ArgumentError, match=r"some of 4 training points to hold out, but got 0 with a share of 0\.1"):
        share(4, hold_out=0.1)
    with pytest.raises(ArgumentError, match=r"a share of the training data in \[0, 1\)"):
        share(400, hold_out=1.0)
    for given in ({"hold_out": 0.0}, {}):
        with pytest.raises(ArgumentError, match="held-out points to judge by, for `patience`"):
            share(100, patience=3, **given)


# -- the best and the last --------------------------------------------------------------------------------------------


def test_what_a_few_points_cannot_tell_apart_the_loss_decides():
    assert is_better((2, 0.9, 0.9), (1, 0.5, 0.1), 0.9, 50)
    assert is_better((2, 0.88, 0.1), (1, 0.9, 0.5), 0.9, 50)
    assert not is_better((2, 0.88, 0.6), (1, 0.9, 0.5), 0.9, 50)
    assert not is_better((2, 0.88, 0.1), (1, 0.9, 0.5), 0.9, 5000)
    assert is_better((2, 0.0, 0.5), (0, -1.0, 0.0), 0.0, 50)


def test_several_nets_have_their_own_best():
    best = Best.start({"w": torch.zeros(2, 1)}, 2, 1000)
    for epoch, (one, two) in enumerate([(0.1, 0.9), (0.5, 0.2), (0.3, 0.3)], start=1):
        best.consider(epoch, [{"vra": one, "loss": 1.0}, {"vra": two, "loss": 1.0}], {"w": torch.full((2, 1), epoch)})
    assert [kept[0] for kept in best.kept] == [2, 1]
    assert best.weights["w"].tolist() == [[2.0], [1.0]]
    assert not best.is_exhausted(3, 2)
    assert best.is_exhausted(4, 2)
    with pytest.raises(ValueError, match="of other networks"):
        best.restore({"kept": [[1, 0.5, 0.1]], "highest": [[1, 0.5, 0.1]]}, best.weights)


def test_the_model_has_the_best_weights_and_the_last_are_kept(tmp_path):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 3))
    watch, run = Snapshots(network), Run(tmp_path / "run")
    recipe = {"epochs": EPOCHS, "guarantee": "standard", "epsilon": 0.05, "optimiser": {"rate": 0.3}}  # jumps about
    net = train(recipe, network=network, data=points(), out=run.path, watch=watch)
    kept, highest = (0, -1.0, 0.0), -1.0
    for record in run.records():
        highest, now = max(highest, record["vra"]), (record["epoch"], record["vra"], record["loss"])
        kept = now if is_better(now, kept, highest, 32) else kept
    assert 0 < kept[0] < EPOCHS
    assert same(load_file(run.model), watch.weights[kept[0] - 1])
    assert same(load_file(run.last), watch.weights[-1])
    assert same(net.network.state_dict(), load_file(run.model))
    assert f"(epoch {kept[0]})" in run.card.read_text()
    assert json.loads(run.evaluation.read_text())["weights"]


def test_the_best_weights_survive_interruptions_bit_for_bit(run, tmp_path):
    with pytest.raises(Interrupted):
        train(RECIPE, data=points(), out=tmp_path / "run", watch=Accident(25, stop))
    checkpoint = load_file(Run(tmp_path / "run").checkpoint)
    assert any(name.startswith("best/") for name in checkpoint)
    with pytest.raises(Interrupted):
        train(RECIPE, data=points(), out=tmp_path / "run", resume=True, watch=Accident(40, stop))
    train(RECIPE, data=points(), out=tmp_path / "run", resume=True)
    again = Run(tmp_path / "run")
    assert same(load_file(again.model), load_file(run.model))
    assert again.last.exists() == run.last.exists()
    rates = [[(each["vra"], each["loss"]) for each in one.records()] for one in (run, again)]
    assert rates[0] == rates[1]


def test_seeds_at_once_have_the_best_of_single_runs(tmp_path):
    recipe = {"data": {"source": "digits"}, "epochs": 3, "guarantee": "rt3", "epsilon": 0.3, "hold_out": 0.1}
    recipe |= {"model": "mlp-2x32"}
    train({**recipe, "seeds": 2}, out=tmp_path / "both")
    with pytest.raises(Interrupted):
        train({**recipe, "seeds": 2}, out=tmp_path / "again", watch=Accident(30, stop))
    for seed in (0, 1):
        with pytest.warns(TrainingWarning, match=r"has not ended \(epoch 2 of 3\)"):
            load(tmp_path / "again" / f"seed{seed}")
    with pytest.warns(TrainingWarning, match=r'goes on with: safeset\.train\("') as warned:
        load(tmp_path / "again" / "seed0")
    assert str(warned[0].message).endswith(f'recipe.toml", out="{tmp_path / "again"}", resume=True)')
    assert warned[0].filename == __file__
    (tmp_path / "again" / "seed0" / "evaluation.json").write_text("{}")  # as `safeset evaluate` writes it
    assert not Run(tmp_path / "again" / "seed0").has_ended
    train({**recipe, "seeds": 2}, out=tmp_path / "again", resume=True)
    assert Run(tmp_path / "again" / "seed0").has_ended
    for seed in (0, 1):
        one, two = (load_file(Run(tmp_path / name / f"seed{seed}").model) for name in ("both", "again"))
        assert same(one, two)
        train({**recipe, "seed": seed}, out=tmp_path / f"alone{seed}")
        alone = load_file(Run(tmp_path / f"alone{seed}").model)
        assert all(torch.allclose(alone[name], one[name], rtol=5e-3, atol=5e-4) for name in alone)


def test_patience_ends_a_training_and_says_so(tmp_path):
    recipe = {**RECIPE, "epochs": 60, "patience": 3, "optimiser": {"rate": 0.1}}
    watch = Accident(0, stop)
    train(recipe, data=points(), out=tmp_path / "run", watch=watch)
    records = Run(tmp_path / "run").records()
    assert 4 <= len(records) < 60
    rates = [record["vra"] for record in records]
    assert max(rates[:-3]) >= max(rates[-3:])
    assert watch.notes == [f"No higher held-out VRA in 3 epochs: stopped after epoch {len(records)} of 60."]
    assert f"{len(records)} of 60 epochs" in Run(tmp_path / "run").card.read_text()
    with pytest.raises(Interrupted):
        train(recipe, data=points(), out=tmp_path / "again", watch=Accident(5 * len(records) - 3, stop))
    train(recipe, data=points(), out=tmp_path / "again", resume=True, watch=Accident(0, stop))
    assert same(load_file(Run(tmp_path / "again").model), load_file(Run(tmp_path / "run").model))


# -- a training that has not ended ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A training of a file that was interrupted in its second epoch."""
    path = tmp_path_factory.mktemp("begun")
    x, y = points()
    np.savez(path / "points.npz", x=x.numpy(), y=y.numpy())
    with pytest.raises(Interrupted):
        train({**RECIPE, "data": {"source": str(path / "points.npz")}}, out=path / "run", watch=Accident(8, stop))
    return path


@pytest.mark.parametrize("killed", [False, True])
def test_an_interrupted_run_is_used_as_it_is(begun, tmp_path, killed):
    shutil.copytree(begun, tmp_path, dirs_exist_ok=True)
    run = Run(tmp_path / "run")
    assert run.model.exists()
    with pytest.warns(TrainingWarning, match=r"has not ended \(epoch 2 of 8\)"):
        kept = load(run.path)
    if killed:  # what a process leaves that is killed outright
        run.model.unlink()
        with pytest.warns(TrainingWarning, match=r"has not ended \(epoch 2 of 8\)"):
            assert same(load(run.path).state_dict(), kept.state_dict())
    best = {name.partition("network.")[2]: each for name, each in load_file(run.checkpoint).items() if "best/" in name}
    assert same(dict(kept.network.state_dict()), best)
    for command in (
        ["evaluate", "run"],
        ["certify", "run", "points.npz"],
        ["audit", "run", "--points", "3", "--budget", "0.02"],
    ):
        _, errors = safeset(*command, cwd=tmp_path)
        assert "has not ended (epoch 2 of 8)" in errors
        assert "safeset train --resume --out run" in errors
    text, _ = safeset("certify", "run", "points.npz", "--csv", cwd=tmp_path)
    assert {row["unfinished"] for row in csv.DictReader(io.StringIO(text))} == {"epoch 2 of 8"}
    text, _ = safeset("suggest", "run", "--json", cwd=tmp_path)
    assert json.loads(text)["unfinished"] == "epoch 2 of 8"
    assert json.loads(run.evaluation.read_text())["unfinished"] == "epoch 2 of 8"
    _, errors = safeset("train", "--resume", "--out", "run", "--epsilon", "0.0123", cwd=tmp_path, code=1)
    assert errors.startswith("error: Expected the recipe of the run to continue: `epsilon`")  # before any banner
    _, errors = safeset("train", "--resume", "--out", "run", cwd=tmp_path)
    assert "Continuing in epoch 2 of 8" in errors
    assert "unfinished" not in json.loads(run.evaluation.read_text())
    undisturbed = {**RECIPE, "data": {"source": str(tmp_path / "points.npz")}}
    train(undisturbed, out=tmp_path / "other")
    assert same(load_file(run.model), load_file(Run(tmp_path / "other").model))
    assert load(run.path).classes == 3


def test_a_checkpoint_that_safeset_did_not_write_is_not_loaded(begun, tmp_path):
    shutil.copytree(begun / "run", tmp_path / "run")
    run = Run(tmp_path / "run")
    run.recipe.write_text(run.recipe.read_text().replace("mlp-2x32", "mlp-2x256"))
    run.model.unlink()
    with pytest.raises(ArgumentError, match=r"of shape \(256,\) in .*checkpoint"):
        load(run.path)
    run.checkpoint.write_bytes(b"\x80\x04pickle")
    with pytest.raises(SafesetError, match="Expected a safetensors file"):
        load(run.path)


# -- nothing learnt ---------------------------------------------------------------------------------------------------


def test_a_training_that_ends_at_chance_says_so():
    x, y = torch.rand(300, 2), torch.arange(300) % 3
    recipe = {"epochs": 1, "guarantee": "standard", "epsilon": 0.05, "model": "mlp-2x32", "optimiser": {"rate": 1e-9}}
    with pytest.warns(
        TrainingWarning, match=r"about at chance: .* of 60 points.* 0.333 by always.*optimiser"
    ) as warned:
        train(recipe, data=(x, y))
    assert "--" not in str(warned[0].message)  # flags are for the command line
    assert warned[0].filename == __file__
    labels = torch.arange(100) % 2
    assert at_chance(55, labels)
    assert at_chance(60, labels) is None
    assert at_chance(8, labels[:10]) is None  # too few to tell
    assert at_chance(90, torch.cat([torch.zeros(90), torch.ones(10)]).long())


def test_a_command_that_ends_at_chance_ends_well(tmp_path):
    np.savez(tmp_path / "noise.npz", x=np.random.default_rng(0).random((200, 2)), y=np.arange(200) % 2)
    _, errors = safeset("train", "--data", "noise.npz", "--epochs", "1", "--out", "run", cwd=tmp_path)
    assert "about at chance" in errors
    assert "Try --set optimiser.rate=1e-4, a smaller --epsilon" in errors


def test_digits_are_learnt_as_ever():
    assert Recipe(Data("digits")).fit(digits()).epochs == 166
