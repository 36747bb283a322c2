"""What a network's inputs are to people: pixels of an image, columns of a table, or plain numbers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from safeset.data.columns import input_names, scaled
from safeset.data.dataset import PIXELS
from safeset.errors import expected
from safeset.nets.frozen import FrozenNet
from safeset.recipes.recipe import FittedRecipe
from safeset.report.html import printable

MOST_FIELDS = 64  # numbers that are typed or moved one by one; of more, only samples are shown


@dataclass(frozen=True)
class Form:
    """How numbers that people see become an input.

    Attributes:
        shape: of one input.
        kind: ``image``, ``table`` or ``numbers`` (too many to be typed).
        units: what ε is measured in.
        low: the least number that an input has, as a rule; what an image shows as black.
        high: the largest; white.
        ranges: (least, largest) of each column that is scaled to [0, 1]; empty where numbers are taken as they are.
        choices: the texts of columns that are encoded, by column.
    """

    shape: tuple[int, ...]
    kind: str
    units: str
    low: float
    high: float
    ranges: dict[str, tuple[float, ...]]
    choices: dict[str, tuple[str, ...]]

    @property
    def takes_files(self) -> bool:
        """Whether an image file can be an input."""
        return self.kind == "image" and self.units == PIXELS

    def input_of(self, numbers: Sequence[float]) -> Tensor:
        """Numbers as people see them, in the order of the inputs, as one input in float64."""
        count = math.prod(self.shape)
        if len(numbers) != count or not all(map(math.isfinite, numbers)):
            got = f"{len(numbers):,} numbers" if len(numbers) != count else "NaN or infinite numbers"
            raise expected(f"{count:,} finite numbers", got)
        found = torch.tensor(numbers, dtype=torch.float64)
        return torch.from_numpy(scaled(found[None].numpy(), self.ranges)[0]) if self.ranges else found.view(self.shape)

    def numbers_of(self, x: Tensor) -> list[float]:
        """An input as people see it."""
        flat: list[float] = x.double().flatten().tolist()
        if not self.ranges:
            return flat
        pairs = zip(flat, self.ranges.values(), strict=True)
        return [low + number * ((high - low) or 1.0) for number, (low, high) in pairs]

    def fields(self) -> list[dict[str, Any]]:
        """A field for each column of a table: its name, its place among the inputs, and its range or its texts."""
        if self.kind != "table":
            return []
        encoded = {
            name: column for column, texts in self.choices.items() for name in input_names([column], {column: texts})
        }
        names = list(self.ranges) or [f"input {place + 1}" for place in range(self.shape[0])]
        fields: dict[str, dict[str, Any]] = {}
        for place, name in enumerate(names):
            if name in encoded:
                column = encoded[name]
                about = {"name": printable(column), "place": place, "texts": list(map(printable, self.choices[column]))}
                fields.setdefault(column, about)
            else:
                low, high = self.ranges.get(name, (self.low, self.high))
                fields[name] = {"name": printable(name), "place": place, "low": low, "high": high}
        return list(fields.values())


def form_of(net: FrozenNet, recipe: FittedRecipe | None) -> Form:
    """The form of a net's inputs; its recipe knows the columns of a table, and what the numbers of training were."""
    shape, units = net.input_shape, net.units
    seen = None if recipe is None else recipe.task.range
    low, high = (0.0, 1.0) if units == PIXELS or seen is None or seen[0] >= seen[1] else (seen[0], seen[1])
    kind = "numbers"
    if len(shape) == 3 and shape[0] in (1, 3):
        kind = "image"
    elif len(shape) == 1 and shape[0] <= MOST_FIELDS:
        kind = "table"
    data = None if recipe is None else recipe.data
    one_hot = data.one_hot if data is not None and isinstance(data.one_hot, dict) else {}
    ranges = dict(data.ranges) if data is not None and data.ranges and len(data.ranges) == math.prod(shape) else {}
    return Form(shape, kind, units, low, high, ranges, dict(one_hot))
