"""Attacks on coverage: a sound calibration keeps every label, a false one is found out."""

import json
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.calibrated import trained_run
from safeset import load
from safeset.audit import audit, coverage_attack
from safeset.audit.audit import audit_run
from safeset.audit.coverage_attack import attack_coverage, coverage_verdict
from safeset.audit.coverage_records import compare_coverage
from safeset.coverage import coverage as coverages
from safeset.coverage.checks import geometry_of
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.numerics.integers import NEVER, Deadline
from safeset.runs.calibrate import read_coverage
from safeset.runs.data import load_run_data
from safeset.runs.evaluate import evaluate_run
from safeset.system.files import write_json

SETTINGS = [{"alpha": 0.1}, {"alpha": 0.1, "score": "soft-min"}, {"alpha": 0.1, "score": "fitted"}]
EPSILON = 0.3


@pytest.fixture(scope="module", params=SETTINGS, ids=["membership", "soft-min", "fitted"])
def run(request, tmp_path_factory):
    return trained_run(tmp_path_factory.mktemp("coverage-attack"), **request.param)


def some(points=100):
    test = digits().test
    return Split(test.x[:points], test.y[:points])


def false(coverage, factor, monkeypatch):
    """The same with a Lipschitz constant that is too small, and nobody who looks."""
    monkeypatch.setattr(coverages, "check_net", lambda *given: None)
    scale = factor * coverage.scale
    return replace(coverage, scale=scale, _geometry=geometry_of(coverage._program, scale, coverage.score))


def test_no_label_that_reaches_its_threshold_is_lost(run, tmp_path):
    coverage = read_coverage(run, load(run.path))
    found = attack_coverage(coverage, some(), EPSILON, tmp_path / "violations", NEVER)
    assert found["points"] == found["of"] == 100
    down = coverage.scores(some().exact, round="down").gather(1, some().y[:, None])[:, 0]
    assert found["reached"] == int((down >= coverage.thresholds[0]).sum()) > 70
    assert found["lost"] == 0
    assert found["violations"] == []
    assert 0.25 < found["fall"]["median"] <= found["fall"]["largest"] <= 1
    assert [row["broken"] > 50 for row in found["control"]][1:] == [True, True]
    assert coverage_verdict(found) == ([], [])
    assert not (tmp_path / "violations").exists()


def test_a_false_constant_is_found_out(run, tmp_path, monkeypatch):
    coverage = false(read_coverage(run, load(run.path)), 0.3, monkeypatch)
    found = attack_coverage(coverage, some(40), EPSILON, tmp_path / "violations", NEVER)
    assert found["violations"]
    least = 0.3 if coverage.score.kind == "fitted" else 1  # the unit of a fitted score is its map's, which stays
    assert found["fall"]["largest"] > least
    for each in found["violations"][:2]:
        saved = np.load(each["file"])
        x, moved = torch.tensor(saved["x"]), torch.tensor(saved["violation"])
        apart = sum(
            (Fraction(one) - Fraction(two)) ** 2
            for one, two in zip(x.flatten().tolist(), moved.flatten().tolist(), strict=True)
        )
        assert apart <= Fraction(EPSILON) ** 2
        label = each["class"]
        within = float(coverage.scores(moved[None], epsilon=EPSILON)[0, label])
        assert within < float(coverage.scores(x[None], round="down")[0, label])
    (bad,), _ = coverage_verdict(found)
    assert bad == f"{len(found['violations'])} violations of coverage"


def test_lost_labels_are_those_of_the_sets(tmp_path, monkeypatch):
    """With a threshold in the middle some labels that reached it are out of the executed set."""
    run = trained_run(tmp_path, alpha=0.5)
    coverage = false(read_coverage(run, load(run.path)), 0.3, monkeypatch)
    coverage = replace(coverage, _scores=coverage._scores / 0.3)
    found = attack_coverage(coverage, some(), EPSILON, tmp_path / "violations", NEVER)
    assert found["lost"] > 0
    for each in [each for each in found["violations"] if each["lost"] and each["file"]][:3]:
        saved = np.load(each["file"])
        x, moved = torch.tensor(saved["x"])[None], torch.tensor(saved["violation"])[None]
        assert coverage.sets(x, allow_empty=True)[0, each["class"]]
        assert not coverage.sets(moved, EPSILON, allow_empty=True)[0, each["class"]]


def test_time_and_an_attack_that_finds_nothing_are_open(run, tmp_path, monkeypatch):
    coverage = read_coverage(run, load(run.path))
    found = attack_coverage(coverage, some(), EPSILON, tmp_path, Deadline(-math.inf))
    assert found["points"] == 64
    _, (said,) = coverage_verdict(found)
    assert "64 of 100" in said
    monkeypatch.setattr(coverage_attack.Attack, "lowered", lambda self, x, y, epsilon: x)
    found = attack_coverage(coverage, some(), EPSILON, tmp_path, NEVER)
    _, (said,) = coverage_verdict(found)
    assert "positive control" in said
    assert attack_coverage(coverage, some(), 0.0, tmp_path, NEVER)["fall"] is None


def test_the_coverage_of_a_stored_evaluation_is_computed_again(tmp_path):
    run = trained_run(tmp_path, alpha=0.1)
    net, data = load(run.path).frozen(), load_run_data(run.read_recipe())
    coverage = read_coverage(run, net)

    def verdict(**changes):
        write_json(run.evaluation, {**stored, **changes})
        return [check["verdict"] for check in compare_coverage(run, coverage, data)]

    stored = json.loads(run.evaluation.read_text())
    assert verdict() == []
    stored, _ = evaluate_run(run, per_class=True, device="cpu")
    assert verdict() == ["same"]
    assert verdict(test="0" * 64) == []
    found = stored["coverage"]
    assert verdict(coverage={**found, "alpha": 0.2}) == ["not stored"]
    for row, name, value in ((1, "clean", 0.5), (1, "guaranteed", 0.99), (0, "size", 1.01), (1, "under_attack", 0.1)):
        rows = [{**one, name: value} if place == row else one for place, one in enumerate(found["rows"])]
        assert verdict(coverage={**found, "rows": rows}) == ["different"], name
    part = {**found["rows"][1]["classes"]["3"], "singletons": 1.0}
    rows = [found["rows"][0], {**found["rows"][1], "classes": {**found["rows"][1]["classes"], "3": part}}]
    assert verdict(coverage={**found, "rows": rows}) == ["different"]
    assert verdict(coverage={**found, "rows": rows}, device="cuda (H200)") == ["made elsewhere"]
    assert verdict(coverage=[]) == verdict(coverage={**found, "curve": {}}) == ["different"]


def test_an_audit_tells(tmp_path, monkeypatch):
    run = trained_run(tmp_path, alpha=0.1)
    quick = {"points": 8, "minutes": 0.1, "device": "cpu"}
    result = audit_run(run, **quick)
    assert result["coverage"]["violations"] == []
    assert {"what": "calibration", "verdict": "same", "said": ""} in result["checks"]
    assert result["verdict"] != "failed", result["reasons"]
    whole = audit.find_calibration

    def lying(*given):
        coverage, checks = whole(*given)
        return false(coverage, 0.2, monkeypatch), checks

    monkeypatch.setattr(audit, "find_calibration", lying)
    result = audit_run(run, **quick)
    assert result["verdict"] == "failed"
    assert any("violations of coverage" in reason for reason in result["reasons"])
    assert all(0 <= each["point"] < len(digits().test) for each in result["coverage"]["violations"])
