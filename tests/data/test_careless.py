"""What careless or unlucky users do: each was once wrong in silence, or a traceback."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from helpers.own_files import rows
from safeset import ArgumentError, DataWarning, SafesetError, load, train
from safeset.data.dataset import PIXELS
from safeset.data.points import read_points
from safeset.data.sources import load_data
from safeset.recipes.recipe import OWN_DATA
from safeset.runs.certify_files import certify_files
from safeset.runs.evaluate import evaluate_run
from safeset.runs.run import Run

QUICK = {"epochs": 1, "guarantee": "standard", "epsilon": 0.01}


def images(folder, name, count=4, size=8, value=100):
    (folder / name).mkdir(parents=True)
    for place in range(count):
        Image.fromarray(np.full((size, size, 3), value + place, dtype=np.uint8)).save(folder / name / f"{place}.png")


def test_columns_in_another_order_are_found_by_name(tmp_path):
    rows(tmp_path / "t.csv", ["a", "b", "c", "y"])
    rows(tmp_path / "p.csv", ["c", "b", "a", "y"])
    train({**QUICK, "data": {"source": str(tmp_path / "t.csv")}}, out=tmp_path / "run")
    run = Run(tmp_path / "run")
    own, _ = evaluate_run(run)
    other, _ = evaluate_run(run, source=str(tmp_path / "p.csv"))
    assert own["rows"] == other["rows"]
    stored = run.read_recipe().data.ranges
    assert torch.equal(
        load_data(tmp_path / "p.csv", ranges=dict(stored)).train.x, load_data(tmp_path / "t.csv").train.x
    )


def test_test_labels_of_arrays_are_values_as_the_training_labels_are(tmp_path):
    x = np.random.default_rng(0).random((9, 3), dtype=np.float32)
    np.savez(tmp_path / "n.npz", x=x, y=np.array([1, 2, 3] * 3), x_test=x[:4], y_test=np.array([1, 2, 3, 1]))
    data = load_data(tmp_path / "n.npz")
    assert data.class_names == ("1", "2", "3")
    assert data.test.y.tolist() == [0, 1, 2, 0]
    np.savez(tmp_path / "b.npz", x=x, y=np.array([b"u", b"v", b"w"] * 3))
    assert load_data(tmp_path / "b.npz").class_names == ("u", "v", "w")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((6, 2)), "y": np.zeros((6, 2))}, r"y of .* to be of shape \(n,\), or one-hot"),
        ({"x": np.zeros((6, 2)), "y": np.float64(3)}, r"to be of shape \(n,\)"),
        ({"x": np.zeros((6, 2)), "y": np.array([0, 1] * 2)}, "6 points, 4 labels"),
        ({"x": np.zeros((0, 2)), "y": np.zeros(0, dtype=int), "class_names": np.array(["a", "b"])}, "0 points"),
        ({"x": np.zeros((6, 1, 8, 8, 3)), "y": np.array([0, 1] * 3)}, "shape"),
        ({"x": np.full((6, 2), 1e300), "y": np.array([0, 1] * 3)}, "to fit into float32"),
    ],
)
def test_arrays_that_cannot_be_meant_are_reported(tmp_path, arrays, message):
    np.savez(tmp_path / "n.npz", **arrays)
    with pytest.raises(ArgumentError, match=message):
        load_data(tmp_path / "n.npz")


def certified(run, *files):
    return list(certify_files(run, [str(file) for file in files], stdin=None))


def test_numbers_mean_in_certify_what_they_meant_in_training(tmp_path):
    x = np.random.default_rng(0).integers(0, 255, (60, 4), dtype=np.uint8)
    np.savez(tmp_path / "n.npz", x=x, y=(x[:, 0] > 127).astype(int))
    net = train({**QUICK, "data": {"source": str(tmp_path / "n.npz")}}, out=tmp_path / "run")
    found = certified(tmp_path / "run", tmp_path / "n.npz")
    expected = net.certify(torch.tensor(x).float()).radius.tolist()
    assert [record["radius"] for record in found] == pytest.approx(expected)
    rows(tmp_path / "t.csv", ["a", "b", "c", "y"])
    train({**QUICK, "data": {"source": str(tmp_path / "t.csv")}}, out=tmp_path / "table")
    np.savez(tmp_path / "r.npz", x=np.array([[0, 2 / 7, 5.0]]))
    (tmp_path / "r.csv").write_text(f"b,a,c\n{2 / 7},0,5\n")
    by_array, by_row = certified(tmp_path / "table", tmp_path / "r.npz", tmp_path / "r.csv")
    assert by_array["radius"] == pytest.approx(by_row["radius"])


def test_a_table_for_a_net_of_numbers_is_not_called_an_image(tmp_path):
    (tmp_path / "r.csv").write_text("0.1,0.2\n")
    images(tmp_path, "p", count=1)
    paths = [str(tmp_path / "r.csv"), str(tmp_path / "p" / "0.png")]
    table, image = read_points(paths, input_shape=(2,), units="the units of x", stdin=None)
    assert f"in an .npz file, but got the file {paths[0]}." in table.problem
    assert f"in an .npz file, but got the image {paths[1]}." in image.problem


def test_images_are_refused_where_the_net_knows_other_units(tmp_path):
    images(tmp_path, "p", count=1)
    path = str(tmp_path / "p" / "0.png")
    (bad,) = read_points([path], input_shape=(3, 8, 8), units="the units of x", stdin=None)
    assert "as in training" in bad.problem
    (good,) = read_points([path], input_shape=(3, 8, 8), units=PIXELS, stdin=None)
    assert good.x.max() <= 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,y\n1,k\xe4\n2,k\xf6\n".encode("latin-1"), "text in UTF-8"),
        (b"a;y\n1;k;3\n2;l\n", "as many columns in every row of .*t.csv as in its header, but got ';' in 'a;y'"),
        (
            b"a;y\n1,5;k\n2,5;l\n",
            "decimal points in .*t.csv, but got a decimal comma, '1,5' for 'a'. Write numbers with",
        ),
        (b"a,y\n1e308,k\n-1e308,l\n0,k\n", "too large"),
        (b"y,a\nk,1\nl,2\n", "--label names the column"),
    ],
)
def test_tables_that_cannot_be_meant_are_reported(tmp_path, content, message):
    (tmp_path / "t.csv").write_bytes(content)
    with pytest.raises(ArgumentError, match=message):
        load_data(tmp_path / "t.csv")


def test_folders_of_photos_as_people_have_them(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / "cache"))
    for name in ("cat", "dog"):
        images(tmp_path / "photos" / "train", name)
        images(tmp_path / "photos" / "val", name, count=2)
    assert len(load_data(tmp_path / "photos").test) == 4
    images(tmp_path / "photos" / "val", "Dog", count=1)
    with pytest.raises(ArgumentError, match="but got 'Dog'"):
        load_data(tmp_path / "photos")
    (tmp_path / "photos" / "train" / "dog" / "._0.png").write_bytes(b"resource fork")
    train_only = tmp_path / "photos" / "train"
    assert len(load_data(train_only).train) == 6
    (train_only / "cow").mkdir()
    with pytest.raises(ArgumentError, match="none in cow"):
        load_data(train_only)
    (train_only / "cow").rmdir()
    (train_only / "dog" / "bad.png").write_bytes(b"no image")
    for _ in range(2):  # decoded, and from the cache
        with pytest.warns(DataWarning, match=r"1 file left out: .*bad.png"):
            data = load_data(train_only, skip_bad=True)
        assert data.input_shape == (3, 8, 8)


def test_own_data_is_never_taken_for_the_recipe_s(tmp_path):
    x, y = torch.rand(30, 1, 8, 8), torch.arange(30) % 3
    train({**QUICK, "data": {"source": "digits"}}, data=(x, y), out=tmp_path / "run")
    assert Run(tmp_path / "run").read_recipe().data.source == OWN_DATA
    with pytest.raises(ArgumentError, match="given in Python"):
        evaluate_run(Run(tmp_path / "run"))
    for bad in (y.float(), y[:5], y[:, None], y - 1):
        with pytest.raises(ArgumentError, match="a label"):
            train(QUICK, data=(x, bad))
    with pytest.raises(ArgumentError, match="finite inputs"):
        train(QUICK, data=(x * float("nan"), y))
    with pytest.raises(ArgumentError, match="a recipe"):
        train(None)
    with pytest.raises(ArgumentError, match="the path of a run"):
        load(None)


def test_data_without_test_points_is_reported_before_training(tmp_path):
    np.savez(tmp_path / "few.npz", x=np.random.rand(4, 2), y=np.array([0, 0, 1, 1]))  # noqa: NPY002
    with pytest.raises(ArgumentError, match="points of few to evaluate on, but got none"):
        train({**QUICK, "data": {"source": str(tmp_path / "few.npz")}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.filterwarnings("ignore:This training has ended about at chance")
def test_results_are_json_even_where_nothing_is_certified(tmp_path):
    train({**QUICK, "data": {"source": "digits"}, "epsilon": 500}, out=tmp_path / "run")
    text = Run(tmp_path / "run").evaluation.read_text()
    assert "NaN" not in text
    assert json.loads(text)["rows"][0]["core_size"] is None
    assert "| – |" in Run(tmp_path / "run").card.read_text()


def test_a_run_that_failed_before_anything_was_saved_can_be_begun_again(tmp_path):
    recipe = {**QUICK, "data": {"source": "digits"}, "optimiser": {"rate": 1e30}, "epochs": 3}
    with pytest.raises(SafesetError, match="Expected finite numbers"):
        train(recipe, out=tmp_path / "run")
    (tmp_path / "run" / ".model.safetensors.123.tmp").write_bytes(b"left by a process that was killed")
    train({**recipe, "optimiser": {"rate": 1e-3}}, out=tmp_path / "run")
    assert not list((tmp_path / "run").glob(".*.tmp"))
    assert len(Run(tmp_path / "run").records()) == 3


def test_names_are_printed_as_they_are_and_a_closed_stdin_is_no_matter(tmp_path):
    for place, name in enumerate((":cat:", "[red]dog")):
        images(tmp_path / "photos", name, count=8, value=40 + 150 * place)
    output, _ = safeset("train", "--data", "photos", "--epochs", "1", "--out", "[b]run", cwd=tmp_path, code=0)
    assert "safeset certify [b]run" in output
    script = f"{sys.executable} -m safeset certify '[b]run' 'photos/:cat:' --epsilon 0 <&-"
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "photos/:cat:/0.png" in done.stdout
    assert ":cat:}" in done.stdout or "[red]dog}" in done.stdout


def test_resuming_what_is_not_there_or_differently_is_reported(tmp_path):
    _, errors = safeset("train", "--resume", "--out", "none", cwd=tmp_path, code=1)
    assert "a run to continue, but got none in none" in errors
    _, errors = safeset("train", "--resume", cwd=tmp_path, code=1)
    assert "Name its directory with --out" in errors
    train({**QUICK, "data": {"source": "digits"}}, out=tmp_path / "run")
    _, errors = safeset("train", "--resume", "--out", "run", "--epochs", "9", cwd=tmp_path, code=1)
    assert "`epochs` 1, but got 9" in errors
    (tmp_path / "run" / "evaluation.json").write_text("{")
    _, errors = safeset("train", "--resume", "--out", "run", cwd=tmp_path, code=1)
    assert "safeset evaluate writes it again" in errors
    _, errors = safeset("data", "show", "digits", "--out", "p.xyz", cwd=tmp_path, code=1)
    assert ".png" in errors
    _, errors = safeset("evaluate", "run", "--out", "nodir/x.json", cwd=tmp_path, code=1)
    assert "nodir" in errors


def test_data_that_has_moved_can_be_named_when_resuming(tmp_path):
    rows(tmp_path / "t.csv", ["a", "b", "y"])
    recipe = {**QUICK, "data": {"source": str(tmp_path / "t.csv")}}
    train(recipe, out=tmp_path / "run")
    for name in ("evaluation.json", "model.safetensors"):  # as if it had been killed before the end
        (tmp_path / "run" / name).unlink()
    (tmp_path / "t.csv").rename(tmp_path / "moved.csv")
    train({**recipe, "data": {"source": str(tmp_path / "moved.csv")}}, out=tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").has_ended
