"""Folders of images, one for each class: decoded once, in parallel, into a cache that is found by their content."""

import hashlib
import io
import json
import os
import warnings
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from safeset.data.dataset import PIXELS, TEST_SHARE, Dataset, Progress, Split, stratify
from safeset.data.decoding import BACKGROUND, SUFFIXES, Decoded, colour, read_image, size_of
from safeset.errors import ArgumentError, DataWarning, SafesetError, counted, expected, first_few, some_of
from safeset.system.files import read_tensors, write_tensors

MOST_BYTES = 2**30  # a larger file is refused
LARGEST_OWN_SIZE = 64
LARGEST_ENLARGEMENT = 3  # beyond it most pixels are interpolated
FILES_AT_ONCE = 64  # a thread hashes so many in one go
VERSION = 4  # of the cache: files of another version are not found
HELD_OUT = ("test", "val", "valid", "validation")


class BadFilesError(ArgumentError):
    """Files that cannot be used, each with the reason; `skip_bad` leaves them out."""


class Images(NamedTuple):
    """Decoded images, and what they were in their files.

    Attributes:
        split: the images and their labels.
        names: the file of each, below the folder.
        sizes: (n, 2) height and width before they were resized.
        transparent: (n,) whether they were composited on the background.
    """

    split: Split
    names: tuple[str, ...]
    sizes: Tensor
    transparent: Tensor


def read_folder(
    path: Path,
    *,
    size: int | None = None,
    background: str | None = None,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Read a folder of class folders with images of any size; or one with these in ``train`` and ``test`` (``val``).

    Args:
        path: the folder. Without ``train`` and ``test`` a fifth of each class is held out to test.
        size: side of the square that images are resized to; by default their own size if all are the same, square and
            at most 64 pixels, else 64.
        background: the colour that transparent parts are composited on; white if None.
        skip_bad: leave out files that cannot be used, instead of stopping.
        progress: wraps the files to show how far it is.
    """
    held = next((path / name for name in HELD_OUT if (path / name).is_dir()), None)
    if (path / "train").is_dir() and held is not None:
        train, classes = decode_folder(path / "train", size, background, skip_bad=skip_bad, progress=progress)
        strange = next((name for name in _class_folders(held) if name not in classes), None)
        if strange is not None:
            raise expected(f"the folders of {held} to be among those of {path / 'train'}", repr(strange))
        side = train.split.x.shape[-1]
        test, _ = decode_folder(held, side, background, skip_bad=skip_bad, progress=progress, classes=classes)
        parts = [train, test]
        splits, names = (train.split, test.split), (_below("train", train.names), _below(held.name, test.names))
    else:
        whole, classes = decode_folder(path, size, background, skip_bad=skip_bad, progress=progress)
        parts = [whole]
        rest, held_out = stratify(whole.split.y, TEST_SHARE, seed=0)
        splits = (whole.split[rest], whole.split[held_out])
        names = (_pick(whole.names, rest), _pick(whole.names, held_out))
    notes = tuple(_notes(parts, background))
    return Dataset(path.name, *splits, classes, PIXELS, names=names, notes=notes)


def _below(part: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{part}/{name}" for name in names)


def _pick(names: tuple[str, ...], places: Tensor) -> tuple[str, ...]:
    return tuple(names[place] for place in places.tolist())


def _notes(parts: list[Images], background: str | None) -> Iterable[str]:
    """Sentences for the user on how images were read."""
    transparent = torch.cat([part.transparent for part in parts])
    if bool(transparent.any()):
        yield (
            f"{some_of(int(transparent.sum()), len(transparent), 'images', 'has', 'have')} transparency: composited on "
            f"{background or BACKGROUND}; --background changes it."
        )
    sizes, side = torch.cat([part.sizes for part in parts]), parts[0].split.x.shape[-1]
    factor = float((side / sizes.double()).amax(dim=1).median())
    if factor >= LARGEST_ENLARGEMENT:
        height, width = sizes.double().median(dim=0).values.round().int().tolist()
        yield (
            f"Images are enlarged {factor:.3g} times in the median, from {height} × {width} to {side} × {side} pixels: "
            f"--size {max(height, width)} keeps their size."
        )


def decode_folder(
    path: Path,
    size: int | None,
    background: str | None = None,
    *,
    skip_bad: bool,
    progress: Progress | None = None,
    classes: tuple[str, ...] | None = None,
) -> tuple[Images, tuple[str, ...]]:
    """Decode all images below a folder of class folders; returns them, and the names of the classes."""
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
    return decode_files(path, files, size, background, skip_bad=skip_bad, progress=progress), names


def _class_folders(path: Path) -> tuple[str, ...]:
    return tuple(sorted(part.name for part in path.iterdir() if part.is_dir() and part.name[0] != "."))


def decode_files(
    path: Path,
    files: list[tuple[Path, int]],
    size: int | None,
    background: str | None = None,
    *,
    skip_bad: bool,
    progress: Progress | None,
) -> Images:
    """Decode images with their labels, or read them from the cache if files of the same bytes were decoded before."""
    if not files:
        raise expected(f"images ({', '.join(sorted(SUFFIXES))}) in the class folders of {path}", "none")
    hashes = _hashes([file for file, _ in files])
    listing = [(label, one) for (_, label), one in zip(files, hashes, strict=True)]
    key_parts = [VERSION, listing, size, colour(background or BACKGROUND), skip_bad]
    key = hashlib.sha256(json.dumps(key_parts).encode()).hexdigest()
    cache = cache_folder() / f"{path.name}-{key[:32]}.safetensors"
    found = _load(cache, key)
    if found is None:
        found = _decode(files, hashes, size, background, skip_bad, progress)
        _save(cache, key, *found)
    tensors, reasons = found
    bad = [f"{files[place][0]}: {reason}" for place, reason in reasons]
    if bad:
        warnings.warn(f"{counted(len(bad), 'file')} left out: {first_few(bad)}.", DataWarning, stacklevel=2)
    names = tuple(files[place][0].relative_to(path).as_posix() for place in tensors["files"].tolist())
    return Images(Split(tensors["x"], tensors["y"]), names, tensors["sizes"], tensors["transparent"])


def _hashes(files: list[Path]) -> list[str]:
    """A digest of each file; for one that cannot be read, the reason."""
    batches = [files[start : start + FILES_AT_ONCE] for start in range(0, len(files), FILES_AT_ONCE)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(chain.from_iterable(pool.map(lambda batch: [_hash(file) for file in batch], batches)))


def _hash(file: Path) -> str:
    found = hashlib.blake2b(digest_size=32)
    try:
        with open(file, "rb", buffering=0) as content:
            while part := content.read(2**16):
                found.update(part)
    except OSError as error:
        return f"({error.strerror or error})"
    return found.hexdigest()


Found = tuple[dict[str, Tensor], list[tuple[int, str]]]  # tensors, and the place of each bad file with the reason


def _decode(
    files: list[tuple[Path, int]],
    hashes: list[str],
    size: int | None,
    background: str | None,
    skip_bad: bool,
    progress: Progress | None,
) -> Found:
    """Decode the images; returns them, and what is wrong with those that were left out."""
    side = _common_side([file for file, _ in files]) if size is None else size
    # Warnings are switched off here and not in the threads, which share the filters; users cannot act on a decoder's.
    with warnings.catch_warnings(action="ignore"), ThreadPoolExecutor(os.cpu_count()) as pool:
        results: Iterable[Decoded | str] = pool.map(
            lambda file, digest: _decode_one(file, digest, side, background), [file for file, _ in files], hashes
        )
        found = list(progress(results, len(files)) if progress else results)
    bad = [(place, each) for place, each in enumerate(found) if isinstance(each, str)]
    if bad and not skip_bad:
        reasons = first_few([f"{files[place][0]}: {reason}" for place, reason in bad])
        raise BadFilesError(
            f"Expected images, but got {counted(len(bad), 'bad file')}: {reasons}. "
            "Mend them, or leave them out: train --skip-bad."
        )
    good = [(place, each) for place, each in enumerate(found) if not isinstance(each, str)]
    if not good:
        raise expected("images that can be used", counted(len(bad), "bad file"))
    # One image of 16 bits makes floats of all, so that they fit into one tensor.
    coarse = all(each.pixels.dtype == np.uint8 for _, each in good)
    tensors = {
        "x": torch.from_numpy(np.stack([each.pixels if coarse else each.numbers for _, each in good])),
        "y": torch.tensor([files[place][1] for place, _ in good], dtype=torch.int64),
        "files": torch.tensor([place for place, _ in good], dtype=torch.int64),
        "sizes": torch.tensor([each.size for _, each in good], dtype=torch.int32),
        "transparent": torch.tensor([each.transparent for _, each in good]),
    }
    return tensors, bad


def _common_side(files: list[Path]) -> int:
    """The side of the images if all are small squares of one size, else the usual one."""
    shapes = {size_of(file) for file in files} - {(0, 0)}
    if len(shapes) == 1:
        width, height = next(iter(shapes))
        if width == height and 0 < width <= LARGEST_OWN_SIZE:
            return width
    return LARGEST_OWN_SIZE


def _decode_one(file: Path, digest: str, side: int, background: str | None) -> Decoded | str:
    """Decode an image; returns what is wrong with its file where that fails."""
    try:
        with file.open("rb") as source:
            content = source.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            return f"a file of more than {MOST_BYTES:,} bytes"
        # What is decoded is what was hashed: the cache would keep a file that changed in between under a wrong key.
        if hashlib.blake2b(content, digest_size=32).hexdigest() != digest:
            return "it changed while it was read"
        return read_image(io.BytesIO(content), side, background=background)
    except (ValueError, OSError) as error:
        return error.strerror or str(error) if isinstance(error, OSError) else str(error)


def cache_folder() -> Path:
    """Where decoded images are kept: $SAFESET_CACHE, or safeset/decoded in the user's cache."""
    return Path(os.environ.get("SAFESET_CACHE") or Path.home() / ".cache" / "safeset" / "decoded")


def _save(path: Path, key: str, tensors: dict[str, Tensor], bad: list[tuple[int, str]]) -> None:
    """Write a cache file, whole or not at all; a cache that cannot be written is no error."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, {"content": json.dumps([key, _digest(tensors, bad), bad])})


def _load(path: Path, key: str) -> Found | None:
    """A cache file, if it is there, whole and unchanged."""
    try:
        tensors, metadata = read_tensors(path)
        stored, digest, bad = json.loads(metadata["content"])
        return (tensors, bad) if stored == key and digest == _digest(tensors, bad) else None
    except (SafesetError, KeyError, ValueError, TypeError, RecursionError):
        return None


def _digest(tensors: dict[str, Tensor], bad: list[tuple[int, str]]) -> str:
    found = hashlib.sha256(json.dumps(bad).encode())
    for name in ("x", "y", "files", "sizes", "transparent"):
        found.update(str((name, tuple(tensors[name].shape), tensors[name].dtype)).encode())
        found.update(tensors[name].contiguous().numpy().data)
    return found.hexdigest()
