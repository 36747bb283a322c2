"""The best weights so far, by what is estimated on held-out points after each epoch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Tensors = dict[str, Tensor]
Kept = tuple[int, float, float]  # epoch, VRA, loss
NONE_YET = (0, -1.0, 0.0)


@dataclass
class Best:
    """Of one net, or of several whose weights are stacked: the best epoch and its weights.

    The best epoch is the one with the least loss among those whose estimated VRA is within a standard error of the
    highest: what a few held-out points cannot tell apart, they do not decide.

    Attributes:
        points: held-out points.
        kept: of each net the best epoch, from 1 (0 before the first), its VRA and its loss.
        highest: of each net the epoch of the highest VRA, that VRA, and its loss.
        weights: parameters of the best epochs by name; of one net its buffers too.
    """

    points: int
    kept: list[Kept]
    highest: list[Kept]
    weights: Tensors

    @classmethod
    def start(cls, weights: Mapping[str, Tensor], count: int, points: int) -> "Best":
        """Before the first epoch of ``count`` nets."""
        copies = {name: tensor.detach().clone() for name, tensor in weights.items()}
        return cls(points, [NONE_YET] * count, [NONE_YET] * count, copies)

    @torch.no_grad()
    def consider(self, epoch: int, rates: Sequence[Mapping[str, float]], weights: Mapping[str, Tensor]) -> None:
        """Keep the weights of an epoch where they are better.

        Args:
            epoch: its number, from 1.
            rates: ``vra`` and ``loss`` of each net.
            weights: of the nets now.
        """
        for place, found in enumerate(rates):
            now = (epoch, found["vra"], found["loss"])
            if now[1] > self.highest[place][1]:
                self.highest[place] = now
            if not is_better(now, self.kept[place], self.highest[place][1], self.points):
                continue
            self.kept[place] = now
            for name, content in self.weights.items():
                if len(self.kept) == 1:
                    content.copy_(weights[name])
                else:
                    content[place].copy_(weights[name][place])

    def is_exhausted(self, epoch: int, patience: int) -> bool:
        """Whether every net has gone ``patience`` epochs without a higher VRA, after so many epochs."""
        return all(epoch - highest[0] >= patience for highest in self.highest)

    def one(self, place: int) -> Tensors:
        """The weights of one net."""
        return self.weights if len(self.kept) == 1 else {name: each[place] for name, each in self.weights.items()}

    def table(self) -> dict[str, Any]:
        """Epochs, VRA and losses as plain values."""
        return {"kept": self.kept, "highest": self.highest}

    def restore(self, table: Any, weights: Mapping[str, Tensor]) -> None:
        """Take over what `table` gave, and the weights.

        Raises:
            ValueError: if it is not what safeset writes for nets like these.
        """
        kept, highest = ([(int(a), float(b), float(c)) for a, b, c in table[name]] for name in ("kept", "highest"))
        if not all(math.isfinite(number) for each in (*kept, *highest) for number in each):
            raise ValueError("best epochs that are no numbers")
        if not len(kept) == len(highest) == len(self.kept):
            raise ValueError("the best epochs of other networks")
        if {name: tensor.shape for name, tensor in weights.items()} != {
            name: tensor.shape for name, tensor in self.weights.items()
        }:
            raise ValueError("the best weights of other networks")
        self.kept, self.highest = kept, highest
        for name, content in self.weights.items():
            content.copy_(weights[name])


def is_better(now: Kept, kept: Kept, highest: float, points: int) -> bool:
    """Whether an epoch is to be kept instead of another, by VRA within a standard error of the highest, then by loss.

    >>> is_better((9, 0.88, 0.5), (4, 0.90, 0.7), 0.90, 50), is_better((9, 0.80, 0.5), (4, 0.90, 0.7), 0.90, 50)
    (True, False)
    """
    least = highest - math.sqrt(max(0.0, highest * (1 - highest)) / points)
    return now[1] >= least and (kept[1] < least or now[2] < kept[2])
