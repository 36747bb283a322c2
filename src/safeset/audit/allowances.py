"""The rounding of a frozen network's float64 program, recomputed in fractions from docs/proofs.md.

What a certificate must allow for, by another way than `proof.py`: no rounding upwards in float64, no mean row. That the
given bounds of the layers are bounds is for `reproofs.py` to say.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import isqrt, prod
from typing import Any

import numpy as np
from torch import Tensor, nn

from safeset import layers
from safeset.errors import UnsupportedLayerError
from safeset.nets.proof import LayerBound
from safeset.program.exact import ORDERS, Multiples, window_axes
from safeset.program.from_modules import Branch, Step, Steps

BITS = 128  # of roots and of what is carried from layer to layer
UNIT = Fraction(1, 2**53)
LEAST = Fraction(1, 2**1074)
LARGEST = Fraction(2) ** 1000
UNROUNDED = (nn.ReLU, nn.MaxPool2d, layers.Abs, layers.MinMax, *ORDERS)


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
    """What is known of the numbers at one place: how far they stray, how large they are, what any sum has reached."""

    strays: Line
    size: Line
    reached: tuple[Line, ...]

    @property
    def together(self) -> Line:
        """The size of what the program computes."""
        return self.strays + self.size


def carried(network: nn.Module, steps: Steps, bounds: Sequence[LayerBound]) -> Carried:
    """What is known of the features, after all layers but the head.

    Raises:
        UnsupportedLayerError: for layers whose rounding is not written here.
    """
    zero, one = Fraction(0), Fraction(1)
    start = Carried(Line(zero, zero), Line(zero, one), (Line(zero, one),))
    return _through(network, steps, iter(bounds), start)


def _through(network: nn.Module, steps: Steps, bounds: Iterator[LayerBound], x: Carried) -> Carried:
    for step in steps:
        if isinstance(step, Branch):
            body = _through(network, step.body, bounds, x)
            size, strays = x.size + body.size, x.strays + body.strays
            strays = strays.times(1 + error_of(1)) + size.times(error_of(1))
            x = Carried(strays, size, (*body.reached, x.together + body.together))
        else:
            x = _after(network.get_submodule(step.name), step, Fraction(next(bounds).bound), x)
    return x


def _after(layer: Any, step: Step, norm: Fraction, x: Carried) -> Carried:
    """One layer whose Lipschitz constant is at most ``norm``."""
    kind, shape = type(layer), step.shape
    if kind in UNROUNDED:
        after = Carried(x.strays.times(norm), x.size.times(norm), x.reached)
        return Carried(after.strays, after.size, (*x.reached, after.together))
    if kind is nn.LeakyReLU:
        product = x.together.times(error_of(1) * abs(Fraction(layer.negative_slope)))
        strays = (x.strays.times(norm) + product).raised(root(Fraction(prod(shape))) * LEAST)
        after = Carried(x.strays.times(norm), x.size.times(norm), ())
        return Carried(strays, after.size, (*x.reached, after.together))
    terms, absolute, bias, places, outputs = _affine(layer, shape, norm)
    shift = root(squares(bias) * places)
    partial = x.together.times(absolute).raised(shift)
    underflow = terms * root(Fraction(outputs)) * LEAST
    strays = (x.strays.times(norm) + partial.times(error_of(terms + 1))).raised(underflow)
    return Carried(strays, x.size.times(norm).raised(shift), (*x.reached, partial))


def _affine(layer: Any, shape: tuple[int, ...], norm: Fraction) -> tuple[int, Fraction, Tensor | None, int, int]:
    """Products in an output, the norm of the absolute matrix, the bias, places that have it, and all outputs."""
    kind = type(layer)
    if kind is nn.Linear:
        places = prod(shape[:-1])
        return layer.in_features, absolute_norm(layer.weight), layer.bias, places, places * layer.out_features
    if kind is nn.Conv2d:
        pixels = prod(axis.outputs for axis in window_axes(layer, shape[1:]))
        largest = max(absolute_norm(kernel) for kernel in layer.weight.chunk(layer.groups))
        return layer.weight[0].numel(), largest, layer.bias, pixels, pixels * layer.out_channels
    if kind is nn.AvgPool2d:
        axes = window_axes(layer, shape[1:])
        return prod(axis.taps for axis in axes), norm, None, 0, shape[0] * prod(axis.outputs for axis in axes)
    if kind is layers.ChannelAffine:
        return 1, norm, layer.shift, prod(shape[1:]), prod(shape)
    raise UnsupportedLayerError(
        f"Expected a frozen layer whose rounding can be recomputed, but got {layer}: it is a layer of your own."
    )


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
