"""Images, arrays, tables and parameters that are not what they should be: each has one answer, and stops no other."""

import io
import os
import pickle
import re
import struct
import warnings
import zipfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from helpers.own_files import Trap, png, rows
from safeset import ArgumentError, DataWarning, train
from safeset.data import arrays
from safeset.data.arrays import read_arrays
from safeset.data.dataset import PIXELS
from safeset.data.npz import read_npz
from safeset.data.points import read_points
from safeset.data.sources import load_data
from safeset.data.tables import read_table


def saved(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def plain(mode, colour, size=(8, 8)):
    return Image.new(mode, size, colour)


def point(tmp_path, content, channels=3, name="a.png"):
    (tmp_path / name).write_bytes(content)
    (found,) = read_points([str(tmp_path / name)], input_shape=(channels, 8, 8), units=PIXELS, stdin=None)
    return found


# -- images -----------------------------------------------------------------------------------------------------------

SIXTEEN = (b"\0" + struct.pack(">8H", *[0x4321] * 8)) * 8
TURNED = Image.Exif()
TURNED[0x0112] = 3  # upside down
FRAMES = {"save_all": True, "append_images": [plain("RGB", (0, 255, 0))], "duration": 9}

GOOD = {
    "animated GIF, the first": (saved(plain("RGB", (255, 0, 0)), "GIF", **FRAMES), (255, 0, 0)),
    "animated PNG, the first": (saved(plain("RGB", (255, 0, 0)), "PNG", **FRAMES), (255, 0, 0)),
    "pages of a TIFF, the first": (saved(plain("RGB", (255, 0, 0)), "TIFF", **FRAMES), (255, 0, 0)),
    "16 bits, grey PNG": (png(8, 8, 16, 0, SIXTEEN), (0x43, 0x43, 0x43)),
    "16 bits, grey TIFF": (saved(Image.fromarray(np.full((8, 8), 0x4321, np.uint16)), "TIFF"), (0x43, 0x43, 0x43)),
    "16 bits, PGM": (b"P5 8 8 65535\n" + struct.pack(">H", 0x4321) * 64, (0x43, 0x43, 0x43)),
    "1 bit": (saved(plain("1", 1), "PNG"), (255, 255, 255)),
    "CMYK TIFF": (saved(plain("CMYK", (0, 255, 255, 0)), "TIFF"), (255, 0, 0)),
    "CMYK JPEG": (saved(plain("CMYK", (0, 0, 0, 255)), "JPEG"), (0, 0, 0)),
    "palette": (saved(plain("RGB", (9, 99, 199)).convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), (9, 99, 199)),
    "palette with transparency": (saved(plain("P", 0), "PNG", transparency=0), (255, 255, 255)),
    "grey": (saved(plain("L", 77), "PNG"), (77, 77, 77)),
    "grey and alpha": (saved(plain("LA", (77, 0)), "PNG"), (255, 255, 255)),
    "colour and alpha": (saved(plain("RGBA", (1, 2, 3, 51)), "PNG"), (204, 204, 205)),
    "one pixel": (saved(plain("RGB", (1, 2, 3), (1, 1)), "PNG"), (1, 2, 3)),
    "a line": (saved(plain("RGB", (1, 2, 3), (2000, 1)), "PNG"), (1, 2, 3)),
    "broken EXIF": (png(8, 8, 8, 0, (b"\0" + b"\x05" * 8) * 8, (b"eXIf", b"MM\0*\xff\xff\xff\xff")), (5, 5, 5)),
}


@pytest.mark.parametrize("kind", GOOD)
@pytest.mark.parametrize("channels", [3, 1])
def test_images_of_many_kinds_have_one_meaning(tmp_path, kind, channels):
    content, colour = GOOD[kind]
    found = point(tmp_path, content, channels)
    assert not found.problem
    assert found.x.shape == (channels, 8, 8)
    grey = round(sum(share * part for share, part in zip((0.299, 0.587, 0.114), colour, strict=True)))
    wanted = torch.tensor(colour if channels == 3 else (grey,))[:, None, None] / 255
    assert np.abs(found.x - wanted.numpy()).max() <= 1.01 / 255


def test_a_photo_upside_down_is_turned(tmp_path):
    picture = plain("RGB", 0)
    picture.putpixel((0, 0), (255, 255, 255))
    found = point(tmp_path, saved(picture, "PNG", exif=TURNED))
    assert np.argwhere(found.x[0]).tolist() == [[7, 7]]


def test_another_aspect_is_stretched(tmp_path):
    picture = Image.fromarray(np.repeat([[0], [255]], [4, 4], axis=0).repeat(80, axis=1).astype(np.uint8))
    found = point(tmp_path, saved(picture, "PNG"))
    assert found.x[0].mean(axis=1).tolist() == [0] * 4 + [1] * 4


JPEG = saved(plain("RGB", (255, 0, 0), (64, 64)), "JPEG")
CUT = "colours of 16 bits, of which only 8 can be read: save it with 8 bits, or in grey"
BAD = {
    "16 bits, colour": (png(8, 8, 16, 2, (b"\0" + struct.pack(">3H", 0x4321, 0x8765, 0) * 8) * 8), CUT),
    "16 bits, colour and alpha": (png(8, 8, 16, 6, (b"\0" + struct.pack(">4H", 1, 2, 3, 4) * 8) * 8), CUT),
    "16 bits, grey and alpha": (png(8, 8, 16, 4, (b"\0" + struct.pack(">2H", 1, 2) * 8) * 8), CUT),
    "16 bits, PPM": (b"P6 8 8 65535\n" + bytes(384), CUT),
    "10 bits, PGM": (b"P5 8 8 1000\n" + bytes(128), "grey levels up to 1000: save it with 8 bits, or with levels up"),
    "bomb": (png(60_000, 60_000, 8, 0, b"\0" * 100), "60000 x 60000|60000 × 60000|pixels"),
    "smaller bomb": (png(9_000, 9_000, 8, 0, b"\0" * 100), "9000 × 9000 pixels, more than"),
    "bomb of text": (png(8, 8, 8, 0, b"\0" * 72, (b"zTXt", b"x\0\0" + zlib.compress(b"y" * 2**26))), "too large"),
    "PPM that claims": (b"P6 99999 99999 255\n", "pixels"),
    "truncated JPEG": (JPEG[:300], "(?i)truncated"),
    "truncated PNG": (png(8, 8, 8, 2, b"\0" * 10), "truncated|incomplete|not enough|image file"),
    "truncated TIFF": (saved(plain("RGB", 9), "TIFF")[:60], "."),
    "no pixels": (png(0, 8, 8, 0, b""), "."),
    "32 bits": (saved(Image.fromarray(np.full((8, 8), 7, np.int32)), "TIFF"), "32 bits"),
    "floats": (saved(Image.fromarray(np.full((8, 8), 0.5, np.float32)), "TIFF"), "32 bits"),
    "text": (b"hello", "not an image"),
    "nothing": (b"", "not an image"),
    "PostScript": (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n", "not an image"),
    "pickle": (pickle.dumps([1]), "not an image"),
}


@pytest.mark.parametrize("kind", BAD)
def test_images_that_cannot_be_used_are_reported(tmp_path, kind):
    content, message = BAD[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = point(tmp_path, content)
    assert found.x is None
    assert re.search(message, found.problem), found.problem


def test_a_bad_image_stops_no_other(tmp_path):
    for place, content in enumerate([GOOD["grey"][0], *(content for content, _ in BAD.values()), GOOD["grey"][0]]):
        (tmp_path / f"{place:02}.png").write_bytes(content)
    found = list(read_points([str(tmp_path), "a\0b.png"], input_shape=(3, 8, 8), units=PIXELS, stdin=None))
    assert [one.x is not None for one in found] == [True, *[False] * len(BAD), True, False]


# -- arrays -----------------------------------------------------------------------------------------------------------


def archive(path, content, name="x.npy", **options):
    with zipfile.ZipFile(path, "w", **options) as file:
        file.writestr(name, content)
    return path


def npy(array):
    file = io.BytesIO()
    np.save(file, array, allow_pickle=array.dtype.hasobject)
    return file.getvalue()


def claims(shape, descr="<f8"):
    """An array of eight bytes that says it has another shape."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text.encode() + b"\0" * 8


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (claims("(1000000000000,)"), "8,000,000,000,000 bytes in 8"),
        (claims(f"({2**62}, {2**62})"), "bytes in 8"),
        (claims("(0,)"), "0 bytes in 8"),
        (claims("(-1,)"), "."),
        (claims("(1.5,)"), "."),
        (claims("(1,)", "|O"), "Python objects"),
        (claims("__import__('os').mkdir('sprung')"), "."),
        (claims("(1,)")[:-100], "."),
        (b"\x93NUMPY\x09\0" + b"\0" * 90, "format"),
        (b"\x93NUMPY\x01\0\xff\xff" + b"(" * 65_535, "."),
        (b"no array", "."),
        (b"", "."),
    ],
)
def test_arrays_that_lie_are_reported_before_anything_is_allocated(tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    path = archive(tmp_path / "x.npz", content)
    with pytest.raises(ArgumentError, match=rf"to be an \.npz file of plain arrays, but got .*{message}"):
        read_arrays(path, "it")
    assert [one.x for one in read_points([str(path)], input_shape=(2,), units="cm", stdin=None)] == [None]
    assert not (tmp_path / "sprung").exists()


def test_pickled_objects_in_arrays_are_refused_unread(tmp_path):
    path = archive(tmp_path / "x.npz", npy(np.array([Trap(tmp_path / "sprung")], dtype=object)))
    with pytest.raises(ArgumentError, match="Python objects"):
        read_npz(path)
    (tmp_path / "y.npz").write_bytes(pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(ArgumentError, match="not a zip file"):
        read_npz(tmp_path / "y.npz")
    assert not (tmp_path / "sprung").exists()


def test_archives_that_are_broken_are_reported(tmp_path):
    good = archive(tmp_path / "good.npz", npy(np.zeros((9, 99))), compression=zipfile.ZIP_DEFLATED).read_bytes()
    start = good.index(b"PK\x01\x02")
    spoilt = {
        "encrypted": good[:6] + b"\x01" + good[7 : start + 8] + b"\x01" + good[start + 9 :],
        "packed strangely": good[:8] + b"\x63" + good[9 : start + 10] + b"\x63" + good[start + 11 :],
        "flipped": good[:60] + bytes([good[60] ^ 255]) + good[61:],
        "cut": good[:-30],
        "an array": npy(np.zeros((9, 99))),
    }
    for name, content in spoilt.items():
        (tmp_path / "x.npz").write_bytes(content)
        with pytest.raises(ArgumentError, match="plain arrays"):
            read_npz(tmp_path / "x.npz")
        (found,) = read_points([str(tmp_path / "x.npz")], input_shape=(99,), units="cm", stdin=None)
        assert "plain arrays" in found.problem, name
    assert read_arrays(tmp_path / "good.npz", "it")["x"].shape == (9, 99)


def test_a_bomb_of_zeros_is_not_unpacked(tmp_path, monkeypatch):
    path = archive(tmp_path / "x.npz", npy(np.zeros(10**6)), compression=zipfile.ZIP_DEFLATED)
    assert read_arrays(path, "it")["x"].shape == (10**6,)
    monkeypatch.setattr(arrays, "MOST_UNPACKED", 10**6)
    with pytest.raises(ArgumentError, match=r"8,000,128 bytes packed into"):
        read_arrays(path, "it")


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array([[0.5, np.nan]]), "NaN or infinite"),
        (np.array([[np.inf, 0.5]]), "NaN or infinite"),
        (np.array([[0.5, -np.inf]], dtype=">f4"), "NaN or infinite"),
        (np.array([[0.5, 1.5]]), r"Expected pixels in \[0, 1\], but got numbers in 0\.5\.\.1\.5"),
        (np.array([[-0.1, 0.5]]), r"in -0\.1\.\.0\.5"),
        (np.array([[7, 255]]), r"in 7\.\.255. Divide by 255"),
        (np.array([[1e300, 0]]), r"Expected pixels in \[0, 1\]"),
        (np.array([[np.longdouble("1e4000"), 0]]), "NaN or infinite|pixels"),
    ],
)
def test_numbers_that_are_no_pixels_are_reported_and_stop_no_other(tmp_path, array, message):
    np.savez(tmp_path / "x.npz", x=np.concatenate([array, np.full_like(array, 1)]))
    bad, good = read_points([str(tmp_path / "x.npz")], input_shape=(2,), units=PIXELS, stdin=None)
    assert bad.x is None
    assert re.search(message, bad.problem), bad.problem
    assert good.x.tolist() == [1, 1]


@pytest.mark.parametrize("kind", ["u1", "i1", "<u2", ">u2", "<u8", ">i4", "<f2", ">f4", "<f8", ">f8", "g"])
def test_numbers_of_every_type_are_read(tmp_path, kind):
    np.savez(tmp_path / "x.npz", x=np.array([[0, 1], [1, 0]]).astype(kind))
    first, second = read_points([str(tmp_path / "x.npz")], input_shape=(2,), units=PIXELS, stdin=None)
    one = 1 / 255 if kind == "u1" else 1.0
    assert first.x.tolist() == pytest.approx([0, one])
    assert second.x.dtype == np.float64
    np.savez(tmp_path / "y.npz", x=np.array([[0, 1], [1, 0]] * 9).astype(kind), y=[0, 1] * 9)
    assert read_npz(tmp_path / "y.npz").train.x.max() == 1


@pytest.mark.parametrize(
    "array", [np.zeros(()), np.zeros(3), np.zeros((2, 3)), np.zeros((0, 2, 2)), np.zeros((2, 2), complex)]
)
def test_arrays_of_other_shapes_are_reported(tmp_path, array):
    np.savez(tmp_path / "x.npz", x=array)
    (found,) = read_points([str(tmp_path / "x.npz")], input_shape=(2,), units="cm", stdin=None)
    assert "shape" in found.problem or "numbers in an array" in found.problem


@pytest.mark.parametrize(
    ("y", "more", "message"),
    [
        ([0.0, 1.0, np.nan] * 4, {}, "none for 4: the first is point 2"),
        (["a", "b", " "] * 4, {}, "the first is point 2"),
        ([0, 1, 2] * 4, {"class_names": ["a", "b"]}, r"labels in 0\.\.1, but got 2"),
        ([0, 1, -1] * 4, {"class_names": ["a", "b"]}, "but got -1"),
        (np.array([0, 1, 2**64 - 1] * 4, np.uint64), {"class_names": ["a", "b"]}, "but got 18446744073709551615"),
        ([0, 1, 2] * 4, {"x_test": np.zeros((1, 2)), "y_test": [5]}, "labels among the classes, but got 5"),
        (["cat", "dog", "cow"] * 4, {"x_test": np.zeros((1, 2)), "y_test": ["cta"]}, "Did you mean 'cat'"),
    ],
)
def test_unknown_labels_are_reported(tmp_path, y, more, message):
    np.savez(tmp_path / "x.npz", x=np.zeros((12, 2)), y=y, **more)
    with pytest.raises(ArgumentError, match=message):
        read_npz(tmp_path / "x.npz")


# -- tables -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A directory with a run on a table of columns a, b, c."""
    path = tmp_path_factory.mktemp("tables")
    rows(path / "t.csv", ["a", "b", "c", "y"])
    recipe = {"data": {"source": str(path / "t.csv")}, "epochs": 1, "guarantee": "standard", "model": "mlp-2x32"}
    train(recipe, out=path / "run")
    return path


def test_rows_that_cannot_be_used_stop_no_other(trained):
    text = "a,b,c\n1,2,3\n,2,3\n1,two,3\n1,2\n1,2,3,4\n1,nan,3\n1,inf,3\n1,2_0,3\n1,1e300,3\n1,2,3\n"
    (trained / "p.csv").write_text(text)
    output, errors = safeset("certify", "run", "p.csv", "--csv", cwd=trained, code=1)
    assert "8 of the points could not be read" in errors
    lines = output.splitlines()[1:]
    assert [line.endswith(",") for line in lines] == [True, *[False] * 8, True]
    for line, message in zip(
        lines[1:-1], ["''", "'two'", "2 col", "4 col", "nan", "inf", "2_0", "1e+300"], strict=True
    ):
        assert message in line
    np.savez(trained / "p.npz", x=[[1, 1e300, 3], [1, 2, 3]])
    output, _ = safeset("certify", "run", "p.npz", "--csv", cwd=trained, code=1)
    assert [line.endswith(",") for line in output.splitlines()[1:]] == [False, True]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b,a\n1,2,3\n", "'a' twice"),
        (b"a,b\n1,2\n", "none named c"),
        (b"", "but got nothing"),
        (b"\0\0\0\0", "a, b, c|nothing|NUL"),
        (b"a,b,c\n" + b"9" * 200_000 + b",2,3\n", "field larger"),
        (b"a,b,c\n\xff,2,3\n", "text in UTF-8"),
        ("a,b,c\n1,2,3\n".encode("utf-16"), "text in UTF-8"),
        (b'a,b,c\n"1,2,3\n', "3 col|columns|has"),
    ],
)
def test_tables_that_are_none_are_reported(trained, content, message):
    output, errors = safeset("certify", "run", "-", cwd=trained, stdin=content, code=1)
    assert re.search(message, errors), (output, errors)


def test_a_table_for_training_is_held_to_the_same(tmp_path):
    text = "a,y\n" + "1,k\n2,l\n" * 9
    (tmp_path / "t.csv").write_text(text + "1_0,k\n")
    with pytest.raises(ArgumentError, match="'1_0' for 'a'"):
        read_table(tmp_path / "t.csv")
    with pytest.warns(DataWarning, match="1 row of"):
        assert read_table(tmp_path / "t.csv", skip_bad=True).classes == 2


def test_names_that_cannot_be_written_down_are_reported_before_training(tmp_path):
    for name in (b"caf\xe9", b"bar"):
        folder = os.path.join(os.fsencode(tmp_path), b"photos", name)
        os.makedirs(folder)
        for place in range(5):
            with open(os.path.join(folder, b"%d.png" % place), "wb") as file:
                file.write(GOOD["grey"][0])
    _, errors = safeset("train", "--data", "photos", "--epochs", "1", "--out", "run", cwd=tmp_path, code=1)
    assert "class names in UTF-8" in errors
    os.rename(tmp_path / "photos", os.path.join(os.fsencode(tmp_path), b"caf\xe9"))
    with pytest.raises(ArgumentError, match="`source` in UTF-8"):
        train({"data": {"source": os.fsdecode(b"caf\xe9")}}, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_points_that_are_not_finite_are_no_data(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    (tmp_path / "acasxu").mkdir()
    file = tmp_path / "acasxu" / "ACASXU_run2a_1_1_batch_2000.nnet"
    head = "1,1,5,5,\n1,5,\n0,\n-1e300,\n1e300,\n0,0,\n"
    tail = "".join("1.0,\n" for _ in range(10))
    file.write_text(head + "1,1,\n" + tail)
    with pytest.raises(ArgumentError, match="finite points in acasxu-1_1"):
        load_data("acasxu", points=10)
    file.write_text("1,1,2,2,\n1,2,\n0,\n-1,\n1,\n0,0,\n1,1,\n" + "1.0,\n" * 4)
    with pytest.raises(ArgumentError, match="a network of 5 advisories"):
        load_data("acasxu", points=10)
    with pytest.raises(ArgumentError, match="an ACAS Xu network"):
        load_data("acasxu", network="../../x")


# -- parameters -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--epsilon", "-1"], "`epsilon` to be a finite number ≥ 0, but got -1.0"),
        (["--epsilon", "nan"], "`epsilon` to be a finite number ≥ 0, but got nan"),
        (["--epsilon", "1e999"], "`epsilon` to be a finite number ≥ 0, but got inf"),
        (["--guarantee", "rt0"], "`k` to be an integer ≥ 1"),
        (["--guarantee", "rt2"], "`k` to be an integer in 1..1"),
        (["--guarantee", "top999999999"], "`k` to be an integer in 1..1"),
        (["--guarantee", "top" + "9" * 50], "a guarantee: standard, top3, rt3"),
        (["--guarantee", "affinity:[[0, 7]]"], "class indices in 0..1"),
        (["--guarantee", "affinity:[[0, 1]]"], "leave out some class"),
        (["--guarantee", "affinity:[[]]"], "to have a class, but got an empty one"),
        (["--guarantee", "affinity:[[-1]]"], "indices ≥ 0 or names, but got -1"),
        (["--guarantee", "affinity:" + "[" * 99999], "JSON"),
        (["--guarantee", "affinity:"], ".toml or .json"),
        (["--guarantee", "affinity:/dev/zero"], ".toml or .json"),
        (["--method", "best"], "method"),
        (["--device", "cuda:99"], "a device of this machine"),
    ],
)
def test_parameters_out_of_range_are_reported(trained, arguments, message):
    (trained / "one.csv").write_text("a,b,c\n1,2,5\n")
    output, errors = safeset("certify", "run", "one.csv", "--json", *arguments, cwd=trained, code=1)
    assert message in errors
    assert not output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--seeds", "0"], "`seeds` to be an integer in 1..1000"),
        (["--seeds", "1000000000"], "`seeds`"),
        (["--seed", "-1"], "`seed`"),
        (["--size", "1000000000"], "`size` to be an integer in 1..4096"),
        (["--epochs", "0"], "`epochs` to be an integer ≥ 1"),
        (["--set", "epochs=0x" + "f" * 9999], "`epochs` to be an integer, but got '0xfff"),
        (["--set", "epsilon=" + "9" * 400], "`epsilon`"),
        (["--set", "data.seed=99999999999"], "`seed`"),
        (["--set", "loss.weight='1 -> 1000 log half'"], "at most 700"),
        (["--set", "x" + ".x" * 99999 + "=1"], "keys of at most 50 parts"),
        (["--set", "data.points=100000000000"], "There is not enough memory"),
    ],
)
def test_recipes_out_of_range_are_reported(tmp_path, arguments, message):
    _, errors = safeset("train", "--data", "blobs2d", "--out", "run", *arguments, cwd=tmp_path, code=1)
    assert message in errors
    assert not (tmp_path / "run").exists()
    assert len(errors) < 5000
