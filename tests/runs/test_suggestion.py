"""Choosing ε and K: the numbers are those of an evaluation, and the choice is the one that the words say."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from helpers.digits_net import digits, trained
from helpers.nets import plain_net
from safeset import CertifiedNet, SafesetError, train
from safeset.data.dataset import Split
from safeset.data.embedded import digits as digits_data
from safeset.evaluation import evaluate
from safeset.runs.data import load_run_data
from safeset.runs.run import Run
from safeset.runs.suggestion import ENOUGH, GAIN, Suggestion, suggest, suggest_for_run
from safeset.runs.tradeoffs import tradeoffs


@pytest.fixture(scope="module")
def split():
    _, (x, y) = digits()
    return Split(x[:300], y[:300])


@pytest.fixture(scope="module")
def found(split):
    net, _ = trained()
    certificates, labels = suggest(net, split)
    return Suggestion(certificates, labels, "standard", net.epsilon, "digits, test points", True, "pixels")


def test_the_numbers_are_those_of_an_evaluation(found, split):
    net, _ = trained()
    assert list(found.certificates) == ["standard", *(f"rt{k}" for k in range(2, 10))]
    for name in ("standard", "rt2", "rt9"):
        for row in evaluate(net, split, guarantee=name, methods=["joint"], epsilons=[0.1, net.epsilon]):
            (own,) = found.rows([row["epsilon"]], [name])
            for metric in ("vra", "rejection_rate", "top1", "core_size", "set_size", "smallest_set_size", "points"):
                assert own[metric] == pytest.approx(row[metric], nan_ok=True)


def test_so_many_points_are_certified_below_the_reach_and_fewer_at_it(found):
    for name, certificate in found.certificates.items():
        for share in (ENOUGH, 0.5):
            radius = found.reach(name, share)
            below = certificate.at(math.nextafter(radius, 0.0)).certified.double().mean().item()
            assert below >= share > certificate.at(radius).certified.double().mean().item()


def test_the_grid_spans_what_is_certified_and_holds_the_runs_own(found):
    grid = found.grid
    assert found.epsilon in grid
    assert grid == sorted(set(grid))
    assert 5 <= len(grid) <= 7
    most = found.certificates["rt5"]
    assert most.at(grid[0]).certified.double().mean() > 0.9
    assert most.at(grid[-1]).certified.double().mean() < 0.3


def test_the_smallest_answers_do_not_depend_on_k(found):
    """So that a larger K gains only by certifying points that were rejected."""
    for first, second in (("standard", "rt2"), ("rt2", "rt5"), ("rt5", "rt9")):
        for epsilon in (0.1, 0.3, 0.6):
            less, more = (found.certificates[name].at(epsilon) for name in (first, second))
            assert bool((less.certified <= more.certified).all())
            assert torch.equal(less.core[less.certified], more.core[less.certified])
            assert torch.equal(less.whole[less.certified], more.whole[less.certified])


def test_the_suggested_k_is_the_least_after_which_nothing_is_gained(found):
    shares = {k: found.rows([found.at], ["standard" if k == 1 else f"rt{k}"])[0]["smallest_share"] for k in range(1, 6)}
    good = [k for k in shares if all(shares[j + 1] - shares[j] < GAIN for j in range(k, 5))]
    assert found.guarantee == ("standard" if min(good) == 1 else f"rt{min(good)}")
    assert f"To start from: {found.guarantee} at ε = " in found.sentences[1]


def test_the_words(found):
    shown = " ".join(found.sentences)
    assert shown.startswith("80 % of the answers are certified at every ε below")
    assert "These are the test points" in shown
    assert "trained for standard at ε = 0.3" in shown
    record = json.loads(json.dumps(found.record(), allow_nan=False))
    assert record["suggested"]["guarantee"] == found.guarantee
    assert len(record["rows"]) == 9 * len(found.grid)
    assert record["rows"][0].keys() >= {
        "guarantee",
        "epsilon",
        "vra",
        "rejection_rate",
        "top1",
        "core_size",
        "set_size",
    }


def test_guarantees_of_other_kinds_stand_beside_and_two_classes_have_one():
    net = plain_net('affinity:{"sets":[[0,1],[2,3]]}')
    points = Split(torch.randn(40, 6), torch.arange(40) % 4)
    certificates, _ = suggest(net, points, method="uniform")
    assert list(certificates) == ["standard", "rt2", "rt3", 'affinity:{"sets":[[0,1],[2,3]]}']
    assert {found.method for found in certificates.values()} == {"uniform"}
    two = CertifiedNet(torch.nn.Sequential(torch.nn.Linear(6, 2)), input_shape=(6,), guarantee="standard", epsilon=9.0)
    certificates, labels = suggest(two, Split(torch.randn(40, 6), torch.arange(40) % 2))
    found = Suggestion(certificates, labels, "standard", 9.0, "points", False, "units")
    assert (found.names, found.guarantee) == (["standard"], "standard")
    assert "test points" not in " ".join(found.sentences)


def test_where_nothing_can_be_certified_it_says_so():
    net = plain_net()
    with torch.no_grad():
        net.network[-1].weight.zero_()
        net.network[-1].bias.zero_()
    certificates, labels = suggest(net, Split(torch.zeros(5, 6), torch.zeros(5, dtype=torch.long)))
    found = Suggestion(certificates, labels, "standard", 0.5, "points", False, "units")
    assert found.grid == [0.5]
    assert "net.diagnose(x)" in found.sentences[1]


@pytest.mark.parametrize(("epsilon", "bias"), [(0.0, None), (0.0, 1.0), (0.5, 1.0)])
def test_an_epsilon_of_0_and_answers_that_nothing_alters(epsilon, bias):
    net = plain_net()
    if bias is not None:  # the same logits everywhere
        with torch.no_grad():
            net.network[-1].weight.zero_()
            net.network[-1].bias.copy_(torch.arange(4) * bias)
    certificates, labels = suggest(net, Split(torch.randn(20, 6), torch.zeros(20, dtype=torch.long)))
    found = Suggestion(certificates, labels, "standard", epsilon, "points", False, "units")
    shown, record = " ".join(found.sentences), json.loads(json.dumps(found.record(), allow_nan=False))
    assert "∞" not in shown
    assert "below 0 " not in shown
    assert (record["suggested"]["epsilon"] is None) == (epsilon == 0 and bias is not None)
    if bias is None:
        assert 0 < record["suggested"]["epsilon"] == found.start
        assert "To start from" in shown
    else:
        assert "certified at every ε for standard, rt2, rt3" in shown
        assert ("at ε = 0.5" in shown) == (epsilon == 0.5)
        assert ("no ε is to be chosen here" in shown) == (epsilon == 0)
    assert tradeoffs(found).startswith(b"\x89PNG")


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("suggest")
    table = {"data": {"source": "digits"}, "epochs": 2, "guarantee": "rt3", "epsilon": 0.3}
    train(table, out=path / "run")
    train({**table, "epochs": 1, "validation": True}, out=path / "validated")
    return path


def test_a_table_a_plot_and_words(work):
    output, errors = safeset("suggest", "run", cwd=work)
    assert errors == ""
    assert "digits, test points: 599, top-1 accuracy 0." in output
    assert "trained for rt3 at ε = 0.3" in output
    assert "guarantee" in output.splitlines()[1]
    for word in ("standard", "rt2", "rt7", "To start from", "These are the test points", "Drawn: run/suggest.png"):
        assert word in output
    with Image.open(work / "run" / "suggest.png") as picture:
        assert picture.size[0] > 900


def test_choices_are_made_on_validation_points_where_there_are_some(work):
    found = suggest_for_run(Run(work / "validated"))
    assert (found.on, found.chosen_on_test) == ("digits (validation), validation points", False)
    held = digits_data().for_choices().test
    assert torch.equal(found.labels, held.y)


def test_json_other_data_and_another_place_for_the_plot(work):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (60, 8, 8)).astype(np.uint8)
    np.savez(work / "other.npz", x=images, y=np.arange(60) % 10)
    output, errors = safeset("suggest", "run", "--data", "other.npz", "--json", cwd=work)
    result = json.loads(output)
    assert (result["points"], result["chosen_on_test"], errors) == (10, False, "")
    assert result["trained_for"] == {"guarantee": "rt3", "epsilon": 0.3}
    output, errors = safeset("suggest", "run", "--json", "--out", "mine.png", "--method", "uniform", cwd=work)
    assert json.loads(output)["method"] == "uniform"
    assert "Drawn: mine.png" in errors
    assert (work / "mine.png").read_bytes()[:4] == b"\x89PNG"


def test_without_matplotlib_there_is_the_table_alone(work):
    without = "import sys\nsys.modules['matplotlib'] = None\nimport importlib.util\n"
    without += "import safeset.cli.suggest as module\nmodule.find_spec = lambda name: None"
    output, _ = safeset("suggest", "run", cwd=work, before=without)
    assert "To start from" in output
    assert "pip install 'safeset[report]'" in output
    _, errors = safeset("suggest", "run", "--out", "x.png", cwd=work, before=without, code=1)
    assert "Expected matplotlib" in errors
    assert not (work / "x.png").exists()


def test_mistakes_are_named(work):
    for arguments, message in (
        (("nowhere",), "the directory of a run"),
        (("run", "--out", "no/where.png"), "a directory for the PNG file"),
        (("run", "--method", "jiont"), "Did you mean 'joint'"),
        (("run", "--data", "blobs2d"), "data as trained on"),
    ):
        _, errors = safeset("suggest", *arguments, cwd=work, code=1)
        assert message in errors
    _, errors = safeset("suggest", "run", cwd=work, code=1, WORLD_SIZE="2", RANK="0")
    assert "one process" in errors
    with pytest.raises(SafesetError):
        suggest_for_run(Run(work / "nowhere"))


def test_a_run_of_a_table_is_looked_at_on_its_held_out_rows(tmp_path):
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'low' if a < 40 else 'mid' if a < 70 else 'high'}" for a, b in rng.uniform(0, 100, (400, 2))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,kind", *rows]) + "\n")
    train({"data": {"source": str(tmp_path / "t.csv")}, "epochs": 10, "epsilon": 0.05}, out=tmp_path / "run")
    output, _ = safeset("suggest", "run", cwd=tmp_path)
    assert "rt2" in output
    assert "columns scaled to [0, 1]" in output
    recipe = Run(tmp_path / "run").read_recipe()
    assert recipe.hold_out == 0.1
    held = load_run_data(recipe).train.held_out(0.1)[1]
    assert torch.equal(suggest_for_run(Run(tmp_path / "run")).labels, held.y)
    assert f"held-out points: {len(held)}" in output
    assert "test points" not in output
