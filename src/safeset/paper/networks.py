"""Where the networks of a row are: directories in which one seed was trained, or several at once."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from safeset.recipes.recipe import MOST_SEEDS
from safeset.runs.run import Run

RUNS = Path("runs/paper")


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

    def serves(self, seed: int) -> bool:
        """Whether a seed has its network here, or will have it once the training has ended."""
        return seed in self.seeds and (self.run(seed).has_ended or not Run(self.path).has_ended)


def groups(runs: Path, row: str, seeds: Sequence[int]) -> list[Group]:
    """Directories in which seeds are trained: those that exist, finished or not, then new ones for the rest."""
    left, found = list(seeds), []
    for group in _there(runs, row):
        served = [seed for seed in left if group.serves(seed)]
        if served:
            found.append(group)
            left = [seed for seed in left if seed not in served]
    for first, count in _stretches(left):
        last = f"-to-{first + count - 1}" if count > 1 else ""
        found.append(Group(runs / f"{row}-seed{first}{last}", first, count))
    return found


def runs_of(runs: Path, row: str, seed: int) -> list[Run]:
    """Where a seed of a row was trained, alone or with others."""
    places = [group.run(seed) for group in _there(runs, row) if seed in group.seeds]
    return [place for place in places if place.has_ended]


def _there(runs: Path, row: str) -> Iterator[Group]:
    """The groups of a row whose training has begun."""
    name = Path(row).name
    for path in sorted((runs / row).parent.glob(f"{name}-seed*")):
        found = re.fullmatch(re.escape(name) + r"-seed(\d+)(?:-to-(\d+))?", path.name)
        if found:
            group = Group(path, int(found[1]), int(found[2] or found[1]) - int(found[1]) + 1)
            if not 1 <= group.count <= MOST_SEEDS:
                continue
            if Run(path).recipe.exists() or any(group.run(seed).has_ended for seed in group.seeds):
                yield group


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive numbers as their first and their count.

    >>> list(_stretches([0, 1, 2, 5, 6]))
    [(0, 3), (5, 2)]
    """
    for _, group in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        several = [number for _, number in group]
        yield several[0], len(several)
