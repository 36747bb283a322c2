"""The rows of the paper's table by their names: which are meant, and by which recipe each is trained."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from safeset.errors import expected, nearest
from safeset.inputs import as_count
from safeset.paper.shares import ROWS
from safeset.recipes.library import assemble_recipe, list_recipes
from safeset.recipes.recipe import MOST_SEEDS, Recipe


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


def check_seeds(seeds: int | None) -> None:
    """Raise an error for a number of seeds that cannot be trained; None stands for the usual one."""
    count = 1 if seeds is None else as_count(seeds)
    if count is None or count > MOST_SEEDS:
        raise expected(f"`seeds` to be an integer in 1..{MOST_SEEDS}", repr(seeds))


def seeds_in_words(seeds: Iterable[int]) -> str:
    """Numbers of seeds in a message.

    >>> seeds_in_words([1]), seeds_in_words([2, 0])
    ('seed 1', 'seeds 0, 2')
    """
    numbers = sorted(seeds)
    return f"seed {numbers[0]}" if len(numbers) == 1 else f"seeds {', '.join(map(str, numbers))}"
