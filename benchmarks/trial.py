"""A training whose only purpose is its evaluation on validation data: a tenth of the training data."""

import json
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safeset import train
from safeset.recipes.library import assemble_recipe
from safeset.runs.run import Run


def trial(recipe: str, changes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Train a recipe with changes, and forget the network.

    Returns:
        The rows of the evaluation with the seconds it took, and with what it was made.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        run = Run(Path(folder) / "run")
        train(assemble_recipe(recipe, {**changes, "validation": True}), out=run.path)
        result, seconds = json.loads(run.evaluation.read_text()), run.records()[-1]["seconds"]
    rows = {"rows": result.pop("rows"), "training_seconds": seconds}
    return {**rows, "seconds": round(time.perf_counter() - started, 1)}, result
