"""The paper's table, trained and evaluated anew: a JSON file for each row and seed, beside the paper's numbers."""

import json
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, product
from pathlib import Path
from typing import Any

from safeset.analyses import PAPER_SAYS, ROWS, analysed
from safeset.answers import RATES, WAYS, Answers, answers_of
from safeset.errors import expected, nearest
from safeset.files import write_json
from safeset.jobs import plain, run_data
from safeset.margins import METHODS
from safeset.runs import Run
from safeset.texts import parse_json, read_text
from safeset.training.recipe import Recipe, assembled, list_recipes
from safeset.training.train import train
from safeset.training.watch import Silent, Watch

# Table 1 of the paper: VRA, rejection rate and clean accuracy, each with its standard deviation over ten runs.
PAPER: dict[str, tuple[tuple[float, float | None], ...]] = {
    "eurosat/standard": ((0.749, 0.003), (0.204, 0.002), (0.862, 0.003)),
    "eurosat/rt3": ((0.908, 0.002), (0.073, 0.002), (0.987, 0.002)),
    "eurosat/highway-river": ((0.798, 0.002), (0.170, 0.002), (0.917, 0.003)),
    "eurosat/highway-river-agriculture": ((0.819, 0.003), (0.151, 0.003), (0.930, 0.003)),
    "cifar100/standard": ((0.281, 0.002), (0.640, 0.003), (0.473, 0.002)),
    "cifar100/rt5": ((0.360, 0.002), (0.562, 0.002), (0.706, 0.003)),
    "cifar100/superclass": ((0.323, 0.002), (0.599, 0.002), (0.520, 0.002)),
    "tiny-imagenet/standard": ((0.224, None), (0.639, None), (0.346, None)),
    "tiny-imagenet/rt5": ((0.277, 0.002), (0.447, 0.006), (0.537, 0.002)),
    "acasxu/targeted": ((0.749, 0.001), (0.195, 0.001), (0.858, 0.002)),
}


def reproduce(
    rows: Sequence[str] = tuple(PAPER),
    *,
    seeds: int = 10,
    out: Path = Path("results/paper"),
    runs: Path = Path("runs/paper"),
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Train and evaluate rows of the paper's table, seeds 0 to ``seeds`` − 1: what ``out`` lacks.

    A seed that has its file is skipped, a training that was interrupted is continued.

    Args:
        rows: names of recipes: those of the paper's rows, or any other; ``acasxu/targeted-<i>-<j>`` for others of the
            45 networks of ACAS Xu.
        seeds: how many of each.
        out: where the JSON files go, ``<row>-seed<N>.json``.
        runs: where the trained models go.
        changes: keys of the recipes to change.
        device: such as ``"cuda"``.
        watch: is told how it goes.

    Returns:
        What the files hold, row by row and seed by seed.
    """
    if seeds < 1:
        raise expected("`seeds` to be at least 1", seeds)
    watch, changed, found = watch or Silent(), dict(changes or {}), []
    for row in rows:  # what is wrong is said before anything is trained
        recipe_of(row, changed)
    for row in dict.fromkeys(rows):
        kept = {seed: stored(path) for seed in range(seeds) if (path := _file(out, row, seed)).exists()}
        for seed, one in kept.items():
            if one.get("changes", {}) != changed:
                path, got = _file(out, row, seed), f"those with --set {one.get('changes') or 'nothing'}"
                raise expected(f"results of the recipe as it is wanted in {path}", got, "Choose another --out.")
        for first, count in _stretches([seed for seed in range(seeds) if seed not in kept]):
            recipe = recipe_of(row, {**changed, "seed": first, "seeds": count})
            group = runs / f"{row}-seed{first}" if count == 1 else runs / f"{row}-seed{first}-to-{first + count - 1}"
            group.parent.mkdir(parents=True, exist_ok=True)
            train(recipe, out=group, resume=True, device=device, watch=watch)
            trained = [Run(group / f"seed{first + one}" if count > 1 else group) for one in range(count)]
            seconds, test = Run(group).records()[-1]["seconds"] / count, run_data(trained[0].read_recipe()).test
            for seed, run in enumerate(trained, start=first):
                target = _file(out, row, seed)
                target.parent.mkdir(parents=True, exist_ok=True)
                kept[seed] = record(row, run, seconds, answers_of(run, device, test=test), changed)
                write_json(target, kept[seed])
        found += [kept[seed] for seed in range(seeds)]
    return found


def stored(path: Path) -> dict[str, Any]:
    """What a JSON file of results holds."""
    found = parse_json(read_text(path), str(path))
    if not isinstance(found, dict):
        raise expected(f"results at {path}", type(found).__name__, "Remove it, and it is made anew.")
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


def run_of(runs: Path, row: str, seed: int) -> Run | None:
    """Where a seed of a row was trained, alone or with others; None if nowhere."""
    folder, name = (runs / row).parent, Path(row).name
    places = [folder / f"{name}-seed{seed}", *folder.glob(f"{name}-seed*-to-*/seed{seed}")]
    return next((Run(place) for place in places if Run(place).done), None)


def record(row: str, run: Run, seconds: float, answers: Answers, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of one trained network as they are published; ``changes`` are those of its recipe, if any."""
    result = json.loads(run.evaluation.read_text())
    keep = ("seed", "points", "guarantee", "data", "split", "bound_method", "dtype", "device", "commit", "safeset")
    return {
        "row": row,
        "epsilon": answers["uniform"].epsilon,
        **{way: answers.rates(way) for way in WAYS},
        "seconds": round(seconds, 3),
        **{name: result[name] for name in (*keep, "torch", "test", "weights", "recipe")},
        **({"changes": dict(changes)} if changes else {}),
        "command": f"safeset reproduce {row}" + "".join(f" --set {key}={value}" for key, value in changes.items()),
    }


def analyse(
    rows: Sequence[str] = tuple(PAPER),
    *,
    seeds: int = 10,
    results: Path = Path("results/paper"),
    out: Path = Path("results/analyses/paper"),
    runs: Path = Path("runs/paper"),
    device: str | None = None,
) -> list[dict[str, Any]]:
    """The analyses of the paper's text for the data sets of some rows, seeds 0 to ``seeds`` − 1: what ``out`` lacks.

    They need the networks of all of a data set's rows, of one seed, those of the published results.

    Args:
        rows: as for `reproduce`.
        seeds: how many.
        results: where `reproduce` has put its JSON files.
        out: where the JSON files go, ``<data>-seed<N>.json``.
        runs: where the trained models are.
        device: such as ``"cuda"``.

    Returns:
        What ``out`` holds then, data set by data set.
    """
    found = []
    for data, seed in product(dict.fromkeys(row.partition("/")[0] for row in rows), range(seeds)):
        target = _file(out, data, seed)
        if data in ROWS and not target.exists() and (networks := _networks(data, seed, results, runs, device)):
            first = stored(_file(results, f"{data}/{ROWS[data][0]}", seed))
            keep = ("points", "test", "split", "device", "dtype", "commit", "safeset", "torch")
            command = f"safeset reproduce {' '.join(f'{data}/{row}' for row in ROWS[data])}"
            target.parent.mkdir(parents=True, exist_ok=True)
            numbers = {"data": data, "seed": seed, **plain(analysed(data, networks))}
            write_json(target, {**numbers, **{name: first[name] for name in keep}, "command": command})
        if target.exists():
            found.append(stored(target))
    return found


def _networks(data: str, seed: int, results: Path, runs: Path, device: str | None) -> dict[str, Answers] | None:
    """The answers of the networks of all rows of a data set that results were published of; None if one is missing."""
    networks = {}
    for row in ROWS[data]:
        path, run = _file(results, f"{data}/{row}", seed), run_of(runs, f"{data}/{row}", seed)
        if run is None or not path.exists():
            return None
        networks[row] = answers_of(run, device)
        if networks[row].weights != stored(path).get("weights"):
            return None
    return networks


def told(analyses: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each share: the paper's, where its text has one, and ours by method, mean ± standard deviation."""
    lines = []
    for data, group in groupby(analyses, key=lambda each: str(each["data"])):
        several = [one["shares"] for one in group]
        for place, name in enumerate(several[0]):
            ours = [spread([one[name][method] for one in several]) for method in METHODS]
            paper = f"{PAPER_SAYS[name]:.2f}" if name in PAPER_SAYS else "–"
            lines.append([data if place == 0 else "", name, str(len(several)) if place == 0 else "", paper, *ours])
    return lines


def compared(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row and number: the paper's, and ours by each way, mean ± standard deviation."""
    lines = []
    for row, group in groupby(records, key=lambda each: str(each["row"])):
        several = list(group)
        for place, name in enumerate(RATES):
            ours = [spread([one[way][name] for one in several]) for way in WAYS]
            mean, deviation = PAPER[row][place] if row in PAPER else (None, None)
            paper = "–" if mean is None else f"{mean:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")
            lines.append([row if place == 0 else "", name, str(len(several)) if place == 0 else "", paper, *ours])
    return lines


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation of what is known.

    >>> spread([0.25, None, 0.35])
    '0.300 ± 0.071'
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):.3f}"
    return f"{mean} ± {statistics.stdev(known):.3f}" if len(known) > 1 else mean


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
