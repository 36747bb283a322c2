"""Activations that are made of pieces: functions of one number that have fractions, so nothing is assumed."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.inputs import all_finite
from safeset.lipschitz.forward_error_exact import LEAST, UNIT, error_of
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.activations import TINY, Activation

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Hardswish(Activation):
    """x·min(max(x + 3, 0), 6) / 6."""

    kind = "Hardswish"
    steepest = Fraction(3, 2)  # just below 3
    strays = (8 * UNIT, TINY)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.hardswish.default(*inputs)  # type: ignore[no-any-return]

    def value(self, number: Fraction) -> Fraction:
        """By definition."""
        return number * min(max(number + 3, Fraction(0)), Fraction(6)) / 6


@dataclass(frozen=True, eq=False)
class Hardsigmoid(Activation):
    """min(max(x + 3, 0), 6) / 6: ½ at 0."""

    kind = "Hardsigmoid"
    steepest = Fraction(1, 6)
    at_zero = Fraction(1, 2)
    strays = (Fraction(0), 8 * UNIT)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.hardsigmoid.default(*inputs)  # type: ignore[no-any-return]

    def value(self, number: Fraction) -> Fraction:
        """By definition."""
        return min(max(number + 3, Fraction(0)), Fraction(6)) / 6


@dataclass(frozen=True, eq=False)
class PReLU(Activation):
    """x, or slope·x below 0, with one slope for all, or one for each channel."""

    kind = "PReLU"
    slopes: Tensor

    def __post_init__(self) -> None:
        """Refuse what are no slopes."""
        if not all_finite(self.slopes):
            raise expected("finite slopes of PReLU", "NaN or infinite ones")

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.prelu.default(*inputs, self.slopes)  # type: ignore[no-any-return]

    @property
    def _largest(self) -> Fraction:
        return max(abs(Fraction(slope)) for slope in self.slopes.detach().cpu().tolist())

    @property
    def steepest(self) -> Fraction:
        """On either side of 0."""
        return max(Fraction(1), self._largest)

    @property
    def strays(self) -> tuple[Fraction, Fraction]:
        """One product."""
        return error_of(1) * self._largest, LEAST

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        slopes, values = Multiples.of(self.slopes.view(-1, *(1,) * (x[0].integers.ndim - 1))), x[0].integers
        straight = np.where(values > 0, values, 0)
        bent = x[0].like(np.where(values > 0, 0, values))
        return x[0].like(straight) + Multiples(bent.integers * slopes.integers, bent.unit * slopes.unit)
