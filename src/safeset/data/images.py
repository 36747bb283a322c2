"""Folders of images, one for each class: decoded once, in parallel, into one file of bytes."""

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import torch

from safeset.data.dataset import PIXELS, TEST_SHARE, Dataset, Progress, Split, find
from safeset.errors import ArgumentError, DataWarning, SafesetError, expected, first_few
from safeset.files import read_tensors, write_tensors

if TYPE_CHECKING:
    from PIL.ImageFile import ImageFile

FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
MOST_PIXELS = 50_000_000  # of one image; more is taken for a decompression bomb
LARGEST_OWN_SIZE = 64
VERSION = 2  # of the cache
HELD_OUT = ("test", "val", "valid", "validation")


class BadFilesError(ArgumentError):
    """Files that cannot be used, each with the reason; `skip_bad` leaves them out."""


def eurosat(*, progress: Progress | None = None) -> Dataset:
    """EuroSAT, RGB (Helber et al., 2019): 27,000 images of 64 × 64 pixels, 10 classes, a third of each to test."""
    path = find("EuroSAT_RGB", "2750", what="EuroSAT's RGB images, the folder EuroSAT_RGB", get="eurosat")
    split, names = decoded(path, None, skip_bad=False, progress=progress)
    return Dataset("eurosat", *split.held_out(1 / 3), names, PIXELS)


def folder(path: Path, *, size: int | None = None, skip_bad: bool = False, progress: Progress | None = None) -> Dataset:
    """A folder of class folders with images of any size, or one with such folders ``train`` and ``test`` (or ``val``).

    Args:
        path: the folder. Without ``train`` and ``test`` a fifth of each class is held out to test.
        size: side of the square that images are resized to; by default their own size if all are the same, square and
            at most 64 pixels, else 64.
        skip_bad: leave out files that cannot be used, instead of stopping.
        progress: wraps the files to show how far it is.
    """
    held = next((path / name for name in HELD_OUT if (path / name).is_dir()), None)
    if (path / "train").is_dir() and held is not None:
        train, names = decoded(path / "train", size, skip_bad=skip_bad, progress=progress)
        strange = next((name for name in _class_folders(held) if name not in names), None)
        if strange is not None:
            raise expected(f"the folders of {held} to be among those of {path / 'train'}", repr(strange))
        test, others = decoded(held, train.x.shape[-1], skip_bad=skip_bad, progress=progress, classes=names)
        return Dataset(path.name, train, test, others, PIXELS)
    split, names = decoded(path, size, skip_bad=skip_bad, progress=progress)
    return Dataset(path.name, *split.held_out(TEST_SHARE), names, PIXELS)


def decoded(
    path: Path,
    size: int | None,
    *,
    skip_bad: bool,
    progress: Progress | None = None,
    classes: tuple[str, ...] | None = None,
) -> tuple[Split, tuple[str, ...]]:
    """All images below a folder of class folders, and the names of the classes; from the cache if nothing changed."""
    names = classes or _class_folders(path)
    if len(names) < 2:
        raise expected(f"{path} to hold a folder for each of at least two classes", f"{len(names)}")
    files = [
        (file, label)
        for label, name in enumerate(names)
        for file in sorted((path / name).rglob("*"))
        if file.suffix.lower() in SUFFIXES and file.name[0] != "." and file.is_file()
    ]
    present = {label for _, label in files}
    empty = [name for label, name in enumerate(names) if classes is None and label not in present]
    if files and empty:
        raise expected(f"images in every class folder of {path}", f"none in {first_few(empty)}")
    return decoded_files(path, files, size, skip_bad=skip_bad, progress=progress), names


def _class_folders(path: Path) -> tuple[str, ...]:
    return tuple(sorted(part.name for part in path.iterdir() if part.is_dir() and part.name[0] != "."))


def decoded_files(
    path: Path, files: list[tuple[Path, int]], size: int | None, *, skip_bad: bool, progress: Progress | None
) -> Split:
    """Images below a folder with their labels, from the cache if nothing changed."""
    if not files:
        raise expected(f"images ({', '.join(sorted(SUFFIXES))}) in the class folders of {path}", "none")
    stats = [(file, label, file.stat()) for file, label in files]
    listing = [(str(file.relative_to(path)), y, stat.st_size, stat.st_mtime_ns) for file, y, stat in stats]
    key = hashlib.sha256(json.dumps([VERSION, listing, size, skip_bad]).encode()).hexdigest()
    cache = cache_folder() / f"{path.name}-{key[:32]}.safetensors"
    found = _load(cache)
    if found is None:
        found = _decode(files, size, skip_bad, progress)
        _save(cache, *found)
    split, bad = found
    if bad:
        warnings.warn(f"{len(bad)} files were left out: {first_few(bad)}.", DataWarning, stacklevel=2)
    return split


def read_image(source: Path | BinaryIO, size: int | tuple[int, int] | None, *, channels: int = 3) -> np.ndarray:
    """An image as bytes (channels, height, width), turned as its camera was held; the first one of several.

    Args:
        source: a file.
        size: side of a square, or (height, width), that it is resized to; its own size if None.
        channels: 3, or 1 for grey.

    Raises:
        ValueError: with the reason, if it cannot be used.
    """
    from PIL import Image, ImageOps

    with _opened(source) as image:
        if image.width * image.height > MOST_PIXELS:
            raise ValueError(f"{image.width} × {image.height} pixels, more than {MOST_PIXELS:,}")
        upright = ImageOps.exif_transpose(image)
        if upright.mode.startswith("I;16") or (upright.mode == "I" and image.format in ("PNG", "PPM")):
            upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))  # 16 bits: the upper eight
        if upright.mode in ("I", "F"):
            raise ValueError("pixels of 32 bits, whose range nobody knows")
        plain = upright.convert("RGB" if channels == 3 else "L")
    height, width = (size, size) if isinstance(size, int) else size or (plain.height, plain.width)
    if plain.size != (width, height):
        larger = plain.width >= width and plain.height >= height
        plain = plain.resize((width, height), Image.Resampling.BOX if larger else Image.Resampling.BICUBIC)
    return np.asarray(plain).reshape(height, width, channels).transpose(2, 0, 1).copy()


def _decode(
    files: list[tuple[Path, int]], size: int | None, skip_bad: bool, progress: Progress | None
) -> tuple[Split, list[str]]:
    """The images, and what is wrong with those that were left out."""
    if size is None:  # their own, if one fits all
        shapes = {_size_of(file) for file, _ in files} - {(0, 0)}
        size = LARGEST_OWN_SIZE
        if len(shapes) == 1:
            width, height = next(iter(shapes))
            size = width if width == height and 0 < width <= LARGEST_OWN_SIZE else LARGEST_OWN_SIZE

    def one(file: Path) -> np.ndarray | str:
        try:
            return read_image(file, size)
        except ValueError as error:
            return str(error)

    # Here and not in the threads, which share the filters: what a decoder grumbles about is not for the user.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[np.ndarray | str] = pool.map(one, [file for file, _ in files])
        images = list(progress(results, len(files)) if progress else results)
    bad = [f"{file}: {found}" for (file, _), found in zip(files, images, strict=True) if isinstance(found, str)]
    if bad and not skip_bad:
        raise BadFilesError(
            f"Expected images, but got {len(bad)} bad files: {first_few(bad)}. Use --skip-bad to leave them out."
        )
    good = [(found, label) for (_, label), found in zip(files, images, strict=True) if not isinstance(found, str)]
    if not good:
        raise expected("images that can be used", f"{len(bad)} bad files")
    pixels = torch.from_numpy(np.stack([image for image, _ in good]))
    return Split(pixels, torch.tensor([label for _, label in good], dtype=torch.int64)), bad


def _size_of(file: Path) -> tuple[int, int]:
    """Width and height; (0, 0) for what cannot be opened, which is named later, when it is decoded."""
    try:
        with warnings.catch_warnings(action="ignore"), _opened(file) as image:
            return image.size
    except ValueError:
        return (0, 0)


@contextmanager
def _opened(source: Path | BinaryIO) -> Iterator["ImageFile"]:
    """An image file; whatever a broken one makes its decoder raise is a ValueError with the reason."""
    from PIL import Image

    try:
        with Image.open(source, formats=FORMATS) as image:
            yield image
    except ValueError:
        raise
    except Exception as error:  # decoders raise what they like
        reason = error.strerror if isinstance(error, OSError) and error.strerror else f"{type(error).__name__}: {error}"
        raise ValueError(reason) from None


def cache_folder() -> Path:
    """Where decoded images are kept: $SAFESET_CACHE, or safeset/decoded in the user's cache."""
    return Path(os.environ.get("SAFESET_CACHE") or Path.home() / ".cache" / "safeset" / "decoded")


def _save(path: Path, split: Split, bad: list[str]) -> None:
    """Write a cache file, whole or not at all; a cache that cannot be written is no error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"x": split.x, "y": split.y}, {"content": json.dumps([split.digest(), bad])})


def _load(path: Path) -> tuple[Split, list[str]] | None:
    """A cache file, if it is there, whole and unchanged."""
    try:
        tensors, metadata = read_tensors(path)
        split, (digest, bad) = Split(tensors["x"], tensors["y"]), json.loads(metadata["content"])
    except (SafesetError, KeyError, ValueError, TypeError, RecursionError):
        return None
    return (split, bad) if digest == split.digest() else None
