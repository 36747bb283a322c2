"""Rows of the paper's table, asked for once more: what is there counts, and what is wrong with it is told."""

import json
import os
import shlex
import shutil
import subprocess
from math import inf, nan

import pytest

from safeset import ArgumentError, analyses
from safeset.analyses import ROWS
from safeset.cli_options import changes as read_changes
from safeset.errors import TrainingWarning
from safeset.reproduce import analyse, reproduce
from safeset.runs import Run, load

QUICK = {"epochs": 2, "validation": True}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Two seeds of a row, trained at once."""
    places = tmp_path_factory.mktemp("small")
    reproduce(["digits/rt3"], seeds=2, changes=QUICK, out=places / "results", runs=places / "runs", device="cpu")
    return places


@pytest.fixture
def again(small, tmp_path):
    """A copy of them, and the same command."""
    shutil.copytree(small, tmp_path, dirs_exist_ok=True)
    places = {"out": tmp_path / "results", "runs": tmp_path / "runs", "device": "cpu"}
    return tmp_path, lambda **more: reproduce(["digits/rt3"], **{"seeds": 2, "changes": QUICK, **places, **more})


def test_results_that_another_process_wrote_meanwhile_are_read(again, monkeypatch):
    path, command = again
    first, file = command(), path / "results" / "digits" / "rt3-seed1.json"
    text = file.read_text()
    file.unlink()

    def meanwhile(*_, **__):
        file.write_text(text)
        return [{"seconds": 3.0}]

    monkeypatch.setattr(Run, "records", meanwhile)
    monkeypatch.setattr("safeset.reproduce.answers_of", lambda *_, **__: pytest.fail("made again"))
    assert command() == first


@pytest.mark.parametrize("text", ["", "{", "{}", "[]", "3"])
def test_the_model_is_what_counts_not_its_evaluation(again, text):
    path, command = again
    first = command()
    (path / "results" / "digits" / "rt3-seed0.json").unlink()
    run = Run(path / "runs" / "digits" / "rt3-seed0-to-1" / "seed0")
    run.evaluation.write_text(text)
    assert command() == first
    (path / "results" / "digits" / "rt3-seed0.json").unlink()
    (run.path / "answers.safetensors").write_bytes(b"damaged")  # kept to save time only
    assert [each["uniform"] for each in command()] == [each["uniform"] for each in first]
    run.model.unlink()
    (run.path / "answers.safetensors").unlink()
    (path / "results" / "digits" / "rt3-seed0.json").unlink()
    with pytest.raises(ArgumentError, match=r"a trained model at .*Remove the directory, and train it again"):
        command()


def test_a_seed_whose_folder_is_gone_is_trained_alone(again):
    path, command = again
    group = path / "runs" / "digits" / "rt3-seed0-to-1"
    shutil.rmtree(group / "seed0")
    (path / "results" / "digits" / "rt3-seed0.json").unlink()
    found = command()
    assert [each["seed"] for each in found] == [0, 1]
    assert load(path / "runs" / "digits" / "rt3-seed0").classes == 10
    shutil.rmtree(path / "runs" / "digits" / "rt3-seed0")
    shutil.rmtree(group / "seed1")
    shutil.rmtree(path / "results")
    with pytest.raises(ArgumentError, match=r"a network of digits/rt3, seed 0, in .*Remove its directory"):
        command()  # the group's own directory is in the way


def test_networks_of_another_recipe_are_told_with_their_directory(again):
    path, command = again
    with pytest.raises(ArgumentError, match=r"`epochs` 2, but got 1. Choose other --runs, or remove .*rt3-seed0-to-1"):
        command(changes={**QUICK, "epochs": 1}, out=path / "others")
    assert not (path / "others").exists()
    lost = path / "runs" / "digits" / "rt3-seed2"
    lost.mkdir()
    (lost / "recipe.toml").write_text("epsilon = 0.7")  # nothing was saved behind it: it is begun anew
    assert command(seeds=3)[2]["epsilon"] == 0.5


def test_what_is_no_result_of_the_row_is_told_with_the_remedy(again):
    path, command = again
    file = path / "results" / "digits" / "rt3-seed1.json"
    whole = json.loads(file.read_text())
    for changed, problem in (
        ({"seed": 7}, "those of digits/rt3, seed 7"),
        ({"row": "digits/x"}, "those of digits/x, seed 1"),
        ({"uniform": {}}, "none of uniform.vra, uniform.rejection, uniform.accuracy"),
        ({"joint": {**whole["joint"], "vra": "much"}}, "none of joint.vra"),
        ({"floating": 3}, "none of floating.vra"),
        ({"seed": "1"}, "those of digits/rt3, seed '1'"),
        *(({"joint": {**whole["joint"], "vra": bad}}, "none of joint.vra") for bad in (True, 1.7, -0.1, nan, inf)),
        ({"epsilon": 0.2}, "the `epsilon` of their recipe, 0.5, at .*, but got 0.2"),
        ({"split": "test"}, "the `split` of their recipe, validation, at .*, but got 'test'"),
    ):
        file.write_text(json.dumps({**whole, **changed}))
        with pytest.raises(ArgumentError, match=f"{problem}.*Remove it"):
            command()
    file.write_text(json.dumps({key: value for key, value in whole.items() if key != "split"}))
    with pytest.raises(ArgumentError, match="none of split"):
        command()
    file.write_text("{")
    with pytest.raises(ArgumentError, match="Remove it, and it is made anew"):
        command()
    file.write_text(json.dumps({**whole, "test": "of other points"}))
    with pytest.raises(
        ArgumentError, match=r"the test points of .*rt3-seed0\.json in .*rt3-seed1\.json, but got those on o"
    ):
        command()


def test_the_recorded_command_is_one(again):
    path, command = again
    changes = {**QUICK, "optimiser.rate": "1e-3 -> 1e-4", "epochs": 1}
    (found,) = command(seeds=1, changes=changes, out=path / "others", runs=path / "others")
    words = shlex.split(found["command"])
    assert words[:3] == ["safeset", "reproduce", "digits/rt3"]
    assert read_changes(words[4::2]) == changes == found["changes"]


def test_sets_of_a_file_are_written_out_so_that_another_file_is_noticed(again):
    path, command = again
    places = {"out": path / "others", "runs": path / "others", "seeds": 1}
    (path / "sets.toml").write_text('sets = [["1", "7"]]')
    named = {**QUICK, "guarantee": f"affinity:{path / 'sets.toml'}"}
    command(changes=named, **places)
    (path / "sets.toml").write_text('sets = [["3", "8"]]')
    with pytest.raises(ArgumentError, match="Choose another --out"):
        command(changes=named, **places)


def test_what_killed_processes_left_is_removed_and_what_living_ones_write_is_not(again):
    path, command = again
    group = path / "runs" / "digits" / "rt3-seed0-to-1"
    ended = subprocess.Popen(["true"])
    ended.wait()
    folders = [path / "results" / "digits", group, group / "seed1"]
    dead = [folder / f".bounds.json.{ended.pid}.tmp" for folder in folders]
    alive = [folder / f".bounds.json.{os.getpid()}.tmp" for folder in folders]
    others = [folder / ".notes.tmp" for folder in folders]
    for each in (*dead, *alive, *others):
        each.touch()
    (path / "results" / "digits" / "rt3-seed1.json").unlink()
    command()
    with Run(group).locked():
        assert not any(each.exists() for each in dead)
    assert all(each.exists() for each in (*alive, *others))


def test_rows_that_do_not_compare_are_not_analysed(again, monkeypatch):
    path, _ = again
    monkeypatch.setitem(ROWS, "digits", ("standard", "rt3"))
    monkeypatch.setitem(analyses._SHARES, "digits", lambda networks: {"points": {"uniform": len(networks["rt3"])}})
    places = {"runs": path / "runs", "device": "cpu"}
    other = {**QUICK, "epsilon": 0.3}
    reproduce(["digits/standard"], seeds=1, changes=other, out=path / "results", **places)
    options = {"seeds": 1, "results": path / "results", "out": path / "analyses", **places}
    with pytest.warns(TrainingWarning, match="seed 0, differ in changes, epsilon: no analysis"):
        assert analyse(["digits/rt3"], **options) == []
    assert analyse(["digits/other"], **options) == []  # no row of the analyses
    shutil.rmtree(path / "results" / "digits")
    shutil.rmtree(path / "runs" / "digits")
    for row in ("digits/standard", "digits/rt3"):
        reproduce([row], seeds=1, changes=QUICK, out=path / "results", **places)
    (path / "analyses").mkdir()
    for damaged in ("", "{}", '{"weights": {}}'):
        (path / "analyses" / "digits-seed0.json").write_text(damaged)
        (found,) = analyse(["digits/rt3"], **options)
        assert found["command"] == ("safeset reproduce digits/standard digits/rt3 --set epochs=2 --set validation=true")
    elsewhere = path / "runs" / "digits" / "rt3-seed0-to-1"  # another network of the same seed
    shutil.copytree(path / "runs" / "digits" / "standard-seed0", elsewhere / "seed0")
    (path / "analyses" / "digits-seed0.json").unlink()
    assert analyse(["digits/rt3"], **options) == [found]
