"""The sections of a recipe, each a small frozen value that is checked when it is made: data, loss, optimiser, task."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from safeset.certificates.margins import METHODS
from safeset.data.decoding import colour
from safeset.data.units import RAW
from safeset.errors import expected, nearest
from safeset.inputs import is_text
from safeset.losses import LOSSES
from safeset.recipes.schedules import Schedule

OPTIMISERS = ("adam", "adamw", "sgd")
LARGEST_SIDE = 4096


@dataclass(frozen=True)
class Data:
    """Where the points come from: a name, or a user's own path, and the options of that source."""

    source: str
    size: int | None = None  # folders of images: side in pixels
    background: str | None = None  # images with transparency: the colour behind them
    label: str | None = None  # tables: the label's column
    ranges: Mapping[str, tuple[float, ...]] | None = None  # tables: (least, largest) of each column
    drop: tuple[str, ...] | None = None  # tables: columns to leave out
    one_hot: tuple[str, ...] | Mapping[str, tuple[str, ...]] | None = None  # tables: columns of texts, or their texts
    units: str | None = None  # own numbers: "raw" takes them as they are
    skip_bad: bool = False
    network: str | None = None  # acasxu
    points: int | None = None  # acasxu, blobs2d
    seed: int | None = None  # acasxu, blobs2d

    def __post_init__(self) -> None:
        if not is_text(self.source):
            raise expected("`source` in UTF-8", repr(self.source), "Rename it.")
        for name, pair in (self.ranges or {}).items():
            if len(pair) != 2 or not 0 <= pair[1] - pair[0] < math.inf:
                raise expected("`ranges` to be pairs (least, largest)", f"{list(pair)} for {name!r}")
        if self.background is not None:
            colour(self.background)
        if self.units is not None:
            check_among("units", self.units, [RAW])
        check_between(1, LARGEST_SIDE, "size", self.size)
        check_at_least(1, "points", self.points)
        check_between(0, 2**31 - 1, "seed", self.seed)

    @property
    def options(self) -> dict[str, Any]:
        """What `load_data` takes besides the source."""
        return {name: value for name, value in vars(self).items() if name != "source" and value not in (None, False)}


@dataclass(frozen=True)
class Loss:
    """The loss on logits and ⊥."""

    name: str = "cross-entropy"
    weight: Schedule = Schedule(1.0, 1.0)  # λ of TRADES  # noqa: RUF009
    margins: str = "uniform"  # of ⊥
    power_steps: int = 2  # of the power method, for each batch

    def __post_init__(self) -> None:
        check_among("name", self.name, LOSSES)
        check_among("margins", self.margins, METHODS[:2])
        check_at_least(0, "power_steps", self.power_steps)


@dataclass(frozen=True)
class Optimiser:
    """How parameters follow their gradients."""

    name: str = "adam"
    rate: Schedule = Schedule(1e-3, 1e-6, "after half")  # noqa: RUF009
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_among("name", self.name, OPTIMISERS)
        if not 0 <= self.weight_decay < math.inf:
            raise expected("`weight_decay` to be a number ≥ 0", self.weight_decay)


@dataclass(frozen=True)
class Task:
    """What goes in and what comes out; written by training, so that a run can be used without its data."""

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    units: str  # what ε is measured in
    range: tuple[float, ...] | None = None  # the least and the largest number of training; older runs have none

    def __post_init__(self) -> None:
        if self.range is not None and (len(self.range) != 2 or not 0 <= self.range[1] - self.range[0] < math.inf):
            raise expected("`range` to be a pair (least, largest)", list(self.range))


def check_among(key: str, value: Any, choices: Any) -> None:
    """Refuse a value that is none of the choices, which the message names."""
    if value not in choices:
        raise expected(f"`{key}` to be one of {', '.join(choices)}", repr(value), nearest(value, choices))


def check_at_least(least: int, key: str, value: int | None) -> None:
    """Refuse an integer that is too small; None is left open."""
    if value is not None and value < least:
        raise expected(f"`{key}` to be an integer ≥ {least}", value)


def check_between(least: int, most: int, key: str, value: int | None) -> None:
    """Refuse an integer outside least..most; None is left open."""
    if value is not None and not least <= value <= most:
        raise expected(f"`{key}` to be an integer in {least}..{most}", value)
