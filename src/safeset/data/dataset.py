"""What every source of data returns: training and test points with labels, and the names of the classes."""

import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safeset.errors import DataNotFoundError, expected
from safeset.inputs import PIXELS as PIXELS
from safeset.inputs import check_names

Progress = Callable[[Iterable[Any], int], Iterable[Any]]  # returns the same items, and shows how far it is
KINDS = (torch.uint8, torch.float32, torch.float64)
VALIDATION_SHARE, TEST_SHARE = 0.1, 0.2  # where a source has no such splits
CALIBRATION_SEED = 24  # of the draw of calibration points: their own, so that no other choice is tied to it


@dataclass(frozen=True, eq=False)
class Split:
    """Points and labels: x (n, …) as bytes for images, as float32 or float64 for other numbers; y (n,) int64."""

    x: Tensor
    y: Tensor

    def __post_init__(self) -> None:
        if len(self.x) != len(self.y) or self.y.ndim != 1 or self.x.dtype not in KINDS:
            got = f"{tuple(self.x.shape)} {self.x.dtype} and {tuple(self.y.shape)} {self.y.dtype}"
            raise expected("points of bytes, float32 or float64, and a label for each", got)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, places: Tensor) -> "Split":
        """Some of the points."""
        return Split(self.x[places], self.y[places])

    def to(self, device: torch.device | str) -> "Split":
        """The points and labels on a device."""
        return Split(self.x.to(device), self.y.to(device))

    def held_out(self, share: float) -> tuple["Split", "Split"]:
        """Two splits: the rest, and a share of each class, always the same points."""
        rest, held = stratify(self.y, share, seed=0)
        return self[rest], self[held]

    def digest(self) -> str:
        """A digest of the points and labels."""
        found = hashlib.sha256()
        for tensor in (self.x, self.y):
            found.update(str((tuple(tensor.shape), tensor.dtype)).encode())
            found.update(tensor.cpu().contiguous().numpy().data)
        return found.hexdigest()

    @property
    def inputs(self) -> Tensor:
        """The points as a network sees them in training, float32: bytes become numbers in [0, 1]."""
        return self.x.float() / 255 if self.x.dtype == torch.uint8 else self.x.float()

    @property
    def exact(self) -> Tensor:
        """The points as they are certified, float64: the source's own numbers, not rounded to float32."""
        return self.x.double() / 255 if self.x.dtype == torch.uint8 else self.x.double()

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number, as a network sees them; (0, 0) without points."""
        if not self.x.numel():
            return 0.0, 0.0
        low, high = (float(end) for end in self.x.aminmax())
        return (low / 255, high / 255) if self.x.dtype == torch.uint8 else (low, high)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A training and a test split, and what the numbers in them mean.

    Attributes:
        name: what it is called in recipes.
        train: all training data.
        test: for published numbers only; choices are made on `for_choices`.
        class_names: one for each class.
        units: what ε is measured in, in words.
        groups: a coarser class for each class (superclasses), where the source has them.
        identifiers: other names of the classes, by which files may name them (WordNet's).
        ranges: (least, largest) of each column that is scaled to [0, 1], for tables.
        one_hot: columns of a table that hold texts, with their texts, each of which is a column of 0 and 1.
        names: what each training and each test point is called in its source.
        notes: sentences for the user on how the source was read.
        set_apart: training points that were drawn for calibration, and are in no split any more.
    """

    name: str
    train: Split
    test: Split
    class_names: tuple[str, ...]
    units: str
    groups: tuple[str, ...] | None = None
    identifiers: tuple[str, ...] | None = None
    ranges: dict[str, tuple[float, float]] | None = None
    one_hot: dict[str, tuple[str, ...]] | None = None
    names: tuple[tuple[str, ...], tuple[str, ...]] | None = None
    notes: tuple[str, ...] = ()
    set_apart: Split | None = None

    def __post_init__(self) -> None:
        check_names(self.class_names)
        for split in (self.train, self.test):
            if split.x.is_floating_point() and not bool(split.x.isfinite().all()):
                raise expected(f"finite points in {self.name}", "NaN or infinite numbers")
            if len(split) and not bool(((split.y >= 0) & (split.y < self.classes)).all()):
                raise expected(f"labels in 0..{self.classes - 1}", f"{split.y.min()}..{split.y.max()}")
        if self.train.x.shape[1:] != self.test.x.shape[1:]:
            raise expected("training and test points of one shape", f"{self.train.x.shape} and {self.test.x.shape}")

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one point."""
        return tuple(self.train.x.shape[1:])

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest number of all points, as a network sees them."""
        ends = [split.range for split in (self.train, self.test) if len(split)] or [(0.0, 0.0)]
        return min(low for low, _ in ends), max(high for _, high in ends)

    def counts(self) -> list[tuple[str, int, int]]:
        """Each class with the number of its training and test points."""
        train, test = (torch.bincount(split.y, minlength=self.classes).tolist() for split in (self.train, self.test))
        return list(zip(self.class_names, train, test, strict=True))

    def for_choices(self) -> "Dataset":
        """The same with a tenth of each class of the training data, always the same points, as its test split."""
        rest, held = self.train.held_out(VALIDATION_SHARE)
        return replace(self, name=f"{self.name} (validation)", train=rest, test=held, names=None)

    def for_calibration(self, share: float) -> "Dataset":
        """The same with a share of the training points set apart: drawn at random from all, always the same ones.

        Coverage holds for points that are drawn like these, so they are not stratified, and nothing else sees them.
        """
        stay, drawn = draw_apart(len(self.train), share)
        names = self.names and (tuple(self.names[0][place] for place in stay.tolist()), self.names[1])
        return replace(self, train=self.train[stay], names=names, set_apart=self.train[drawn])


def stratify(labels: Tensor, share: float, *, seed: int) -> tuple[Tensor, Tensor]:
    """Hold out a share of each class: the places of the points that stay, and of the others, in rising order.

    >>> stay, held = stratify(torch.tensor([0, 0, 0, 1, 1, 1]), 1 / 3, seed=0)
    >>> len(stay), len(held)
    (4, 2)
    """
    generator = torch.Generator().manual_seed(seed)
    held = []
    for label in sorted(set(labels.tolist())):
        places = (labels == label).nonzero()[:, 0]
        order = torch.randperm(len(places), generator=generator)
        held.append(places[order[: round(share * len(places))]])
    chosen = torch.zeros(len(labels), dtype=torch.bool)
    chosen[torch.cat(held)] = True
    return (~chosen).nonzero()[:, 0], chosen.nonzero()[:, 0]


def draw_apart(count: int, share: float) -> tuple[Tensor, Tensor]:
    """Draw a share of ``count`` points for calibration: the places of those that stay, and of these, in rising order.

    Raises:
        ArgumentError: if there would be none, or nothing would stay.

    >>> stay, drawn = draw_apart(10, 0.3)
    >>> len(stay), len(drawn)
    (7, 3)
    """
    wanted = round(share * count)
    if not 0 < wanted < count:
        got = f"{wanted} with a share of {share:g}"
        raise expected(f"some of {count} training points for calibration", got, "Give more data, or another share.")
    order = torch.randperm(count, generator=torch.Generator().manual_seed(CALIBRATION_SEED))
    return order[wanted:].sort().values, order[:wanted].sort().values


def data_folder() -> Path:
    """Where data sets are looked for: $SAFESET_DATA, or safeset/data in the user's cache."""
    return Path(os.environ.get("SAFESET_DATA") or Path.home() / ".cache" / "safeset" / "data")


def find(*names: str, what: str, get: str | None = None) -> Path:
    """Find the first of several files or folders in the data folder; ``get`` is its name for `safeset data get`.

    Raises:
        DataNotFoundError: saying where it was looked for.
    """
    places = [data_folder() / name for name in names]
    for place in places:
        if place.exists():
            return place
    raise DataNotFoundError(
        f"Expected {what} at {' or '.join(map(str, places))}, but nothing is there. "
        + (f"`safeset data get {get}` downloads it; or put" if get else "Put")
        + " it there, or set SAFESET_DATA to the folder that holds it."
    )
