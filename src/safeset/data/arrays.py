"""The arrays of ``.npz`` files, without pickles: what a file claims is checked before anything is allocated.

None of it needs torch.
"""

import math
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from safeset.data.decoding import colour
from safeset.errors import expected

# An array beyond both counts as a decompression bomb: its bytes, and its bytes for each packed one.
MOST_UNPACKED, LARGEST_RATIO = 2**30, 100
NAMES = {  # other names of the arrays, the best first
    "x": ("x_train", "train_images", "images"),
    "y": ("y_train", "train_labels", "labels"),
    "x_test": ("test_images",),
    "y_test": ("test_labels",),
}
LARGEST_WHOLE = 2**53  # float64 holds every integer up to here
WIDE = 10.0  # pixels in [0, 1] cannot have so wide a range
AS_PIXELS = "Divide by 255, or give bytes (uint8)"
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}


def read_arrays(source: Path | BinaryIO, what: str, names: Container[str] | None = None) -> dict[str, np.ndarray]:
    """Plain arrays by name.

    Args:
        source: a file.
        what: its name in errors.
        names: those that are wanted; all if None.

    Raises:
        ArgumentError: if it is no such file, holds objects, or is not of the size that it claims.
    """
    try:
        with zipfile.ZipFile(source) as archive:
            members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
            return {name: _array(archive, info) for name, info in members.items() if names is None or name in names}
    except Exception as error:  # readers of broken archives raise errors of any type
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error).partition("\n")[0]
        raise expected(f"{what} to be an .npz file of plain arrays", reason or type(error).__name__) from None


def _array(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> np.ndarray:
    if info.file_size > MOST_UNPACKED and info.file_size > LARGEST_RATIO * info.compress_size:
        raise ValueError(f"{info.file_size:,} bytes packed into {info.compress_size:,}")
    with archive.open(info) as file:
        version = npy.read_magic(file)
        if version not in HEADERS:
            raise ValueError(f"an array of the format {version}")
        shape, _, dtype = HEADERS[version](file)
        claimed, there = math.prod(shape) * dtype.itemsize, info.file_size - file.tell()
    if dtype.hasobject or claimed != there:
        raise ValueError("Python objects" if dtype.hasobject else f"an array of {claimed:,} bytes in {there:,}")
    with archive.open(info) as file:
        return npy.read_array(file, allow_pickle=False)


def channels_first(
    array: np.ndarray, what: str, background: str | None, *, last: bool | None = None
) -> tuple[np.ndarray, list[str]]:
    """Images as (n, channels, height, width), and what was done to them; other arrays as they are.

    Args:
        array: (n, height, width), (n, channels, height, width) or (n, height, width, channels).
        what: its name in notes and errors.
        background: the colour that four channels, if they come last, are composited on; None to keep them.
        last: whether the channels come last; by default where the shape says so.
    """
    if array.ndim == 3:
        return array[:, None], []
    if array.ndim != 4 or not (_channels_last(array.shape) if last is None else last):
        return array, []
    moved = np.moveaxis(array, -1, 1)
    if array.shape[-1] != 4 or background is None:
        return moved, [f"{what} has its channels last, {array.shape}: they were moved to {moved.shape}."]
    if array.dtype != np.uint8 and array.size and not (array.min() >= 0 and array.max() <= 1):
        got = f"numbers from {array.min():g} to {array.max():g}"
        raise expected(f"red, green, blue and alpha in [0, 1] in {what}", got, f"{AS_PIXELS}.")
    alpha, pixels = moved[:, 3:].astype(np.float64), moved[:, :3].astype(np.float64)
    full = 255.0 if array.dtype == np.uint8 else 1.0
    behind = np.array(colour(background)).reshape(1, 3, 1, 1) * (full / 255)
    mixed = (pixels * alpha + behind * (full - alpha)) / full
    whole = np.rint(mixed).astype(np.uint8) if array.dtype == np.uint8 else mixed
    through = int((alpha < full).any(axis=(1, 2, 3)).sum())
    said = f"{what} has four channels last, red, green, blue and alpha, {array.shape}: {through:,} of {len(array):,} "
    return whole, [f"{said}images have transparency, composited on {background}; --background changes it."]


def _channels_last(shape: tuple[int, ...]) -> bool:
    _, first, second, last = shape
    return last in (1, 3, 4) and (first > 4 or (first == second != last and first not in (1, 3)))


def is_exact(array: np.ndarray) -> bool:
    """Whether float64 holds every number as it is."""
    if array.dtype.kind in "iu":
        return not array.size or bool(array.max() <= LARGEST_WHOLE and array.min() >= -LARGEST_WHOLE)
    with np.errstate(over="ignore"):
        return array.dtype.itemsize <= 8 or bool((array.astype(np.float64) == array).all())


def are_pixels(x: np.ndarray, seen: tuple[float, ...]) -> bool:
    """Whether images (n, …) can only be pixels in [0, 1], where the numbers of training had a far larger range.

    Images of integers may be dark, or of two colours.

    >>> dark, small = np.zeros((1, 1, 2, 2)), np.full((1, 1, 2, 2), 0.25)
    >>> are_pixels(small, (0, 255)), are_pixels(dark, (0, 255)), are_pixels(small, (0, 2))
    (True, False, False)
    """
    if x.ndim < 4 or not x.size or x.dtype.kind != "f" or seen[1] - seen[0] < WIDE:
        return False
    return bool(x.min() >= 0 and x.max() <= 1 and (x != np.rint(x)).any())
