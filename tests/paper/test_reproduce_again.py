"""Rows of the paper's table, asked for once more: what is there counts, and what is wrong with it is reported."""

import json
import os
import shlex
import shutil
import subprocess
from math import inf, nan

import numpy as np
import pytest

from safeset import ArgumentError
from safeset.cli.options import changes as read_changes
from safeset.errors import TrainingWarning
from safeset.paper import shares
from safeset.paper.analyse import analyse
from safeset.paper.reproduce import reproduce
from safeset.paper.shares import ROWS
from safeset.runs.load import load
from safeset.runs.run import Run
from safeset.system.files import read_tensors, write_tensors

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
    monkeypatch.setattr("safeset.paper.reproduce.answers_of", lambda *_, **__: pytest.fail("made again"))
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


def test_networks_of_another_recipe_are_reported_with_their_directory(again):
    path, command = again
    with pytest.raises(ArgumentError, match=r"`epochs` 2, but got 1. Choose other --runs, or remove .*rt3-seed0-to-1"):
        command(changes={**QUICK, "epochs": 1}, out=path / "others")
    assert not (path / "others").exists()
    lost = path / "runs" / "digits" / "rt3-seed2"
    lost.mkdir()
    (lost / "recipe.toml").write_text("epsilon = 0.7")  # nothing was saved behind it: it is begun again
    assert command(seeds=3)[2]["epsilon"] == 0.5


def test_what_is_no_result_of_the_row_is_reported_with_the_remedy(again):
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
        *(({"changes": bad}, "none of changes") for bad in (None, [], "x", 1)),
        ({"weights": None}, "none of weights"),
        ({"guarantee": "rt2"}, "the `guarantee` of their recipe, rt3, at .*, but got rt2"),
        (
            {"recipe": {**whole["recipe"], "guarantee": "rt2"}},
            "`guarantee` rt3 in .*, but got those .* rt2",
        ),
        ({"recipe": {**whole["recipe"], "guarantee": 3}}, "results with a recipe and a guarantee at"),
        ({"guarantee": None}, "results with a recipe and a guarantee at"),
        ({"recipe": {**whole["recipe"], "seed": 3}}, "`seed` 1 in .*, but got those with `seed` 3"),
        (
            {"recipe": {**whole["recipe"], "data": {"source": "blobs2d"}}},
            "digits in .*, but got those with `data` source blobs2d",
        ),
    ):
        file.write_text(json.dumps({**whole, **changed}))
        with pytest.raises(ArgumentError, match=f"{problem}.*Remove it"):
            command()
    file.write_text(json.dumps({key: value for key, value in whole.items() if key != "split"}))
    with pytest.raises(ArgumentError, match="none of split"):
        command()
    file.write_text("{")
    with pytest.raises(ArgumentError, match="Remove it, and it is made again"):
        command()
    other = json.loads((file.parent / "rt3-seed0.json").read_text())
    file.write_text(json.dumps({**whole, "weights": other["weights"]}))
    with pytest.raises(ArgumentError, match=r"another network than that of .*rt3-seed0\.json in .*rt3-seed1\.json"):
        command()
    file.write_text(json.dumps({**whole, "test": "of other points"}))
    with pytest.raises(
        ArgumentError, match=r"the test points of .*rt3-seed0\.json in .*rt3-seed1\.json, but got those on o"
    ):
        command()


def test_a_directory_whose_parts_do_not_belong_together_is_reported(again):
    path, command = again
    shutil.rmtree(path / "results")
    group = path / "runs" / "digits" / "rt3-seed0-to-1"
    own, swapped = group / "seed0" / "model.safetensors", group / "seed1" / "model.safetensors"
    weights = own.read_bytes()
    own.write_bytes(swapped.read_bytes())
    with pytest.raises(ArgumentError, match=r"an evaluation of the weights in .*seed0, but got one of others.*--runs"):
        command()
    own.write_bytes(weights)
    recipe = (group / "seed0" / "recipe.toml").read_text()
    for changed in ("epsilon = 0.25", "epochs = 3"):
        key = changed.partition(" ")[0]
        lines = [changed if line.startswith(f"{key} =") else line for line in recipe.splitlines()]
        (group / "seed0" / "recipe.toml").write_text("\n".join(lines))
        with pytest.raises(ArgumentError, match=f"`{key}` .*--runs"):
            command()
        assert not (path / "results").exists()
    (group / "seed0" / "recipe.toml").write_text(recipe)
    for seconds, told in ((10**400, None), (nan, None), (-5, None), (3, 1.5)):
        lines = (group / "metrics.jsonl").read_text().splitlines()
        (group / "metrics.jsonl").write_text(
            "\n".join([*lines, json.dumps({**json.loads(lines[0]), "seconds": seconds})])
        )
        assert [each["seconds"] for each in command()] == [told, told]
        shutil.rmtree(path / "results")
    for name in ("rt3-seed0-to-99999999999999999999", "rt3-seed5-to-3"):
        (path / "runs" / "digits" / name).mkdir()
    assert len(command()) == 2


@pytest.fixture
def tables(tmp_path, monkeypatch):
    """Two tables of the same form with other points, and a command on one of them."""
    make = np.random.default_rng(0)
    for name, shift in (("a", 0.0), ("b", 1.0)):
        y = make.integers(0, 3, 200)
        x = (make.normal(size=(200, 2)) + np.eye(3)[y][:, :2] * 3 + shift).astype(np.float32)
        np.savez(tmp_path / f"{name}.npz", x=x, y=y, x_test=x[:50] + 0.01, y_test=y[:50])
    monkeypatch.chdir(tmp_path)

    def command(source, out):
        changes = {"epochs": 1, "data.source": source}
        return reproduce(["blobs2d/rt2"], seeds=1, changes=changes, out=out, runs=tmp_path / "runs", device="cpu")

    return tmp_path, command


def test_networks_of_other_data_are_not_taken(tables, monkeypatch):
    path, command = tables
    (found,) = command("a.npz", path / "a")
    with pytest.raises(ArgumentError, match=r"on the test points of this data in .*rt2-seed0, but got one of others"):
        command("b.npz", path / "b")
    assert not (path / "b").exists()
    (path / "elsewhere").mkdir()
    shutil.copy(path / "b.npz", path / "elsewhere" / "a.npz")
    monkeypatch.chdir(path / "elsewhere")
    with pytest.raises(ArgumentError, match=r"elsewhere/a\.npz.* in .*, but got those with `data` source .*a\.npz"):
        command("a.npz", path / "a")
    monkeypatch.chdir(path)
    assert command("a.npz", path / "a") == [found]


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("epsilon", lambda tensors, texts: texts.update(epsilon="0.1")),
        ("guarantee", lambda tensors, texts: texts.update(guarantee="rt2")),
        ("class_names", lambda tensors, texts: texts.update(class_names=json.dumps(list("abcdefghij")))),
        ("nested", lambda tensors, texts: texts.update(about="[" * 100_000)),
        ("about", lambda tensors, texts: texts.update(about="[1]")),
        ("split", lambda tensors, texts: texts.update(about=texts["about"].replace('"validation"', '"test"'))),
        ("test", lambda tensors, texts: texts.update(about=texts["about"].replace('"test": "', '"test": "0'))),
        ("nan", lambda tensors, texts: tensors["joint"].fill_(nan)),
        ("ranking", lambda tensors, texts: tensors["ranking"].add_(99)),
        ("windows", lambda tensors, texts: tensors.update(joint=tensors["joint"][:, 1:].clone())),
        ("labels", lambda tensors, texts: tensors.update(labels=tensors["labels"][:50].clone())),
    ],
)
def test_stored_answers_that_do_not_fit_are_made_again(again, name, damage):
    path, command = again
    first = command()
    shutil.rmtree(path / "results")
    file = path / "runs" / "digits" / "rt3-seed0-to-1" / "seed0" / "answers.safetensors"
    tensors, texts = read_tensors(file)
    damage(tensors, texts)
    write_tensors(file, tensors, texts)
    assert command() == first


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
    with Run(group).lock():
        assert not any(each.exists() for each in dead)
    assert all(each.exists() for each in (*alive, *others))


def test_rows_that_do_not_compare_are_not_analysed(again, monkeypatch):
    path, _ = again
    monkeypatch.setitem(ROWS, "digits", ("standard", "rt3"))
    monkeypatch.setitem(shares._SHARES, "digits", lambda networks: {"points": {"uniform": len(networks["rt3"])}})
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
