"""Sets that cover, in the commands: beside certificates and never in their words, and evaluated on test points."""

import csv
import io
import json

import numpy as np
import pytest
import torch

from helpers.calibrated import trained_run
from helpers.commands import safeset
from safeset import ArgumentError, Coverage, load
from safeset.coverage.attack import Attack
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.runs.calibrate import read_coverage
from safeset.runs.certify_files import certify_files
from safeset.runs.evaluate import evaluate_run
from safeset.runs.evaluate_coverage import SEEN, evaluate_coverage
from safeset.runs.run import Run

SETTINGS = [{"alpha": 0.4}, {"alpha": 0.4, "score": "soft-min"}, {"alpha": 0.4, "k": 2, "by_class": True}]


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("covering")
    trained_run(path, alpha=0.1)
    np.savez(path / "some.npz", x=digits().test.x[:6].numpy())
    return path


def records(work, **options):
    return list(certify_files(work / "run", [str(work / "some.npz")], device="cpu", stdin=None, **options))


# -- certify ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [None, 0.0, 0.6])
def test_a_record_has_both_sets(work, epsilon):
    found = records(work, epsilon=epsilon)
    net = load(work / "run")
    coverage = read_coverage(Run(work / "run"), net)
    x = digits().test.exact[:6]
    sets = coverage.sets(x, net.epsilon if epsilon is None else epsilon)
    answers = net.certify(x, epsilon=epsilon).records()
    for record, members, answer in zip(found, sets.tolist(), answers, strict=True):
        assert record["coverage_set"]["classes"] == [str(place) for place, member in enumerate(members) if member]
        assert record["coverage_set"]["alpha"] == 0.1
        assert record["coverage_set"]["epsilon"] == record["epsilon"] == (0.3 if epsilon is None else epsilon)
        assert (record["core"], record["promise"]) == (answer["core"], answer["promise"])
        assert "with probability ≥ 90 %, on average over calibration sets" in record["coverage_set"]["words"]
        assert "certif" not in record["coverage_set"]["words"]
        assert "probab" not in record["promise"]


def test_a_level_that_is_none_is_refused_before_anything_is_proved(work, monkeypatch):
    monkeypatch.setattr("safeset.runs.certify_files.open_model", lambda *given, **options: pytest.fail("proved"))
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        records(work, alpha="1.5")


def test_another_level(work):
    sizes = [
        [len(one["coverage_set"]["classes"]) for one in records(work, alpha=alpha)] for alpha in ("0.3", None, "0.01")
    ]
    assert all(few <= some <= many for few, some, many in zip(*sizes, strict=True))
    assert sizes[0] != sizes[2]
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        records(work, alpha="1")


def test_certify_says_why_all_classes_are_in_every_set(work):
    """A set of all classes is no answer: its reader learns what is missing."""
    notes = []
    found = records(work, alpha=0.001, report=notes.append)
    assert all(len(record["coverage_set"]["classes"]) == 10 for record in found)
    assert "Of the coverage sets: Every class is in every set: at least 999 points are needed." in notes
    notes.clear()
    records(work, report=notes.append)
    assert not any("coverage sets" in note for note in notes)


def test_a_level_without_a_calibration_names_the_command(tmp_path, work):
    run = trained_run(tmp_path)
    some = [str(work / "some.npz")]
    assert "coverage_set" not in next(certify_files(run.path, some, device="cpu", stdin=None))
    with pytest.raises(ArgumentError, match="First: safeset calibrate"):
        next(certify_files(run.path, some, device="cpu", stdin=None, alpha="0.1"))


def test_a_damaged_calibration_stops_certify_and_evaluate(tmp_path, work):
    run = trained_run(tmp_path, alpha=0.1)
    stored = json.loads(run.calibration.read_text())
    stored["coverage"]["program"] = "0" * 64
    run.calibration.write_text(json.dumps(stored))
    for typed in (["certify", "run", work / "some.npz"], ["evaluate", "run"]):
        out, errors = safeset(*typed, cwd=tmp_path, code=1)
        assert not out
        assert "the network that was calibrated" in errors
        assert "safeset calibrate run --overwrite" in errors


def test_what_is_printed_keeps_the_two_apart(work):
    out, _ = safeset("certify", "run", "some.npz", cwd=work)
    certified, covers = (next(line for line in out.splitlines() if line.startswith(word)) for word in ("Cert", "Cov"))
    assert "no perturbation of L2 norm ≤ 0.3 can" in certified
    assert "probab" not in certified
    assert "with probability ≥ 90 %, on average over calibration sets, for inputs like the 300 calibration" in covers
    assert "no perturbation" not in covers
    out, _ = safeset("certify", "run", "some.npz", "--epsilon", "9", cwd=work)
    assert "Certified: nothing at ε = 9." in out
    assert "can change what holds" not in out
    out, _ = safeset("certify", "run", "some.npz", "--csv", "--alpha", "0.2", cwd=work)
    rows = list(csv.DictReader(io.StringIO(out)))
    wanted = [one["coverage_set"]["classes"] for one in records(work, alpha="0.2")]
    assert [row["coverage_set"].split("|") for row in rows] == wanted
    assert {row["coverage_alpha"] for row in rows} == {"0.2"}


# -- evaluate ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", SETTINGS, ids=["membership", "soft-min", "by class"])
def test_an_evaluation_against_loops(work, settings):
    net, data = load(work / "run"), digits()
    coverage = Coverage.calibrate(net, data.train.exact[::4], data.train.y[::4], **settings)
    some = Split(data.test.x[:120], data.test.y[:120])
    found = evaluate_coverage(coverage, some, [0.3, 0.3, 0.0], per_class=True)
    assert [row["epsilon"] for row in found["rows"]] == [0.0, 0.3]
    down = coverage.scores(some.exact, round="down")
    for row in found["rows"]:
        sets = coverage.sets(some.exact, row["epsilon"]).tolist()
        labels = some.y.tolist()
        sizes = sorted(map(sum, sets))
        assert row["clean"] == sum(one[label] for one, label in zip(sets, labels, strict=True)) / 120
        needed = coverage.thresholds.tolist()
        reached = [one[label] >= needed[label] for one, label in zip(down.tolist(), labels, strict=True)]
        assert row["guaranteed"] == sum(reached) / 120
        assert row["guaranteed"] <= row["under_attack"] <= row["clean"]
        assert row["size"] == sum(sizes) / 120
        assert row["size_quantiles"] == {"0.1": sizes[11], "0.5": sizes[59], "0.9": sizes[107]}
        assert row["singletons"] == sizes.count(1) / 120
        parts = row["classes"]
        assert sum(part["points"] for part in parts.values()) == 120
        for name in ("clean", "guaranteed", "under_attack", "size"):
            assert sum(part[name] * part["points"] for part in parts.values()) / 120 == pytest.approx(row[name])
    assert found["rows"][0]["under_attack"] == found["rows"][0]["clean"]
    assert found["rows"][1]["under_attack"] < found["rows"][1]["clean"], "the attack finds nothing"
    assert found["curve"]["shares"] == coverage.curve(some.exact, some.y, [0.0, 0.3]).shares


@pytest.mark.parametrize("settings", SETTINGS[:2], ids=["membership", "soft-min"])
def test_the_attack_stays_in_the_ball_and_lowers_scores(work, settings):
    net, data = load(work / "run"), digits()
    coverage = Coverage.calibrate(net, data.train.exact[::4], data.train.y[::4], **settings)
    x, y = data.test.exact[:40], data.test.y[:40]
    moved = Attack(coverage).lowered(x, y, 0.3)
    assert float((moved - x).flatten(1).norm(dim=1).max()) <= 0.3
    before, after = (coverage.scores(each).gather(1, y[:, None])[:, 0] for each in (x, moved))
    assert bool((after <= before).all())
    assert float((before - after).mean()) > 0.05
    assert float((before - after).max()) <= 0.3
    assert torch.equal(Attack(coverage).lowered(x, y, 0.0), x)


def test_the_command_adds_coverage_and_keeps_the_rest(work):
    before = json.loads((work / "run" / "evaluation.json").read_text())
    assert "coverage" not in before
    out, _ = safeset("evaluate", "run", "--per-class", cwd=work)
    after = json.loads((work / "run" / "evaluation.json").read_text())
    assert set(after) == {*before, "coverage"}
    found = after["coverage"]
    assert found["calibration_points"] == 300
    assert found["rows"][0]["points"] == after["points"] == len(digits().test)
    assert found["rows"][1]["guaranteed"] > 0.85
    for text in ("Sets that cover ≥ 90 %", "guaranteed", "under attack", "Sets for ε = 0.3, by class"):
        assert text in out


def test_classes_in_every_set_are_named(work):
    net, data = load(work / "run"), digits()
    x, y = data.train.exact[::4], data.train.y[::4]
    coverage = Coverage.calibrate(net, x[(y != 3) & (y != 5)], y[(y != 3) & (y != 5)], by_class=True)
    found = evaluate_coverage(coverage, Split(data.test.x[:50], data.test.y[:50]), [0.3])
    assert found["notes"] == ["2 of 10 classes are in every set (3, 5): at least 9 points of a class are needed."]
    assert "notes" not in evaluate_coverage(coverage.at(by_class=False), Split(data.test.x[:9], data.test.y[:9]), [])


def test_points_that_were_calibrated_with_are_noticed(tmp_path):
    """By digest, whatever the file is called, and whichever of its points are the test."""
    run, test = trained_run(tmp_path), digits().test
    x = test.x[:200].clone()
    x[:, 0, 0, 0] = 3  # a pixel that is 0 in all others
    y, order = test.y[:200], torch.randperm(200)
    for name, some, labels in (("mine", x, y), ("others", x, y.roll(1)), ("shuffled", x[order], y[order])):
        np.savez(tmp_path / f"{name}.npz", x=some.numpy(), y=labels.numpy(), class_names=digits().class_names)
    safeset("calibrate", "run", "--data", "mine.npz", cwd=tmp_path)
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    for name, noticed in (("moved.npz", True), ("others.npz", False), ("shuffled.npz", True)):
        out, errors = safeset("evaluate", "run", "--data", name, "--out", "found.json", cwd=tmp_path)
        found = json.loads((tmp_path / "found.json").read_text())
        assert (found["coverage"].get("notes") == [SEEN]) == noticed
        assert ("Note: These points are those of the calibration" in " ".join((out + errors).split())) == noticed
    found, _ = evaluate_run(run, device="cpu")
    assert "notes" not in found["coverage"]
    split = {"x": test.x[100:].numpy(), "y": test.y[100:].numpy(), "x_test": x.numpy(), "y_test": y.numpy()}
    np.savez(tmp_path / "split.npz", **split, class_names=digits().class_names)
    found, _ = evaluate_run(run, source=str(tmp_path / "split.npz"), device="cpu")
    assert found["coverage"]["notes"] == [SEEN]  # the test split alone is what it was calibrated with
