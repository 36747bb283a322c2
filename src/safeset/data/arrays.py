"""The arrays of ``.npz`` files, without pickles: what a file claims is checked before anything is allocated."""

import math
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.lib import format as npy

from safeset.errors import expected

# An array beyond both counts as a decompression bomb: its bytes, and its bytes for each packed one.
MOST_UNPACKED, LARGEST_RATIO = 2**30, 100
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
