"""Where an evaluation goes: a run's own replaces the stored one, others never do; and what other programs get of it."""

import csv
import io
import json

import pytest

from helpers.commands import safeset
from safeset.certificates.margins import METHODS
from safeset.data.embedded import blobs2d

OWN = 0.1


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    path = tmp_path_factory.mktemp("evaluate")
    safeset("train", "blobs2d/rt2", "--epochs", "1", "--epsilon", OWN, "--out", "run", cwd=path)
    return path


@pytest.fixture
def stored(work):
    """The run's own evaluation, with a mark that says that nobody has written it again."""
    path = work / "run" / "evaluation.json"
    own = json.loads(path.read_text())
    path.write_text(json.dumps({**own, "mark": 1}))
    yield path
    path.write_text(json.dumps(own))


def is_rewritten(path):
    return "mark" not in json.loads(path.read_text())


OTHERS = [
    ("--guarantee", "standard"),
    ("--epsilon", "0.05"),
    ("--method", "joint"),
    ("--method", "uniform,joint", "--epsilon", "0.05,0.1"),
    ("--data", "blobs2d"),
]


@pytest.mark.parametrize("asked", OTHERS, ids=" ".join)
def test_another_evaluation_is_printed_and_not_written(work, stored, asked):
    output, errors = safeset("evaluate", "run", *asked, cwd=work)
    assert not is_rewritten(stored)
    assert "VRA" in output
    last = "run/evaluation.json keeps the run's own numbers; these are not written. To write them: --out FILE"
    assert output.splitlines()[-1] == last
    assert not errors or errors.startswith("Note: ")
    before = {file.name for file in (work / "run").iterdir()}
    output, _ = safeset("evaluate", "run", *asked, "--out", "other.json", cwd=work)
    assert output.splitlines()[-1] == "Written to other.json."
    assert json.loads((work / "other.json").read_text())["rows"]
    _, errors = safeset("evaluate", "run", *asked, "--out", "run/../run/evaluation.json", cwd=work, code=1)
    assert "another file than that of the run's own evaluation" in errors
    assert not is_rewritten(stored)
    assert {file.name for file in (work / "run").iterdir()} == before


SAME = [(), ("--per-class",), ("--epsilon", "0.05,0.1"), ("--guarantee", "rt2"), ("--method", "joint,uniform,floating")]


@pytest.mark.parametrize("asked", SAME, ids=" ".join)
def test_a_run_s_own_evaluation_is_written_again(work, stored, asked):
    output, _ = safeset("evaluate", "run", *asked, cwd=work)
    assert output.splitlines()[-1] == "Written to run/evaluation.json."
    assert is_rewritten(stored)
    rows = json.loads(stored.read_text())["rows"]
    assert {(method, OWN) for method in METHODS} <= {(row["method"], row["epsilon"]) for row in rows}


def test_json_is_what_is_written_and_nothing_else(work, stored):
    output, errors = safeset("evaluate", "run", "--json", cwd=work)
    assert output == stored.read_text()
    assert errors == "Written to run/evaluation.json.\n"
    output, errors = safeset("evaluate", "run", "--json", "--epsilon", "0.05", cwd=work)
    assert [row["epsilon"] for row in json.loads(output)["rows"]] == [0.05] * 3
    assert errors.endswith("To write them: --out FILE\n")
    assert output != stored.read_text()


def test_csv_has_a_row_for_each_method_and_radius_and_class(work):
    output, errors = safeset("evaluate", "run", "--csv", "--epsilon", "0.05,0.1", "--out", "e.json", cwd=work)
    rows = json.loads((work / "e.json").read_text())["rows"]
    found = list(csv.DictReader(io.StringIO(output)))
    assert [(row["method"], float(row["epsilon"])) for row in found] == [(r["method"], r["epsilon"]) for r in rows]
    for row, cells in zip(rows, found, strict=True):
        assert {name: float(cells[name]) for name in ("vra", "rejection_rate", "accuracy")}.items() <= row.items()
        assert list(cells) == list(row)
    assert errors == "Written to e.json.\n"
    output, _ = safeset("evaluate", "run", "--csv", "--per-class", "--method", "joint", cwd=work)
    whole, *classes = csv.DictReader(io.StringIO(output))
    assert whole["class"] == ""
    assert [row["class"] for row in classes] == list(blobs2d().class_names)
    assert sum(int(row["points"]) for row in classes) == int(whole["points"])
    assert {(row["method"], row["epsilon"]) for row in classes} == {("joint", "0.1")}
    _, errors = safeset("evaluate", "run", "--csv", "--json", cwd=work, code=1)
    assert "one of --json and --csv" in errors
