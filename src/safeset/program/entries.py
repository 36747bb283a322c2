"""One number for each entry: products, sums and ends that are constants."""

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite, prod

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.linear import bias_norm
from safeset.program.operation import ClosedForm, Operation, Proved, Shape
from safeset.program.pointwise import one_product

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Scale(Operation):
    """scale·x, entry by entry; the scale has as many axes as a point, some of them of length 1."""

    kind = "Scale"
    scale: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _same_shape(_aten.mul.Tensor(*inputs, self.scale), *inputs)

    def products(self, shape: Shape) -> int:
        """One for each entry."""
        return prod(shape)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The largest |scale|."""
        return Up(float(self.scale.abs().amax())), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One product for each entry."""
        return before[0].scaled(bound, float(self.scale.abs().amax()), prod(shape))

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        scale = Multiples.of(self.scale)
        return Multiples(x[0].integers * scale.integers, x[0].unit * scale.unit)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The largest scale, as a fraction."""
        largest = self._largest
        return ClosedForm(largest**2, float(largest), "closed form: the largest scale, as a fraction")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One product for each entry."""
        return before[0].bent(norm, **one_product(self._largest, prod(shape)))

    @property
    def _largest(self) -> Fraction:
        return max(abs(Fraction(scale)) for scale in self.scale.detach().cpu().flatten().tolist())


@dataclass(frozen=True, eq=False)
class Shift(Operation):
    """x + shift, entry by entry; the shift has as many axes as a point, some of them of length 1."""

    kind = "Shift"
    shift: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _same_shape(_aten.add.Tensor(*inputs, self.shift), *inputs)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1: distances stay."""
        return Up(1.0), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One sum for each entry, no product."""
        bias = bias_norm(self.shift.flatten()) * Up(self._copies(shape)).root()
        return before[0].affine(sigma=bound, alpha=Up(1.0), fan_in=0, bias=bias, outputs=prod(shape))

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0] + Multiples.of(self.shift)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """1, and no less."""
        return ClosedForm(Fraction(1), 1.0, "closed form: distances stay")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One sum for each entry."""
        return before[0].summed(
            norm, terms=0, absolute=Fraction(1), bias=self.shift, places=self._copies(shape), outputs=prod(shape)
        )

    def _copies(self, shape: Shape) -> int:
        """How often each number is added."""
        return prod(shape) // self.shift.numel()


@dataclass(frozen=True, eq=False)
class Clamp(Operation):
    """min(max(x, low), high): 1-Lipschitz, computed without rounding; None is no end."""

    kind = "Clamp"
    low: float | None
    high: float | None

    def __post_init__(self) -> None:
        """Refuse ends that are no numbers."""
        if not all(end is None or isfinite(end) for end in (self.low, self.high)):
            raise expected("ends of a clamp that are finite, or None", f"{self.low} and {self.high}")

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        return x if self.low is self.high is None else _aten.clamp.default(x, self.low, self.high)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1."""
        return Up(1.0), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Nothing is rounded, but 0 may not stay 0."""
        return before[0].bent(bound, zero=Up(prod(shape)).root() * float(abs(self._bent(Fraction(0)))))

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return Multiples.from_fractions(np.vectorize(self._bent, otypes=[object])(x[0].fractions()))

    def second_bound(self, shape: Shape) -> ClosedForm:
        """1, unless all becomes the same number."""
        if self.low is not None and self.high is not None and self.low >= self.high:
            return ClosedForm(Fraction(0), 0.0, "closed form: constant")
        return ClosedForm(Fraction(1), 1.0, "closed form: slopes of at most 1, and a slope of 1")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """Nothing is rounded, but 0 may not stay 0."""
        return before[0].bent(norm, zero=root(prod(shape) * self._bent(Fraction(0)) ** 2))

    def _bent(self, number: Fraction) -> Fraction:
        """Of one number, exactly."""
        number = number if self.low is None else max(number, Fraction(self.low))
        return number if self.high is None else min(number, Fraction(self.high))


def _same_shape(out: Tensor, x: Tensor) -> Tensor:
    """What leaves, if constants have not repeated any entry: its norm would be larger."""
    if out.shape != x.shape:
        raise expected(f"constants that fit points of shape {tuple(x.shape[1:])}", f"{tuple(out.shape[1:])} with them")
    return out
