"""Calibrations in audits: made again with the points that they say they have, and damage that can be recognised."""

import json

import numpy as np
import pytest

from helpers.calibrated import TABLE, trained_run
from helpers.commands import safeset
from safeset import ArgumentError, load
from safeset import train as safeset_train
from safeset.audit.audit import audit_run
from safeset.audit.coverage_records import find_calibration, load_named
from safeset.audit.records import OPEN
from safeset.coverage.checks import coarse
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.runs.calibrate import OWN, calibrate_run, draw_points, write_calibration
from safeset.runs.run import Run


def checked(run, **named):
    coverage, checks = find_calibration(run, run.read_recipe(), load(run.path).frozen(), **named)
    return coverage is not None, checks


def verdicts(run, **named):
    found, checks = checked(run, **named)
    return found, [check["verdict"] for check in checks]


def stored(run):
    return json.loads(run.calibration.read_text())


def write(run, record, **inner):
    run.calibration.write_text(json.dumps({**record, "coverage": {**record["coverage"], **inner}}))


def new_points(path, count=120, shade=3):
    """Digits that nothing has seen: a pixel that is 0 in all others is not."""
    test = digits().test
    x = test.x[:count].clone()
    x[:, 0, 0, 0] = shade
    np.savez(path, x=x.numpy(), y=test.y[:count].numpy(), class_names=np.array(digits().class_names))
    return str(path)


@pytest.fixture
def own(tmp_path):
    """A run that was calibrated with the user's own points, in a file beside it."""
    run = trained_run(tmp_path)
    write_calibration(run, calibrate_run(run, source=new_points(tmp_path / "mine.npz"), device="cpu")[1])
    return run


def test_kept_points_give_their_scores_again(tmp_path):
    run = trained_run(tmp_path)
    assert verdicts(run) == (False, [])
    _, record = calibrate_run(run, device="cpu", alpha="0.05", by_class=True)
    write(run, record)
    assert verdicts(run) == (True, ["same"])
    inner = record["coverage"]
    write(run, record, scores=[one + 0.01 for one in inner["scores"]])  # thresholds that are too high
    assert verdicts(run) == (True, ["different"])
    write(run, record, scores=[one - 0.01 for one in inner["scores"]])
    assert verdicts(run) == (True, ["different"])
    write(run, record, labels=inner["labels"][::-1])
    assert verdicts(run) == (True, ["different"])
    for factor, found in ((0.5, False), (2.0, True)):
        write(run, record, scale=coarse(inner["scale"] * factor))
        assert verdicts(run) == (found, ["different"])


def test_a_calibration_where_less_was_proved_is_no_other(tmp_path):
    """Its Lipschitz constant is larger than the one proved here, and its scores are those of that constant."""
    run = trained_run(tmp_path, alpha=0.1)
    record = stored(run)
    write(run, record, scale=coarse(1.01 * record["coverage"]["scale"]))
    coverage, _ = find_calibration(run, run.read_recipe(), load(run.path).frozen())
    points = draw_points(run, run.read_recipe(), None).points
    again = coverage.scores(points.exact, round="down").gather(1, points.y[:, None])[:, 0]
    inner = coverage.to_record() | {"scores": again.tolist(), "labels": points.y.tolist()}
    write(run, record, **inner)
    assert verdicts(run) == (True, ["same"])


def test_made_elsewhere_is_no_excuse_for_damage(tmp_path):
    run = trained_run(tmp_path, alpha=0.1)
    record = {**stored(run), "device": "cuda (H200)"}
    write(run, record, program="0" * 64)
    assert verdicts(run) == (False, ["made elsewhere"])
    write(run, record, program="0" * 64, scores=record["coverage"]["scores"][1:])
    assert verdicts(run) == (False, ["different"])


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {**record, "points": None},
        lambda record: {name: value for name, value in record.items() if name != "points"},
        lambda record: {**record, "points": {**record["points"], "count": 299}},
        lambda record: {**record, "points": {**record["points"], "digest": "0" * 64}},
        lambda record: {**record, "points": {**record["points"], "digest": 7}},
        lambda record: {
            **record,
            "coverage": {
                **record["coverage"],
                **{name: record["coverage"][name][:50] for name in ("scores", "labels")},
            },
        },
        lambda record: {
            **record,
            "points": {**record["points"], "count": 50},
            "coverage": {
                **record["coverage"],
                **{name: record["coverage"][name][:50] for name in ("scores", "labels")},
            },
        },
    ],
    ids=["no table", "left out", "count", "digest", "no digest", "cut", "cut twice"],
)
def test_what_does_not_fit_together_is_different(tmp_path, change):
    run = trained_run(tmp_path, alpha=0.1)
    run.calibration.write_text(json.dumps(change(stored(run))))
    assert verdicts(run) == (True, ["different"])


def test_own_points_are_read_again_where_they_lie(own, tmp_path, monkeypatch):
    monkeypatch.chdir("/")  # the path is one from the root
    assert stored(own)["points"]["source"] == str(tmp_path / "mine.npz")
    assert verdicts(own) == (True, ["same"])
    record = stored(own)
    write(own, record, scores=[one + 0.01 for one in record["coverage"]["scores"]])
    assert verdicts(own) == (True, ["different"])
    with pytest.raises(ArgumentError, match=r"points of your own.*Leave it out"):
        load_named(trained_run(tmp_path / "other", alpha=0.1), own.read_recipe(), str(tmp_path / "mine.npz"))


def test_own_points_that_are_gone_or_changed_are_asked_for(own, tmp_path):
    recipe, file = own.read_recipe(), tmp_path / "mine.npz"
    file.rename(tmp_path / "moved.npz")
    found, (check,) = checked(own)
    assert (found, check["verdict"]) == (True, "not made again")
    assert check["said"] == f"its points are not found at {file}; to name them: --calibration-data FILE"
    named = load_named(own, recipe, str(tmp_path / "moved.npz"))
    assert verdicts(own, named=named) == (True, ["same"])
    new_points(file, shade=4)
    found, (check,) = checked(own)
    assert (found, check["verdict"]) == (True, "not made again")
    assert "has other points now" in check["said"]
    record, other = stored(own), load_named(own, recipe, str(file))
    found, (check,) = checked(own, named=other)
    assert (found, check["verdict"]) == (True, "different")
    assert f"has {len(other)} points, not the {record['points']['count']} that" in check["said"]
    for source in (None, 3, "", "a\0b", "x" * 5000):
        write(own, {**record, "points": {**record["points"], "source": source}})
        assert verdicts(own) == (True, ["not made again"])


def test_points_of_the_run_are_not_the_users_own(own, tmp_path):
    """What `calibrate` refuses, a file can still say."""
    run, train = own, digits().train
    some = Split(train.x[:200], train.y[:200])
    path = tmp_path / "seen.npz"
    np.savez(path, x=some.x.numpy(), y=some.y.numpy(), class_names=np.array(digits().class_names))
    with pytest.raises(ArgumentError, match="are in the data of the run"):
        calibrate_run(run, source=str(path), device="cpu")
    named = load_named(run, run.read_recipe(), str(path))
    record = stored(run)
    about = {"count": len(named), "from": str(path), "source": str(path), "digest": named.digest(), OWN: 0}
    scores = {"scores": [0.0] * len(named), "labels": named.y.tolist()}
    write(run, {**record, "points": about}, **scores)
    found, (check,) = checked(run)
    assert (found, check["verdict"]) == (True, "different")
    assert "200 of its 200 points are in the data of the run" in check["said"]


def digits_run(folder):
    """A run on digits in a file of its own, of which 200 points are for training."""
    train, names = digits().train, np.array(digits().class_names)
    x, y = train.x.numpy(), train.y.numpy()
    np.savez(folder / "own.npz", x=x[:200], y=y[:200], x_test=x[200:300], y_test=y[200:300], class_names=names)
    table = {**TABLE, "data": {"source": str(folder / "own.npz")}, "calibration": 0.0, "epochs": 20}
    safeset_train(table, out=folder / "digits", device="cpu", progress=False)
    return Run(folder / "digits")


def with_own(run, folder, places):
    """Calibrated with some of the training points of digits: those of the run are the first 200."""
    train, names = digits().train, np.array(digits().class_names)
    np.savez(folder / "mine.npz", x=train.x[places].numpy(), y=train.y[places].numpy(), class_names=names)
    write_calibration(run, calibrate_run(run, source=str(folder / "mine.npz"), device="cpu")[1])


@pytest.mark.filterwarnings("ignore::safeset.errors.DataWarning")
def test_points_that_were_trained_on_are_not_passed(tmp_path):
    """Half of a calibration, each point with a score of training: the sets hold the true class too rarely."""
    run = digits_run(tmp_path)
    with_own(run, tmp_path, [*range(300, 400)])
    assert verdicts(run) == (True, ["same"])
    with_own(run, tmp_path, [*range(40), *range(300, 400)])
    found, (check,) = checked(run)
    assert (found, check["verdict"]) == (True, "points trained on")
    assert check["said"] == "40 of its 140 points are in the training data too"
    assert "in the training data too" in OPEN["points trained on"]  # which is never passed
    record = stored(run)
    write(run, record, poisoned=39)
    assert verdicts(run) == (True, ["points trained on"])
    write(run, record, poisoned=40)  # as an attacker's they are allowed for
    assert verdicts(run) == (True, ["same"])
    with_own(run, tmp_path, [*range(200, 240), *range(300, 400)])  # of the test: nobody trained on them
    assert verdicts(run) == (True, ["same"])


@pytest.mark.filterwarnings("ignore::safeset.errors.DataWarning")
def test_points_that_cannot_be_compared_are_not_passed(tmp_path):
    """An audit on other data: those of the run are hidden, and the calibration is made of them."""
    run = digits_run(tmp_path)
    (tmp_path / "own.npz").rename(tmp_path / "hidden.npz")
    with_own(run, tmp_path, [*range(150)])
    assert stored(run)["points"][OWN] == "not compared"
    assert verdicts(run) == (True, ["not compared"])
    assert "not known whether its points were trained on" in OPEN["not compared"]  # which is never passed
    (tmp_path / "hidden.npz").rename(tmp_path / "own.npz")
    assert verdicts(run) == (True, ["different"])


def test_coverage_without_its_calibration_is_not_passed(tmp_path):
    run = trained_run(tmp_path)
    run.evaluation.write_text(json.dumps({**json.loads(run.evaluation.read_text()), "coverage": {}}))
    assert verdicts(run) == (False, ["not stored"])


@pytest.mark.parametrize("length", [0, 1, 200, -2])
def test_a_calibration_that_was_cut_fails_the_audit(tmp_path, length):
    run = trained_run(tmp_path, alpha=0.1)
    run.calibration.write_text(run.calibration.read_text()[:length])
    result = audit_run(run, points=4, minutes=0.1, device="cpu")
    assert result["verdict"] == "failed"
    assert "calibration: different" in result["reasons"]


def test_the_command(own, tmp_path):
    (tmp_path / "mine.npz").rename(tmp_path / "moved.npz")
    out, _ = safeset("audit", "run", "--points", "4", "--budget", "0.1", cwd=tmp_path)
    assert "calibration: not made again, because the points that it was made with were not" in " ".join(out.split())
    typed = ["audit", "run", "--points", "4", "--budget", "0.1", "--calibration-data"]
    safeset(*typed, "moved.npz", cwd=tmp_path)
    checks = json.loads((own.path / "audit.json").read_text())["checks"]
    assert {"what": "calibration", "verdict": "same", "said": ""} in checks
    safeset(*typed, new_points(tmp_path / "others.npz", shade=5), cwd=tmp_path, code=1)
    assert json.loads((own.path / "audit.json").read_text())["verdict"] == "failed"
    _, errors = safeset(*typed, "nowhere.npz", cwd=tmp_path, code=1)
    assert "nothing is there" in errors
