"""Points to certify, from files as users have them: images, rows of a table, arrays."""

import io
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from safeset.data.dataset import PIXELS
from safeset.data.images import SUFFIXES, read_image
from safeset.data.tables import numbers_of, read_table, scaled
from safeset.errors import ArgumentError, expected, first_few

IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*", b"P5", b"P6")


class Point(NamedTuple):
    """One input with the name it is told by; or, instead of the input, what is wrong with it."""

    name: str
    x: Tensor | None  # (*input_shape)
    problem: str = ""


def read_points(
    sources: Sequence[str],
    *,
    input_shape: tuple[int, ...],
    units: str,
    ranges: Mapping[str, tuple[float, ...]] | None = None,
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
        stdin: standard input.
        chosen: which points are wanted, by their place; the others are not decoded.
    """
    for place, read in enumerate(_each(sources, _Form(input_shape, units == PIXELS, ranges), stdin)):
        if chosen(place):
            yield read()


class _Form(NamedTuple):
    """What a net's inputs are."""

    shape: tuple[int, ...]
    pixels: bool
    ranges: Mapping[str, tuple[float, ...]] | None


Read = Callable[[], Point]  # a point that is still to be read


def _each(sources: Sequence[str], form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    for source in sources:
        try:
            yield from _points(source, form, stdin)
        except (ArgumentError, OSError) as error:
            yield partial(Point, source, None, _reason(error))


def _points(source: str, form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    if source == "-":
        content = stdin.read() if stdin is not None else b""
        if content.startswith(b"PK"):
            yield from _arrays("-", io.BytesIO(content), form)
        elif form.ranges is not None:
            yield from _rows(io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline=""), "-", form.ranges)
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
        shape = _for_images(form, str(files[0]))
        yield from (partial(_image, str(each), each, shape) for each in files)
    elif path.suffix.lower() == ".npz":
        with path.open("rb") as file:
            yield from _arrays(source, file, form)
    elif form.ranges is not None:
        with path.open(newline="", encoding="utf-8-sig") as lines:
            yield from _rows(lines, source, form.ranges, tabs=path.suffix.lower() == ".tsv")
    else:
        yield partial(_image, source, path, _for_images(form, source))


def _for_images(form: _Form, name: str) -> tuple[int, ...]:
    """The shape of a net's inputs, if they are images."""
    shape = form.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or not form.pixels:
        raise expected(f"numbers of shape {shape} as in training, in an .npz file", f"the image {name}")
    return shape


def _image(name: str, source: Path | BinaryIO, shape: tuple[int, ...]) -> Point:
    try:
        pixels = read_image(source, (shape[1], shape[2]), channels=shape[0])
    except (ValueError, OSError) as error:
        return Point(name, None, _reason(error))
    return Point(name, torch.from_numpy(pixels).float() / 255)


def _rows(
    lines: io.TextIOBase, source: str, ranges: Mapping[str, tuple[float, ...]], *, tabs: bool = False
) -> Iterator[Read]:
    """Rows of a table, in its order; columns beyond those of the training are not looked at."""
    header, rows = read_table(lines, source, tabs=tabs)
    columns = list(ranges)
    missing = [name for name in columns if name not in header]
    if missing:
        raise expected(f"the columns {', '.join(columns)} in {source}", f"none named {first_few(missing)}")

    def point(row: tuple[int, list[str]]) -> Point:
        numbers, _, bad = numbers_of([row], header, columns)
        name = f"{source}:{row[0]}"
        if bad:
            return Point(name, None, bad[row[0]].removeprefix(f"line {row[0]} "))
        return Point(name, scaled(torch.tensor(numbers, dtype=torch.float64), ranges)[0])

    yield from (partial(point, row) for row in rows)


def _arrays(source: str, file: BinaryIO, form: _Form) -> Iterator[Read]:
    """The points of an array x; rows of a table as they were before scaling, in the order of its columns."""
    shape = form.shape
    try:
        with np.load(file, allow_pickle=False) as arrays:
            array = arrays["x"] if "x" in arrays.files else None
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise expected(f"{source} to be an .npz file of plain arrays", str(error).partition("\n")[0]) from None
    if array is None or array.dtype.kind not in "fiu":
        raise expected(f"numbers in an array x of {source}", "none")
    if array.shape[1:] not in (shape, shape[1:] if len(shape) == 3 and shape[0] == 1 else shape):
        raise expected(f"x of {source} to be of shape (n, {', '.join(map(str, shape))})", f"shape {array.shape}")

    def point(place: int) -> Point:
        x = torch.from_numpy(array.reshape(-1, *shape)[place].copy())
        if form.ranges is not None:
            plain = scaled(x.double()[None], form.ranges)[0] if bool(x.isfinite().all()) else x
        else:
            plain = x.float() / 255 if x.dtype == torch.uint8 and form.pixels else x.float()
        finite = bool(plain.isfinite().all())
        return Point(f"{source}[{place}]", plain if finite else None, "" if finite else "NaN or infinite numbers")

    yield from (partial(point, place) for place in range(len(array)))


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
