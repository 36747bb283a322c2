"""The paper's table and the analyses of its text, trained and evaluated anew: a JSON file for each row and seed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from safeset.data.dataset import Dataset
from safeset.data.sources import check_here
from safeset.errors import ArgumentError, expected, nearest
from safeset.inputs import as_count, as_device
from safeset.paper.analyses import ROWS, analysed
from safeset.paper.networks import RUNS, Group, groups, runs_of
from safeset.paper.predictions import Answers, answers_of, evaluated_as, weights_of
from safeset.paper.results import (
    RESULTS,
    check_alike,
    check_result,
    command_of,
    file_of,
    is_number,
    record,
    result_of,
    stored,
)
from safeset.paper.table import PAPER, seeds_of
from safeset.recipes.library import assemble_recipe, list_recipes
from safeset.recipes.recipe import MOST_SEEDS, FittedRecipe, Recipe, resolve_changes
from safeset.runs.run import Run
from safeset.system.files import check_folder, plain, sweep, write_json
from safeset.training.directory import check_same
from safeset.training.interruption import Interrupted
from safeset.training.train import prepare_training, train_run
from safeset.training.watch import Silent, Watch


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
        tell: is told what is there, and what is trained.
        watch: is told how a training goes.

    Returns:
        What the files hold, row by row and seed by seed.
    """
    _check_seeds(seeds)
    say, changed, found = tell or (lambda text: None), resolve_changes(changes or {}), []
    for key in ("seed", "seeds"):
        if key in changed:
            raise expected("changes of the recipe", f"`{key}`", "--seeds N trains the seeds 0 to N − 1.")
    # What is wrong is said before anything is trained.
    as_device(device)
    kept, wanted = {}, {row: range(seeds or seeds_of(row)) for row in every_row(rows)}
    for row, numbers in wanted.items():
        recipe = recipe_of(row, changed)
        results = {seed: result_of(out, row, seed, recipe, changed) for seed in numbers}
        kept[row] = {seed: result for seed, result in results.items() if result is not None}
        check_alike(out, list(kept[row].values()))
        if len(kept[row]) < len(numbers):
            folder = file_of(out, row, 0).parent
            check_folder(folder, "results")
            sweep(folder)
            check_here(recipe.data.source, recipe.data.network)
    for row, done in kept.items():
        if done:
            say(f"{row}: {_listed(done)} in {out}; not trained again.")
        for group in groups(runs, row, [seed for seed in wanted[row] if seed not in done]):
            say(f"{row}: {_listed(group.seeds)} in {group.path}.")
            done |= {each["seed"]: each for each in _made(group, row, out, changed, device, watch)}
        for seed in wanted[row]:
            if seed not in done:
                remedy = "Remove its directory there, and it is trained again."
                raise expected(f"a network of {row}, seed {seed}, in {runs}", "none", remedy)
        several = [done[seed] for seed in wanted[row]]
        check_alike(out, several)
        found += several
    return found


def _check_seeds(seeds: int | None) -> None:
    count = 1 if seeds is None else as_count(seeds)
    if count is None or count > MOST_SEEDS:
        raise expected(f"`seeds` to be a whole number in 1..{MOST_SEEDS}", repr(seeds))


def _made(
    group: Group, row: str, out: Path, changes: Mapping[str, Any], device: str | None, watch: Watch | None
) -> Iterator[dict[str, Any]]:
    """The results of a group's seeds: made and written, or as another process wrote them meanwhile."""
    recipe = recipe_of(row, {**changes, "seed": group.first, "seeds": group.count})
    fitted, data = _trained(group, recipe, device, watch)
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
    """Complain if a seed's own directory holds another recipe, or if its evaluation is of other weights or points."""
    remedy = f"Choose other --runs, or remove {run.path} to train it again."
    check_same(run, recipe, remedy)
    for key, own in (("weights", weights_of(run)), ("test", data.test.digest())):
        said = evaluated_as(run, key)
        if said is not None and said != own:
            what = {"weights": "of the weights in", "test": "on the test points of this data in"}[key]
            raise expected(f"an evaluation {what} {run.path}", "one of others", remedy)


def _trained(group: Group, recipe: Recipe, device: str | None, watch: Watch | None) -> tuple[FittedRecipe, Dataset]:
    """Train a group of seeds, as far as it is not; the fitted recipe, and the data to train and to evaluate on."""
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


def every_row(rows: str | Sequence[str]) -> list[str]:
    """The rows that are meant, each once: a data set's name stands for its rows.

    >>> every_row(["cifar100/rt5", "cifar100"])
    ['cifar100/rt5', 'cifar100/standard', 'cifar100/superclass']
    >>> every_row("tiny-imagenet")
    ['tiny-imagenet/standard', 'tiny-imagenet/rt5']
    """
    named = [rows] if isinstance(rows, str) else rows
    meant = ([f"{row}/{name}" for name in ROWS[row]] if row in ROWS else [row] for row in named)
    return list(dict.fromkeys(row for several in meant for row in several))


def _listed(seeds: Iterable[int]) -> str:
    numbers = sorted(seeds)
    return f"seed {numbers[0]}" if len(numbers) == 1 else f"seeds {', '.join(map(str, numbers))}"


def recipe_of(row: str, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a row, by the name of one that comes with safeset, or of another network of ACAS Xu.

    >>> recipe_of("acasxu/targeted-2-3", {}).data.network
    '2_3'
    """
    other = re.fullmatch(r"(acasxu/targeted)-([1-5])-([1-9])", row)
    if other and "data.network" in changes:
        raise expected(f"the network that the row {row} names", f"`data.network` {changes['data.network']!r}")
    if other:
        return assemble_recipe(other[1], {"data.network": f"{other[2]}_{other[3]}", **changes})
    if row not in list_recipes():
        remedy = nearest(row, list_recipes()) or f"safeset has {', '.join(list_recipes())}."
        raise expected("rows by the names of recipes that come with safeset", repr(row), remedy)
    return assemble_recipe(row, changes)


def analyse(
    rows: str | Sequence[str] = tuple(PAPER),
    *,
    seeds: int | None = None,
    results: Path = RESULTS,
    out: Path = Path("results/analyses/paper"),
    runs: Path = RUNS,
    device: str | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """The analyses of the paper's text for the data sets of some rows, seeds 0, 1, …: what ``out`` lacks.

    They need the networks of all of a data set's rows, of one seed: those of the published results. An analysis of
    other networks is made anew.

    Args:
        rows: as for `reproduce`.
        seeds: how many; by default as for `reproduce`.
        results: where `reproduce` has put its JSON files.
        out: where the JSON files go, ``<data>-seed<N>.json``.
        runs: where the trained models are.
        device: such as ``"cuda"``.
        watch: is told what cannot be made.

    Returns:
        What ``out`` holds then, data set by data set.
    """
    _check_seeds(seeds)
    heard, found = watch or Silent(), []
    meant = [row.partition("/") for row in every_row(rows)]
    sets = dict.fromkeys(data for data, _, row in meant if row in ROWS.get(data, ()))
    most = {data: seeds or max(seeds_of(f"{data}/{row}") for row in ROWS[data]) for data in sets}
    pairs, missing = [(data, seed) for data in sets for seed in range(most[data])], dict[str, list[int]]()
    for data, seed in pairs:
        paths = {row: file_of(results, f"{data}/{row}", seed) for row in ROWS[data]}
        if not all(path.exists() for path in paths.values()):
            continue
        published = {row: stored(path, ("weights",)) for row, path in paths.items()}
        first, *others = published.values()
        unlike = [key for key in ALIKE if any(other.get(key) != first.get(key) for other in others)]
        if unlike:
            heard.note(f"The rows of {data}, seed {seed}, differ in {', '.join(unlike)}: no analysis.")
            continue
        weights, target = {row: one["weights"] for row, one in published.items()}, file_of(out, data, seed)
        kept = _analysis(target)
        about = {name: first[name] for name in ABOUT if name in first}
        fits = {"data": data, "seed": seed, "weights": weights}
        fits |= {name: about.get(name) for name in ("test", "split", "changes")}
        if any(kept.get(name) != value for name, value in fits.items()):
            networks = _networks(data, seed, published, runs, device)
            if networks is None:
                if target.exists():
                    heard.note(f"{target} is no analysis of the networks in {results}: left out.")
                missing.setdefault(data, []).append(seed)
                continue
            about["commit"] = ", ".join(dict.fromkeys(str(one.get("commit")) for one in published.values()))
            command = command_of([f"{data}/{row}" for row in weights], first.get("changes", {}))
            target.parent.mkdir(parents=True, exist_ok=True)
            numbers = {"data": data, "seed": seed, **plain(analysed(data, networks))}
            kept = {**numbers, **about, "weights": weights, "command": command}
            write_json(target, kept)
        found.append(kept)
    for data, lost in missing.items():
        remedy = "Results that are removed are made anew, with their networks."
        heard.note(f"{data}, {_listed(lost)}: no analysis, and no networks in {runs} to make one. {remedy}")
    return found


def _analysis(path: Path) -> dict[str, Any]:
    """An analysis that is there; what is none is made anew."""
    try:
        found = stored(path, ("data", "seed", "shares", "weights")) if path.exists() else {}
    except ArgumentError:
        return {}
    shares = found.get("shares")
    tables = list(shares.values()) if isinstance(shares, dict) else [None]
    whole = all(isinstance(one, dict) and all(x is None or is_number(x) for x in one.values()) for one in tables)
    return found if whole and tables else {}


LONGEST = 1e9  # seconds of a training that can be
ALIKE = ("changes", "epsilon", "split", "test")
ABOUT = ("points", "test", "split", "device", "dtype", "bound_method", "commit", "safeset", "torch", "changes")


def _networks(
    data: str, seed: int, published: Mapping[str, Mapping[str, Any]], runs: Path, device: str | None
) -> dict[str, Answers] | None:
    """The answers of the published networks at the published points; None if one is missing."""
    networks = {}
    for row, own in published.items():
        there = runs_of(runs, f"{data}/{row}", seed)
        run = next((run for run in there if weights_of(run) == own["weights"]), None)
        answers = answers_of(run, device) if run else None
        if answers is None or any(answers.about.get(name) != own.get(name) for name in ("test", "split")):
            return None
        networks[row] = answers
    return networks
