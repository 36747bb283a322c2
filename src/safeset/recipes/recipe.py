"""Recipes: everything that decides what a training does, as frozen values and as TOML."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os.path import exists  # unlike `Path.exists` it is False for what cannot be a name
from pathlib import Path
from typing import Any

from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Dataset, Split
from safeset.data.sources import SOURCES
from safeset.errors import ArgumentError, expected
from safeset.guarantees import affinity
from safeset.guarantees.guarantee import Affinity, Guarantee
from safeset.guarantees.text import names_a_file, parse
from safeset.inputs import check_epsilon, is_text
from safeset.models import INITIALISATIONS, check_model, list_models
from safeset.recipes import defaults, toml
from safeset.recipes.sections import (
    Data,
    Loss,
    Optimiser,
    Task,
    Teacher,
    check_among,
    check_at_least,
    check_between,
)

OWN_GROUPS = "affinity:groups"  # the groups that the data set itself has
OWN_DATA = "(given in Python)"
PRECISIONS = ("tf32", "float32", "bfloat16")
MOST_SEEDS, LONGEST_NAME = 1000, 200


@dataclass(frozen=True)
class Recipe:
    """Everything that decides what a training does, as somebody wrote it: what is None is left to the data (`fit`).

    Attributes:
        data: where the points come from.
        guarantee: as text: ``standard``, ``top3``, ``rt3``, ``affinity:FILE``, ``affinity:JSON``, or
            ``affinity:groups`` for the data set's own groups. In TOML also a table that describes affinity sets.
        epsilon: radius of the L2 ball, in the units of the data.
        model: one of `list_models()`, or ``own`` for a network given in Python.
        sizes: settings of the model, where it has any: ``depth``, ``width`` and so on (`create_model`).
        initialisation: of the model's weights: ``torch`` (its default), ``orthogonal`` with biases of 0, or
            ``near-identity``: small rotations where layers are orthogonal. A network given in Python has its own.
        network: where the user's own network comes from, ``module:factory``, for messages: code is only ever run by
            the flag ``--network``.
        epochs: how often each point is seen; by default enough for the number of points.
        batch: points in a step.
        seed: of initialisation, order and augmentation.
        seeds: how many networks are trained at once, of this seed and the next ones.
        validation: hold out a tenth of the training data, and evaluate on it instead of the test data: for choices.
        hold_out: share of the training data that is not trained on, but decides after each epoch whether its weights
            are the best so far; by default a tenth of a user's own data, if it is not too small, and nothing else.
        calibration: share of the training data, drawn at random, that nothing sees but ``safeset calibrate``.
        patience: stop after so many epochs without better weights; by default never.
        precision: of products in training on a GPU: ``tf32``, ``float32``, or ``bfloat16`` for convolutions. It means
            nothing on a CPU, and nothing to proofs.
        augmentation: how images are moved.
        loss: on logits and ⊥.
        optimiser: how parameters follow their gradients.
        teacher: plain networks that are trained first, and then tell which classes look alike; by default none.
        task: what goes in and what comes out, once it is known.
    """

    data: Data
    guarantee: str | None = None
    epsilon: float | None = None
    model: str | None = None
    sizes: Mapping[str, int] = field(default_factory=dict)
    network: str | None = None
    initialisation: str = "torch"
    epochs: int | None = None
    batch: int | None = None
    seed: int = 0
    seeds: int = 1
    validation: bool = False
    hold_out: float | None = None
    calibration: float = 0.0
    patience: int | None = None
    precision: str = "tf32"
    augmentation: Augmentation = field(default_factory=Augmentation)
    loss: Loss = field(default_factory=Loss)
    optimiser: Optimiser = field(default_factory=Optimiser)
    teacher: Teacher | None = None
    task: Task | None = None

    def __post_init__(self) -> None:
        if self.guarantee not in (None, OWN_GROUPS):
            object.__setattr__(self, "guarantee", str(parse(self.guarantee or "")))
        if self.epsilon is not None:
            object.__setattr__(self, "epsilon", check_epsilon(self.epsilon))
        if self.model not in (None, "own"):
            check_among("model", self.model, list_models())
            check_model(str(self.model), self.sizes)
        elif self.sizes:
            remedy = "Name a `model` that has them, such as shift-net."
            raise expected("no `sizes` where the model is not named", ", ".join(self.sizes), remedy)
        check_among("initialisation", self.initialisation, INITIALISATIONS)
        if self.model == "own" and self.initialisation != "torch":
            raise expected("an own network as it is initialised", f"`initialisation` {self.initialisation!r}")
        check_among("precision", self.precision, PRECISIONS)
        for name in ("epochs", "batch", "patience"):
            check_at_least(1, name, getattr(self, name))
        if self.hold_out is not None and not 0 <= self.hold_out < 1:
            raise expected("`hold_out` to be a share of the training data in [0, 1)", self.hold_out)
        if not 0 <= self.calibration < 1:
            raise expected("`calibration` to be a share of the training data in [0, 1)", self.calibration)
        if self.network is not None and (len(self.network) > LONGEST_NAME or not is_text(self.network)):
            raise expected(f"`network` to be a name of at most {LONGEST_NAME} characters", repr(self.network)[:80])
        check_between(0, 2**31 - 1, "seed", self.seed)
        check_between(1, MOST_SEEDS, "seeds", self.seeds)
        if self.teacher is not None and self.teacher.views and self.augmentation.mixes:
            remedy = "Leave out mixup and cutmix, or `views`: then teachers are asked in each step."
            raise expected("no mixed images with `views` of a teacher", "mixup or cutmix", remedy)
        if self.teacher is not None and self.seeds > 1:
            remedy = "Train them one after another: --seed 0, --seed 1, …"
            raise expected("one seed at a time with a teacher", f"{self.seeds} seeds", remedy)

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
        guarantee = None if self.guarantee in (None, OWN_GROUPS) else parse(self.guarantee)
        if isinstance(guarantee, Affinity):
            names = self.task.class_names if self.task else None
            *sets, common = ([_name(each, names) for each in one] for one in (*guarantee.sets, guarantee.everyone_with))
            ordered = Affinity(sets, common)  # a reader of the names orders the sets by name, not by index
            table["guarantee"] = {"sets": [list(one) for one in ordered.sets]}
            if ordered.everyone_with:
                table["guarantee"]["everyone_with"] = list(ordered.everyone_with)
        return table

    def json_table(self) -> Any:
        """The recipe as it stands in JSON files."""
        return json.loads(json.dumps(self.table(), default=str))

    def text(self) -> str:
        """The recipe as TOML; `read` gives the same recipe."""
        return toml.write(self.table())

    def with_changes(self, changes: Mapping[str, Any]) -> "Recipe":
        """The same with values at dotted keys changed."""
        return Recipe.from_table(toml.override(self.table(), resolve_changes(changes)))

    # -- data ---------------------------------------------------------------------------------------------------------

    def resolve_guarantee(self, data: Dataset) -> Guarantee:
        """The guarantee about the classes of a data set."""
        if self.guarantee == OWN_GROUPS:
            if data.groups is None:
                raise expected("a data set with groups for affinity:groups", f"{data.name}, which has none")
            return Affinity.from_groups(dict(zip(data.class_names, data.groups, strict=True))).bind(data.class_names)
        guarantee = parse(self.guarantee) if self.guarantee else defaults.suited_guarantee(data.classes)
        try:
            return guarantee.bind(data.class_names)
        except ArgumentError:
            if data.identifiers is None:
                raise
        return guarantee.bind(data.identifiers)

    def fit(self, data: Dataset, *, own_network: bool = False) -> "FittedRecipe":
        """Choose what the recipe leaves to the data; affinity sets are written out."""
        self.augmentation.check(data.input_shape)
        own, batch = self.data.source not in SOURCES, self.batch or defaults.suited_batch(len(data.train))
        chosen = {
            "data": replace(
                self.data,
                source=absolute(self.data.source),
                ranges=data.ranges or self.data.ranges,
                one_hot=data.one_hot or self.data.one_hot,
            ),
            "guarantee": str(self.resolve_guarantee(data)),
            "epsilon": defaults.suited_epsilon(data) if self.epsilon is None else self.epsilon,
            "model": "own" if own_network or self.network else self.model or defaults.suited_model(data, own=own),
            "epochs": self.epochs or defaults.suited_epochs(data, batch, own=own),
            "batch": batch,
            "hold_out": self._hold_out(data, own),
            "task": Task(data.input_shape, data.class_names, data.units, data.train.range, _digest(data.set_apart)),
        }
        return FittedRecipe(**{**vars(self), **chosen})

    def as_fitted(self) -> "FittedRecipe | None":
        """The same as a fitted recipe, where nothing is open, as in a run's own file; else None."""
        lacking = any(getattr(self, name) is None for name in FittedRecipe.__annotations__)
        return None if lacking else FittedRecipe(**vars(self))

    def _hold_out(self, data: Dataset, own: bool) -> float | None:
        share = self.hold_out
        if share is None and (own or self.patience):
            share = defaults.suited_hold_out(data)
        if share:
            defaults.check_hold_out(share, data)
        elif self.patience:
            got = "too few" if self.hold_out is None else "none (`hold_out` is 0)"
            raise expected("held-out points to judge by, for `patience`", got, "Give --hold-out 0.1, or no patience.")
        return share


@dataclass(frozen=True, kw_only=True)
class FittedRecipe(Recipe):
    """A recipe that was fitted to data: nothing that a training, a run or an audit needs is open any more.

    `Recipe.fit` makes it. Three fields may still be None, because that is what they say: ``network`` (none of the
    user's own), ``patience`` (never stop early) and ``hold_out`` (nobody asked, and nothing is held out).
    """

    guarantee: str
    epsilon: float
    model: str
    epochs: int
    batch: int
    task: Task

    @property
    def held_out_share(self) -> float:
        """The share of the training data that is held out to choose the best epoch."""
        return self.hold_out or 0.0


def absolute(source: str) -> str:
    """A data set's name as it is; a path from the root."""
    return source if source in (*SOURCES, OWN_DATA) else str(Path(source).resolve())


def resolve_changes(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes with the guarantee read: its files are looked for from here, not beside a recipe."""
    guarantee = changes.get("guarantee")
    return dict(changes) if guarantee in (None, OWN_GROUPS) else {**changes, "guarantee": str(parse(guarantee))}


def _digest(points: Split | None) -> str | None:
    return None if points is None else points.digest()


def _name(member: int | str, names: tuple[str, ...] | None) -> int | str:
    if names is not None and isinstance(member, int) and 0 <= member < len(names):
        return names[member]
    return member  # an unknown class is reported where the guarantee is resolved
