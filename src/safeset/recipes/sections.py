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
from safeset.losses import LOSSES, RELAXATIONS
from safeset.recipes.schedules import Schedule

OPTIMISERS = ("adam", "adamw", "nadam", "sgd", "muon")
EMMA = ("temperature", "floor", "relaxation", "relaxed", "anneal", "offset")
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
    """The loss, on logits and ⊥ or with a margin for each class (emma, `safeset.losses.emma`)."""

    name: str = "cross-entropy"
    weight: Schedule = Schedule(1.0, 1.0)  # λ of TRADES  # noqa: RUF009
    margins: str = "uniform"  # of ⊥
    power_steps: int = 2  # of the power method, for each batch
    radius: Schedule = Schedule(0.1, 2.0, "half")  # emma: in parts of ε, at each step  # noqa: RUF009
    temperature: float = 1.0  # emma: τ
    floor: float = 0.01  # emma: the least share of a margin
    relaxation: str = "none"  # emma: what need not be kept out
    relaxed: float = 1.0  # emma: the share of the relaxed form
    anneal: float = 0.0  # emma: β of logit annealing
    offset: float = 0.0  # emma: ξ of it

    def __post_init__(self) -> None:
        check_among("name", self.name, LOSSES)
        check_among("margins", self.margins, METHODS[:2])
        check_at_least(0, "power_steps", self.power_steps)
        check_among("relaxation", self.relaxation, RELAXATIONS)
        if not 0 < self.temperature < math.inf:
            raise expected("`temperature` to be a finite number above 0", self.temperature)
        if not 0 < self.floor <= 1:
            raise expected("`floor` to be a share of a margin in (0, 1]", self.floor)
        check_share("relaxed", self.relaxed)
        check_not_negative("anneal", self.anneal)
        check_not_negative("offset", self.offset)
        for key, content in self.of_emma.items():
            if self.name != "emma" and content != getattr(Loss, key):
                raise expected(f"`{key}` only with the loss emma", f"it with {self.name}")

    @property
    def of_emma(self) -> dict[str, Any]:
        """The settings that only emma has."""
        return {key: getattr(self, key) for key in ("radius", *EMMA)}

    def settings(self) -> dict[str, Any]:
        """What `safeset.losses.emma` takes by these names."""
        return {key: getattr(self, key) for key in EMMA}


@dataclass(frozen=True)
class Optimiser:
    """How parameters follow their gradients.

    ``muon`` turns orthogonal weights along their manifold, and the others follow Adam with rates of their own, which
    change as ``rate`` does.
    """

    name: str = "adam"
    rate: Schedule = Schedule(1e-3, 1e-6, "after half")  # noqa: RUF009
    weight_decay: float = 0.0
    clip: float | None = None  # the largest norm of all gradients together
    average: float | None = None  # decay of a running mean of the weights, which is then what is served
    rate_of_others: float | None = None  # muon: biases and the head, at the start of `rate`
    rate_of_positions: float | None = None  # muon: biases of each pixel

    def __post_init__(self) -> None:
        check_among("name", self.name, OPTIMISERS)
        check_not_negative("weight_decay", self.weight_decay)
        if self.clip is not None and not 0 < self.clip < math.inf:
            raise expected("`clip` to be a finite norm above 0", self.clip)
        if self.average is not None and not 0 <= self.average < 1:
            raise expected("`average` to be a decay in [0, 1), such as 0.999", self.average)
        for key in ("rate_of_others", "rate_of_positions"):
            rate = getattr(self, key)
            if rate is not None and self.name != "muon":
                raise expected(f"`{key}` only with the optimiser muon", f"it with {self.name}")
            check_not_negative(key, rate)
        if self.name == "muon" and not self.rate.start > 0:
            raise expected("a `rate` of muon that starts above 0", self.rate)
        if self.name == "muon" and self.weight_decay:
            raise expected("no `weight_decay` with muon", self.weight_decay)


@dataclass(frozen=True)
class Teacher:
    """Plain networks (ResNet-9) that are trained first, on the same points, and then asked in each step, or once."""

    epochs: int = 40
    width: int = 64  # channels of the first layer
    noise: float = 0.0  # σ of the noise that they are trained and asked with
    weight: float = 0.9  # of their answers; the rest is the labels'
    count: int = 1
    temperature: float = 1.0  # of their answers
    views: int = 0  # of each image, about which they are asked once; 0: they are asked in each step

    def __post_init__(self) -> None:
        check_between(0, 1024, "views", self.views)
        check_between(1, 10_000, "epochs", self.epochs)
        check_between(1, 1024, "width", self.width)
        check_between(1, 16, "count", self.count)
        check_not_negative("noise", self.noise)
        check_share("weight", self.weight)
        if not 0 < self.temperature < math.inf:
            raise expected("`temperature` to be a finite number above 0", self.temperature)


@dataclass(frozen=True)
class Task:
    """What goes in and what comes out; written by training, so that a run can be used without its data."""

    input_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    units: str  # what ε is measured in
    range: tuple[float, ...] | None = None  # the least and the largest number of training; older runs have none
    set_apart: str | None = None  # the digest of the points that are kept for calibration

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


def check_not_negative(key: str, value: float | None) -> None:
    """Refuse a number below 0, ∞ and NaN; None is left open."""
    if value is not None and not 0 <= value < math.inf:
        raise expected(f"`{key}` to be a number ≥ 0", value)


def check_share(key: str, value: float) -> None:
    """Refuse what is no share."""
    if not 0 <= value <= 1:
        raise expected(f"`{key}` to be a share in [0, 1]", value)


def check_between(least: int, most: int, key: str, value: int | None) -> None:
    """Refuse an integer outside least..most; None is left open."""
    if value is not None and not least <= value <= most:
        raise expected(f"`{key}` to be an integer in {least}..{most}", value)
