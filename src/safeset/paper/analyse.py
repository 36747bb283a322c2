"""The analyses of the paper's text, of the networks of published results: a JSON file for each data set and seed."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from safeset.errors import ArgumentError
from safeset.paper.networks import RUNS, runs_of
from safeset.paper.predictions import Answers, answers_of, weights_of
from safeset.paper.results import RESULTS, command_of, file_of, is_number, read_result
from safeset.paper.rows import check_seeds, every_row, seeds_in_words
from safeset.paper.shares import ROWS, analysis
from safeset.paper.table import PAPER, seeds_of
from safeset.system.files import plain, write_json
from safeset.system.fingerprint import Fingerprint
from safeset.training.watch import Silent, Watch

ALIKE = ("changes", "epsilon", "split")  # what the rows of an analysis share, besides the test points
ABOUT = ("points", "test", "split", "device", "dtype", "bound_method", "commit", "safeset", "torch", "changes")

Results = Mapping[str, Mapping[str, Any]]  # of one data set and seed, by the last part of their rows' names


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
    """Make the analyses of the paper's text that ``out`` lacks, for the data sets of some rows, seeds 0, 1, ….

    They need the networks of all of a data set's rows, of one seed: those of the published results. An analysis of
    other networks is made again.

    Args:
        rows: as for `reproduce`.
        seeds: how many; by default as for `reproduce`.
        results: where `reproduce` has put its JSON files.
        out: where the JSON files go, ``<data>-seed<N>.json``.
        runs: where the trained models are.
        device: such as ``"cuda"``.
        watch: is called with what cannot be made.

    Returns:
        What ``out`` holds then, data set by data set.
    """
    check_seeds(seeds)
    watch = watch or Silent()
    found, missing = list[dict[str, Any]](), dict[str, list[int]]()
    for data, seed in _sets_and_seeds(rows, seeds):
        published = _read_published(results, data, seed)
        if published is None:
            continue
        unlike = _unlike(published)
        if unlike:
            watch.note(f"The rows of {data}, seed {seed}, differ in {', '.join(unlike)}: no analysis.")
            continue
        target = file_of(out, data, seed)
        kept = _read_analysis(target)
        if Fingerprint.of(kept, *IDENTITY).differences(_fingerprint(data, seed, published)):
            networks = _networks(data, seed, published, runs, device)
            if networks is None:
                if target.exists():
                    watch.note(f"{target} is no analysis of the networks in {results}: left out.")
                missing.setdefault(data, []).append(seed)
                continue
            kept = _record(data, seed, published, networks)
            target.parent.mkdir(parents=True, exist_ok=True)
            write_json(target, kept)
        found.append(kept)
    for data, lost in missing.items():
        remedy = "Results that are removed are made again, with their networks."
        watch.note(f"{data}, {seeds_in_words(lost)}: no analysis, and no networks in {runs} to make one. {remedy}")
    return found


def _sets_and_seeds(rows: str | Sequence[str], seeds: int | None) -> Iterator[tuple[str, int]]:
    """The data sets that rows belong to, each with its seeds."""
    named = [row.partition("/") for row in every_row(rows)]
    for data in dict.fromkeys(data for data, _, row in named if row in ROWS.get(data, ())):
        for seed in range(seeds or max(seeds_of(f"{data}/{row}") for row in ROWS[data])):
            yield data, seed


def _read_published(results: Path, data: str, seed: int) -> Results | None:
    """Read the results of all rows of a data set; None if one is missing."""
    paths = {row: file_of(results, f"{data}/{row}", seed) for row in ROWS[data]}
    if not all(path.exists() for path in paths.values()):
        return None
    return {row: read_result(path, ("weights",)) for row, path in paths.items()}


def _unlike(published: Results) -> list[str]:
    """The names of values in which rows of a data set differ, so that they cannot be compared."""
    first, *others = (Fingerprint.of(one, *ALIKE) for one in published.values())
    differing = {each.what for other in others for each in first.differences(other, besides=("weights",))}
    return [what for what in first.facts if what in differing]


IDENTITY = ("data", "seed", "split", "changes")  # what an analysis says of itself, besides weights and test points


def _fingerprint(data: str, seed: int, published: Results) -> Fingerprint:
    """What an analysis of published results is about."""
    first = next(iter(published.values()))
    about = {"data": data, "seed": seed, "split": first.get("split"), "changes": first.get("changes")}
    return Fingerprint(about, {row: one["weights"] for row, one in published.items()}, first.get("test"))


def _read_analysis(path: Path) -> dict[str, Any]:
    """Read a stored analysis; empty where the file is damaged or missing, so that it is made again."""
    try:
        found = read_result(path, ("data", "seed", "shares", "weights")) if path.exists() else {}
    except ArgumentError:
        return {}
    shares = found.get("shares")
    tables = list(shares.values()) if isinstance(shares, dict) else [None]
    whole = all(isinstance(one, dict) and all(x is None or is_number(x) for x in one.values()) for one in tables)
    return found if whole and tables else {}


def _networks(data: str, seed: int, published: Results, runs: Path, device: str | None) -> dict[str, Answers] | None:
    """The answers of the published networks at the published points; None if one is missing."""
    networks = {}
    for row, result in published.items():
        trained = runs_of(runs, f"{data}/{row}", seed)
        run = next((run for run in trained if weights_of(run) == result["weights"]), None)
        answers = answers_of(run, device) if run else None
        if answers is None or Fingerprint.of(answers.about, "split").differences(Fingerprint.of(result, "split")):
            return None
        networks[row] = answers
    return networks


def _record(data: str, seed: int, published: Results, networks: Mapping[str, Answers]) -> dict[str, Any]:
    """An analysis as it is stored: its numbers, and what they were made with."""
    first = next(iter(published.values()))
    commits = dict.fromkeys(str(one.get("commit")) for one in published.values())
    return {
        "data": data,
        "seed": seed,
        **plain(analysis(data, networks)),
        **{name: first[name] for name in ABOUT if name in first},
        "commit": ", ".join(commits),
        "weights": {row: one["weights"] for row, one in published.items()},
        "command": command_of([f"{data}/{row}" for row in published], first.get("changes", {})),
    }
