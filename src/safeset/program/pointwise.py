"""Activations: entry by entry, or pair by pair, and all computed without rounding but LeakyReLU."""

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import LEAST, Carried, error_of, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Named, Operation, Proved, Shape

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Unrounded(Operation):
    """1-Lipschitz, computed without rounding, and 0 at 0."""

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1."""
        return Up(1.0), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Nothing is added."""
        return before[0].exact(bound)

    def second_bound(self, shape: Shape) -> ClosedForm | None:
        """1, and no less."""
        return ClosedForm(Fraction(1), 1.0, "closed form: slopes of at most 1, and a slope of 1")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """Nothing is added."""
        return before[0].unrounded(norm)


@dataclass(frozen=True, eq=False)
class ReLU(Unrounded):
    """max(x, 0)."""

    kind = "ReLU"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.relu.default(*inputs)  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0].like(np.maximum(x[0].integers, 0))

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its name."""
        return {"kind": "relu"}


@dataclass(frozen=True, eq=False)
class Absolute(Unrounded):
    """|x|."""

    kind = "Abs"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.abs.default(*inputs)  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0].like(np.abs(x[0].integers))

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its name."""
        return {"kind": "abs"}


@dataclass(frozen=True, eq=False)
class MinMax(Unrounded):
    """The larger of channels i and i + n/2, then the smaller."""

    kind = "MinMax"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        if x.shape[1] % 2:
            raise expected("an even number of channels for MinMax", x.shape[1])
        first, second = _aten.split.Tensor(x, x.shape[1] // 2, 1)
        larger, smaller = _aten.maximum.default(first, second), _aten.minimum.default(first, second)
        return _aten.cat.default([larger, smaller], 1)  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        first, second = np.split(x[0].integers, 2)
        return x[0].like(np.concatenate([np.maximum(first, second), np.minimum(first, second)]))

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its name."""
        return {"kind": "minmax"}


@dataclass(frozen=True, eq=False)
class HalfAbsolute(Unrounded):
    """|x| on the first half of the channels, or on those with an even number."""

    kind = "HalfAbs"
    even: bool

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen: where a channel is one of the half, its absolute value."""
        (x,) = inputs
        if x.shape[1] % 2:
            raise expected("an even number of channels for HalfAbs", x.shape[1])
        chosen = torch.from_numpy(self._chosen(x.shape[1])).to(x.device).view(-1, *(1,) * (x.ndim - 2))
        return _aten.where.self(chosen, _aten.abs.default(x), x)  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        values = x[0].integers.copy()
        values[self._chosen(len(values))] = np.abs(values[self._chosen(len(values))])
        return x[0].like(values)

    def _chosen(self, channels: int) -> NDArray[np.bool_]:
        """(channels,): which of them."""
        numbers = np.arange(channels)
        return numbers % 2 == 0 if self.even else numbers < channels // 2


@dataclass(frozen=True, eq=False)
class LeakyReLU(Operation):
    """x, or slope·x below 0: max(1, |slope|)-Lipschitz."""

    kind = "LeakyReLU"
    slope: float

    def __post_init__(self) -> None:
        """Refuse what is no slope: max(1, NaN) is 1."""
        if not isfinite(self.slope):
            raise expected("a finite slope of LeakyReLU", self.slope)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.leaky_relu.default(*inputs, self.slope)  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """max(1, |slope|)."""
        return Up(max(1.0, abs(self.slope))), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One product for each entry."""
        return before[0].scaled(bound, self.slope, prod(shape))

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        slope, values = Fraction(self.slope), x[0].integers
        bent = np.where(values > 0, values * slope.denominator, values * slope.numerator)
        return Multiples(bent, x[0].unit / slope.denominator)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The larger of both slopes."""
        largest = max(Fraction(1), abs(Fraction(self.slope)))
        return ClosedForm(largest**2, float(largest), "closed form: the largest slope")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One product for each entry."""
        return before[0].bent(norm, **one_product(abs(Fraction(self.slope)), prod(shape)))

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """By its slope, unless that is below 0."""
        return {"kind": "leaky", "slope": self.slope} if self.slope >= 0 else None


def one_product(factor: Fraction, outputs: int) -> dict[str, Fraction]:
    """How far one product by at most ``factor`` strays at each of so many outputs, for `Carried.bent`."""
    return {"relative": error_of(1) * factor, "absolute": root(Fraction(outputs)) * LEAST}
