"""Rows of the paper's table, trained and evaluated again: here a small one."""

import json
import signal
from math import nan

import pytest

from helpers.commands import safeset
from safeset import ArgumentError, DataNotFoundError
from safeset.cli.options import changes as read_changes
from safeset.errors import TrainingWarning
from safeset.evaluation import SHARES, SIZES
from safeset.paper import shares
from safeset.paper.analyse import analyse
from safeset.paper.networks import groups, runs_of
from safeset.paper.reproduce import reproduce
from safeset.paper.shares import ROWS
from safeset.paper.table import PAPER, table_lines
from safeset.recipes.library import list_recipes, recipe_folder
from safeset.runs.load import load
from safeset.training.interruption import Interrupted
from safeset.training.watch import Silent

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
            assert set(each[way]) == {"rejection", "vra_top1", *SHARES, *SIZES}
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
    lines = table_lines(more)
    assert [line[1] for line in lines] == ["vra", "rejection", "accuracy", "top1", "smallest_share", *SIZES]
    assert lines[0][0] == "digits/rt3"
    assert lines[0][2:4] == ["3", "–"]


def test_the_paper_s_numbers_stand_beside_ours():
    rates = {"vra": 0.361, "rejection": 0.5, "accuracy": 0.7}
    record = {"row": "cifar100/rt5", **dict.fromkeys(("uniform", "floating", "joint", "estimate"), rates)}
    assert table_lines([record])[0] == ["cifar100/rt5", "vra", "1", "0.360 ± 0.002", "0.361", "0.361", "0.361", "0.361"]


def test_results_of_other_recipes_are_not_mixed(tmp_path):
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    (first,) = reproduce(["digits/rt3", "digits/rt3"], seeds=1, changes=QUICK, **places)
    assert first["changes"] == QUICK
    assert first["command"] == "safeset reproduce digits/rt3 --set epochs=2 --set validation=true"
    with pytest.raises(ArgumentError, match="Choose another --out"):
        reproduce(["digits/rt3"], seeds=2, **places)
    path = tmp_path / "results" / "digits" / "rt3-seed0.json"
    for content, problem in (
        (path.read_text()[:100], "JSON"),
        ("[]", "Remove it"),
        ("{}", "row, seed, epsilon, weights"),
    ):
        path.write_text(content)
        with pytest.raises(ArgumentError, match=problem):
            reproduce(["digits/rt3"], seeds=1, changes=QUICK, **places)


def test_analyses_are_of_the_published_networks(tmp_path, monkeypatch):
    monkeypatch.setitem(ROWS, "digits", ("standard", "rt3"))
    monkeypatch.setitem(shares._SHARES, "digits", lambda networks: {"points": {"uniform": len(networks["rt3"])}})
    places = {"runs": tmp_path / "runs", "device": "cpu"}
    results, out = tmp_path / "results", tmp_path / "analyses"
    records = reproduce(["digits/rt3"], seeds=2, changes=QUICK, out=results, **places)
    assert analyse(["digits/rt3"], seeds=2, results=results, out=out, **places) == []  # standard is missing
    records += reproduce(["digits/standard"], seeds=1, changes=QUICK, out=results, **places)
    (found,) = analyse(["digits/rt3"], seeds=2, results=results, out=out, **places)
    assert (found["data"], found["seed"], found["shares"]) == ("digits", 0, {"points": {"uniform": found["points"]}})
    assert found["membership"]["k"] == [1, 2, 3]
    assert json.loads((out / "digits-seed0.json").read_text()) == found
    assert analyse(["blobs2d/rt2"], seeds=2, results=results, out=out, **places) == []
    (out / "digits-seed0.json").unlink()
    path, stale = results / "digits" / "rt3-seed0.json", {**found, "weights": {"rt3": "of another"}, "shares": {}}
    (out / "digits-seed0.json").write_text(json.dumps(stale))
    assert analyse(["digits/rt3"], seeds=2, results=results, out=out, **places) == [found]  # made again
    for key, bad in (("data", "cifar100"), ("data", [1]), ("seed", 5), ("test", "of others"), ("changes", {})):
        (out / "digits-seed0.json").write_text(json.dumps({**found, key: bad}))
        assert analyse(["digits/rt3"], seeds=2, results=results, out=out, **places) == [found]
    for bad in (3, None, [], {}, {"points": 3}, {"points": {"uniform": "much"}}, {"points": {"uniform": nan}}):
        (out / "digits-seed0.json").write_text(json.dumps({**found, "shares": bad}))
        assert analyse(["digits/rt3"], seeds=2, results=results, out=out, **places) == [found]
    (out / "digits-seed0.json").unlink()
    path.write_text(json.dumps({**json.loads(path.read_text()), "commit": "another"}))
    (new,) = analyse(["digits/rt3"], seeds=2, results=results, out=out, **places)
    assert new == {**found, "commit": f"{found['commit']}, another"}
    path.write_text(json.dumps({**json.loads(path.read_text()), "weights": "of another network"}))
    with (
        pytest.warns(TrainingWarning, match=r"digits-seed0\.json is no analysis of the networks in .*: left out"),
        pytest.warns(TrainingWarning, match="seed 0: no analysis, and no networks in"),
    ):
        assert analyse(["digits/rt3"], seeds=2, results=results, out=out, **places) == []


def test_networks_that_are_there_are_not_trained_again(tmp_path, monkeypatch):
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    first = reproduce(["digits/rt3"], seeds=3, changes=QUICK, **places)
    for seed in (1, 2):
        (tmp_path / "results" / "digits" / f"rt3-seed{seed}.json").unlink()
    (run,) = runs_of(tmp_path / "runs", "digits/rt3", 1)
    evaluation = json.loads(run.evaluation.read_text())
    run.evaluation.write_text(json.dumps({**evaluation, "guarantee": "top1", "points": 3}))  # as of other settings
    monkeypatch.setattr("safeset.training.train.fit", lambda *_, **__: pytest.fail("trained again"))
    assert reproduce(["digits/rt3"], seeds=3, changes=QUICK, **places) == first


def test_what_is_done_is_reported(tmp_path):
    said, places = [], {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu", "changes": QUICK}
    reproduce(["digits/rt3"], seeds=1, tell=said.append, **places)
    reproduce(["digits/rt3"], seeds=3, tell=said.append, **places)
    assert said == [
        f"digits/rt3: seed 0 in {tmp_path / 'runs' / 'digits' / 'rt3-seed0'}.",
        f"digits/rt3: seed 0 in {tmp_path / 'results'}; not trained again.",
        f"digits/rt3: seeds 1, 2 in {tmp_path / 'runs' / 'digits' / 'rt3-seed1-to-2'}.",
    ]


def test_an_interrupted_row_is_continued_by_the_same_command(tmp_path, monkeypatch):
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu", "changes": QUICK}

    class Impatient(Silent):
        def epoch(self, record):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(Interrupted, match=r"in epoch 2 of 2\. All is saved; continue with the same"):
        reproduce(["digits/rt3"], seeds=1, watch=Impatient(), **places)
    (found,) = reproduce(["digits/rt3"], seeds=1, **places)
    assert found["row"] == "digits/rt3"


def test_groups_of_seeds(tmp_path):
    def numbers(*seeds):
        return [(group.path.name, group.first, group.count) for group in groups(tmp_path, "a/b", seeds)]

    assert numbers(0, 1, 2, 5) == [("b-seed0-to-2", 0, 3), ("b-seed5", 5, 1)]
    for name in ("b-seed0-to-9", "b-seed12", "b-seed20-to-21", "c-seed3", "b-seedx"):
        (tmp_path / "a" / name).mkdir(parents=True)
        (tmp_path / "a" / name / "recipe.toml").touch()
    (tmp_path / "a" / "b-seed0-to-1").mkdir()  # empty: nothing was begun
    (tmp_path / "a" / "b-seed13").write_text("no directory")
    assert numbers(0, 1, 2) == [("b-seed0-to-9", 0, 10)]  # begun: it goes on as it was
    assert numbers(9, 10, 11, 12, 13) == [
        ("b-seed0-to-9", 0, 10),
        ("b-seed12", 12, 1),
        ("b-seed10-to-11", 10, 2),
        ("b-seed13", 13, 1),
    ]
    assert runs_of(tmp_path, "a/b", 12) == []  # not done


def test_mistakes_are_named(tmp_path, monkeypatch):
    for bad in (0, -1, 2.5, True, 10**20):
        for ask in (reproduce, analyse):
            with pytest.raises(ArgumentError, match=rf"`seeds` to be an integer in 1\.\.1000, but got {bad}"):
                ask(["digits/rt3"], seeds=bad)
    _, errors = safeset("reproduce", "digits/rt3", "cifar100/rt6", "--seeds", "1", cwd=tmp_path, code=1)
    assert "cifar100/rt5" in errors
    assert not (tmp_path / "runs").exists()  # said before anything was trained
    with pytest.raises(ArgumentError, match="rows by the names"):
        reproduce([str(recipe_folder() / "digits" / "rt3.toml")], seeds=1)
    with pytest.raises(ArgumentError, match="acasxu/targeted"):
        reproduce(["acasxu/targeted-6-1"], seeds=1)
    with pytest.raises(ArgumentError, match=r"the row acasxu/targeted-2-1 names, but got `data.network` '3_1'"):
        reproduce(["acasxu/targeted-2-1"], seeds=1, changes=read_changes(["data.network=3_1"]))
    for key in ("seed", "seeds"):
        with pytest.raises(ArgumentError, match=f"`{key}`.*--seeds N"):
            reproduce(["digits/rt3"], seeds=1, changes={key: 4}, out=tmp_path / "x", runs=tmp_path / "runs")
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path / "nothing"))
    for row in ("acasxu/targeted", "cifar100"):
        with pytest.raises(DataNotFoundError, match="nothing is there"):
            reproduce(["digits/rt3", row], seeds=1, out=tmp_path / "x", runs=tmp_path / "runs")
    (tmp_path / "nothing" / "acasxu").mkdir(parents=True)
    with pytest.raises(DataNotFoundError, match=r"the ACAS Xu network 2_1 as \.nnet"):
        reproduce(["digits/rt3", "acasxu/targeted-2-1"], seeds=1, out=tmp_path / "x", runs=tmp_path / "runs")
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="directory for results"):
        reproduce(["digits/rt3"], seeds=1, out=tmp_path / "file", runs=tmp_path / "runs")
    with pytest.raises(ArgumentError, match="a device such as cpu or cuda:0, but got 'gpu'"):
        reproduce(["digits/rt3"], seeds=1, device="gpu", out=tmp_path / "x", runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    _, errors = safeset("reproduce", "digits/rt3", "--seeds", "1", "--analyses", "file/x", cwd=tmp_path, code=1)
    assert "a directory for analyses at file/x, but got file, which is a file" in errors
    assert not (tmp_path / "runs").exists()
    output, _ = safeset("reproduce", "digits/rt3", "--seeds", "1", "--set", "epochs=1", cwd=tmp_path)
    assert "digits/rt3" in output
    assert json.loads((tmp_path / "results" / "paper" / "digits" / "rt3-seed0.json").read_text())["row"] == "digits/rt3"
