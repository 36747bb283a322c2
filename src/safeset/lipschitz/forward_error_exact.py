"""The rounding of a float64 program again, in fractions from docs/proofs.md, for the auditor.

What a certificate must allow for, by another way than `forward_error.py`: nothing is rounded upwards in float64, and
there is no mean row. That the given bounds are bounds is for the second proofs to say.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt

import numpy as np
from torch import Tensor

from safeset.numerics.multiples import Multiples

BITS = 128  # of roots and of what is carried from node to node
UNIT = Fraction(1, 2**53)
LEAST = Fraction(1, 2**1074)
LARGEST = Fraction(2) ** 1000


@dataclass(frozen=True)
class Line:
    """constant + slope·‖x‖, both ≥ 0."""

    constant: Fraction
    slope: Fraction

    def __add__(self, other: "Line") -> "Line":
        return Line(above(self.constant + other.constant), above(self.slope + other.slope))

    def times(self, factor: Fraction) -> "Line":
        """Multiplied."""
        return Line(above(factor * self.constant), above(factor * self.slope))

    def raised(self, constant: Fraction) -> "Line":
        """With something added at every ‖x‖."""
        return Line(above(self.constant + constant), self.slope)

    def at(self, norm: Fraction) -> Fraction:
        """Its value."""
        return self.constant + self.slope * norm


@dataclass(frozen=True)
class Carried:
    """What is known of the numbers at one node: how far they stray, how large they are, what any sum has reached."""

    strays: Line
    size: Line
    reached: tuple[Line, ...]

    @staticmethod
    def start() -> "Carried":
        """At the input, which is exact."""
        zero, one = Fraction(0), Fraction(1)
        return Carried(Line(zero, zero), Line(zero, one), (Line(zero, one),))

    @property
    def together(self) -> Line:
        """The size of what the program computes."""
        return self.strays + self.size

    def unrounded(self, norm: Fraction) -> "Carried":
        """After something that rounds nothing, maps 0 to 0 and has a Lipschitz constant of at most ``norm``."""
        after = Carried(self.strays.times(norm), self.size.times(norm), self.reached)
        return Carried(after.strays, after.size, (*self.reached, after.together))

    def bent(
        self,
        norm: Fraction,
        *,
        zero: Fraction = Fraction(0),
        relative: Fraction = Fraction(0),
        absolute: Fraction = Fraction(0),
    ) -> "Carried":
        """After something with a Lipschitz constant of at most ``norm`` that is ``zero`` at 0, and computed nearly.

        What it computes strays by at most ``relative`` of what enters, and by ``absolute``.
        """
        straight, size = self.strays.times(norm), self.size.times(norm).raised(zero)
        strays = (straight + self.together.times(relative)).raised(absolute)
        return Carried(strays, size, (*self.reached, straight + size))

    def summed(
        self, norm: Fraction, *, terms: int, absolute: Fraction, bias: Tensor | None, places: int, outputs: int
    ) -> "Carried":
        """After sums of products and a bias.

        Args:
            norm: a bound of the matrix.
            terms: products in one output.
            absolute: a bound of the matrix of absolute values.
            bias: of one place.
            places: that have the bias.
            outputs: of all places.
        """
        shift = root(squares(bias) * places)
        partial = self.together.times(absolute).raised(shift)
        underflow = terms * root(Fraction(outputs)) * LEAST
        strays = (self.strays.times(norm) + partial.times(error_of(terms + 1))).raised(underflow)
        return Carried(strays, self.size.times(norm).raised(shift), (*self.reached, partial))

    def plus(self, other: "Carried") -> "Carried":
        """After the sum of both."""
        size, strays = self.size + other.size, self.strays + other.strays
        strays = strays.times(1 + error_of(1)) + size.times(error_of(1))
        return Carried(strays, size, (*self.reached, *other.reached, self.together + other.together))

    def beside(self, *others: "Carried") -> "Carried":
        """After putting all next to each other: as a vector of vectors, constants and slopes apart."""
        every = (self, *others)
        return Carried(
            _length([each.strays for each in every]),
            _length([each.size for each in every]),
            tuple(line for each in every for line in each.reached),
        )


def _length(lines: Sequence[Line]) -> Line:
    """At least the length of the vector of all lines, at every ‖x‖."""
    constants, slopes = ([*pair] for pair in zip(*((each.constant, each.slope) for each in lines), strict=True))
    first, second = (root(Fraction(sum(each * each for each in numbers))) for numbers in (constants, slopes))
    return Line(first, second)


def error_of(terms: int) -> Fraction:
    """What a sum of so many products loses, relative to that of their magnitudes: nu / (1 − nu)."""
    return terms * UNIT / (1 - terms * UNIT)


def absolute_norm(weight: Tensor) -> Fraction:
    """√(‖A‖₁‖A‖_∞) of the absolute weights of a dense layer, or of a kernel, from above.

    The sums are those of `math.fsum`, which are rounded once.
    """
    numbers = np.abs(weight.detach().cpu().double().numpy())
    numbers = numbers.reshape(*numbers.shape[:2], -1)
    across = (math.fsum(row.ravel().tolist()) for row in numbers)
    along = (math.fsum(column.ravel().tolist()) for column in numbers.swapaxes(0, 1))
    return root(Fraction(max(across)) * Fraction(max(along)) * (1 + 2 * UNIT) ** 2)


def squares(numbers: Tensor | None) -> Fraction:
    """The sum of squares, exactly; 0 of nothing."""
    if numbers is None:
        return Fraction(0)
    found = Multiples.of(numbers)
    total: int = sum(each * each for each in found.integers.flatten().tolist())
    return total * found.unit**2


def root(square: Fraction) -> Fraction:
    """√square from above, to 128 bits."""
    if square == 0:
        return square
    shift = BITS + (square.denominator.bit_length() - square.numerator.bit_length()) // 2 + 1
    scaled = square * Fraction(4) ** shift
    return (isqrt(-(-scaled.numerator // scaled.denominator) - 1) + 1) / Fraction(2) ** shift


def above(number: Fraction) -> Fraction:
    """The number, or one just above it that is short: 128 bits."""
    spare = number.denominator.bit_length() - number.numerator.bit_length() + BITS
    if number == 0 or number.denominator.bit_length() < 2 * BITS:
        return number
    scaled = number * Fraction(2) ** spare
    return -(-scaled.numerator // scaled.denominator) / Fraction(2) ** spare
