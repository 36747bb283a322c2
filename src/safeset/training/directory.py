"""The directory of a run: taken by one training at a time, and written whole."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

from safeset.data.units import kind
from safeset.errors import SafesetError, expected
from safeset.evaluation import remarks
from safeset.guarantees.text import parse
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.recipes.toml import different_keys
from safeset.runs.card import card
from safeset.runs.run import Run
from safeset.system.files import write_json, write_whole
from safeset.system.workers import attempt
from safeset.training.loop import Outcome
from safeset.training.watch import Watch

AS_BEGUN = "Leave out the recipe and the flags to continue it as it was begun."


def check_same(run: Run, wanted: FittedRecipe, remedy: str = AS_BEGUN) -> None:
    """Complain if a run that was begun is to be continued with another recipe."""
    if not (run.has_begun and run.recipe.exists()):
        return
    stored = run.read_recipe()
    named = wanted.network or stored.network  # in Python a network is given without its name
    moved = replace(stored, data=replace(stored.data, source=wanted.data.source))  # the data itself is compared later
    wanted = replace(wanted, network=named)
    if kind(stored.task.units) == kind(wanted.task.units):
        # Ranges follow from the data, which is compared later; older versions wrote none.
        moved = replace(moved, task=replace(stored.task, units=wanted.task.units, range=wanted.task.range))
    before, now = moved.table(), wanted.table()
    for key in different_keys(before, now):
        got, old = (str(table.get(key, "its default"))[:300] for table in (now, before))
        raise expected(f"the recipe of the run to continue: `{key}` {old}", got, remedy)


def take_directory(run: Run, recipe: FittedRecipe, resume: bool, held: ExitStack) -> bool:
    """Take the run's directory until ``held`` is closed, and write the recipe into it.

    Returns:
        Whether a training to continue has ended in it already; then nothing is written.
    """
    resume = resume or (attempt() > 0 and run.is_ours)  # a restart continues what this very job began
    _check_free(run, resume)
    held.enter_context(run.lock())
    _check_free(run, resume)  # again: another process may have come first
    if run.recipe.exists() and resume:
        check_same(run, recipe)
        if run.has_ended:
            return True
        if run.model.exists() and not run.checkpoint.exists():
            remedy = f"safeset evaluate {run.path} writes one; to train again, remove the directory."
            raise expected(f"an evaluation of the trained model in {run.path}", "none", remedy)
    with explain_write_errors(run):
        write_whole(run.recipe, recipe.text())
    return False


@contextmanager
def explain_write_errors(run: Run) -> Iterator[None]:
    """Report a file that cannot be written as an error of safeset, which says what is kept."""
    try:
        yield
    except OSError as error:
        raise SafesetError(
            f"Expected to write into {run.path}, but got: {error.strerror or error}. What was saved before is "
            "kept, and can be continued."
        ) from None


def _check_free(run: Run, resume: bool) -> None:
    """Refuse a directory that holds something else, or a run where none is to be continued."""
    if run.path.exists() and not run.path.is_dir():
        raise expected("a directory for the run", f"{run.path}, which is a file")
    if run.recipe.exists() and run.has_begun and not resume:
        remedy = "Choose another --out, or continue with --resume."
        raise expected("a new directory for the run", f"{run.path}, which has one", remedy)
    if not run.recipe.exists() and run.path.is_dir() and any(each.name[0] != "." for each in run.path.iterdir()):
        raise expected("a new or empty directory for the run", f"{run.path}, which holds something else")


def save_interrupted(
    runs: Sequence[Run], nets: Sequence[CertifiedNet], recipes: Sequence[FittedRecipe], so_far: str, watch: Watch
) -> None:
    """Save an interrupted training's weights so far, for every command that uses a run."""
    try:
        for run, net, recipe in zip(runs, nets, recipes, strict=True):
            run.path.mkdir(exist_ok=True)
            write_whole(run.recipe, recipe.text())
            run.save(net, unfinished=so_far)
    except OSError as error:
        watch.note(f"The weights so far could not be written ({error.strerror or error}).")


def write_run(
    run: Run,
    net: CertifiedNet,
    recipe: FittedRecipe,
    evaluation: dict[str, Any],
    outcome: Outcome,
    records: list[dict[str, Any]],
) -> None:
    """Write all that a run directory holds when its training has ended.

    Args:
        run: where to.
        net: trained.
        recipe: by which.
        evaluation: of the net.
        outcome: how the training has ended.
        records: lines of metrics.jsonl.
    """
    run.path.mkdir(exist_ok=True)
    write_whole(run.recipe, recipe.text())
    run.save(net, last=outcome.last)
    run.write_bounds(net)
    write_json(run.evaluation, evaluation)
    write_whole(run.card, card(recipe, evaluation, records, epoch=outcome.epoch, trained=outcome.trained))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The evaluations of several seeds as one: each metric's mean, and its standard deviation in ``std``.

    ``weights`` has a digest for each seed.
    """
    rows = []
    for same in zip(*(result["rows"] for result in results), strict=True):
        numbers = {name: [row[name] for row in same] for name in same[0] if name not in ("method", "epsilon", "points")}
        row = {name: same[0][name] for name in ("method", "epsilon", "points")}
        known = {name: values for name, values in numbers.items() if None not in values}
        row |= {name: statistics.fmean(known[name]) if name in known else None for name in numbers}
        rows.append({**row, "std": {name: statistics.stdev(values) for name, values in known.items()}})
    classes = len(results[0]["recipe"]["task"]["class_names"])
    notes = remarks(rows, parse(results[0]["guarantee"]), classes)
    seeds = [result["seed"] for result in results]
    shared = {name: value for name, value in results[0].items() if name != "seed"}
    return shared | {
        "rows": rows,
        "remarks": notes,
        "seconds": round(sum(result["seconds"] for result in results), 3),
        "weights": {str(result["seed"]): result["weights"] for result in results},
        "recipe": {**results[0]["recipe"], "seed": seeds[0], "seeds": len(seeds)},
        "seeds": seeds,
    }
