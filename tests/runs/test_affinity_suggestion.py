"""Proposed affinity sets: what they certify is what the affinity guarantee certifies, on points that were held out."""

import json
from itertools import combinations

import numpy as np
import pytest
import torch

from helpers.commands import safeset
from helpers.digits_net import digits, trained
from safeset import Affinity, SafesetError, train
from safeset.data.dataset import Split
from safeset.data.embedded import digits as digits_data
from safeset.evaluation import evaluate
from safeset.guarantees import parse
from safeset.guarantees.merging import count_satisfied, sets_of
from safeset.runs.affinity_suggestion import (
    ENOUGH,
    AffinitySuggestion,
    certify_relaxed,
    narrowed,
    needed_groups,
    suggest_affinity,
)
from safeset.runs.data import load_run_data
from safeset.runs.run import Run

EPSILON = 0.5


@pytest.fixture(scope="module")
def split():
    _, (x, y) = digits()
    return Split(x[:300], y[:300])


@pytest.fixture(scope="module")
def found(split):
    net, _ = trained()
    certificate = certify_relaxed(net, split, 3, epsilon=EPSILON)
    return AffinitySuggestion(certificate, split.y, None, "digits, some points", False, "pixels")


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
@pytest.mark.parametrize("sets", [[[3, 9]], [[1, 8], [1, 4, 6], [3, 5, 9]], [[0, 1], [1, 2], [2, 3], [3, 4, 8]]])
def test_a_narrowed_certificate_is_the_affinity_guarantees_own(split, method, sets):
    """Bit for bit: so every number of a proposal is one that an evaluation gives."""
    net, _ = trained()
    for k in (3, 5):
        mine = narrowed(certify_relaxed(net, split, k, method=method), Affinity(sets))
        own = net.certify(split.exact, guarantee=Affinity(sets), method=method)
        width = own.ranking.shape[1]
        assert torch.equal(mine.windows[:, :width, :width], own.windows)
        assert not mine.windows[:, width:].any()
        assert not mine.windows[:, :, width:].any()
        assert torch.equal(mine.correct(split.y), own.correct(split.y))
        for epsilon in (0.1, EPSILON):
            assert torch.equal(mine.at(epsilon).whole, own.at(epsilon).whole)


def test_counting_groups_is_counting_verified_points(split):
    net, _ = trained()
    certificate = certify_relaxed(net, split, 3, epsilon=EPSILON)
    groups = needed_groups(certificate, split.y)
    assert groups.total() == int(certificate.verified(split.y).sum())
    rng = np.random.default_rng(0)
    every = list(combinations(range(10), 2))
    for count in (1, 4, 12):
        pairs = frozenset(every[place] for place in rng.choice(len(every), count, replace=False))
        sets = Affinity([one for one in sets_of(pairs) if len(one) <= 3])
        verified = net.certify(split.exact, guarantee=sets, epsilon=EPSILON).verified(split.y)
        assert int(verified.sum()) == count_satisfied(groups, pairs)


def test_the_numbers_are_those_of_an_evaluation(found, split):
    net, _ = trained()
    for name, row in (("standard", found.rows[0]), ("rt3", found.rows[-1]), (Affinity(found.sets), found.rows[-2])):
        (own,) = evaluate(net, split, guarantee=name, methods=["joint"], epsilons=[EPSILON])
        for metric in ("vra", "rejection_rate", "accuracy", "top1", "set_size", "smallest_set_size", "points"):
            assert row[metric] == pytest.approx(own[metric])
    shares = [row["recovered"] for row in found.rows]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    assert found.rows[-2]["pairs"] == 10  # one for each class, because 80 % is not reached before
    near = AffinitySuggestion(found.certificate.at(0.1), split.y, None, "points", False, "pixels")
    *_, before, last, _ = (row["recovered"] for row in near.rows)
    assert before < ENOUGH <= last


def test_as_many_pairs_as_are_asked_for(found):
    two = AffinitySuggestion(found.certificate, found.labels, 2, "points", True, "pixels")
    assert two.rows[-2]["pairs"] == 2
    assert two.steps == found.steps[:2]
    assert "trained on" in " ".join(two.sentences)
    assert "trained on" not in " ".join(found.sentences)


def test_where_there_is_nothing_to_gain(found):
    nothing = AffinitySuggestion(found.certificate.at(1e9), found.labels, None, "points", False, "pixels")
    assert (nothing.steps, nothing.sets) == ([], [])
    assert "gains nothing" in nothing.sentences[0]
    assert [row["recovered"] for row in json.loads(json.dumps(nothing.record(), allow_nan=False))["rows"]] == [None] * 2


def test_the_file_reads_back_whatever_the_names_are(found, tmp_path):
    names = ["a b", 'quo"te', "new\nline", "ü", "4", "5", "6", "7", "8", "9"]
    odd = AffinitySuggestion(found.certificate.named(names), found.labels, None, "data\nsets = 7", False, "pixels")
    (tmp_path / "sets.toml").write_text(odd.text())
    assert Affinity.from_file(tmp_path / "sets.toml").bind(names) == Affinity(found.sets)


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("suggest")
    table = {"data": {"source": "digits"}, "epochs": 4, "guarantee": "rt3", "epsilon": 0.3}
    train({**table, "validation": True}, out=path / "validated")
    train({**table, "hold_out": 0.2}, out=path / "held")
    train(table, out=path / "run")
    return path


def test_a_table_a_file_and_no_file_lost(work):
    output, errors = safeset("suggest-affinity", "validated", "--pairs", "3", cwd=work)
    assert errors == ""
    held = digits_data().for_choices().test
    assert f"digits (validation), validation points: {len(held)}" in output
    for word in ("standard", "rt3", "of the gain", "yours to say", "Written: validated/affinity.toml"):
        assert word in output
    before = (work / "validated" / "affinity.toml").read_text()
    _, errors = safeset("suggest-affinity", "validated", cwd=work, code=1)
    assert "--overwrite" in errors
    assert (work / "validated" / "affinity.toml").read_text() == before
    output, _ = safeset("suggest-affinity", "validated", "--overwrite", "--pairs", "1", "--json", cwd=work)
    result = json.loads(output)
    assert (work / "validated" / "affinity.toml").read_text() != before
    assert (result["trained_on"], len(result["sets"]), result["points"]) == (False, 1, len(held))
    guarantee = "affinity:validated/affinity.toml"
    output, _ = safeset("evaluate", "validated", "--guarantee", guarantee, "--json", cwd=work)
    rows = {row["method"]: row for row in json.loads(output)["rows"]}
    assert rows["joint"]["vra"] == pytest.approx(result["rows"][-2]["vra"])
    safeset("train", "--data", "digits", "--guarantee", guarantee, "--epochs", "1", "--out", "again", cwd=work)
    names = digits_data().class_names
    sets = Affinity.from_file(work / "validated/affinity.toml").bind(names)
    assert parse(Run(work / "again").read_recipe().guarantee).bind(names) == sets


def test_the_test_points_are_never_looked_at(work):
    held = suggest_affinity(Run(work / "held"))
    points = load_run_data(Run(work / "held").read_recipe())
    assert torch.equal(held.labels, points.train.held_out(0.2)[1].y)
    assert not held.trained_on
    alone = suggest_affinity(Run(work / "run"), pairs=2, epsilon=0.1, k=2)
    assert torch.equal(alone.labels, points.train.y)
    assert alone.trained_on
    assert (alone.certificate.epsilon, alone.certificate.ranking.shape[1]) == (0.1, 2)
    assert "the run held out none" in alone.sentences[1]
    assert "safeset suggest-affinity RUN --data FILE" in alone.sentences[1]  # `report` has no use for them


def test_mistakes_are_named(work):
    for arguments, message in (
        (("nowhere",), "the directory of a run"),
        (("run", "--pairs", "0"), "at least one pair"),
        (("run", "--k", "1"), "at least 2"),
        (("run", "--k", "10"), "1..9"),
        (("run", "--out", "no/where.toml"), "a directory for the TOML file"),
        (("run", "--out", "run/recipe.toml"), "a file of the run itself"),
        (("run", "--data", "blobs2d", "--out", "new.toml"), "data as trained on"),
        (("held", "--data", "digits"), "test points of the run"),
    ):
        _, errors = safeset("suggest-affinity", *arguments, cwd=work, code=1)
        assert message in errors
    images = np.random.default_rng(0).integers(0, 256, (40, 8, 8), dtype=np.uint8)
    np.savez(work / "two.npz", x=images, y=np.arange(40) % 2)
    train({"data": {"source": str(work / "two.npz")}, "epochs": 1, "guarantee": "standard"}, out=work / "two")
    with pytest.raises(SafesetError, match="at least 3 classes"):
        suggest_affinity(Run(work / "two"))
