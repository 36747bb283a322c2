"""Recipes: everything that decides what a training does, as frozen values and as TOML."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os.path import exists  # unlike a Path's it says no of what cannot be a name
from pathlib import Path
from typing import Any

from safeset.certificates.margins import METHODS
from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Dataset
from safeset.data.decoding import colour
from safeset.data.sources import SOURCES
from safeset.data.units import RAW
from safeset.errors import ArgumentError, expected, nearest
from safeset.guarantees import affinity
from safeset.guarantees.guarantee import Affinity, Guarantee, names_a_file, parse
from safeset.inputs import check_epsilon, is_text
from safeset.losses import LOSSES
from safeset.models import INITIALISATIONS, list_models
from safeset.recipes import defaults, toml
from safeset.recipes.schedules import Schedule

OPTIMISERS = ("adam", "adamw", "sgd")
OWN_GROUPS = "affinity:groups"  # the groups that the data set itself has
OWN_DATA = "(given in Python)"
LARGEST_SIDE, MOST_SEEDS, LONGEST_NAME = 4096, 1000, 200


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
            _among("units", self.units, [RAW])
        _between(1, LARGEST_SIDE, "size", self.size)
        _at_least(1, "points", self.points)
        _between(0, 2**31 - 1, "seed", self.seed)

    @property
    def options(self) -> dict[str, Any]:
        """What `load_data` is to be told besides the source."""
        return {name: value for name, value in vars(self).items() if name != "source" and value not in (None, False)}


@dataclass(frozen=True)
class Loss:
    """The loss on logits and ⊥."""

    name: str = "cross-entropy"
    weight: Schedule = Schedule(1.0, 1.0)  # λ of TRADES  # noqa: RUF009
    margins: str = "uniform"  # of ⊥
    power_steps: int = 2  # of the power method, for each batch

    def __post_init__(self) -> None:
        _among("name", self.name, LOSSES)
        _among("margins", self.margins, METHODS[:2])
        _at_least(0, "power_steps", self.power_steps)


@dataclass(frozen=True)
class Optimiser:
    """How parameters follow their gradients."""

    name: str = "adam"
    rate: Schedule = Schedule(1e-3, 1e-6, "after half")  # noqa: RUF009
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _among("name", self.name, OPTIMISERS)
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


PRECISIONS = ("tf32", "float32", "bfloat16")


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training does. What is None is chosen when the data is seen: `fitted`.

    Attributes:
        data: where the points come from.
        guarantee: as text: ``standard``, ``top3``, ``rt3``, ``affinity:FILE``, ``affinity:JSON``, or
            ``affinity:groups`` for the data set's own groups. In TOML also a table that describes affinity sets.
        epsilon: radius of the L2 ball, in the units of the data.
        model: one of `list_models()`, or ``own`` for a network given in Python.
        initialisation: of the model's weights: ``torch`` (its default), or ``orthogonal`` with biases of 0. A network
            given in Python has its own.
        network: where the user's own network comes from, ``module:factory``, for messages: code is only ever run by
            the flag ``--network``.
        epochs: how often each point is seen; by default enough for the number of points.
        batch: points in a step.
        seed: of initialisation, order and augmentation.
        seeds: how many networks are trained at once, of this seed and the next ones.
        validation: hold out a tenth of the training data, and evaluate on it instead of the test data: for choices.
        hold_out: share of the training data that is not trained on, but decides after each epoch whether its weights
            are the best so far; by default a tenth of a user's own data, if it is not too small, and nothing else.
        patience: stop after so many epochs without better weights; by default never.
        precision: of products in training on a GPU: ``tf32``, ``float32``, or ``bfloat16`` for convolutions. It means
            nothing on a CPU, and nothing to proofs.
        augmentation: how images are moved.
        loss: on logits and ⊥.
        optimiser: how parameters follow their gradients.
        task: what goes in and what comes out, once it is known.
    """

    data: Data
    guarantee: str | None = None
    epsilon: float | None = None
    model: str | None = None
    network: str | None = None
    initialisation: str = "torch"
    epochs: int | None = None
    batch: int | None = None
    seed: int = 0
    seeds: int = 1
    validation: bool = False
    hold_out: float | None = None
    patience: int | None = None
    precision: str = "tf32"
    augmentation: Augmentation = field(default_factory=Augmentation)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.guarantee not in (None, OWN_GROUPS):
            object.__setattr__(self, "guarantee", str(parse(self.guarantee or "")))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        if self.model not in (None, "own"):
            _among("model", self.model, list_models())
        _among("initialisation", self.initialisation, INITIALISATIONS)
        if self.model == "own" and self.initialisation != "torch":
            raise expected("an own network as it is initialised", f"`initialisation` {self.initialisation!r}")
        _among("precision", self.precision, PRECISIONS)
        for name in ("epochs", "batch", "patience"):
            _at_least(1, name, getattr(self, name))
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise expected("`hold_out` to be a share of the training data in [0, 1)", self.hold_out)
        if self.network is not None and (len(self.network) > LONGEST_NAME or not is_text(self.network)):
            raise expected(f"`network` to be a name of at most {LONGEST_NAME} characters", repr(self.network)[:80])
        _between(0, 2**31 - 1, "seed", self.seed)
        _between(1, MOST_SEEDS, "seeds", self.seeds)

    @property
    def split(self) -> str:
        """Which points it is evaluated on: ``validation`` or ``test``."""
        return "validation" if self.validation else "test"

    # -- TOML ---------------------------------------------------------------------------------------------------------

    @staticmethod
    def from_table(table: Mapping[str, Any], folder: Path | None = None) -> "Recipe":
        """A recipe from plain values; files that describe affinity sets are looked for in ``folder``."""
        plain = dict(table)
        guarantee = plain.get("guarantee")
        if isinstance(guarantee, Mapping):
            plain["guarantee"] = str(Affinity(*affinity.from_description(guarantee, folder=folder)))
        elif isinstance(guarantee, str) and guarantee != OWN_GROUPS:
            if folder is not None and names_a_file(guarantee):
                guarantee = f"affinity:{folder / guarantee.partition(':')[2].strip()}"
            plain["guarantee"] = str(parse(guarantee))
        given = plain.get("data")
        if folder is not None and isinstance(given, Mapping) and isinstance(given.get("source"), str):
            beside = folder / given["source"]
            if given["source"] not in SOURCES and not exists(given["source"]) and exists(beside):
                plain["data"] = {**given, "source": str(beside)}
        return toml.from_table(Recipe, plain)

    @staticmethod
    def read(path: Path) -> "Recipe":
        """A recipe from a TOML file."""
        return Recipe.from_table(toml.read_table(path), path.parent)

    def table(self) -> dict[str, Any]:
        """The recipe as plain values, affinity sets as a table of names or indices."""
        table = toml.to_table(self)
        if self.guarantee and self.guarantee.startswith("affinity:") and self.guarantee != OWN_GROUPS:
            stated = parse(self.guarantee)
            assert isinstance(stated, Affinity)
            names = self.task.class_names if self.task else None
            *sets, together = ([_named(each, names) for each in one] for one in (*stated.sets, stated.everyone_with))
            ordered = Affinity(sets, together)  # as they are when they are read again: by name, not by index
            table["guarantee"] = {"sets": [list(one) for one in ordered.sets]}
            if ordered.everyone_with:
                table["guarantee"]["everyone_with"] = list(ordered.everyone_with)
        return table

    def text(self) -> str:
        """The recipe as TOML; `read` gives the same recipe."""
        return toml.write(self.table())

    def changed(self, changes: Mapping[str, Any]) -> "Recipe":
        """The same with values at dotted keys changed."""
        return Recipe.from_table(toml.overridden(self.table(), resolved(changes)))

    # -- data ---------------------------------------------------------------------------------------------------------

    def bound(self, data: Dataset) -> Guarantee:
        """The guarantee about the classes of a data set."""
        if self.guarantee == OWN_GROUPS:
            if data.groups is None:
                raise expected("a data set with groups for affinity:groups", f"{data.name}, which has none")
            return Affinity.from_groups(dict(zip(data.class_names, data.groups, strict=True))).bind(data.class_names)
        stated = parse(self.guarantee) if self.guarantee else defaults.suited_guarantee(data.classes)
        try:
            return stated.bind(data.class_names)
        except ArgumentError:
            if data.identifiers is None:
                raise
        return stated.bind(data.identifiers)

    def fitted(self, data: Dataset, *, own_network: bool = False) -> "Recipe":
        """The recipe with everything chosen that the data decides; affinity sets are written out.

        Only what is held out of data that safeset knows by name stays open: nothing is.
        """
        self.augmentation.check(data.input_shape)
        own, batch = self.data.source not in SOURCES, self.batch or defaults.suited_batch(len(data.train))
        return replace(
            self,
            data=replace(
                self.data,
                source=absolute(self.data.source),
                ranges=data.ranges or self.data.ranges,
                one_hot=data.one_hot or self.data.one_hot,
            ),
            guarantee=str(self.bound(data)),
            epsilon=defaults.suited_epsilon(data) if self.epsilon is None else self.epsilon,
            model="own" if own_network or self.network else self.model or defaults.suited_model(data, own=own),
            epochs=self.epochs or defaults.suited_epochs(data, batch, own=own),
            batch=batch,
            hold_out=self._held_out(data, own),
            task=Task(data.input_shape, data.class_names, data.units, data.train.range),
        )

    def _held_out(self, data: Dataset, own: bool) -> float | None:
        share = self.hold_out
        if share is None and (own or self.patience):
            share = defaults.suited_hold_out(data)
        if share:
            defaults.check_hold_out(share, data)
        elif self.patience:
            got = "too few" if self.hold_out is None else "none (`hold_out` is 0)"
            raise expected("held-out points to judge by, for `patience`", got, "Give --hold-out 0.1, or no patience.")
        return share


def absolute(source: str) -> str:
    """A data set's name as it is; a path from the root."""
    return source if source in (*SOURCES, OWN_DATA) else str(Path(source).resolve())


def resolved(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with the guarantee read: its files are looked for from here, not beside a recipe."""
    stated = changes.get("guarantee")
    return dict(changes) if stated in (None, OWN_GROUPS) else {**changes, "guarantee": str(parse(stated))}


def _named(member: int | str, names: tuple[str, ...] | None) -> int | str:
    if names is not None and isinstance(member, int) and 0 <= member < len(names):
        return names[member]
    return member  # a stranger is named where the sets are bound


def _among(key: str, value: Any, choices: Any) -> None:
    if value not in choices:
        raise expected(f"`{key}` to be one of {', '.join(choices)}", repr(value), nearest(value, choices))


def _at_least(least: int, key: str, value: int | None) -> None:
    if value is not None and value < least:
        raise expected(f"`{key}` to be a whole number ≥ {least}", value)


def _between(least: int, most: int, key: str, value: int | None) -> None:
    if value is not None and not least <= value <= most:
        raise expected(f"`{key}` to be a whole number in {least}..{most}", value)
