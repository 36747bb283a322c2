"""Oddities of labelled points, in words: constant images, copies, classes of one point."""

import hashlib
import warnings

import torch

from safeset.data.dataset import Dataset, Split
from safeset.errors import DataWarning, first_few, some_of


def report(data: Dataset, *, oddities: bool) -> None:
    """Warn the user: how the data was read, and what is odd about it, in a warning each.

    Args:
        data: a user's own.
        oddities: look for what is odd too, and not only at how it was read.
    """
    for sentence in (*data.notes, *(find_oddities(data) if oddities else ())):
        warnings.warn(sentence, DataWarning, stacklevel=2)


def find_oddities(data: Dataset) -> list[str]:
    """Find what is odd about a data set: a sentence each, with counts and the first examples."""
    image = len(data.input_shape) == 3
    what, found = "images" if image else "points", []
    train, test = data.train, data.test
    names = data.names or (_point_names("training", train), _point_names("test", test))
    constant = [
        name
        for split, called in ((train, names[0]), (test, names[1]))
        for name, same in zip(called, _constant(split) if image else (), strict=False)
        if same
    ]
    if constant:
        count = len(train) + len(test)
        found.append(f"{some_of(len(constant), count, 'images')} all of one colour: {first_few(constant)}.")
    first, copies = dict[bytes, int](), list[tuple[int, int]]()
    for place, content in enumerate(_contents(train)):
        before = first.setdefault(content, place)
        if before != place:
            copies.append((place, before))
    if copies:
        other = sum(bool(train.y[one] != train.y[two]) for one, two in copies)
        labels = f", {other:,} of them with another label" if other else ""
        pairs = first_few([f"{names[0][one]} = {names[0][two]}" for one, two in copies])
        same = some_of(len(copies), len(train), f"training {what}", "is a copy of another", "are copies of others")
        found.append(f"{same}{labels}: {pairs}.")
    leaked = [(place, first[content]) for place, content in enumerate(_contents(test)) if content in first]
    if leaked:
        pairs = first_few([f"{names[1][one]} = {names[0][two]}" for one, two in leaked])
        found.append(
            f"{some_of(len(leaked), len(test), f'test {what}')} in the training data too, so that the test is "
            f"too easy: {pairs}."
        )
    single = [name for name, *counts in data.counts() if sum(counts) == 1]
    if single:
        found.append(
            f"{some_of(len(single), data.classes, 'classes', 'has', 'have')} a single {what[:-1]}, which cannot be "
            f"trained on and "
            f"tested too: {first_few(single)}."
        )
    return found


def _point_names(part: str, split: Split) -> list[str]:
    return [f"{part} point {place}" for place in range(len(split))]


def _constant(split: Split) -> list[bool]:
    """Whether every channel of an image has one value only."""
    pixels = split.x.flatten(2)
    same: torch.Tensor = (pixels == pixels[:, :, :1]).all(dim=2).all(dim=1)
    return same.tolist()


def _contents(split: Split) -> list[bytes]:
    """A digest of each point."""
    rows = split.x.cpu().contiguous().flatten(1).numpy()
    return [hashlib.blake2b(row.data, digest_size=16).digest() for row in rows]
