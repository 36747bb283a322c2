"""Points to certify, from files as users have them: images, rows of a table, arrays."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from safeset.data.arrays import read_arrays
from safeset.data.dataset import PIXELS
from safeset.data.decoding import SUFFIXES, read_image
from safeset.data.tables import numbers_of, read_table, scaled
from safeset.errors import ArgumentError, expected, first_few

IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*", b"P5", b"P6")


class Point(NamedTuple):
    """One input with the name it is told by; or, instead of the input, what is wrong with it.

    Attributes:
        name: of the file, and of the row in it.
        x: (*input_shape) float64, or None.
        problem: why there is no x.
        resized_from: (height, width) of an image that was resized.
        composited: whether an image was transparent, and was put on a background.
    """

    name: str
    x: Tensor | None
    problem: str = ""
    resized_from: tuple[int, int] | None = None
    composited: bool = False


def read_points(
    sources: Sequence[str],
    *,
    input_shape: tuple[int, ...],
    units: str,
    ranges: Mapping[str, tuple[float, ...]] | None = None,
    background: str | None = None,
    stdin: BinaryIO | None,
    chosen: Callable[[int], bool] = lambda place: True,
) -> Iterator[Point]:
    """The points of files, one after another; what is wrong with a file is told, and does not stop the others.

    Args:
        sources: images, folders of images, ``.npz`` files with an array x, ``.csv`` files with a header; ``-`` is
            standard input: an image, a list of files (one in a line), or a CSV.
        input_shape: shape of one input; images are resized to it.
        units: those of the inputs; only where they are pixels in [0, 1], images are taken, and bytes divided by 255.
        ranges: (least, largest) of each column, if the net was trained on a table.
        background: the colour that transparent parts of images are composited on; white if None.
        stdin: standard input.
        chosen: which points are wanted, by their place; the others are not decoded.
    """
    form = _Form(input_shape, units == PIXELS, ranges, background)
    for place, read in enumerate(_each(sources, form, stdin)):
        if chosen(place):
            yield read()


class _Form(NamedTuple):
    """What a net's inputs are."""

    shape: tuple[int, ...]
    pixels: bool
    ranges: Mapping[str, tuple[float, ...]] | None
    background: str | None


Read = Callable[[], Point]  # a point that is still to be read


def _each(sources: Sequence[str], form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    for source in sources:
        try:
            yield from _points(source, form, stdin)
        except (ValueError, OSError) as error:  # of which ArgumentError is one, and a null character in a name
            yield partial(Point, source, None, _reason(error))


def _points(source: str, form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    if source == "-":
        content = stdin.read() if stdin is not None else b""
        if content.startswith(b"PK"):
            yield from _arrays("-", io.BytesIO(content), form)
        elif form.ranges is not None:
            yield from _rows(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""), "-", form)
        elif content.startswith(IMAGE_STARTS):
            yield partial(_image, "-", io.BytesIO(content), _for_images(form, source))
        else:
            names = [line.strip() for line in content.decode(errors="replace").splitlines() if line.strip()]
            if not names or "-" in names:
                raise expected("an image, an .npz file or names of files on standard input", "nothing of the kind")
            yield from _each(names, form, None)
        return
    path = Path(source)
    if path.is_dir():
        files = sorted(each for each in path.rglob("*") if each.suffix.lower() in SUFFIXES and each.is_file())
        if not files:
            raise expected(f"images in {path}", "none")
        form = _for_images(form, str(files[0]))
        yield from (partial(_image, str(each), each, form) for each in files)
    elif path.suffix.lower() == ".npz":
        with path.open("rb") as file:
            yield from _arrays(source, file, form)
    elif form.ranges is not None:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield from _rows(lines, source, form, tabs=path.suffix.lower() == ".tsv")
    else:
        yield partial(_image, source, path, _for_images(form, source))


def _for_images(form: _Form, name: str) -> _Form:
    """The same, if a net's inputs are images."""
    shape = form.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or not form.pixels:
        raise expected(f"numbers of shape {shape} as in training, in an .npz file", f"the image {name}")
    return form


def _image(name: str, source: Path | BinaryIO, form: _Form) -> Point:
    channels, height, width = form.shape
    try:
        with warnings.catch_warnings(action="ignore"):  # what a decoder grumbles about is not for the user
            found = read_image(source, (height, width), channels=channels, background=form.background)
    except (ValueError, OSError) as error:
        return Point(name, None, _reason(error))
    x = torch.from_numpy(found.pixels).double() / 255
    return Point(name, x, resized_from=found.resized_from, composited=found.transparent)


def _rows(lines: io.TextIOBase, source: str, form: _Form, *, tabs: bool = False) -> Iterator[Read]:
    """Rows of a table, in its order; columns beyond those of the training are not looked at."""
    header, rows = read_table(lines, source, tabs=tabs)
    columns = list(form.ranges or {})
    missing = [name for name in columns if name not in header]
    if missing:
        raise expected(f"the columns {', '.join(columns)} in {source}", f"none named {first_few(missing)}")

    def point(row: tuple[int, list[str]]) -> Point:
        numbers, _, bad = numbers_of([row], header, columns)
        name = f"{source}:{row[0]}"
        if bad:
            return Point(name, None, bad[row[0]].removeprefix(f"line {row[0]} "))
        return _point(name, torch.tensor(numbers[0], dtype=torch.float64), form)

    yield from (partial(point, row) for row in rows)


def _arrays(source: str, file: BinaryIO, form: _Form) -> Iterator[Read]:
    """The points of an array x; rows of a table as they were before scaling, in the order of its columns."""
    shape = form.shape
    array = read_arrays(file, source, ["x"]).get("x")
    if array is None or array.dtype.kind not in "fiu":
        raise expected(f"numbers in an array x of {source}", "none")
    if array.shape[1:] not in (shape, shape[1:] if len(shape) == 3 and shape[0] == 1 else shape) or not array.ndim:
        raise expected(f"x of {source} to be of shape (n, {', '.join(map(str, shape))})", f"shape {array.shape}")

    def point(place: int) -> Point:
        with np.errstate(over="ignore"):
            numbers = torch.from_numpy(array.reshape(-1, *shape)[place].astype(np.float64))
        return _point(f"{source}[{place}]", numbers, form, as_bytes=array.dtype == np.uint8)

    yield from (partial(point, place) for place in range(len(array)))


def _point(name: str, numbers: Tensor, form: _Form, *, as_bytes: bool = False) -> Point:
    """Numbers in a user's units as the net's input, or what is wrong with them."""
    if not bool(numbers.isfinite().all()):
        return Point(name, None, "NaN or infinite numbers")
    if form.ranges is not None:
        try:
            return Point(name, scaled(numbers[None], form.ranges)[0])
        except ArgumentError as error:
            return Point(name, None, str(error))
    plain = numbers.float() / 255 if as_bytes and form.pixels else numbers.float()
    if form.pixels and not bool(((plain >= 0) & (plain <= 1)).all()):
        got = f"numbers in {float(plain.min()):g}..{float(plain.max()):g}"
        return Point(name, None, str(expected(PIXELS, got, "Divide by 255, or give bytes (uint8).")))
    finite = bool(plain.isfinite().all())
    return Point(name, plain if finite else None, "" if finite else "numbers too large for float32")


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
