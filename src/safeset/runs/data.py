"""The data of a run, found again where its recipe says; or other data that its network can be asked about."""

from pathlib import Path
from typing import Any

from safeset.data.dataset import Dataset, Progress
from safeset.data.quality import report
from safeset.data.sources import load_data
from safeset.data.units import check_fits
from safeset.errors import expected
from safeset.recipes.recipe import OWN_DATA, FittedRecipe
from safeset.recipes.sections import Data

OPTIONS = {"folder": ("size", "background", "skip_bad"), ".npz": ("units", "background")}  # that other data can have


def load_run_data(recipe: FittedRecipe, source: str | None = None, progress: Progress | None = None) -> Dataset:
    """Load the data of a run, or other data of the same shape and classes."""
    task, own = recipe.task, recipe.data
    if source is None and own.source == OWN_DATA:
        raise expected("the data of the run", "none: it was given in Python", "Name a file or folder with --data.")
    points = load_data(source or own.source, progress=progress, **_options(own, source))
    report(points, oddities=False)
    if points.input_shape != task.input_shape or points.class_names != task.class_names:
        got = f"{points.input_shape} and {len(points.class_names)} classes"
        names = sorted(set(points.class_names) ^ set(task.class_names))
        also = f", other names: {', '.join(names[:5])}" if names else ""
        raise expected(f"data as trained on: {task.input_shape} and {len(task.class_names)} classes", got + also)
    check_fits(points, task.units, task.range, columns=source is not None)
    return points.for_choices() if recipe.validation else points


def _options(own: Data, source: str | None) -> dict[str, Any]:
    """The options of a run's data that other data can have too."""
    path = Path(source or own.source)
    if source is None or path.suffix.lower() in (".csv", ".tsv"):
        return own.options
    known = OPTIONS.get("folder" if path.is_dir() else path.suffix.lower(), ())
    return {name: value for name, value in own.options.items() if name in known}
