"""Exact arithmetic: the numbers of a tensor as integer multiples of one unit. Sums and products are rounded nowhere."""

from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[np.object_]  # of Python's integers, or of fractions


@dataclass(frozen=True, eq=False)
class Multiples:
    """Numbers unit·integers, exactly; the unit is above 0."""

    integers: Array
    unit: Fraction

    @staticmethod
    def of(tensor: Tensor) -> "Multiples":
        """A tensor of finite floats, as multiples of the last bit that is set in any of them."""
        numbers = tensor.detach().cpu().double().numpy()
        mantissas, exponents = np.frexp(numbers)
        whole = (mantissas * 2.0**53).astype(np.int64)
        spare = np.frexp((whole & -whole).astype(np.float64))[1] - 1  # zeros at the end; −1 for 0
        lowest = exponents + spare
        least = int(lowest.min(initial=2**20, where=whole != 0)) if whole.any() else 0
        odd = whole >> np.maximum(spare, 0)
        integers = odd.astype(object) << np.where(whole != 0, lowest - least, 0).astype(object)
        return Multiples(np.asarray(integers, dtype=object), Fraction(2) ** (least - 53))

    @staticmethod
    def from_fractions(numbers: Array) -> "Multiples":
        """An array of fractions."""
        flat = numbers.flatten().tolist()
        divisor = lcm(*{number.denominator for number in flat})
        integers = [number.numerator * (divisor // number.denominator) for number in flat]
        return Multiples(_reshaped(integers, numbers.shape), Fraction(1, divisor))

    def fractions(self) -> Array:
        """As fractions."""
        return _reshaped([value * self.unit for value in self.integers.flatten().tolist()], self.integers.shape)

    def like(self, integers: Array) -> "Multiples":
        """Others of the same unit."""
        return Multiples(integers, self.unit)

    def __add__(self, other: "Multiples") -> "Multiples":
        both = self.unit.denominator * other.unit.denominator
        numerators = [number.unit.numerator * (both // number.unit.denominator) for number in (self, other)]
        unit = Fraction(gcd(*numerators), both)
        first, second = (number.integers * int(number.unit / unit) for number in (self, other))
        return Multiples(first + second, unit)


def rational(tensor: Tensor) -> Array:
    """A tensor of finite floats as an array of fractions, of the same shape."""
    return Multiples.of(tensor).fractions()


def squared_norm(x: Array) -> Fraction:
    """‖x‖₂² of an array of fractions."""
    multiples = Multiples.from_fractions(x)
    square: int = sum(value * value for value in multiples.integers.flatten().tolist())
    return square * multiples.unit**2


def _reshaped(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
