"""The data of a run, found again where its recipe says; or other data that its network can be asked about."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from safeset.data.dataset import Dataset, Progress, Split
from safeset.data.quality import report
from safeset.data.sources import SOURCES, load_data
from safeset.data.units import check_fits
from safeset.errors import DataNotFoundError, expected
from safeset.recipes.recipe import OWN_DATA, FittedRecipe, Recipe
from safeset.recipes.sections import Data

TABLES = (".csv", ".tsv")
OPTIONS = {"folder": ("size", "background", "skip_bad"), ".npz": ("units", "background")}  # that other data can have


def load_run_data(recipe: FittedRecipe, source: str | None = None, progress: Progress | None = None) -> Dataset:
    """Load the data of a run, or other data of the same shape and classes.

    Points that the run keeps for calibration are in neither split.
    """
    return as_of_run(load_whole(recipe, source, progress), recipe, source)


def as_of_run(points: Dataset, recipe: FittedRecipe, source: str | None = None) -> Dataset:
    """What `load_run_data` makes of whole data: without the points that the run keeps, and split as its own."""
    if recipe.calibration and (source is None or same_source(source, recipe.data.source)):
        points = points.for_calibration(recipe.calibration)
    found = points.for_choices() if recipe.validation else points
    if source is not None:
        check_tests(found, source)
    return found


def check_tests(points: Dataset, source: str) -> None:
    """Refuse other data of which no point would be looked at."""
    if not len(points.test):
        remedy = "A fifth of each class is: give more points, or all of them as x_test and y_test of an .npz file."
        raise expected(f"points to test in {source}", f"none among {len(points.train)}", remedy)


def load_whole(
    recipe: FittedRecipe, source: str | None = None, progress: Progress | None = None, *, some_classes: bool = False
) -> Dataset:
    """The same with all of its points, before any are held out; other data may have ``some_classes`` only."""
    task, own = recipe.task, recipe.data
    if source is None and own.source == OWN_DATA:
        raise expected("the data of the run", "none: it was given in Python", "Name a file or folder with --data.")
    if source is None and own.source not in SOURCES and not Path(own.source).exists():
        raise DataNotFoundError(
            f"Expected the data of the run at {own.source}, but nothing is there. Put it back, or a link to it."
        )
    points = load_data(source or own.source, progress=progress, **_options(own, source))
    report(points, oddities=False)
    if some_classes and set(points.class_names) < set(task.class_names):
        points = _renumbered(points, task.class_names)
    if points.input_shape != task.input_shape or points.class_names != task.class_names:
        got = f"{points.input_shape} and {len(points.class_names)} classes"
        strange = sorted(set(points.class_names) - set(task.class_names))
        missing = [] if some_classes else sorted(set(task.class_names) - set(points.class_names))
        also = f", not among them: {', '.join(strange[:5])}" if strange else ""
        also += f", missing: {', '.join(missing[:5])}" if missing else ""
        raise expected(f"data as trained on: {task.input_shape} and {len(task.class_names)} classes", got + also)
    check_fits(points, task.units, task.range, columns=source is not None)
    return points


def _renumbered(points: Dataset, names: tuple[str, ...]) -> Dataset:
    """Data with labels among more classes than it has points of."""
    places = torch.tensor([names.index(name) for name in points.class_names])
    train, test = (Split(split.x, places[split.y]) for split in (points.train, points.test))
    return replace(points, train=train, test=test, class_names=names, groups=None, identifiers=None)


def same_source(first: str, second: str) -> bool:
    """Whether two sources of data have one name, or are one file or folder."""
    return first == second or os.path.realpath(first) == os.path.realpath(second)


def loading_options(recipe: Recipe) -> dict[str, Any]:
    """What `load_data` takes for a training: the ranges of a table's columns are found without calibration points."""
    drawn = recipe.calibration and Path(recipe.data.source).suffix.lower() in TABLES
    return {**recipe.data.options, **({"calibration": recipe.calibration} if drawn else {})}


def _options(own: Data, source: str | None) -> dict[str, Any]:
    """The options of a run's data that other data can have too."""
    path = Path(source or own.source)
    if source is None or path.suffix.lower() in TABLES:
        return own.options
    known = OPTIONS.get("folder" if path.is_dir() else path.suffix.lower(), ())
    return {name: value for name, value in own.options.items() if name in known}
