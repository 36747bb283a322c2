"""Images with transparency: composited on a colour, in training and certification alike, and said."""

import struct

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from helpers.own_files import png
from safeset import ArgumentError
from safeset.data.dataset import PIXELS
from safeset.data.decoding import colour, read_image
from safeset.data.images import read_folder
from safeset.data.points import read_points
from safeset.runs.run import Run


def icon(path, place, form="PNG", mode="RGBA"):
    """A dark disc on nothing: without its alpha it is a black square."""
    across, down = np.meshgrid(np.arange(16), np.arange(16))
    inside = (across - 8) ** 2 + (down - 8) ** 2 < (3 + place % 5) ** 2
    pixels = np.zeros((16, 16, 4), dtype=np.uint8)
    pixels[..., 3] = np.where(inside, 255, 0)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).convert(mode).save(path, form)


def palette(place):
    image = Image.new("P", (8, 8), place)
    image.putpalette(range(30))
    return image


@pytest.fixture
def icons(tmp_path, monkeypatch):
    monkeypatch.setenv("SAFESET_CACHE", str(tmp_path / ".cache"))
    for name, start in (("big", 3), ("small", 0)):
        for place in range(10):
            icon(tmp_path / "icons" / name / f"{place}.png", start + place % 2)
    return tmp_path / "icons"


SIXTEEN = (b"\0" + struct.pack(">8H", 7, *[0x4321] * 7)) * 8
KINDS = {
    "RGBA": lambda path: icon(path, 1),
    "LA": lambda path: icon(path, 1, mode="LA"),
    "WebP": lambda path: icon(path, 1, "WEBP"),
    "TIFF": lambda path: icon(path, 1, "TIFF"),
    "palette": lambda path: palette(3).save(path, "PNG", transparency=3),
    "palette of alphas": lambda path: palette(1).save(path, "PNG", transparency=b"\xff\0"),
    "GIF": lambda path: palette(3).save(path, "GIF", transparency=3),
    "one colour of RGB": lambda path: Image.new("RGB", (8, 8), (1, 2, 3)).save(path, "PNG", transparency=(1, 2, 3)),
    "one level of grey": lambda path: Image.new("L", (8, 8), 9).save(path, "PNG", transparency=9),
    "one level of 16 bits": lambda path: path.write_bytes(png(8, 8, 16, 0, SIXTEEN, (b"tRNS", struct.pack(">H", 7)))),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("channels", [3, 1])
def test_what_is_transparent_shows_the_background(tmp_path, kind, channels):
    KINDS[kind](tmp_path / "a")
    found = read_image(tmp_path / "a", None, channels=channels)
    assert found.transparent
    assert found.numbers[:, 0, 0].tolist() == [1] * channels
    grey = read_image(tmp_path / "a", None, channels=channels, background="#808080")
    assert grey.numbers[:, 0, 0].tolist() == pytest.approx([128 / 255] * channels)


def test_an_alpha_channel_that_hides_nothing_is_no_transparency(tmp_path):
    Image.new("RGBA", (8, 8), (1, 2, 3, 255)).save(tmp_path / "a.png")
    found = read_image(tmp_path / "a.png", None, background="red")
    assert not found.transparent
    assert found.pixels[:, 0, 0].tolist() == [1, 2, 3]


def test_folders_of_icons_are_not_black_squares(icons):
    data = read_folder(icons)
    assert data.notes == ("20 of 20 images have transparency: composited on white; --background changes it.",)
    assert data.train.x.float().std() > 50
    assert not torch.equal(read_folder(icons, background="blue").train.x, data.train.x)  # also though it is cached
    assert read_folder(icons).notes == data.notes  # from the cache


@pytest.mark.parametrize("text", ["whit", "", "#12", "rgb(300)", "\0"])
def test_colours_that_are_none_are_reported(text):
    with pytest.raises(ArgumentError, match="a colour such as white"):
        colour(text)


def test_a_run_keeps_its_background(icons):
    flags = ("--epochs", "1", "--background", "#0000ff", "--out", "run")
    _, errors = safeset("train", "--data", "icons", *flags, cwd=icons.parent)
    assert errors.count("20 of 20 images have transparency: composited on #0000ff; --background changes it.") == 1
    assert Run(icons.parent / "run").read_recipe().data.background == "#0000ff"
    _, errors = safeset("evaluate", "run", "--out", "e.json", cwd=icons.parent)
    assert "composited on #0000ff" in errors
    first, _ = safeset("certify", "run", "icons/big/0.png", "--json", cwd=icons.parent)
    blue, _ = safeset("certify", "run", "icons/big/0.png", "--json", "--background", "blue", cwd=icons.parent)
    white, _ = safeset("certify", "run", "icons/big/0.png", "--json", "--background", "white", cwd=icons.parent)
    assert first == blue != white
    for command in (("train", "--data", "icons"), ("certify", "run", "icons/big/0.png"), ("data", "show", "icons")):
        _, errors = safeset(*command, "--background", "whit", cwd=icons.parent, code=1)
        assert "a colour such as white" in errors


def test_points_say_what_was_done_to_images(icons):
    Image.new("RGB", (8, 4)).save(icons / "plain.png")
    files = [str(icons / "big" / "0.png"), str(icons / "plain.png")]
    big, plain = read_points(files, input_shape=(3, 16, 16), units=PIXELS, stdin=None)
    assert (big.composited, big.resized_from) == (True, None)
    assert (plain.composited, plain.resized_from) == (False, (4, 8))
    assert big.x.dtype == plain.x.dtype == np.float64


def test_points_say_where_grey_images_become_three_equal_channels(tmp_path):
    """A change of the greys is then √3 times as large."""
    made = {
        "grey": Image.new("L", (4, 4), 9),
        "fine": Image.fromarray(np.full((4, 4), 999, dtype=np.uint16)),
        "one bit": Image.new("1", (4, 4), 1),
        "clear": Image.new("LA", (4, 4), (9, 9)),
        "colour": Image.new("RGB", (4, 4), (9, 9, 9)),
    }
    for name, image in made.items():
        image.save(tmp_path / f"{name}.png")
    files = [str(tmp_path / f"{name}.png") for name in made]

    def grey(channels, **options):
        points = read_points(files, input_shape=(channels, 4, 4), units=PIXELS, stdin=None, **options)
        return [name for name, point in zip(made, points, strict=True) if point.grey]

    assert grey(3) == ["grey", "fine", "one bit", "clear"]
    assert grey(3, background="red") == ["grey", "fine", "one bit"]
    assert grey(1) == []
