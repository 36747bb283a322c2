"""How far the float64 program is from the network it computes, at most: one affine function of ‖x‖ for each layer.

E bounds ‖computed − exact‖ at the output of a layer, r bounds ‖exact‖, both as offset + slope·‖x‖; peak bounds every
partial sum on the way, so that nothing overflows. All are rounded up; the inequalities are in docs/proofs.md.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from safeset.numerics.directed import SUBNORMAL, Up, gamma


@dataclass(frozen=True)
class Affine:
    """offset + slope·‖x‖."""

    offset: Up
    slope: Up

    def __add__(self, other: "Affine | float") -> "Affine":
        if isinstance(other, Affine):
            return Affine(self.offset + other.offset, self.slope + other.slope)
        return Affine(self.offset + other, self.slope)

    def __mul__(self, factor: float) -> "Affine":
        return Affine(self.offset * factor, self.slope * factor)

    def envelope(self, other: "Affine") -> "Affine":
        """At least as large as both."""
        return Affine(Up(max(self.offset, other.offset)), Up(max(self.slope, other.slope)))


@dataclass(frozen=True)
class Rounding:
    """What is known at one place of the network: ``error`` E, ``size`` r, and the ``peak`` so far."""

    error: Affine
    size: Affine
    peak: Affine

    @staticmethod
    def start() -> "Rounding":
        """At the input, which is exact: E = 0, r = ‖x‖."""
        zero, norm = Affine(Up(0.0), Up(0.0)), Affine(Up(0.0), Up(1.0))
        return Rounding(zero, norm, norm)

    def affine(self, *, sigma: Up, alpha: Up, fan_in: int, bias: Up, outputs: int) -> "Rounding":
        """After fl(A x + b): sums of ``fan_in`` products, in any order, and a bias.

        E ← σE + γ_{fan_in+1}(α(r + E) + ‖b‖) + fan_in·√outputs·2⁻¹⁰⁷⁴, r ← σr + ‖b‖.

        Args:
            sigma: a bound of ‖A‖₂.
            alpha: a bound of ‖ |A| ‖₂.
            fan_in: products in one output.
            bias: a bound of ‖b‖₂, over all outputs.
            outputs: number of outputs.
        """
        reach = (self.size + self.error) * alpha + bias
        underflow = Up(outputs).root() * fan_in * SUBNORMAL
        error = self.error * sigma + reach * gamma(fan_in + 1) + underflow
        return Rounding(error, self.size * sigma + bias, self.peak.envelope(reach))

    def exact(self, lipschitz: Up) -> "Rounding":
        """After a layer that is computed without rounding, is L-Lipschitz and maps 0 to 0: E ← L·E, r ← L·r."""
        size, error = self.size * lipschitz, self.error * lipschitz
        return Rounding(error, size, self.peak.envelope(size + error))

    def scaled(self, lipschitz: Up, slope: float, outputs: int) -> "Rounding":
        """After an L-Lipschitz activation with at most one product by ``slope`` for each output (LeakyReLU).

        E ← L·E + u|slope|(r + E) + √outputs·2⁻¹⁰⁷⁴, r ← L·r.
        """
        return self.bent(lipschitz, relative=gamma(1) * abs(slope), absolute=Up(outputs).root() * SUBNORMAL)

    def bent(self, lipschitz: Up, *, zero: float = 0.0, relative: float = 0.0, absolute: float = 0.0) -> "Rounding":
        """After something L-Lipschitz that maps 0 to a vector of norm ``zero`` at most, and that is computed nearly.

        What it computes of a vector v differs from what it is there by at most relative·‖v‖ + absolute:
        E ← L·E + relative·(r + E) + absolute, r ← L·r + zero.
        """
        size = self.size * lipschitz + zero
        error = self.error * lipschitz
        strays = error + (self.size + self.error) * relative + absolute
        return Rounding(strays, size, self.peak.envelope(size + error))

    def plus(self, other: "Rounding") -> "Rounding":
        """After the sum of both: E ← (1 + u)(E_x + E_y) + u(r_x + r_y), r ← r_x + r_y."""
        error, size = self.error + other.error, self.size + other.size
        summed = error * (1 + gamma(1)) + size * gamma(1)
        return Rounding(summed, size, self.peak.envelope(other.peak).envelope(size + error))

    def beside(self, *others: "Rounding") -> "Rounding":
        """After putting all next to each other: E ← √ΣE², r ← √Σr², nothing is computed."""
        every = (self, *others)
        peak = self.peak
        for other in others:
            peak = peak.envelope(other.peak)
        return Rounding(_beside([each.error for each in every]), _beside([each.size for each in every]), peak)


def _beside(parts: Sequence[Affine]) -> Affine:
    """√Σ(aᵢ + bᵢt)² ≤ √Σaᵢ² + √Σbᵢ²·t, for numbers ≥ 0: the triangle inequality."""
    return Affine(root_of_squares([each.offset for each in parts]), root_of_squares([each.slope for each in parts]))


def root_of_squares(numbers: Sequence[Up]) -> Up:
    """√Σn²; multiplied by a power of two first, so that no square overflows, and none that counts underflows."""
    largest = max(numbers)
    if largest in (0.0, math.inf):
        return largest
    exponent = math.frexp(largest)[1]
    total = Up(0.0)
    for number in numbers:
        part = number.shifted(-exponent)
        total = total + part * part
    return total.root().shifted(exponent)
