"""Inputs to begin with: some test points of a run's own data, where that is still to be found."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from safeset.data.dataset import Dataset
from safeset.recipes.recipe import FittedRecipe
from safeset.report.gallery import number_lines, picture_of
from safeset.report.html import printable
from safeset.runs.data import load_run_data

COUNT = 20


class Sample(NamedTuple):
    """A test point.

    Attributes:
        name: what it is called in its source, or its number.
        label: its class.
        x: the input, float64.
        picture: the address of a small image; empty where it is none.
        numbers: its first numbers in words, where it is no image.
    """

    name: str
    label: str
    x: Tensor
    picture: str
    numbers: list[str]

    def listed(self) -> dict[str, Any]:
        """What a list of samples shows of it."""
        return {"name": self.name, "label": self.label, "picture": self.picture, "numbers": self.numbers}


def load_samples(recipe: FittedRecipe, count: int = COUNT) -> list[Sample]:
    """Some test points of a run's data.

    Raises:
        SafesetError: if the data is not where the recipe says.
    """
    return pick_samples(load_run_data(recipe), count)


def pick_samples(points: Dataset, count: int = COUNT) -> list[Sample]:
    """Test points of as many classes as can be, always the same ones: one of each class, then a second of each."""
    order = torch.randperm(len(points.test), generator=torch.Generator().manual_seed(0)).tolist()
    turns: dict[int, int] = {}
    ranked = []
    for place in order:
        label = int(points.test.y[place])
        turns[label] = turns.get(label, 0) + 1
        ranked.append((turns[label], label, place))
    chosen = [place for _, _, place in sorted(ranked)[:count]]
    low, high = points.test.range
    low, high = (0.0, 1.0) if points.test.x.dtype == torch.uint8 or not low < high else (low, high)
    found = []
    for place in chosen:
        one = points.test[torch.tensor([place])]
        name = points.names[1][place] if points.names else f"test point {place}"
        name_of_class = points.class_names[int(one.y[0])]
        picture = picture_of(one.exact[0], low, high)
        numbers = [] if picture else list(map(printable, number_lines(points, one.exact[0])))
        found.append(Sample(printable(name), printable(name_of_class), one.exact[0], picture, numbers))
    return found
