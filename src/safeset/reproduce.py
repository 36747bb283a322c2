"""The paper's table and the analyses of its text, trained and evaluated anew: a JSON file for each row and seed."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any

from safeset.analyses import ROWS, analysed
from safeset.answers import WAYS, Answers, answers_of
from safeset.data.sources import check_here
from safeset.errors import expected, nearest
from safeset.files import write_json
from safeset.jobs import plain, run_data, written
from safeset.paper import PAPER
from safeset.runs import Run
from safeset.texts import parse_json, read_text
from safeset.training.loop import Interrupted
from safeset.training.recipe import Recipe, assembled, list_recipes
from safeset.training.train import train
from safeset.training.watch import Silent, Watch

RESULTS, RUNS = Path("results/paper"), Path("runs/paper")


def reproduce(
    rows: Sequence[str] = tuple(PAPER),
    *,
    seeds: int = 10,
    out: Path = RESULTS,
    runs: Path = RUNS,
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    tell: Callable[[str], None] | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Train and evaluate rows of the paper's table, seeds 0 to ``seeds`` − 1: what ``out`` lacks.

    A seed that has its file is skipped, a network that ``runs`` has is not trained again, and a training that was
    interrupted is continued.

    Args:
        rows: names of recipes: those of the paper's rows, or any other; ``cifar100`` for all rows of a data set;
            ``acasxu/targeted-<i>-<j>`` for others of the 45 networks of ACAS Xu.
        seeds: how many of each.
        out: where the JSON files go, ``<row>-seed<N>.json``.
        runs: where the trained models go.
        changes: keys of the recipes to change.
        device: such as ``"cuda"``.
        tell: is told what is there, and what is trained.
        watch: is told how a training goes.

    Returns:
        What the files hold, row by row and seed by seed.
    """
    if seeds < 1:
        raise expected("`seeds` to be at least 1", seeds)
    say, changed, found = tell or (lambda text: None), dict(changes or {}), []
    for key in ("seed", "seeds"):
        if key in changed:
            raise expected("changes of the recipe", f"`{key}`", "--seeds N trains the seeds 0 to N − 1.")
    # What is wrong is said before anything is trained.
    kept = {row: _kept(row, out, seeds, changed) for row in every_row(rows)}
    for row, done in kept.items():
        if len(done) < seeds:
            check_here(recipe_of(row, changed).data.source)
    for row, done in kept.items():
        if done:
            say(f"{row}: {_listed(done)} in {out}; not trained again.")
        for group in groups(runs, row, [seed for seed in range(seeds) if seed not in done]):
            recipe = recipe_of(row, {**changed, "seed": group.first, "seeds": group.count})
            group.path.parent.mkdir(parents=True, exist_ok=True)
            say(f"{row}: {_listed(group.seeds)} in {group.path}.")
            try:
                train(recipe, out=group.path, resume=True, device=device, watch=watch)
            except Interrupted as stopped:
                raise stopped.continued_by("the same safeset reproduce") from None
            data, lines = run_data(group.run(group.first).read_recipe()), Run(group.path).records()
            for seed in group.seeds:
                if not _file(out, row, seed).exists():
                    run, seconds = group.run(seed), lines[-1]["seconds"] / group.count if lines else None
                    done[seed] = record(row, run, seconds, answers_of(run, device, data=data), changed)
                    write_json(_file(out, row, seed), done[seed])
        found += [done[seed] for seed in range(seeds)]
    return found


def every_row(rows: Sequence[str]) -> list[str]:
    """The rows that are meant, each once: a data set's name stands for its rows.

    >>> every_row(["cifar100/rt5", "cifar100"])
    ['cifar100/rt5', 'cifar100/standard', 'cifar100/superclass']
    """
    meant = ([f"{row}/{name}" for name in ROWS[row]] if row in ROWS else [row] for row in rows)
    return list(dict.fromkeys(row for several in meant for row in several))


def _listed(seeds: Iterable[int]) -> str:
    numbers = sorted(seeds)
    return f"seed {numbers[0]}" if len(numbers) == 1 else f"seeds {', '.join(map(str, numbers))}"


def _kept(row: str, out: Path, seeds: int, changes: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """The results of a row that are there already, by seed; all that can be wrong with them is named."""
    recipe_of(row, changes)
    folder, found = _file(out, row, 0).parent, {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise expected(f"a directory for results at {folder}", error.strerror or str(error)) from None
    for seed in range(seeds):
        path = _file(out, row, seed)
        if path.exists():
            found[seed] = stored(path, ("row", "seed", "weights", *WAYS))
            if found[seed].get("changes", {}) != changes:
                raise expected(
                    f"results of the recipe with {_set(changes)} in {path}",
                    f"those with {_set(found[seed].get('changes', {}))}",
                    "Choose another --out, and other --runs.",
                )
    return found


def stored(path: Path, keys: Sequence[str] = ()) -> dict[str, Any]:
    """What a JSON file of results holds, with these keys at least."""
    found = parse_json(read_text(path), str(path))
    lacking = [key for key in keys if key not in found] if isinstance(found, dict) else ["all"]
    if not isinstance(found, dict) or lacking:
        raise expected(f"results at {path}", f"none of {', '.join(lacking)}", "Remove it, and it is made anew.")
    return found


def recipe_of(row: str, changes: Mapping[str, Any]) -> Recipe:
    """The recipe of a row, by the name of one that comes with safeset, or of another network of ACAS Xu.

    >>> recipe_of("acasxu/targeted-2-3", {}).data.network
    '2_3'
    """
    other = re.fullmatch(r"(acasxu/targeted)-([1-5])-([1-9])", row)
    if other:
        return assembled(other[1], {"data.network": f"{other[2]}_{other[3]}", **changes})
    if row not in list_recipes():
        remedy = nearest(row, list_recipes()) or f"safeset has {', '.join(list_recipes())}."
        raise expected("rows by the names of recipes that come with safeset", repr(row), remedy)
    return assembled(row, changes)


@dataclass(frozen=True)
class Group:
    """Seeds of a row that are trained at once, in one directory."""

    path: Path
    first: int
    count: int

    @property
    def seeds(self) -> range:
        """The numbers of the seeds."""
        return range(self.first, self.first + self.count)

    def run(self, seed: int) -> Run:
        """Where a seed's own network lies."""
        return Run(self.path / f"seed{seed}" if self.count > 1 else self.path)


def groups(runs: Path, row: str, seeds: Sequence[int]) -> list[Group]:
    """Directories in which seeds are trained: those that are there, finished or not, then new ones for the rest."""
    left, found = list(seeds), []
    for group in _there(runs, row):
        if any(seed in left for seed in group.seeds):
            found.append(group)
            left = [seed for seed in left if seed not in group.seeds]
    for first, count in _stretches(left):
        last = f"-to-{first + count - 1}" if count > 1 else ""
        found.append(Group(runs / f"{row}-seed{first}{last}", first, count))
    return found


def run_of(runs: Path, row: str, seed: int) -> Run | None:
    """Where a seed of a row was trained, alone or with others; None if nowhere."""
    places = [group.run(seed) for group in _there(runs, row) if seed in group.seeds]
    return next((place for place in places if place.done), None)


def _there(runs: Path, row: str) -> Iterator[Group]:
    """The groups of a row whose directories are there."""
    name = Path(row).name
    for path in sorted((runs / row).parent.glob(f"{name}-seed*")):
        found = re.fullmatch(re.escape(name) + r"-seed(\d+)(?:-to-(\d+))?", path.name)
        if found and path.is_dir():
            yield Group(path, int(found[1]), int(found[2] or found[1]) - int(found[1]) + 1)


def record(row: str, run: Run, seconds: float | None, answers: Answers, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one trained network as they are published; ``changes`` are those of its recipe, if any."""
    recipe = run.read_recipe()
    return {
        "row": row,
        "seed": recipe.seed,
        "epsilon": answers["uniform"].epsilon,
        **{way: answers.rates(way) for way in WAYS},
        "points": len(answers),
        "guarantee": str(answers["uniform"].guarantee),
        "seconds": None if seconds is None else round(seconds, 3),
        **answers.about,
        "recipe": written(recipe),
        **({"changes": dict(changes)} if changes else {}),
        "command": " ".join([f"safeset reproduce {row}", *([_set(changes)] if changes else [])]),
    }


def _set(changes: Mapping[str, Any]) -> str:
    return " ".join(f"--set {key}={value}" for key, value in changes.items()) or "no --set"


def analyse(
    rows: Sequence[str] = tuple(PAPER),
    *,
    seeds: int = 10,
    results: Path = RESULTS,
    out: Path = Path("results/analyses/paper"),
    runs: Path = RUNS,
    device: str | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """The analyses of the paper's text for the data sets of some rows, seeds 0 to ``seeds`` − 1: what ``out`` lacks.

    They need the networks of all of a data set's rows, of one seed: those of the published results. An analysis of
    other networks is made anew.

    Args:
        rows: as for `reproduce`.
        seeds: how many.
        results: where `reproduce` has put its JSON files.
        out: where the JSON files go, ``<data>-seed<N>.json``.
        runs: where the trained models are.
        device: such as ``"cuda"``.
        watch: is told what cannot be made.

    Returns:
        What ``out`` holds then, data set by data set.
    """
    found = []
    names = [name for name in dict.fromkeys(row.partition("/")[0] for row in every_row(rows)) if name in ROWS]
    for data, seed in product(names, range(seeds)):
        paths = {row: _file(results, f"{data}/{row}", seed) for row in ROWS[data]}
        if not all(path.exists() for path in paths.values()):
            continue
        published = {row: stored(path, ("weights",)) for row, path in paths.items()}
        weights, target = {row: one["weights"] for row, one in published.items()}, _file(out, data, seed)
        kept = stored(target) if target.exists() else {}
        if kept.get("weights") != weights:
            networks = _networks(data, seed, weights, runs, device)
            if networks is None:
                (watch or Silent()).note(f"The networks of {data}, seed {seed}, are not in {runs}: no analysis.")
                continue
            first = next(iter(published.values()))
            about = {name: first[name] for name in ABOUT if name in first}
            command = f"safeset reproduce {' '.join(f'{data}/{row}' for row in weights)}"
            target.parent.mkdir(parents=True, exist_ok=True)
            numbers = {"data": data, "seed": seed, **plain(analysed(data, networks))}
            kept = {**numbers, **about, "weights": weights, "command": command}
            write_json(target, kept)
        found.append(kept)
    return found


ABOUT = ("points", "test", "split", "device", "dtype", "bound_method", "commit", "safeset", "torch", "changes")


def _networks(
    data: str, seed: int, weights: Mapping[str, str], runs: Path, device: str | None
) -> dict[str, Answers] | None:
    """The answers of the networks that have these weights; None if one is missing."""
    networks = {}
    for row, own in weights.items():
        run = run_of(runs, f"{data}/{row}", seed)
        answers = answers_of(run, device) if run else None
        if answers is None or answers.about["weights"] != own:
            return None
        networks[row] = answers
    return networks


def _file(out: Path, row: str, seed: int) -> Path:
    return out / f"{row}-seed{seed}.json"


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers in a row as first and count.

    >>> list(_stretches([0, 1, 2, 5, 6]))
    [(0, 3), (5, 2)]
    """
    for _, group in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        several = [number for _, number in group]
        yield several[0], len(several)
