"""The paper's table, trained and evaluated again: a JSON file for each row and seed."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safeset.data.dataset import Dataset
from safeset.data.sources import check_here
from safeset.errors import expected
from safeset.inputs import as_device
from safeset.paper.networks import RUNS, Group, groups
from safeset.paper.predictions import answers_of, evaluation_of, weights_of
from safeset.paper.results import RESULTS, check_alike, check_result, file_of, is_number, record, result_of
from safeset.paper.rows import check_seeds, every_row, recipe_of, seeds_in_words
from safeset.paper.table import PAPER, seeds_of
from safeset.recipes.recipe import FittedRecipe, Recipe, resolve_changes
from safeset.runs.run import Run
from safeset.system.files import check_folder, sweep, write_json
from safeset.system.fingerprint import Fingerprint
from safeset.training.directory import check_same
from safeset.training.interruption import Interrupted
from safeset.training.train import prepare_training, train_run
from safeset.training.watch import Watch

LONGEST = 1e9  # seconds; a training that claims more is not believed
ABOUT = {"weights": "of the weights in", "test": "on the test points of this data in"}

Results = dict[int, dict[str, Any]]  # by seed


def reproduce(
    rows: str | Sequence[str] = tuple(PAPER),
    *,
    seeds: int | None = None,
    out: Path = RESULTS,
    runs: Path = RUNS,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    tell: Callable[[str], None] | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Train and evaluate rows of the paper's table, seeds 0, 1, …: what ``out`` lacks.

    A seed that has its file is skipped, a network that ``runs`` has is not trained again, and a training that was
    interrupted is continued.

    Args:
        rows: names of recipes: those of the paper's rows, or any other; ``cifar100`` for all rows of a data set;
            ``acasxu/targeted-<i>-<j>`` for others of the 45 networks of ACAS Xu.
        seeds: how many of each; by default `seeds_of` the row.
        out: where the JSON files go, ``<row>-seed<N>.json``.
        runs: where the trained models go.
        changes: keys of the recipes to change.
        device: such as ``"cuda"``.
        tell: is called with what is there, and what is trained.
        watch: is called while a network is trained.

    Returns:
        What the files hold, row by row and seed by seed.
    """
    check_seeds(seeds)
    say, changed = tell or (lambda text: None), resolve_changes(changes or {})
    for key in ("seed", "seeds"):
        if key in changed:
            raise expected("changes of the recipe", f"`{key}`", "--seeds N trains the seeds 0 to N − 1.")
    as_device(device)
    wanted = {row: range(seeds or seeds_of(row)) for row in every_row(rows)}
    # Every row is checked before the first is trained, so that a mistake in the last one does not cost hours.
    kept = {row: _read_kept(row, numbers, out, changed) for row, numbers in wanted.items()}
    found = []
    for row, done in kept.items():
        if done:
            say(f"{row}: {seeds_in_words(done)} in {out}; not trained again.")
        for group in groups(runs, row, [seed for seed in wanted[row] if seed not in done]):
            say(f"{row}: {seeds_in_words(group.seeds)} in {group.path}.")
            done |= {each["seed"]: each for each in _make(group, row, out, changed, device, watch)}
        lost = next((seed for seed in wanted[row] if seed not in done), None)
        if lost is not None:
            remedy = "Remove its directory there, and it is trained again."
            raise expected(f"a network of {row}, seed {lost}, in {runs}", "none", remedy)
        several = [done[seed] for seed in wanted[row]]
        check_alike(out, several)
        found += several
    return found


def _read_kept(row: str, seeds: range, out: Path, changes: Mapping[str, Any]) -> Results:
    """Read the results of a row that are there; if some are missing, check that they can be made."""
    recipe = recipe_of(row, changes)
    results = {seed: result_of(out, row, seed, recipe, changes) for seed in seeds}
    kept = {seed: result for seed, result in results.items() if result is not None}
    check_alike(out, list(kept.values()))
    if len(kept) < len(seeds):
        folder = file_of(out, row, 0).parent
        check_folder(folder, "results")
        sweep(folder)
        check_here(recipe.data.source, recipe.data.network)
    return kept


def _make(
    group: Group, row: str, out: Path, changes: Mapping[str, Any], device: str | None, watch: Watch | None
) -> Iterator[dict[str, Any]]:
    """Make and write the results of a group's seeds; those that another process has written meanwhile are read."""
    recipe = recipe_of(row, {**changes, "seed": group.first, "seeds": group.count})
    fitted, data = _train(group, recipe, device, watch)
    lines = Run(group.path).records()
    spent: Any = lines[-1].get("seconds") if lines else None
    seconds = spent / group.count if is_number(spent, 0, LONGEST) else None
    for seed in group.seeds:
        result, path, run = result_of(out, row, seed, recipe, changes), file_of(out, row, seed), group.run(seed)
        if result is None and run.has_ended:
            _check_own(run, replace(fitted, seed=seed, seeds=1), data)
            result = record(row, run, seconds, answers_of(run, device, data=data), changes)
            check_result(result, run.path, row, seed, recipe, changes)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, result)
        if result is not None:
            yield result


def _check_own(run: Run, recipe: FittedRecipe, data: Dataset) -> None:
    """Refuse a directory of a seed that holds another recipe, or an evaluation of other weights or points."""
    remedy = f"Choose other --runs, or remove {run.path} to train it again."
    check_same(run, recipe, remedy)
    own, evaluation = Fingerprint(weights=weights_of(run), test=data.test.digest()), evaluation_of(run)
    for what, _, _ in own.differences(evaluation, besides=evaluation.unknown):
        raise expected(f"an evaluation {ABOUT[what]} {run.path}", "one of others", remedy)


def _train(group: Group, recipe: Recipe, device: str | None, watch: Watch | None) -> tuple[FittedRecipe, Dataset]:
    """Train a group of seeds, or continue; returns the fitted recipe, and the data to train and to evaluate on."""
    fitted, data = prepare_training(recipe, watch=watch)
    run = Run(group.path)
    check_same(run, fitted, f"Choose other --runs, or remove {run.path} to train it again.")
    if not run.has_ended:
        run.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            train_run(fitted, data, out=run.path, resume=True, device=device, watch=watch, pictures=False)
        except Interrupted as stopped:
            raise stopped.continued_by("the same safeset reproduce") from None
    return fitted, data
