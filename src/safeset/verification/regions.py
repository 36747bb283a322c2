"""Regions of inputs: the exact box of a case, and boxes of float64 numbers that hold it, to be divided."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from safeset.numerics.directed import above
from safeset.verification.formula import Inequality


@dataclass(frozen=True)
class Interval:
    """What bounds of one input leave of it; None where there is no bound."""

    low: Fraction | None = None
    high: Fraction | None = None
    low_is_open: bool = False
    high_is_open: bool = False

    def within(self, bound: Inequality) -> "Interval":
        """What one more bound leaves: c·x ≤ b."""
        ((_, c),) = bound.x
        limit, strict = bound.bound / c, bound.strict
        if c > 0 and (self.high is None or (limit, not strict) < (self.high, not self.high_is_open)):
            return Interval(self.low, limit, self.low_is_open, strict)
        if c < 0 and (self.low is None or (limit, strict) > (self.low, self.low_is_open)):
            return Interval(limit, self.high, strict, self.high_is_open)
        return self

    @property
    def is_empty(self) -> bool:
        """Whether no number is left."""
        if self.low is None or self.high is None:
            return False
        return self.low > self.high or (self.low == self.high and (self.low_is_open or self.high_is_open))

    @property
    def is_bounded(self) -> bool:
        """Whether it has both ends, and these are no larger than float64 can be."""
        return all(end is not None and math.isfinite(above(abs(end))) for end in (self.low, self.high))


Box = tuple[Interval, ...]  # one for each input


def box_of(inputs: int, inequalities: Iterable[Inequality]) -> Box:
    """The box that the bounds of single inputs leave; other inequalities say nothing of it."""
    return narrowed((Interval(),) * inputs, inequalities)


def narrowed(box: Box, inequalities: Iterable[Inequality]) -> Box:
    """What is left of a box; itself if nothing of it is excluded."""
    found = list(box)
    for each in inequalities:
        if each.is_input_bound:
            ((place, _),) = each.x
            found[place] = found[place].within(each)
    return box if all(old is new for old, new in zip(box, found, strict=True)) else tuple(found)


@dataclass(frozen=True, eq=False)
class Boxes:
    """Closed boxes of float64 numbers: (boxes, inputs) lower and upper ends."""

    low: Tensor
    high: Tensor

    @staticmethod
    def around(box: Box) -> "Boxes":
        """One that holds an exact box: its ends are rounded outwards. Where there is no end, it is infinite."""
        low = [-math.inf if each.low is None else -above(-each.low) for each in box]
        high = [math.inf if each.high is None else above(each.high) for each in box]
        return Boxes(torch.tensor([low], dtype=torch.float64), torch.tensor([high], dtype=torch.float64))

    def __len__(self) -> int:
        return len(self.low)

    def __getitem__(self, some: Tensor | slice) -> "Boxes":
        return Boxes(self.low[some], self.high[some])

    def and_others(self, others: "Boxes") -> "Boxes":
        """These and others."""
        return Boxes(torch.cat([self.low, others.low]), torch.cat([self.high, others.high]))

    @property
    def centres(self) -> Tensor:
        """A point of each, near its middle: (boxes, inputs)."""
        return (self.low / 2 + self.high / 2).clamp(self.low, self.high)

    @property
    def magnitudes(self) -> Tensor:
        """The largest |x| of each input: (boxes, inputs)."""
        return torch.maximum(self.low.abs(), self.high.abs())

    def divided(self, axes: Tensor) -> tuple["Boxes", Tensor]:
        """Two halves of each along its axis, which share their border; and which could be divided, (boxes,).

        All of the first halves come first. A box whose ends are neighbours along its axis cannot be divided.
        """
        picked = axes[:, None]
        middle = self.centres.gather(1, picked)
        low, high = self.low.gather(1, picked), self.high.gather(1, picked)
        can = ((low < middle) & (middle < high))[:, 0]
        first, second = self.high.scatter(1, picked, middle), self.low.scatter(1, picked, middle)
        return Boxes(self.low, first)[can].and_others(Boxes(second, self.high)[can]), can


def inner_box(box: Box, least: Callable[[Fraction, bool], float]) -> tuple[Tensor, Tensor]:
    """The least and the largest number of a format in each interval, (inputs,) each; the least is above where none is.

    Args:
        box: the exact one.
        least: the least number of the format that is at least a fraction, or above it if the second argument says so.
    """
    low = [-math.inf if each.low is None else least(each.low, each.low_is_open) for each in box]
    high = [math.inf if each.high is None else -least(-each.high, each.high_is_open) for each in box]
    return torch.tensor(low, dtype=torch.float64), torch.tensor(high, dtype=torch.float64)


def least_float64(limit: Fraction, is_open: bool) -> float:
    """The least float64 that is at least a fraction, or above it.

    >>> least_float64(Fraction(1), False), least_float64(Fraction(1), True)
    (1.0, 1.0000000000000002)
    """
    found = above(limit)
    return math.nextafter(found, math.inf) if is_open and math.isfinite(found) and found == limit else found


def least_float32(limit: Fraction, is_open: bool) -> float:
    """The least float32 that is at least a fraction, or above it, as a float64."""
    found = torch.tensor(above(limit), dtype=torch.float64)
    near = found.float()
    if near.double() < found or (is_open and near.double() == found and float(found) == limit):
        near = torch.nextafter(near, near.new_tensor(math.inf))
    return float(near)
