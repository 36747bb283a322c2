"""Folders of real image files: good, bad and hostile ones."""

import os
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save

from helpers.own_files import paint, photos
from safeset import ArgumentError, DataWarning
from safeset.data import images
from safeset.data.dataset import PIXELS
from safeset.data.decoding import read_image
from safeset.data.eurosat import eurosat
from safeset.data.images import BadFilesError, cache_folder, read_folder
from safeset.data.tiny_imagenet import tiny_imagenet


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path_factory.mktemp("cache")))


def test_class_folders_are_read(tmp_path):
    data = read_folder(photos(tmp_path / "pets"))
    assert (data.name, data.class_names, data.input_shape) == ("pets", ("cat", "dog"), (3, 8, 8))
    assert (len(data.train), len(data.test)) == (16, 4)
    for split in (data.train, data.test):
        assert (split.x[split.y == 0] == torch.tensor([255, 0, 0])[:, None, None]).all()
        assert (split.x[split.y == 1] == torch.tensor([0, 255, 0])[:, None, None]).all()


def test_train_and_test_folders_are_kept_apart(tmp_path):
    photos(tmp_path / "pets" / "train", (20, 20), 6)
    photos(tmp_path / "pets" / "test", (30, 10), 3)
    data = read_folder(tmp_path / "pets")
    assert (len(data.train), len(data.test), data.input_shape) == (12, 6, (3, 20, 20))


@pytest.mark.parametrize(("size", "asked", "expected"), [((100, 80), None, 64), ((8, 9), None, 64), ((8, 8), 16, 16)])
def test_images_are_resized_when_they_are_decoded(tmp_path, size, asked, expected):
    assert read_folder(photos(tmp_path / "pets", size), size=asked).input_shape == (3, expected, expected)


def test_images_are_decoded_once(tmp_path, monkeypatch):
    root = photos(tmp_path / "pets")
    first = read_folder(root)

    def never(*arguments):
        raise AssertionError("decoded again")

    monkeypatch.setattr(images, "read_image", never)
    again = read_folder(root)
    assert torch.equal(first.train.x, again.train.x)
    assert torch.equal(first.test.y, again.test.y)
    monkeypatch.undo()
    paint(root / "cat" / "0.png", colour=(0, 0, 255))
    again = read_folder(root)
    assert not torch.equal(torch.cat([again.train.x, again.test.x]), torch.cat([first.train.x, first.test.x]))


def test_two_folders_of_one_shape_keep_their_own_pixels(tmp_path):
    found = []
    for place, colour in enumerate([(10, 20, 30), (30, 20, 10)]):
        root = tmp_path / str(place) / "pets"
        for name in ("cat", "dog"):
            for number in range(5):
                paint(root / name / f"{number}.bmp", colour=colour)  # of one size in bytes
                os.utime(root / name / f"{number}.bmp", ns=(1, 1))
        found.append(read_folder(root).train.x)
    assert found[0][0, :, 0, 0].tolist() == [10, 20, 30]
    assert found[1][0, :, 0, 0].tolist() == [30, 20, 10]


def test_a_file_that_changes_between_hash_and_decoding_is_reported(tmp_path, monkeypatch):
    root = photos(tmp_path / "pets")
    hashes = images._hashes

    def slow(files):
        found = hashes(files)
        paint(root / "cat" / "3.png", colour=(1, 2, 3))
        return found

    monkeypatch.setattr(images, "_hashes", slow)
    with pytest.raises(BadFilesError, match=r"cat/3\.png: it changed while it was read"):
        read_folder(root)


def test_what_is_left_out_is_named_in_the_folder_that_holds_it(tmp_path):
    for place in ("one", "two"):
        root = photos(tmp_path / place / "pets")
        (root / "dog" / "9.png").write_bytes(b"no image")
        with pytest.warns(DataWarning, match=rf"{place}/pets/dog/9\.png"):  # the second time from the cache
            read_folder(root, skip_bad=True)


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "nonsense", "other texts"])
def test_a_damaged_cache_is_never_used(tmp_path, monkeypatch, damage):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / "cache"))
    root = photos(tmp_path / "pets")
    first = read_folder(root)
    (cache,) = cache_folder().glob("*.safetensors")
    good = cache.read_bytes()
    flipped = good[:-5] + bytes([good[-5] ^ 1]) + good[-4:]
    other = save({"x": first.train.x, "y": first.train.y}, {"content": "5"})
    damaged = {"cut": good[:-100], "flip": flipped, "empty": b"", "nonsense": b"x" * 1000, "other texts": other}
    cache.write_bytes(damaged[damage])
    assert torch.equal(read_folder(root).train.x, first.train.x)
    assert cache.read_bytes() == good
    assert [file.name for file in cache_folder().iterdir()] == [cache.name]  # nothing half-written


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / "file"))
    assert len(read_folder(photos(tmp_path / "pets")).train) == 16


def bomb():
    """A small PNG that says it has 60,000 × 60,000 pixels."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 100)) + chunk(b"IEND", b"")
    )


def jpeg(root):
    paint(root / "whole.jpg", (64, 64))
    return (root / "whole.jpg").read_bytes()


@pytest.mark.parametrize("kind", ["truncated", "text", "empty", "bomb", "pickle"])
def test_bad_files_are_named_and_stop_unless_they_may_be_skipped(tmp_path, kind):
    content = {
        "truncated": jpeg(tmp_path)[:300],
        "text": b"hello",
        "empty": b"",
        "bomb": bomb(),
        "pickle": b"\x80\x04.",
    }
    root = photos(tmp_path / "pets")
    (root / "cat" / "bad.png").write_bytes(content[kind])
    with pytest.raises(BadFilesError, match=r"1 bad file: .*cat/bad\.png: .*--skip-bad"):
        read_folder(root)
    with pytest.warns(DataWarning, match="1 file left out"):
        data = read_folder(root, skip_bad=True)
    assert len(data.train) + len(data.test) == 20


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("L", 100, [100, 100, 100]),
        ("P", 0, [0, 0, 0]),
        ("RGBA", (10, 20, 30, 255), [10, 20, 30]),
        ("CMYK", (0, 0, 0, 0), [255, 255, 255]),
        ("1", 1, [255, 255, 255]),
    ],
)
def test_other_kinds_of_images_become_rgb(tmp_path, mode, colour, expected):
    suffix = "tif" if mode == "CMYK" else "png"
    paint(tmp_path / f"a.{suffix}", (4, 4), colour, mode)
    image = read_image(tmp_path / f"a.{suffix}", None).pixels
    assert image.shape == (3, 4, 4)
    assert image[:, 2, 1].tolist() == expected


def test_sixteen_bits_of_grey_are_all_kept(tmp_path):
    levels = np.random.default_rng(0).integers(0, 2**16, (4, 4), dtype=np.uint16)
    for suffix in ("png", "tif"):
        Image.fromarray(levels).save(tmp_path / f"a.{suffix}")
        for channels in (1, 3):
            found = read_image(tmp_path / f"a.{suffix}", None, channels=channels).numbers
            assert (found == levels.astype(np.float64) / 65535).all()
    half = read_image(tmp_path / "a.png", 2, channels=1)
    means = levels.reshape(2, 2, 2, 2).mean(axis=(1, 3)) / 65535
    assert np.abs(half.numbers - means).max() < 1e-6
    assert half.resized_from == (4, 4)


def test_a_folder_with_sixteen_bits_is_trained_on_with_all_of_them(tmp_path):
    path = photos(tmp_path / "pets")
    eight = read_folder(path)
    name = next(iter(path.iterdir())).name
    Image.fromarray(np.full((8, 8), 0x4321, dtype=np.uint16)).save(path / name / "fine.png")
    for _ in range(2):  # decoded, and from the cache
        data = read_folder(path)
        points = dict(zip(sum(data.names, ()), torch.cat([data.train.exact, data.test.exact]), strict=True))
        assert data.units == PIXELS
        assert (points.pop(f"{name}/fine.png") == 0x4321 / 65535).all()
        before = dict(zip(sum(eight.names, ()), torch.cat([eight.train.exact, eight.test.exact]), strict=True))
        assert all(torch.equal(points[one], before[one]) for one in before)


def test_photos_are_turned_upright(tmp_path):
    picture = Image.new("RGB", (8, 4))
    picture.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned a quarter
    picture.save(tmp_path / "a.png", exif=exif)
    image = read_image(tmp_path / "a.png", None).pixels
    assert image.shape == (3, 8, 4)
    assert image[0, 0, 3] == 255


@pytest.mark.parametrize("make", [lambda root: root.mkdir(), lambda root: paint(root / "cat" / "a.png")])
def test_a_folder_without_two_classes_is_refused(tmp_path, make):
    make(tmp_path / "pets")
    with pytest.raises(ArgumentError, match="at least two classes"):
        read_folder(tmp_path / "pets")


def test_folders_without_images_are_refused(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "notes.txt").write_text("no image")
    with pytest.raises(ArgumentError, match=r"images .* in the class folders"):
        read_folder(tmp_path / "pets")


def test_eurosat_has_a_third_of_each_class_to_test(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    for name in ("River", "Highway"):
        for number in range(9):
            paint(tmp_path / "EuroSAT_RGB" / name / f"{name}_{number}.jpg", (64, 64), (number, 0, 0))
    data = eurosat()
    assert (data.class_names, data.input_shape) == (("Highway", "River"), (3, 64, 64))
    assert (data.train.y.bincount().tolist(), data.test.y.bincount().tolist()) == ([6, 6], [3, 3])


def test_tiny_imagenet_is_read_from_its_official_layout(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_DATA", str(tmp_path))
    root = tmp_path / "tiny-imagenet-200"
    for wnid, colour in (("n01", (9, 0, 0)), ("n02", (0, 9, 0)), ("n03", (0, 0, 9))):
        for number in range(2):
            paint(root / "train" / wnid / "images" / f"{wnid}_{number}.JPEG", (64, 64), colour)
        (root / "train" / wnid / f"{wnid}_boxes.txt").write_text("0 0 1 1")
    paint(root / "val" / "images" / "val_0.JPEG", (64, 64))
    paint(root / "val" / "images" / "val_1.JPEG", (64, 64))
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn03\t0\t0\t1\t1\nval_1.JPEG\tn01\t0\t0\t1\t1\n")
    (root / "words.txt").write_text("n01\tcrane\nn02\tgoldfish, Carassius auratus\nn03\tcrane\n")
    data = tiny_imagenet()
    assert data.class_names == ("crane (n01)", "goldfish", "crane (n03)")
    assert data.identifiers == ("n01", "n02", "n03")
    assert (len(data.train), data.test.y.tolist(), data.input_shape) == (6, [2, 0], (3, 64, 64))
    (root / "val" / "val_annotations.txt").write_text("val_7.JPEG\tn03\n")
    with pytest.raises(ArgumentError, match=r"no .*val_7\.JPEG"):
        tiny_imagenet()
    (root / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn77\n")
    with pytest.raises(ArgumentError, match="a file and its class"):
        tiny_imagenet()
