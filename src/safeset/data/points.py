"""Points to certify, from files as users have them: images, rows of a table, arrays. None of it needs torch."""

import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from safeset.data.arrays import AS_PIXELS, NAMES, are_pixels, channels_first, is_exact, read_arrays
from safeset.data.columns import OneHot, input_names, numbers_of, parse_table, scaled
from safeset.data.decoding import BACKGROUND, SUFFIXES, read_image
from safeset.errors import ArgumentError, DataWarning, expected, first_few
from safeset.values import PIXELS, far_outside

IMAGE_STARTS = (b"\x89PNG", b"\xff\xd8", b"GIF8", b"BM", b"RIFF", b"II*\0", b"MM\0*", b"P5", b"P6")


class Point(NamedTuple):
    """One input and its name; or, instead of the input, what is wrong with it.

    Attributes:
        name: of the file, and of the row in it.
        x: (*input_shape) float64, or None.
        problem: why there is no x.
        resized_from: (height, width) of an image that was resized.
        composited: whether an image was transparent, and was put on a background.
        grey: whether an image is grey in its file, and was repeated in 3 channels.
    """

    name: str
    x: NDArray[np.float64] | None
    problem: str = ""
    resized_from: tuple[int, int] | None = None
    composited: bool = False
    grey: bool = False


def read_points(
    sources: Sequence[str],
    *,
    input_shape: tuple[int, ...],
    units: str,
    seen: tuple[float, ...] | None = None,
    ranges: Mapping[str, tuple[float, ...]] | None = None,
    one_hot: OneHot | None = None,
    background: str | None = None,
    stdin: BinaryIO | None,
    chosen: Callable[[int], bool] = lambda place: True,
) -> Iterator[Point]:
    """Read the points of files, one after another; what is wrong with a file is reported, and does not stop the others.

    Args:
        sources: images, folders of images, ``.npz`` files with an array x, ``.csv`` files with a header; ``-`` is
            standard input: an image, a list of files (one in a line), or a CSV.
        input_shape: shape of one input; images are resized to it.
        units: those of the inputs; only where they are pixels in [0, 1], images are taken, and bytes divided by 255.
        seen: the least and the largest number of training; points far outside can only be in other units.
        ranges: (least, largest) of each column, if the net was trained on a table.
        one_hot: the texts of its columns that are encoded.
        background: the colour that transparent parts of images are composited on; white if None.
        stdin: standard input.
        chosen: which points are wanted, by their place; the others are not decoded.
    """
    form = _Form(input_shape, units == PIXELS, seen, ranges, one_hot or {}, background)
    for place, read in enumerate(_each(sources, form, stdin)):
        if chosen(place):
            yield read()


class _Form(NamedTuple):
    """The shape and the units of a net's inputs."""

    shape: tuple[int, ...]
    pixels: bool
    seen: tuple[float, ...] | None
    ranges: Mapping[str, tuple[float, ...]] | None
    one_hot: OneHot
    background: str | None


Read = Callable[[], Point]  # a point that is still to be read


def read_contents(
    contents: Sequence[tuple[str, bytes | np.ndarray]],
    *,
    input_shape: tuple[int, ...],
    units: str,
    seen: tuple[float, ...] | None = None,
    ranges: Mapping[str, tuple[float, ...]] | None = None,
    one_hot: OneHot | None = None,
    background: str | None = None,
) -> Iterator[Point]:
    """Read the points of what somebody sent, by name; no file of this machine is opened, whatever is in it.

    Args:
        contents: image files, tables as CSV where the net was trained on one, or arrays (n, *input_shape) with numbers
            as an ``.npz`` file has them; each with its name.
        input_shape: as for `read_points`, and so are the others.
        units: likewise.
        seen: likewise.
        ranges: likewise.
        one_hot: likewise.
        background: likewise.
    """
    form = _Form(input_shape, units == PIXELS, seen, ranges, one_hot or {}, background)
    for name, content in contents:
        try:
            if isinstance(content, np.ndarray):
                reads = _array(content, name, form)
            elif form.ranges is not None:
                reads = _rows(_lines(content), name, form)
            else:
                reads = iter([partial(_image, name, io.BytesIO(content), _for_images(form, name))])
            yield from (read() for read in reads)
        except (ValueError, OSError) as error:
            yield Point(name, None, _reason(error))


def read_numbers(
    array: np.ndarray,
    name: str,
    *,
    input_shape: tuple[int, ...],
    units: str,
    seen: tuple[float, ...] | None = None,
    **others: Any,
) -> NDArray[np.float64]:
    """The points of one array at once, (n, *input_shape) float64; arguments as for `read_contents`.

    Raises:
        ArgumentError: for the first point that cannot be read.
    """
    if units == PIXELS and array.shape[1:] == input_shape and array.dtype in (np.uint8, np.float32, np.float64):
        x: NDArray[np.float64] = array.astype(np.float64)
        x = x / 255 if array.dtype == np.uint8 else x
        if not x.size or (x.min() >= 0 and x.max() <= 1):  # no NaN is
            return x
    points = list(read_contents([(name, array)], input_shape=input_shape, units=units, seen=seen, **others))
    for point in points:
        if point.x is None:
            raise ArgumentError(f"{point.name}: {point.problem}")
    found = [point.x for point in points if point.x is not None]
    return np.stack(found) if found else np.zeros((0, *input_shape))


def _lines(content: bytes) -> io.TextIOWrapper:
    return io.TextIOWrapper(io.BytesIO(content), encoding="utf-8-sig", newline="")


def _each(sources: Sequence[str], form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    for source in sources:
        try:
            yield from _points(source, form, stdin)
        except (ValueError, OSError) as error:  # ArgumentError is a ValueError; so is a null character in a name
            yield partial(Point, source, None, _reason(error))


def _points(source: str, form: _Form, stdin: BinaryIO | None) -> Iterator[Read]:
    if source == "-":
        content = stdin.read() if stdin is not None else b""
        if content.startswith(b"PK"):
            yield from _arrays("-", io.BytesIO(content), form)
        elif form.ranges is not None:
            yield from _rows(_lines(content), "-", form)
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
    """Refuse an image, and what else is no .npz file, where a net's inputs are no images."""
    shape = form.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or not form.pixels:
        what = "the image" if Path(name).suffix.lower() in SUFFIXES else "the file"  # a CSV is none
        raise expected(f"numbers of shape {shape} as in training, in an .npz file", f"{what} {name}")
    return form


def _image(name: str, source: Path | BinaryIO, form: _Form) -> Point:
    channels, height, width = form.shape
    try:
        with warnings.catch_warnings(action="ignore"):  # users cannot act on a decoder's warnings
            found = read_image(source, (height, width), channels=channels, background=form.background)
    except (ValueError, OSError) as error:
        return Point(name, None, _reason(error))
    return Point(name, found.numbers, resized_from=found.resized_from, composited=found.transparent, grey=found.grey)


def _rows(lines: io.TextIOBase, source: str, form: _Form, *, tabs: bool = False) -> Iterator[Read]:
    """Rows of a table, in its order; columns beyond those of the training are not looked at."""
    header, rows = parse_table(lines, source, tabs=tabs)
    inputs, texts = list(form.ranges or {}), set(input_names(form.one_hot, form.one_hot))
    columns = [*(name for name in inputs if name not in texts), *form.one_hot]
    missing = [name for name in columns if name not in header]
    if missing:
        raise expected(f"the columns {', '.join(columns)} in {source}", f"none named {first_few(missing)}")

    def point(row: tuple[int, list[str]]) -> Point:
        numbers, _, bad = numbers_of([row], header, inputs, one_hot=form.one_hot)
        name = f"{source}:{row[0]}"
        if bad:
            return Point(name, None, bad[row[0]].removeprefix(f"line {row[0]} "))
        return _point(name, np.array(numbers[0], dtype=np.float64), form)

    yield from (partial(point, row) for row in rows)


ARRAYS = ("x", "x_test", "test_images", *NAMES["x"])  # the first of these in a file is certified


def _arrays(source: str, file: BinaryIO, form: _Form) -> Iterator[Read]:
    """The points of an array x; rows of a table as they were before scaling, in the order of its columns."""
    found = read_arrays(file, source, ARRAYS)
    which = next((name for name in ARRAYS if name in found), "x")
    array = found.get(which)
    if array is None or array.dtype.kind not in "fiu":
        raise expected(f"numbers in an array x of {source}", "none")
    yield from _array(array, f"{which} of {source}", form, source if which == "x" else f"{source}:{which}")


def _array(array: np.ndarray, what: str, form: _Form, prefix: str | None = None) -> Iterator[Read]:
    """The points of an array, whose names begin as it is said."""
    if array.dtype.kind not in "fiu":
        raise expected(f"numbers in {what}", "something else")
    array = _fitting(array, what, form)
    if not form.pixels and form.seen is not None and are_pixels(array, form.seen):
        got = f"numbers from {array.min():g} to {array.max():g} in {what}"
        raise expected(
            _as_in_training(form.seen), got, "They look like pixels in [0, 1]: multiply them, as in training."
        )
    start = what if prefix is None else prefix

    def point(place: int) -> Point:
        if not is_exact(array[place]) and np.isfinite(array[place].astype(np.float64)).all():
            return Point(f"{start}[{place}]", None, "numbers with more digits than float64 holds")
        numbers = array[place].astype(np.float64)
        return _point(f"{start}[{place}]", numbers, form, as_bytes=array.dtype == np.uint8)

    def quietly(place: int) -> Point:
        with np.errstate(over="ignore"):
            return point(place)

    yield from (partial(quietly, place) for place in range(len(array)))


def _fitting(array: np.ndarray, what: str, form: _Form) -> np.ndarray:
    """An array (n, *shape): of images the channels may be last, and a fourth one is composited."""
    shape = form.shape
    others = (shape[1:], (*shape[1:], shape[0]), (*shape[1:], 4)) if len(shape) == 3 else ()
    if array.shape[1:] != shape and array.shape[1:] in others:
        background = form.background or BACKGROUND if form.pixels and shape[0] == 3 else None
        array, notes = channels_first(array, what, background, last=True)
        for note in notes:
            warnings.warn(note, DataWarning, stacklevel=2)
    if array.shape[1:] != shape or not array.ndim:
        raise expected(f"{what} to be of shape (n, {', '.join(map(str, shape))})", f"shape {array.shape}")
    return array


def _point(name: str, numbers: NDArray[np.float64], form: _Form, *, as_bytes: bool = False) -> Point:
    """Numbers in a user's units as the net's input, or what is wrong with them."""
    if not np.isfinite(numbers).all():
        return Point(name, None, "NaN or infinite numbers")
    try:
        if form.ranges is not None:
            x = scaled(numbers[None], form.ranges)[0]
            _check_row(x, numbers, form.ranges, form.seen)
            return Point(name, x)
        x = numbers / 255 if as_bytes and form.pixels else numbers
        got = f"numbers in {float(x.min()):g}..{float(x.max()):g}"
        if form.pixels and not ((x >= 0) & (x <= 1)).all():
            raise expected(PIXELS, got, f"{AS_PIXELS}.")
        if not form.pixels and form.seen is not None and far_outside(x[None], form.seen).any():
            raise expected(_as_in_training(form.seen), got, "Give them in the units of training.")
    except ArgumentError as error:
        return Point(name, None, str(error))
    return Point(name, x)


def _as_in_training(seen: tuple[float, ...]) -> str:
    return f"numbers as in training, which were in {seen[0]:g}..{seen[1]:g}"


def _check_row(
    x: NDArray[np.float64],
    numbers: NDArray[np.float64],
    ranges: Mapping[str, tuple[float, ...]],
    seen: tuple[float, ...] | None,
) -> None:
    """Raise an error for a row that can only be in other units than those of training, by its worst column."""
    if seen is None or not far_outside(x[None], (min(seen[0], 0.0), max(seen[1], 1.0))).any():
        return
    worst = int(np.abs(x - 0.5).argmax())
    column, (low, high) = list(ranges.items())[worst]
    remedy = "Give the columns in the units of training."
    raise expected(f"numbers as in training: {column!r} was in {low:g}..{high:g}", f"{numbers[worst]:g}", remedy)


def _reason(error: Exception) -> str:
    return error.strerror or str(error) if isinstance(error, OSError) else str(error)
