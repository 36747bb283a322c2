"""Models that come with safeset: found by their names, small, and never written into."""

import json
from pathlib import Path

import numpy as np
import pytest

import safeset as package
from helpers.commands import safeset
from safeset import ArgumentError
from safeset.recipes.toml import read_table
from safeset.runs import library
from safeset.runs.run import Run

NAME = "blobs2d/rt2"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("library")
    safeset("train", NAME, "--epochs", "1", "--out", path / "models" / NAME, cwd=path)
    np.savez(path / "point.npz", x=np.array([[0.5, 0.5]], dtype=np.float32))
    return path


@pytest.fixture
def before(work):
    """Python with which a process finds the models of ``work``."""
    folder = f"pathlib.Path({str(work / 'models')!r})"
    return f"import pathlib\nfrom safeset.runs import library\nlibrary.model_folder = lambda: {folder}"


@pytest.fixture
def unchanged(work):
    """Nothing is written among the models."""
    folder = work / "models"

    def contents():
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}

    found = contents()
    yield
    assert contents() == found


@pytest.fixture
def shipped(work, monkeypatch):
    monkeypatch.setattr(library, "model_folder", lambda: work / "models")


def test_a_name_is_loaded_and_a_path_comes_first(work, shipped, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert library.list_trained() == [NAME]
    assert package.load(NAME).class_names == package.load(work / "models" / NAME).class_names
    (tmp_path / NAME).mkdir(parents=True)
    with pytest.raises(ArgumentError, match=r"no recipe\.toml"):
        package.load(NAME)


def test_unknown_names_are_answered(shipped, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="'blobs2d/rt2'"):
        package.load("blob2d/rt2")
    with pytest.raises(ArgumentError, match="safeset models"):
        package.load("elsewhere")


def test_certify_and_the_listing(work, before, unchanged):
    output, _ = safeset("certify", NAME, "point.npz", "--json", cwd=work, before=before)
    assert "certified" in json.loads(output)
    assert f"Trained:   {NAME}" in safeset("models", cwd=work, before=before)[0]
    _, errors = safeset("certify", NAME, "point.npz", "--alpha", "0.1", cwd=work, before=before, code=1)
    assert "calibrate the copy" in errors  # a calibration of the model itself would be refused
    assert "safeset calibrate" not in errors
    _, errors = safeset("certify", "blobs2d/rt3", "point.npz", cwd=work, before=before, code=1)
    assert "Did you mean 'blobs2d/rt2'?" in errors
    _, errors = safeset(
        "certify", NAME, "point.npz", "--proof", f"models/{NAME}/proof.json", cwd=work, before=before, code=1
    )
    assert "models that come with safeset" in errors


def test_evaluate_prints_and_writes_only_where_it_is_told(work, before, unchanged):
    output, _ = safeset("evaluate", NAME, cwd=work, before=before, terminal=80)
    assert "These numbers are not written. To write them: --out FILE" in output
    safeset("evaluate", NAME, "--out", "own.json", cwd=work, before=before)
    assert json.loads((work / "own.json").read_text())["rows"]
    _, errors = safeset("evaluate", NAME, "--out", f"models/{NAME}/evaluation.json", cwd=work, before=before, code=1)
    assert "models that come with safeset" in errors


def test_audit_prints_and_writes_only_where_it_is_told(work, before, unchanged):
    quick = ("--points", "2", "--budget", "0.05")
    output, _ = safeset("audit", NAME, *quick, cwd=work, before=before)
    assert "Not written. To write it: --out FILE" in output
    safeset("audit", NAME, *quick, "--out", "audit.json", cwd=work, before=before)
    assert json.loads((work / "audit.json").read_text())["verdict"]


def test_suggestions_are_written_only_where_it_is_told(work, before, unchanged):
    output, _ = safeset("suggest", NAME, cwd=work, before=before)
    assert "Drawn" not in output
    _, errors = safeset("suggest-affinity", NAME, cwd=work, before=before, code=1)
    assert "--out FILE.toml" in errors
    safeset("suggest-affinity", NAME, "--out", "sets.toml", cwd=work, before=before)


def test_a_copy_is_calibrated(work, before, unchanged):
    _, errors = safeset("calibrate", NAME, "--data", "point.npz", cwd=work, before=before, code=1)
    assert "Copy its directory" in errors


def test_the_models_are_small_and_whole():
    """What is in the repository, and so in every wheel."""
    folder = Path(__file__).parents[2] / "models"
    names = library.list_trained()
    assert library.model_folder() == folder
    sizes = {name: sum(file.stat().st_size for file in (folder / name).iterdir()) for name in names}
    assert all(size <= library.LARGEST for size in sizes.values()), sizes
    assert sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) <= library.LARGEST_TOGETHER
    for name in names:
        run = Run(folder / name)
        assert run.has_ended
        assert run.card.is_file()
        assert run.bounds.is_file()
        evaluation, audit = (json.loads((run.path / f"{each}.json").read_text()) for each in ("evaluation", "audit"))
        assert audit["verdict"] == "passed"
        assert audit["weights"] == evaluation["weights"]
        assert evaluation["split"] == "test"
        assert not Path(read_table(run.recipe)["data"]["source"]).is_absolute()


@pytest.mark.parametrize("name", library.list_trained())
def test_every_model_certifies(name):
    net = package.load(name)
    evaluation = json.loads((library.model_folder() / name / "evaluation.json").read_text())
    from safeset.system.provenance import weights_digest

    assert weights_digest(net.network.state_dict()) == evaluation["weights"]
    assert (
        net.bounds().head.scale
        < 1.0001 * json.loads((library.model_folder() / name / "bounds.json").read_text())["before_the_head"]
    )
