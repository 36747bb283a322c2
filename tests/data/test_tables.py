"""Tables and arrays as people have them: index columns, texts, no header, Keras names, channels last, one-hot."""

import json

import numpy as np
import pytest
import torch

from helpers.commands import safeset
from safeset import ArgumentError, DataWarning
from safeset.data.columns import parse_table
from safeset.data.dataset import PIXELS
from safeset.data.npz import read_npz
from safeset.data.points import read_points
from safeset.data.tables import read_table
from safeset.runs.run import Run

CITIES = ("Bern", "Oslo", "Rome")


def people(path, count=60, index=None, header="height,city,name,kind"):
    """Rows of a number, two texts and a label; with an index column of some name."""
    lines = [header if index is None else f"{index},{header}"]
    for place in range(count):
        row = f"{150 + place},{CITIES[place % 3]},person {place},{('short', 'tall')[place >= count // 2]}"
        lines.append(row if index is None else f"{place},{row}")
    path.write_text("\n".join(lines) + "\n")
    return path


# -- texts ------------------------------------------------------------------------------------------------------------


def test_columns_of_texts_are_named_once_with_the_remedy(tmp_path):
    with pytest.raises(ArgumentError) as told:
        read_table(people(tmp_path / "p.csv"), skip_bad=True)
    assert str(told.value) == (
        f"Expected numbers in {tmp_path / 'p.csv'}, but got the columns 'city', 'name', which hold text. "
        "--drop city,name leaves them out, --one-hot city encodes it. --label names the column of labels."
    )
    with pytest.raises(
        ArgumentError, match=r"the column 'name', which holds text\. --drop name leaves it out\. --label"
    ):
        read_table(tmp_path / "p.csv", drop=["city"])


def test_the_label_may_stand_in_any_column_of_other_data(tmp_path):
    make = np.random.default_rng(0)
    rows = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in make.random((80, 2))]
    (tmp_path / "last.csv").write_text("\n".join(["a,b,target", *rows]))
    turned = [",".join((*row.split(",")[2:], *row.split(",")[:2])) for row in rows]
    (tmp_path / "first.csv").write_text("\n".join(["target,a,b", *turned]))
    own = read_table(tmp_path / "last.csv")
    other = read_table(tmp_path / "first.csv", ranges=own.ranges)
    assert other.class_names == own.class_names == ("no", "yes")
    assert torch.equal(other.test.exact, own.test.exact)
    (tmp_path / "renamed.csv").write_text("\n".join(["a,bb,target", *rows]))
    with pytest.raises(ArgumentError, match=r"a column 'b' in .*renamed.csv, for which there is a range, but got none"):
        read_table(tmp_path / "renamed.csv", ranges=own.ranges)
    (tmp_path / "numbers.csv").write_text("\n".join(["target,a,b", *(f"{i % 2},{i},{i % 3}" for i in range(60))]))
    assert read_table(tmp_path / "numbers.csv").notes == (
        "The labels are taken from the last column, 'b'. For another: --label target",
    )


def test_missing_numbers_are_no_texts(tmp_path):
    lines = ["a,b,y", *(f"{place},{'NA' if place % 3 else place},{'xy'[place % 2]}" for place in range(30))]
    (tmp_path / "p.csv").write_text("\n".join(lines))
    with pytest.raises(ArgumentError, match="20 bad: line 3 has 'NA' for 'b'"):
        read_table(tmp_path / "p.csv")


def test_texts_are_left_out_or_encoded(tmp_path):
    path = people(tmp_path / "p.csv")
    assert read_table(path, drop=["city", "name"]).input_shape == (1,)
    data = read_table(path, drop=["name"], one_hot=["city"])
    assert list(data.ranges) == ["height", "city=Bern", "city=Oslo", "city=Rome"]
    assert data.one_hot == {"city": CITIES}
    assert data.train.x.dtype == torch.float64
    assert data.train.x[:, 1:].sum(dim=1).unique().tolist() == [1.0]
    assert set(data.train.x[:, 1:].flatten().tolist()) == {0.0, 1.0}
    first = data.train.x[data.names[0].index("line 2")]
    assert first[1:].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"drop": ["citi"]}, "columns of .* to leave out, but got 'citi'. Did you mean 'city'"),
        ({"one_hot": ["citi"]}, "columns of .* to encode, but got 'citi'. Did you mean 'city'"),
        ({"drop": ["height", "city", "name"]}, "columns of different names in .*, but got none"),
    ],
)
def test_columns_that_are_not_there_are_reported(tmp_path, options, message):
    with pytest.raises(ArgumentError, match=message):
        read_table(people(tmp_path / "p.csv"), **options)


def test_a_run_keeps_the_texts_of_its_training(tmp_path):
    people(tmp_path / "p.csv", index="")
    flags = ("--drop", "name", "--one-hot", "city", "--epochs", "2", "--out", "run")
    output, errors = safeset("train", "--data", "p.csv", *flags, cwd=tmp_path)
    assert errors.count("The first column has no name and only numbers the rows: it was left out.") == 1
    assert "columns scaled to [0, 1]" in output + errors
    assert "city=Bern" not in output
    stored = Run(tmp_path / "run").read_recipe()
    assert (stored.data.drop, dict(stored.data.one_hot)) == (("name",), {"city": CITIES})
    assert stored.task.units == "columns scaled to [0, 1]"
    (tmp_path / "q.csv").write_text("city,height\nRome,160\nParis,160\n,160\nBern,tall\nBern,1e9\n")
    output, _ = safeset("certify", "run", "q.csv", "--json", cwd=tmp_path, code=1)
    good, *bad = map(json.loads, output.splitlines())
    assert "problem" not in good
    assert [record["problem"] for record in bad] == [
        "has 'Paris' for 'city', which is none of the 3 texts of training",
        "has '' for 'city', which is none of the 3 texts of training",
        "has 'tall' for 'height'",
        bad[3]["problem"],
    ]
    assert "Expected numbers as in training: 'height' was in 150..20" in bad[3]["problem"]
    (tmp_path / "r.csv").write_text("height\n160\n")
    output, _ = safeset("certify", "run", "r.csv", "--json", cwd=tmp_path, code=1)
    assert "none named city" in output
    safeset("evaluate", "run", "--out", "e.json", cwd=tmp_path)
    people(tmp_path / "other.csv", header="height,city,nickname,kind")
    _, errors = safeset("evaluate", "run", "--data", "other.csv", "--out", "e.json", cwd=tmp_path, code=1)
    assert "'nickname', which holds text. --drop nickname" in errors
    shown, _ = safeset("data", "show", "p.csv", "--drop", "name", "--one-hot", "city", "--out", "p.png", cwd=tmp_path)
    assert "city=Rome" in shown


# -- index columns and headers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_an_index_column_is_no_feature(tmp_path, name):
    path = people(tmp_path / "p.csv", index=name)
    data = read_table(path, drop=["city", "name"])
    assert list(data.ranges) == ["height"]
    assert data.notes == ("The first column has no name and only numbers the rows: it was left out.",)
    assert list(read_table(people(tmp_path / "q.csv", index="id"), drop=["city", "name"]).ranges) == ["id", "height"]
    path.write_text(path.read_text().replace("\n1,", "\n0.5,", 1))
    assert list(read_table(path, drop=["city", "name"]).ranges) == [name, "height"]  # it holds something else


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n6.3,3.3,virginica\n", "5.1,3.5,setosa"),
        ("5.1,3.5,0\n4.9,3.0,0\n6.3,3.3,1\n", "5.1,3.5,0"),
        ("1,1,0\n4,3,0\n", "1,1,0"),
    ],
)
def test_a_table_without_a_header_is_noticed(tmp_path, text, first):
    (tmp_path / "p.csv").write_text(text)
    with pytest.raises(
        ArgumentError, match=f"to start with a header, .* but got data: '{first}'. Put a line with a name"
    ):
        read_table(tmp_path / "p.csv")


@pytest.mark.parametrize("header", ["0,1,label", "0,1,2", ",0,1", "2010,2011,2012", "a,b,c", "x1,x2,3"])
def test_names_that_are_numbers_are_names(header):
    assert parse_table([f"{header}\n", "5.1,3.5,setosa\n"], "it")[0] == header.split(",")


def test_numbers_of_a_table_can_be_taken_as_they_are(tmp_path):
    path = people(tmp_path / "p.csv")
    data = read_table(path, drop=["city", "name"], units="raw")
    assert data.units == "the units of x"
    assert data.range == (150, 209)


@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_columns_may_be_between_semicolons_or_tabs(tmp_path, mark):
    rows = [
        ["a", "b, in cm" if mark != "," else "b", "kind"],
        *([f"{i}.5", str(i % 3), "xy"[i % 2]] for i in range(20)),
    ]
    (tmp_path / "t.csv").write_text("\n".join(mark.join(row) for row in rows))
    data = read_table(tmp_path / "t.csv", units="raw")
    assert (list(data.ranges), data.class_names, data.range) == (rows[0][:2], ("x", "y"), (0, 19.5))
    points = [*read_points([str(tmp_path / "t.csv")], input_shape=(2,), units="raw", ranges=data.ranges, stdin=None)]
    assert points[1].x.tolist() == [1.5, 1]


def test_decimal_commas_are_named_with_the_remedy(tmp_path):
    (tmp_path / "t.csv").write_text("a;note;kind\n" + "".join(f"{i},5;{i},5;{'xy'[i % 2]}\n" for i in range(20)))
    with pytest.raises(ArgumentError, match=r"a decimal comma, '0,5' for 'a'\. Write numbers with points"):
        read_table(tmp_path / "t.csv", drop=["note"])
    (tmp_path / "t.csv").write_text("a;note;kind\n" + "".join(f"{i}.5;{i},5;{'xy'[i % 2]}\n" for i in range(20)))
    data = read_table(tmp_path / "t.csv", drop=["note"])  # what is left out may hold anything
    (tmp_path / "n.csv").write_text("a;b\n1,5;2\n1.5;2\n")
    bad, good = read_points([str(tmp_path / "n.csv")], input_shape=(1,), units="raw", ranges=data.ranges, stdin=None)
    assert "'1,5' for 'a', with a decimal comma. Write numbers with points" in bad.problem
    assert good.x is not None


# -- arrays -----------------------------------------------------------------------------------------------------------


def test_the_arrays_of_keras_are_understood(tmp_path):
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (30, 8, 8, 3), dtype=np.uint8), np.arange(30)[:, None] % 3
    np.savez(tmp_path / "k.npz", x_train=x, y_train=y, x_test=x[:6], y_test=y[:6])
    data = read_npz(tmp_path / "k.npz")
    assert (data.input_shape, data.classes, len(data.train), len(data.test)) == ((3, 8, 8), 3, 30, 6)
    assert torch.equal(data.train.x, torch.from_numpy(x).permute(0, 3, 1, 2))
    assert torch.equal(data.train.y, torch.arange(30) % 3)
    moved = f"x of {tmp_path / 'k.npz'} has its channels last, (30, 8, 8, 3): they were moved to (30, 3, 8, 8)."
    assert data.notes[0] == moved
    np.savez(tmp_path / "k.npz", train_images=x, train_labels=y, test_images=x[:6], test_labels=y[:6])
    other = read_npz(tmp_path / "k.npz")
    assert torch.equal(other.train.x, data.train.x)
    assert (other.test.y.tolist(), len(other.test)) == (data.test.y.tolist(), 6)
    with pytest.warns(DataWarning, match="channels last"):
        points = [*read_points([str(tmp_path / "k.npz")], input_shape=(3, 8, 8), units=PIXELS, stdin=None)]
    assert [point.name.partition(":")[2] for point in points] == [f"test_images[{place}]" for place in range(6)]


@pytest.mark.parametrize(
    ("shape", "found"),
    [
        ((9, 8, 8, 1), (1, 8, 8)),
        ((9, 3, 8, 8), (3, 8, 8)),
        ((9, 4, 8, 8), (4, 8, 8)),
        ((9, 4, 4, 3), (3, 4, 4)),
        ((9, 3, 3, 3), (3, 3, 3)),
        ((9, 8, 8), (1, 8, 8)),
        ((9, 12, 8, 4), (3, 12, 8)),
    ],
)
def test_channels_are_found(tmp_path, shape, found):
    x = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=x, y=np.arange(9) % 3)
    assert read_npz(tmp_path / "x.npz").input_shape == found


def test_a_fourth_channel_is_transparency(tmp_path):
    x = np.zeros((6, 8, 8, 4), dtype=np.uint8)
    x[..., 0], x[:, :4, :, 3], x[:, 4:, :, 3] = 100, 255, 51
    for array in (x, x / 255):
        np.savez(tmp_path / "x.npz", x=array, y=np.arange(6) % 2)
        data = read_npz(tmp_path / "x.npz", background="#0000ff")
        assert "6 of 6 images have transparency, composited on #0000ff; --background changes it." in data.notes[0]
        pixels = data.train.exact * 255
        assert torch.allclose(pixels[0, :, 0, 0], torch.tensor([100.0, 0, 0]).double(), atol=0.5)
        assert torch.allclose(pixels[0, :, 7, 0], torch.tensor([20.0, 0, 204]).double(), atol=0.5)
        (point, *_) = _points(tmp_path, (3, 8, 8), background="#0000ff", warns="four channels last")
        assert torch.allclose(torch.from_numpy(point.x), pixels[0] / 255, atol=0.6 / 255)
    np.savez(tmp_path / "x.npz", x=x.astype(float), y=np.arange(6) % 2)
    with pytest.raises(ArgumentError, match="red, green, blue and alpha in"):
        read_npz(tmp_path / "x.npz")


def _points(folder, shape, *, warns, background=None):
    with pytest.warns(DataWarning, match=warns):
        return list(
            read_points([str(folder / "x.npz")], input_shape=shape, units=PIXELS, background=background, stdin=None)
        )


def test_points_with_channels_last_are_certified_too(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (2, 8, 6, 3), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x_test=x, y_test=[0, 1])
    first, second = _points(tmp_path, (3, 8, 6), warns="channels last")
    assert second.name == f"{tmp_path / 'x.npz'}:x_test[1]"
    assert torch.equal(torch.from_numpy(first.x), torch.from_numpy(x[0]).permute(2, 0, 1).double() / 255)


def test_one_hot_labels_are_understood(tmp_path):
    x, y = np.random.default_rng(0).random((30, 5)), np.eye(4)[np.arange(30) % 3]
    np.savez(tmp_path / "x.npz", x=x, y=y, x_test=x[:3], y_test=y[:3])
    data = read_npz(tmp_path / "x.npz")
    assert (data.class_names, data.test.y.tolist()) == (("0", "1", "2", "3"), [0, 1, 2])
    np.savez(tmp_path / "x.npz", x=x, y=y.astype(bool), class_names=list("abcd"))
    assert read_npz(tmp_path / "x.npz").class_names == tuple("abcd")
    for bad in (y * 0.5, y + y[::-1], y[:, :2]):
        np.savez(tmp_path / "x.npz", x=x, y=bad)
        with pytest.raises(ArgumentError, match="one-hot with a single 1 in each row"):
            read_npz(tmp_path / "x.npz")


def test_a_run_on_arrays_of_keras_is_certified_from_the_same_file(tmp_path):
    rng = np.random.default_rng(0)
    y = np.arange(40) % 2
    x = np.clip(rng.normal(0.2, 0.1, (40, 8, 8, 1)) + 0.5 * y[:, None, None, None], 0, 1).astype(np.float32)
    np.savez(tmp_path / "k.npz", x_train=x, y_train=y[:, None], x_test=x[:8], y_test=y[:8, None])
    _, errors = safeset("train", "--data", "k.npz", "--epochs", "2", "--out", "run", cwd=tmp_path)
    assert errors.count("x of k.npz has its channels last") == 1
    assert "8 of 8 test images are in the training data too" in errors
    output, errors = safeset("certify", "run", "k.npz", "--json", cwd=tmp_path)
    assert len(output.splitlines()) == 8
    assert errors.count("channels last") == 1
