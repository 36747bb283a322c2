"""Arithmetic that rounds up: every result is at least the exact value of the formula it is written as."""

import math
from fractions import Fraction
from typing import overload

import torch
from torch import Tensor

U = 2.0**-53  # unit roundoff of float64
SUBNORMAL = 2.0**-1074  # the smallest number above 0; a product that underflows errs by at most half of it


class Up(float):
    """A number ≥ 0 of float64 whose sums, products and roots are rounded up; what is unknown or too large is ∞.

    Formulas can be written as they stand in docs/proofs.md, with an `Up` in each operation.

    >>> Up(1) + 2**-80 > 1, Up(2) * 3, Up(4).root()
    (True, Up(6.0), Up(2.0))
    """

    __slots__ = ()

    def __add__(self, other: float) -> "Up":
        return Up(_above(float(self) + other, Fraction(self) + Fraction(other) if _finite(self, other) else None))

    def __mul__(self, other: float) -> "Up":
        return Up(_above(float(self) * other, Fraction(self) * Fraction(other) if _finite(self, other) else None))

    __radd__ = __add__
    __rmul__ = __mul__

    @staticmethod
    def above(exact: Fraction) -> "Up":
        """The least number that is at least as large as a fraction ≥ 0; ∞ if there is none."""
        try:
            return Up(_above(float(exact), exact))
        except OverflowError:
            return Up(math.inf)

    def root(self) -> "Up":
        """√self."""
        root = math.sqrt(self)
        return Up(_above(root, None) if _finite(root) and Fraction(root) ** 2 < Fraction(self) else root)

    def over(self, divisor: int) -> "Up":
        """Self / divisor."""
        return Up(_above(float(self) / divisor, Fraction(self) / divisor if _finite(self) else None))

    def shifted(self, exponent: int) -> "Up":
        """Self · 2^exponent."""
        try:
            shifted = math.ldexp(self, exponent)
        except OverflowError:
            return Up(math.inf)
        return Up(_above(shifted, Fraction(self) * Fraction(2) ** exponent if _finite(self) else None))

    def __repr__(self) -> str:
        return f"Up({float(self)!r})"


def gamma(n: int) -> Up:
    """γ_n = nu / (1 − nu), u = 2⁻⁵³: the relative error of n roundings, whatever their order."""
    return Up.above(Fraction(n, 2**53 - n))


def row_norms(rows: Tensor) -> Tensor:
    """‖w‖₂ of each row from above: (…, n) float64 → (…)."""
    largest = rows.abs().amax(dim=-1)
    scaled = rows / torch.where(largest > 0, largest, 1.0)[..., None]
    # Quotient, square, sum, root and product err by less than (n + 8)u/2 together, underflow included: 1 is among them.
    norms = up(scaled.square().sum(dim=-1).sqrt() * largest) * (1 + (rows.shape[-1] + 8) * 2.0**-53)
    return torch.where(largest > 0, up(norms), largest)


def above(exact: Fraction) -> float:
    """The least float64 that is at least a fraction; ∞ if all are below it. −above(−x) is the largest at most x.

    >>> above(Fraction(1, 2)), above(Fraction(1, 10)) >= Fraction(1, 10)
    (0.5, True)
    """
    try:
        near = float(exact)
    except OverflowError:
        return math.inf if exact > 0 else math.nextafter(-math.inf, 0.0)
    return _above(near, exact)


def _finite(*numbers: float) -> bool:
    return all(map(math.isfinite, numbers))


def _above(computed: float, exact: Fraction | None) -> float:
    """What was computed if it is at least the exact value, else the next number; ∞ for NaN."""
    if math.isnan(computed):
        return math.inf
    if exact is not None and _finite(computed) and Fraction(computed) >= exact:
        return computed
    return math.nextafter(computed, math.inf)


@overload
def up(value: float) -> float: ...
@overload
def up(value: Tensor) -> Tensor: ...
def up(value: float | Tensor) -> float | Tensor:
    """The next float64 above."""
    if isinstance(value, Tensor):
        return torch.nextafter(value, value.new_tensor(math.inf))
    return math.nextafter(value, math.inf)
