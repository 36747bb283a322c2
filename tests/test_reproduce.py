"""Rows of the paper's table, trained and evaluated anew: here a small one."""

import json

import pytest

from safeset import ArgumentError
from safeset.reproduce import PAPER, compared, reproduce
from safeset.runs import load
from safeset.training.recipe import list_recipes
from test_cli import safeset

QUICK = {"epochs": 2, "validation": True}


def test_the_paper_s_rows_are_there():
    assert set(PAPER) <= set(list_recipes())


def test_what_is_missing_is_trained_and_nothing_else(tmp_path):
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    first = reproduce(["digits/rt3"], seeds=2, changes=QUICK, **places)
    assert sorted(path.name for path in (tmp_path / "results" / "digits").iterdir()) == [
        "rt3-seed0.json",
        "rt3-seed1.json",
    ]
    for seed, each in enumerate(first):
        assert (each["row"], each["seed"], each["epsilon"]) == ("digits/rt3", seed, 0.5)
        assert each["split"] == "validation"
        for way in ("uniform", "floating", "joint", "estimate"):
            assert set(each[way]) == {"vra", "rejection", "accuracy", "vra_top1"}
        assert each["uniform"]["vra"] <= each["floating"]["vra"] <= each["joint"]["vra"]
        assert each["uniform"]["vra"] <= each["estimate"]["vra"]  # what the proof costs
        assert each["estimate"]["rejection"] <= each["uniform"]["rejection"]
        for name in ("points", "seconds", "device", "dtype", "bound_method", "recipe", "commit", "weights"):
            assert each[name]
        assert load(tmp_path / "runs" / "digits" / "rt3-seed0-to-1" / f"seed{seed}").classes == 10
    stamps = [path.stat().st_mtime_ns for path in sorted((tmp_path / "results" / "digits").iterdir())]
    more = reproduce(["digits/rt3"], seeds=3, changes=QUICK, **places)
    assert more[:2] == first
    assert [path.stat().st_mtime_ns for path in sorted((tmp_path / "results" / "digits").iterdir())][:2] == stamps
    assert more[2]["seed"] == 2
    assert (tmp_path / "runs" / "digits" / "rt3-seed2").is_dir()
    lines = compared(more)
    assert [line[1] for line in lines] == ["vra", "rejection", "accuracy"]
    assert lines[0][0] == "digits/rt3"
    assert lines[0][2:4] == ["3", "–"]


def test_the_paper_s_numbers_stand_beside_ours():
    rates = {"vra": 0.361, "rejection": 0.5, "accuracy": 0.7}
    record = {"row": "cifar100/rt5", **dict.fromkeys(("uniform", "floating", "joint", "estimate"), rates)}
    assert compared([record])[0] == ["cifar100/rt5", "vra", "1", "0.360 ± 0.002", "0.361", "0.361", "0.361", "0.361"]


def test_mistakes_are_named(tmp_path):
    with pytest.raises(ArgumentError, match="at least 1"):
        reproduce(["digits/rt3"], seeds=0)
    _, errors = safeset("reproduce", "cifar100/rt6", "--seeds", "1", cwd=tmp_path, code=1)
    assert "cifar100/rt5" in errors
    output, _ = safeset("reproduce", "digits/rt3", "--seeds", "1", "--set", "epochs=1", cwd=tmp_path)
    assert "digits/rt3" in output
    assert json.loads((tmp_path / "results" / "paper" / "digits" / "rt3-seed0.json").read_text())["row"] == "digits/rt3"
