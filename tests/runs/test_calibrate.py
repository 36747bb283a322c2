"""Calibrations of runs: points that nothing else has seen, and a file that is never taken for another's."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from helpers.calibrated import SHARE, TABLE, trained_run
from helpers.commands import safeset
from safeset import ArgumentError, Coverage, DataWarning, load, train
from safeset.data.dataset import CALIBRATION_SEED, Dataset, Split, draw_apart, stratify
from safeset.data.embedded import digits
from safeset.data.sources import load_data
from safeset.errors import DataNotFoundError
from safeset.recipes.recipe import OWN_DATA, Recipe
from safeset.runs import calibrate as calibrations
from safeset.runs.calibrate import (
    calibrate_run,
    check_free,
    draw_points,
    fit_to_run,
    how_to_calibrate,
    read_coverage,
    write_calibration,
)
from safeset.runs.data import load_run_data, load_whole
from safeset.runs.run import Run
from safeset.training.train import prepare_training


@pytest.fixture
def run(tmp_path):
    return trained_run(tmp_path)


@pytest.fixture
def calibrated(tmp_path):
    return trained_run(tmp_path, alpha=0.1)


def rows_of(split):
    return {(tuple(x.flatten().tolist()), int(y)) for x, y in zip(split.x, split.y, strict=True)}


# -- the draw ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("extra", [{}, {"validation": True}, {"hold_out": 0.2}])
def test_nothing_else_sees_the_points_that_are_set_apart(extra):
    whole = digits()
    fitted, points = prepare_training(Recipe.from_table({**TABLE, **extra}))
    apart = points.set_apart
    assert len(apart) == round(SHARE * len(whole.train))
    assert fitted.task.set_apart == apart.digest()
    later = load_run_data(fitted)
    for data in (points, later):
        assert rows_of(data.train) | rows_of(data.test) <= rows_of(whole.train) | rows_of(whole.test)
        assert not rows_of(apart) & rows_of(data.train)
        assert not rows_of(apart) & rows_of(data.test) - (rows_of(whole.train) & rows_of(whole.test))
    assert torch.equal(later.train.x, points.train.x)
    assert torch.equal(later.set_apart.x, apart.x)
    assert len(points.train) + len(apart) + len(points.test) * bool(extra.get("validation")) == len(whole.train)


def test_the_draw_is_not_stratified_and_its_seed_is_its_own():
    labels = torch.arange(1000) % 10
    stay, drawn = draw_apart(1000, 0.3)
    assert sorted([*stay.tolist(), *drawn.tolist()]) == list(range(1000))
    assert len(set(torch.bincount(labels[drawn]).tolist())) > 1, "as many of each class: stratified"
    assert not torch.equal(drawn, stratify(torch.zeros(1000, dtype=torch.long), 0.3, seed=0)[1])
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(CALIBRATION_SEED))
    assert set(drawn.tolist()) == set(order[:300].tolist())


@pytest.mark.parametrize("share", [0.01, 0.99])
def test_a_share_of_nothing_or_all_is_refused(share):
    with pytest.raises(ArgumentError, match="training points for calibration"):
        draw_apart(10, share)


@pytest.mark.parametrize("share", [-0.1, 1.0, math.nan])
def test_a_share_that_is_none_is_refused(share):
    with pytest.raises(ArgumentError, match="`calibration` to be a share"):
        Recipe.from_table({**TABLE, "calibration": share})


def test_names_stay_with_their_points():
    split = Split(torch.arange(20.0)[:, None], torch.arange(20) % 2)
    data = Dataset("d", split, split, ("a", "b"), "u", names=(tuple(map(str, range(20))), ()))
    rest = data.for_calibration(0.2)
    assert [float(name) for name in rest.names[0]] == rest.train.x[:, 0].tolist()


def test_the_ranges_of_a_table_are_found_without_the_points_that_are_set_apart(tmp_path):
    """Else the largest value of all could be a calibration point's, and it would not be drawn like new points."""
    random = np.random.default_rng(0)
    lines = [f"{x:.6f},{y:.6f},{'up' if x < y else 'down'}" for x, y in random.random((60, 2))]
    (tmp_path / "points.csv").write_text("\n".join(["a,b,kind", *lines]) + "\n")
    source = str(tmp_path / "points.csv")
    recipe = Recipe.from_table({"data": {"source": source}, "calibration": 0.5, "epochs": 1})
    fitted, points = prepare_training(recipe)
    raw = load_data(source, units="raw").for_calibration(0.5).train.x
    ends = list(zip(raw.amin(dim=0).tolist(), raw.amax(dim=0).tolist(), strict=True))
    assert list(points.ranges.values()) == ends == list(map(tuple, fitted.data.ranges.values()))
    assert list(load_data(source).ranges.values()) != ends
    again = load_whole(fitted).for_calibration(0.5)
    assert torch.equal(again.set_apart.x, points.set_apart.x)
    assert again.set_apart.digest() == fitted.task.set_apart


# -- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_holds_the_calibration_and_where_it_comes_from(run):
    coverage, record = calibrate_run(run, alpha="0.05", k=2, by_class=True, device="cpu", command="safeset calibrate")
    write_calibration(run, record)
    points = load_whole(run.read_recipe()).for_calibration(SHARE).set_apart
    direct = Coverage.calibrate(load(run.path), points.exact, points.y, alpha=0.05, k=2, by_class=True)
    again = read_coverage(run, load(run.path))
    assert torch.equal(again.thresholds, direct.thresholds)
    assert repr(again) == repr(direct) == repr(coverage)
    stored = json.loads(run.calibration.read_text())
    assert stored["points"]["count"] == len(points) == len(coverage)
    assert stored["points"]["digest"] == points.digest() == run.read_recipe().task.set_apart
    assert "at random" in stored["points"]["drawn"]
    assert {"command", "commit", "safeset", "device"} <= set(stored)


def test_a_run_without_points_for_it_names_the_remedy(run):
    text = run.recipe.read_text().replace(f"calibration = {SHARE}\n", "")
    run.recipe.write_text(text)
    with pytest.raises(ArgumentError, match=r"--calibrate 0\.1.*--data"):
        calibrate_run(run, device="cpu")
    assert not run.calibration.exists()
    assert read_coverage(run, load(run.path)) is None


def test_data_that_has_changed_since_is_refused(run):
    """The draw would be another, and some of the points trained on."""
    text = run.recipe.read_text()
    run.recipe.write_text(text.replace(run.read_recipe().task.set_apart, "0" * 64))
    with pytest.raises(ArgumentError, match="as it was when the run was trained"):
        calibrate_run(run, device="cpu")


def test_data_with_strange_classes_names_these_and_not_those_that_may_be_missing(run, tmp_path):
    names = np.array(["0", "1", "two"])
    np.savez(tmp_path / "few.npz", x=np.zeros((6, 1, 8, 8), np.float32), y=np.arange(6) % 3, class_names=names)
    recipe, file = run.read_recipe(), str(tmp_path / "few.npz")
    with pytest.raises(ArgumentError, match=r"3 classes, not among them: two\.$"):
        draw_points(run, recipe, file)
    with pytest.raises(ArgumentError, match="3 classes, not among them: two, missing: 2, 3, 4, 5, 6"):
        load_run_data(recipe, file)


def test_the_runs_own_data_is_refused_by_name_and_by_content(run, tmp_path):
    recipe = run.read_recipe()
    with pytest.raises(ArgumentError, match=r"its own training and test data.*Leave out --data"):
        draw_points(run, recipe, "digits")
    with pytest.raises(ArgumentError, match=r"its own training and test data.*train with --calibrate 0\.1"):
        draw_points(run, replace(recipe, calibration=0.0), "digits")  # nothing was kept: leaving --data out is no help
    whole = digits()
    names = np.array(whole.class_names)
    np.savez(tmp_path / "copy.npz", x=whole.train.x.numpy(), y=whole.train.y.numpy(), class_names=names)
    with pytest.raises(ArgumentError, match="1,198 of 1,198 points are in the data of the run"):
        draw_points(run, recipe, str(tmp_path / "copy.npz"))


def test_own_points_are_taken_whole_and_may_lack_a_class(run, tmp_path):
    recipe, whole = run.read_recipe(), digits()
    some = (whole.test.y != 3).nonzero()[:, 0][:100]
    x = whole.test.x[some].clone()
    x[:, 0, 0, 0] = 1 + torch.arange(100, dtype=torch.uint8)  # a pixel that is always 0: none is known
    x[:5] = whole.test.x[some][:5]
    rest = np.array([name for name in whole.class_names if name != "3"])
    y = whole.test.y[some] - (whole.test.y[some] > 3).long()
    np.savez(tmp_path / "new.npz", x=x.numpy(), y=y.numpy(), class_names=rest)
    with pytest.warns(DataWarning, match=r"5 points of .* are in the data of the run too"):
        drawn = draw_points(run, recipe, str(tmp_path / "new.npz"))
    assert rows_of(drawn.points) == rows_of(Split(x, whole.test.y[some]))
    assert drawn.known == 5


def test_points_that_cannot_be_compared_with_the_runs_data_are_warned_of(run, tmp_path, monkeypatch):
    whole = digits()
    np.savez(tmp_path / "moved.npz", x=whole.train.x.numpy(), y=whole.train.y.numpy(), class_names=whole.class_names)

    def gone(recipe, source=None, *others, **more):
        if source is None:
            raise ArgumentError("the data was moved")
        return load_whole(recipe, source, *others, **more)

    monkeypatch.setattr("safeset.runs.calibrate.load_whole", gone)
    with pytest.warns(DataWarning, match="was not compared with it"):
        drawn = draw_points(run, run.read_recipe(), str(tmp_path / "moved.npz"))
    assert drawn.known is None


@pytest.mark.parametrize("kept", [0.2, 0.0])
def test_the_data_of_a_run_is_not_taken_for_other_data_where_it_has_moved(tmp_path, kept):
    """Its points were trained on; nobody can compare them with what is no longer there, but for what the run says."""
    whole, file = digits(), tmp_path / "mine.npz"
    np.savez(file, x=whole.train.x.numpy(), y=whole.train.y.numpy(), class_names=whole.class_names)
    table = {**TABLE, "data": {"source": str(file)}, "epochs": 1, "calibration": kept}
    train(table, out=tmp_path / "run", device="cpu", progress=False)
    run = Run(tmp_path / "run")
    file.rename(tmp_path / "moved.npz")
    remedy = (
        "Put it back to .*mine.npz, or a link to it; then leave out --data" if kept else "Name points that were not"
    )
    with pytest.raises(ArgumentError, match=f"its own training and test data, moved.*{remedy}"):
        draw_points(run, run.read_recipe(), str(tmp_path / "moved.npz"))
    (tmp_path / "moved.npz").rename(file)
    if kept:
        assert len(draw_points(run, run.read_recipe(), None).points)


def test_remedies_lead_somewhere(run, tmp_path):
    whole, recipe = digits(), run.read_recipe()
    names = np.array(whole.class_names)
    assert how_to_calibrate(run) == f"First: safeset calibrate {run.path}"
    file = tmp_path / "test.npz"
    np.savez(file, x=whole.test.x.numpy(), y=whole.test.y.numpy(), class_names=names)
    with pytest.raises(ArgumentError, match=r"599 of 599 points.*Evaluations are made with its test points"):
        draw_points(run, recipe, str(file))
    x = whole.test.x.clone()
    x[:, 0, 0, 0] = 3  # a pixel that is always 0: none is known
    np.savez(file, x=x.numpy(), y=whole.test.y.numpy(), class_names=names)
    coverage, record = calibrate_run(run, source=str(file), device="cpu")
    write_calibration(run, record)
    other = load(run.path)
    other.network[-1].bias.data += 1
    assert how_to_calibrate(run, "Again") == f"Again: safeset calibrate {run.path} --data {file}"
    with pytest.raises(ArgumentError, match=f"safeset calibrate {run.path} --data {file} --overwrite"):
        read_coverage(run, other)
    assert read_coverage(run, load(run.path)).to_record() == coverage.to_record()


def test_a_run_that_has_kept_nothing_needs_points_of_ones_own(tmp_path):
    np.savez(tmp_path / "few.npz", x=digits().train.x.numpy(), y=digits().train.y.numpy())
    table = {**TABLE, "data": {"source": str(tmp_path / "few.npz")}, "epochs": 1, "calibration": 0.0}
    train(table, out=tmp_path / "run", device="cpu", progress=False)
    run = Run(tmp_path / "run")
    assert how_to_calibrate(run) == f"First: safeset calibrate {run.path} --data FILE"
    (tmp_path / "few.npz").rename(tmp_path / "moved.npz")
    with pytest.raises(DataNotFoundError, match=f"the data of the run at {tmp_path}/few.npz, but nothing.*Put it back"):
        load_run_data(run.read_recipe())


def test_other_data_without_points_to_test_names_the_remedy(run, tmp_path):
    some = torch.cat([(digits().train.y == label).nonzero()[:2, 0] for label in range(10)])
    x, names = digits().train.x[some].numpy(), np.array(digits().class_names)
    np.savez(tmp_path / "few.npz", x=x, y=digits().train.y[some].numpy(), class_names=names)
    with pytest.raises(ArgumentError, match=r"but got none among 20\. A fifth of each class is"):
        load_run_data(run.read_recipe(), str(tmp_path / "few.npz"))


def test_an_unfinished_training_is_not_calibrated(run):
    net = load(run.path)
    run.save(net, unfinished="epoch 1 of 2")
    with pytest.warns(UserWarning, match="not ended"), pytest.raises(ArgumentError, match="training end first"):
        calibrate_run(run, device="cpu")


def test_a_calibration_is_kept_and_goes_with_its_weights(calibrated, monkeypatch):
    with pytest.raises(ArgumentError, match="--overwrite"):
        check_free(calibrated, overwrite=False)
    check_free(calibrated, overwrite=True)
    with monkeypatch.context() as patch:
        patch.setattr("os.access", lambda path, mode: False)
        with pytest.raises(ArgumentError, match=r"which cannot be written into.*calibrate the copy"):
            check_free(calibrated, overwrite=True)  # before long work
    calibrated.forget_model()
    assert not calibrated.calibration.exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda stored: "{",
        lambda stored: "[]",
        lambda stored: {**stored, "format": "safeset calibration 2"},
        lambda stored: {**stored, "coverage": None},
        lambda stored: {**stored, "coverage": {**stored["coverage"], "scale": 0.001}},
        lambda stored: {**stored, "coverage": {**stored["coverage"], "program": "0" * 64}},
        lambda stored: {**stored, "coverage": {**stored["coverage"], "scores": stored["coverage"]["scores"][1:]}},
    ],
    ids=["no JSON", "no table", "format", "nothing in it", "scale", "weights", "a score less"],
)
def test_a_calibration_that_does_not_fit_is_an_error_with_its_remedy(calibrated, change):
    changed = change(json.loads(calibrated.calibration.read_text()))
    calibrated.calibration.write_text(changed if isinstance(changed, str) else json.dumps(changed))
    with pytest.raises(ArgumentError, match=r"calibration\.json.*safeset calibrate .*run --overwrite") as caught:
        read_coverage(calibrated, load(calibrated.path))
    assert str(caught.value).count("calibration.json") == 1


def test_the_command(run):
    work = run.path.parent
    out, _ = safeset("calibrate", "run", "--alpha", "0.2", "--confidence", "0.95", cwd=work)
    assert "Covers: with probability ≥ 80 %, with 95 % confidence in this calibration set" in out
    assert "certif" not in out.lower().replace("`certify`", "")
    stored = json.loads(run.calibration.read_text())
    assert stored["command"] == "safeset calibrate run --alpha 0.2 --confidence 0.95"
    _, errors = safeset("calibrate", "run", cwd=work, code=1)
    assert "--overwrite" in errors
    out, _ = safeset("calibrate", "run", "--overwrite", "--score", "soft-min", "--tau", "0.2", "--json", cwd=work)
    assert json.loads(out) == json.loads(run.calibration.read_text())
    assert json.loads(out)["coverage"]["tau"] == 0.2
    _, errors = safeset("calibrate", "run", "--overwrite", "--score", "fitted", "--tau", "0.2", cwd=work, code=1)
    assert "neither `k` nor `tau`" in errors
    before = run.calibration.read_text()
    for wrong in (["--alpha", "1.5"], ["--data", "nowhere.npz"]):
        _, errors = safeset("calibrate", "run", "--overwrite", *wrong, cwd=work, code=1)
        assert "Expected" in errors
    assert run.calibration.read_text() == before
    out, errors = safeset("calibrate", "run", "--overwrite", "--alpha", "0.0001", cwd=work)
    assert "Every class is in every set: at least 9,999 points are needed" in errors
    labels = json.loads(run.calibration.read_text())["coverage"]["labels"]
    fewest = min(range(10), key=labels.count)  # α so that this class, and perhaps others, has too few points
    alpha = f"1/{labels.count(fewest) + 2}"
    _, errors = safeset("calibrate", "run", "--overwrite", "--by-class", "--alpha", alpha, cwd=work)
    found = re.search(r"Note: \d of 10 classes (is|are) in every set \(([^)]*)\): at least", errors)
    assert str(fewest) in found[2].split(", ")


def test_a_fit_sees_no_point_that_is_kept_or_of_the_test(run, monkeypatch):
    seen = []
    monkeypatch.setattr(calibrations, "fit_logits", lambda net, x, y: seen.append(Split(x, y)))
    fit_to_run(load(run.path), run.read_recipe())
    data = load_run_data(run.read_recipe())
    assert len(seen[0]) == len(data.train)
    assert rows_of(seen[0]) == rows_of(Split(data.train.exact, data.train.y))
    assert not rows_of(seen[0]) & rows_of(Split(data.set_apart.exact, data.set_apart.y))


def test_a_fit_without_the_data_of_the_run_says_what_is_missing(run):
    """`--data` names the points of the calibration, so it is no remedy here."""
    recipe = run.read_recipe()
    for source in (OWN_DATA, "nowhere.csv"):
        gone = replace(recipe, data=replace(recipe.data, source=source))
        with pytest.raises(ArgumentError, match=r"training points of the run, for the score 'fitted'.*soft-min"):
            fit_to_run(load(run.path), gone)


def test_a_fitted_score_in_commands(run):
    """Fitted to training points of the run; `evaluate` takes it from the file."""
    work = run.path.parent
    out, _ = safeset("calibrate", "run", "--score", "fitted", cwd=work)
    assert "Covers: with probability ≥ 90 %" in out
    stored = json.loads(run.calibration.read_text())
    assert stored["coverage"]["score"] == "fitted"
    assert all(sum(row) == 0 for row in stored["coverage"]["fit"]["entries"])
    coverage = read_coverage(run, load(run.path))
    test = digits().test
    sets = coverage.sets(test.exact)
    assert float(sets.gather(1, test.y[:, None]).double().mean()) > 0.85
    assert float(sets.sum(dim=1).double().mean()) < 4.5  # 5.2 with membership: the net was trained for moments only
    safeset("evaluate", "run", cwd=work)
    found = json.loads((run.path / "evaluation.json").read_text())["coverage"]
    assert found["score"] == "fitted"
    assert found["rows"][1]["guaranteed"] <= found["rows"][1]["under_attack"] <= found["rows"][1]["clean"]
