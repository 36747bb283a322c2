"""Sources of data: the real files where they are, small ones of the same form everywhere."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.own_files import CSV, NNET
from safeset import ArgumentError, DataNotFoundError, DataWarning
from safeset.data.acasxu import ADVISORIES, acasxu, parse_nnet, smallest_distance
from safeset.data.cifar100 import cifar100
from safeset.data.dataset import Dataset, Split, stratify
from safeset.data.embedded import blobs2d, digits
from safeset.data.npz import read_npz
from safeset.data.sources import SOURCES, load_data
from safeset.data.tables import read_table

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """The folder with the real data: $SAFESET_DATA, or unpacked from the shared packs."""
    if os.environ.get("SAFESET_DATA"):
        return Path(os.environ["SAFESET_DATA"])
    if not (SHARED / "unpack").exists():
        pytest.skip("needs the real data: set SAFESET_DATA, or lay ../shared/data beside the checkout")
    pytest.importorskip("PIL", reason="unpacking CIFAR-100 needs pillow")
    folder = tmp_path_factory.mktemp("data")
    subprocess.run([sys.executable, SHARED / "unpack", folder, "cifar100", "acasxu"], check=True, capture_output=True)
    return folder


def test_digits_are_embedded():
    data = digits()
    assert (data.input_shape, data.classes, len(data.train), len(data.test)) == ((1, 8, 8), 10, 1198, 599)
    assert data.train.x.dtype == torch.uint8
    assert (data.train.inputs.min(), data.train.inputs.max()) == (0, 1)
    assert data.test.y.bincount().min() >= 58


def test_points_in_the_plane_are_the_same_every_time():
    assert torch.equal(blobs2d().train.x, blobs2d().train.x)
    assert not torch.equal(blobs2d().train.x, blobs2d(seed=1).train.x)
    assert blobs2d().test.y.bincount().tolist() == [500] * 4


def test_a_validation_split_is_part_of_the_training_data():
    data = digits()
    choices = data.for_choices()
    assert len(choices.train) + len(choices.test) == len(data.train)
    assert torch.equal(choices.test.x, data.for_choices().test.x)
    rows = {tuple(x.flatten().tolist()) for x in choices.train.x}
    assert sum(tuple(x.flatten().tolist()) in rows for x in choices.test.x) < 3  # but for images that come twice


@given(st.lists(st.integers(0, 3), min_size=1, max_size=60), st.floats(0, 1))
def test_stratified_splits_hold_out_a_share_of_every_class(labels, share):
    y = torch.tensor(labels)
    stay, held = stratify(y, share, seed=3)
    assert sorted([*stay.tolist(), *held.tolist()]) == list(range(len(y)))
    for label in set(labels):
        assert (y[held] == label).sum() == round(share * labels.count(label))


def test_mistakes_in_data_are_named():
    x, y = torch.zeros(3, 2), torch.tensor([0, 1, 5])
    with pytest.raises(ArgumentError, match=r"labels in 0\.\.1"):
        Dataset("mine", Split(x, y), Split(x, y), ("a", "b"), "cm")
    with pytest.raises(ArgumentError, match="a label for each"):
        Split(x, y[:2])
    with pytest.raises(ArgumentError, match="one shape"):
        Dataset("mine", Split(x, y % 2), Split(x[:, :1], y % 2), ("a", "b"), "cm")


def test_missing_data_is_reported_with_its_place(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    with pytest.raises(DataNotFoundError, match=rf"{tmp_path}/cifar-100-binary.*set SAFESET_DATA"):
        cifar100()
    with pytest.raises(DataNotFoundError, match="7_7"):
        acasxu("7_7")


@pytest.mark.parametrize("source", SOURCES.values(), ids=lambda source: source.name)
def test_a_source_says_how_its_files_get_there(source, tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    if source.folders:
        assert source.archive or source.by_hand
        with pytest.raises(DataNotFoundError, match=f"Expected {source.name} .* at {tmp_path}/{source.folders[0]}"):
            source.check_here()
        (tmp_path / source.folders[-1]).mkdir()
    source.check_here()
    assert source.place() == (f"in {tmp_path / source.folders[-1]}" if source.folders else "built in")
    if source.archive:
        assert source.archive.folder in source.folders


# -- CIFAR-100 --------------------------------------------------------------------------------------------------------


def small_cifar(folder, records=200):
    folder = folder / "cifar-100-binary"
    folder.mkdir()
    rng = np.random.default_rng(0)
    fine = np.arange(records) % 100
    for name in ("train.bin", "test.bin"):
        pixels = rng.integers(0, 256, size=(records, 3072))
        (folder / name).write_bytes(np.column_stack([fine // 5, fine, pixels]).astype(np.uint8).tobytes())
    (folder / "fine_label_names.txt").write_text("\n".join(f"fine{i}" for i in range(100)) + "\n")
    (folder / "coarse_label_names.txt").write_text("\n".join(f"coarse{i}" for i in range(20)) + "\n")
    return folder


def test_cifar_is_read_from_its_official_layout(tmp_path, monkeypatch):
    folder = small_cifar(tmp_path)
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    data = cifar100()
    assert (data.input_shape, data.classes, len(data.train)) == ((3, 32, 32), 100, 200)
    assert data.groups[7] == "coarse1"
    raw = np.frombuffer((folder / "train.bin").read_bytes(), dtype=np.uint8).reshape(200, 3074)
    assert data.train.x[3, 1, 2, 5] == raw[3, 2 + 1024 + 2 * 32 + 5]
    (folder / "test.bin").write_bytes(b"x" * 3000)
    with pytest.raises(ArgumentError, match=r"test\.bin to hold records.*complete"):
        cifar100()


def test_the_real_cifar(real, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(real))
    data = cifar100()
    assert (len(data.train), len(data.test)) == (50_000, 10_000)
    assert data.train.y.bincount().tolist() == [500] * 100
    assert len(set(data.groups)) == 20
    assert {group: data.groups.count(group) for group in data.groups} == dict.fromkeys(data.groups, 5)
    means = data.train.x.double().mean(dim=(0, 2, 3)) / 255
    assert means.tolist() == pytest.approx([0.50707516, 0.48654887, 0.44091784], abs=1e-7)


# -- ACAS Xu ----------------------------------------------------------------------------------------------------------


def test_a_nnet_file_is_parsed():
    network = parse_nnet(NNET)
    assert network.scale(torch.tensor([1.0, 1.0])).tolist() == [0.5, 0.25]
    assert network.costs(torch.tensor([[1.0, 2.0]], dtype=torch.float64)).tolist() == [[1.5, -2.5]]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("1,2,2,2,", "nonsense"),
        ("1,2,2,2,", "1e9,2,2,2,"),
        ("2,2,\n0,", "3,2,\n0,"),
        ("2.0,4.0,9.0", "0.0,4.0,9.0"),
        ("0.0,-1.0,", "0.0,nan,"),
        ("-0.5,\n", ""),
    ],
)
def test_other_files_are_not_nnet(old, new):
    with pytest.raises(ArgumentError, match=r"\.nnet"):
        parse_nnet(NNET.replace(old, new, 1))


@given(st.text(max_size=200))
def test_no_text_crashes_the_parser(text):
    with pytest.raises(ArgumentError):
        parse_nnet(text)


def test_the_real_acas_xu(real, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(real))
    data = acasxu("1_1", points=4000)
    assert data.class_names == ADVISORIES
    assert (data.train.y == 0).float().mean() == pytest.approx(0.857, abs=0.02)
    assert torch.equal(data.train.x, acasxu("1_1", points=4000).train.x)
    assert not torch.equal(data.train.y, acasxu("2_3", points=4000).train.y)
    few = data.train[torch.arange(300)]
    slow = min(
        (few.x[i].double() - few.x[j].double()).norm().item()
        for i in range(300)
        for j in range(i)
        if few.y[i] != few.y[j]
    )
    assert smallest_distance(few, at_once=70) == pytest.approx(slow, rel=1e-12)


# -- a user's own -----------------------------------------------------------------------------------------------------


def test_npz_files_are_read(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "mine.npz"
    np.savez(path, x=rng.normal(size=(50, 3)), y=np.array(["cat", "dog"] * 25))
    data = read_npz(path)
    assert (data.name, data.class_names, data.input_shape) == ("mine", ("cat", "dog"), (3,))
    assert (len(data.train), len(data.test)) == (40, 10)
    np.savez(path, x=rng.integers(0, 256, size=(20, 8, 8), dtype=np.uint8), y=np.arange(20) % 4)
    images = read_npz(path)
    assert (images.input_shape, images.class_names) == ((1, 8, 8), ("0", "1", "2", "3"))
    assert images.train.inputs.max() <= 1
    np.savez(path, x=np.zeros((4, 2)), y=[0, 1, 0, 1], x_test=np.ones((2, 2)), y_test=[1, 0], class_names=["a", "b"])
    given = read_npz(path)
    assert (len(given.train), given.test.y.tolist(), given.class_names) == (4, [1, 0], ("a", "b"))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.zeros((2, 2)), "y": np.zeros(2)}, "an array 'x'.*but got X"),
        ({"x": np.array([[1.0], [np.nan]]), "y": np.array([0, 1])}, "NaN or infinite numbers in 1 of 2"),
        ({"x": np.array([["a"], ["b"]]), "y": np.array([0, 1])}, "to be numbers"),
        ({"x": np.zeros((3, 2)), "y": np.array([0, 1])}, "a label for each"),
        ({"x": np.zeros((2, 2)), "y": np.array([0, 0])}, "at least two classes"),
        ({"x": np.array([{}, {}], dtype=object), "y": np.array([0, 1])}, "plain arrays"),
    ],
)
def test_mistakes_in_npz_files_are_named(tmp_path, arrays, message):
    path = tmp_path / "mine.npz"
    np.savez(path, **arrays)
    with pytest.raises(ArgumentError, match=message):
        read_npz(path)


@pytest.mark.parametrize("content", [b"", b"PK nonsense", b"not a zip"])
def test_other_files_are_not_npz(tmp_path, content):
    path = tmp_path / "mine.npz"
    path.write_bytes(content)
    with pytest.raises(ArgumentError, match="plain arrays"):
        read_npz(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("x.npy", content)
    with pytest.raises(ArgumentError, match=r"plain arrays|numbers|an array"):
        read_npz(path)


def test_csv_files_are_read_and_scaled(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    data = read_table(path)
    assert (data.class_names, data.input_shape, len(data.train), len(data.test)) == (("a", "b"), (2,), 16, 4)
    assert (data.train.x.min(), data.train.x.max()) == (0, 1)
    assert data.units == "columns scaled to [0, 1]"
    stated = read_table(path, ranges={"height": (0, 100)})
    assert stated.train.x[:, 0].max() <= 0.19 + 1e-6
    assert (stated.units, stated.ranges["height"]) == (data.units, (0, 100))
    path.write_text("kind,height\na,1\nb,2\na,3\nb,4\n")
    assert read_table(path, label="kind").input_shape == (1,)


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        (CSV.replace("\n3,30", "\n3,wide"), {}, "1 bad: line 5 has 'wide' for 'width'.*--skip-bad"),
        (CSV.replace("\n3,30", "\n3,"), {}, "line 5 has '' for 'width'"),
        (CSV.replace("\n3,30", "\nnan,30"), {}, "line 5 has 'nan' for 'height'"),
        (CSV.replace("\n3,30", "\n3,30,7"), {}, "line 5 has 4 columns instead of 3"),
        (CSV.replace("width", "height"), {}, "'height' twice"),
        (CSV, {"label": "knd"}, "Did you mean 'kind'"),
        (CSV, {"ranges": {"hight": (0, 1)}}, "Did you mean 'height'"),
        ("", {}, "but got nothing"),
        ("a,b\n", {}, "rows of numbers"),
    ],
)
def test_mistakes_in_csv_files_are_named(tmp_path, text, arguments, message):
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=message):
        read_table(path, **arguments)


def test_bad_rows_can_be_left_out(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(CSV.replace("\n3,30", "\n3,wide"))
    with pytest.warns(DataWarning, match="rows? of .* left out"):
        data = read_table(path, skip_bad=True)
    assert len(data.train) + len(data.test) == 19


def test_data_is_loaded_by_name_or_path(tmp_path):
    assert load_data("blobs2d", points=10).train.y.bincount().tolist() == [10] * 4
    path = tmp_path / "mine.csv"
    path.write_text(CSV)
    assert load_data(path).name == load_data(str(path)).name == "mine"
    np.savez(tmp_path / "mine.npz", x=np.zeros((4, 2)), y=[0, 1, 0, 1])
    assert load_data(tmp_path / "mine.npz").input_shape == (2,)
    with pytest.raises(DataNotFoundError, match="Did you mean 'digits'"):
        load_data("digit")
    with pytest.raises(ArgumentError, match="options that digits has, but got 'size'"):
        load_data("digits", size=3)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(ArgumentError, match=r"\.npz or a \.csv"):
        load_data(tmp_path / "notes.txt")
