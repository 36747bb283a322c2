"""Frozen networks in exact arithmetic: what they are, not what a float64 program computes of them.

The numbers of a tensor are whole multiples of one unit: sums and products of Python's integers, rounded nowhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import gcd, lcm, prod
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from safeset import layers
from safeset.errors import UnsupportedLayerError
from safeset.numerics.integers import NEVER, Deadline

Array = NDArray[np.object_]  # of Python's integers, or of fractions

ORDERS = (  # nothing but another order
    *(nn.Identity, nn.Flatten, nn.PixelUnshuffle, nn.PixelShuffle, nn.ChannelShuffle),
    layers.InvertibleDownsampling,
)

PRODUCTS_AT_ONCE = 2**22  # of whole numbers, between two looks at the clock: less than a second


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


def evaluate(network: nn.Module, x: Tensor | Array, deadline: Deadline = NEVER) -> Array:
    """What a frozen network, or one of its layers, is at one point, exactly.

    Args:
        network: `CertifiedNet.frozen().network`, or a part of it: plain layers in evaluation.
        x: one point without the batch, finite floats or an array of fractions.
        deadline: when to stop.

    Returns:
        Fractions: (classes,) logits for a whole network.

    Raises:
        UnsupportedLayerError: for layers whose definition is not written here.
        OutOfTimeError: after the deadline.

    >>> layer = nn.Linear(2, 1)
    >>> layer.weight.data, layer.bias.data = torch.tensor([[0.5, 1.0]]), torch.tensor([0.25])
    >>> evaluate(layer, torch.tensor([1.0, 2.0**-60]))
    array([Fraction(864691128455135233, 1152921504606846976)], dtype=object)
    """
    number = Multiples.of(x) if isinstance(x, Tensor) else Multiples.from_fractions(x)
    return _value(network, number, deadline).fractions()


def _value(layer: Any, x: Multiples, deadline: Deadline) -> Multiples:
    """One layer, by its exact type."""
    deadline.check()
    kind, values = type(layer), x.integers
    if kind is nn.Sequential:
        for part in layer:
            x = _value(part, x, deadline)
        return x
    if kind is layers.Residual:
        return x + _value(layer.body, x, deadline)
    if kind is nn.Linear:
        weight = Multiples.of(layer.weight)
        product = _dot(weight.integers, values.reshape(-1, values.shape[-1]).T, deadline).T
        product = product.reshape(*values.shape[:-1], -1)
        return _shifted(Multiples(product, x.unit * weight.unit), layer.bias, -1)
    if kind is nn.Conv2d and layer.padding_mode == "zeros":
        return _shifted(_convolution(layer, x, deadline), layer.bias, 0)
    if kind is layers.ChannelAffine:
        scale = Multiples.of(_along(layer.scale, values.ndim, 0))
        return _shifted(Multiples(values * scale.integers, x.unit * scale.unit), layer.shift, 0)
    if kind is nn.AvgPool2d and not (layer.ceil_mode or layer.divisor_override) and layer.count_include_pad:
        total: Any = sum(part for _, part in _windows(layer, values, 0))
        return Multiples(total, x.unit / prod(_pair(layer.kernel_size)))
    if kind is nn.MaxPool2d and not layer.return_indices:
        largest, *others = (part for _, part in _windows(layer, values, values.min() - 1))
        for part in others:
            largest = np.maximum(largest, part)
        return x.like(largest)
    if kind is nn.LeakyReLU:
        slope = Fraction(layer.negative_slope)
        bent = np.where(values > 0, values * slope.denominator, values * slope.numerator)
        return Multiples(bent, x.unit / slope.denominator)
    if kind is nn.ReLU:
        return x.like(np.maximum(values, 0))
    if kind is layers.Abs:
        return x.like(np.abs(values))
    if kind is layers.MinMax:
        first, second = np.split(values, 2)
        return x.like(np.concatenate([np.maximum(first, second), np.minimum(first, second)]))
    if kind in ORDERS:
        return x.like(values.reshape(-1)[order(layer, values.shape)])
    raise UnsupportedLayerError(
        f"Expected a frozen layer whose definition is known in exact arithmetic, but got {layer}. Give the network of "
        "CertifiedNet.frozen(); layers of your own have no exact form here."
    )


def order(layer: nn.Module, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Where the entries that leave a layer of `ORDERS` come from, as places in what enters, flattened."""
    places = torch.arange(prod(shape), dtype=torch.float64).view(1, *shape)
    with torch.no_grad():
        return layer(places)[0].to(torch.int64).numpy()  # type: ignore[no-any-return]


def _shifted(x: Multiples, bias: Tensor | None, axis: int) -> Multiples:
    """X + bias, along an axis."""
    return x if bias is None else x + Multiples.of(_along(bias, x.integers.ndim, axis))


def _along(numbers: Tensor, dimensions: int, axis: int) -> Tensor:
    """(n,) numbers in a shape that goes with arrays whose axis, the first or the last, has n places."""
    return numbers.view(*([-1] + [1] * (dimensions - 1) if axis == 0 else [-1]))


def _dot(matrix: Array, columns: Array, deadline: Deadline) -> Array:
    """A product of whole numbers, some rows at a time, so that it can stop."""
    some = max(1, PRODUCTS_AT_ONCE // max(1, columns.size))
    parts = []
    for start in range(0, len(matrix), some):
        deadline.check()
        parts.append(matrix[start : start + some].dot(columns))
    return np.concatenate(parts)


def _convolution(layer: nn.Conv2d, x: Multiples, deadline: Deadline) -> Multiples:
    """Without its bias: for each group the sum over taps of K_t times what the outputs read at t."""
    weight = Multiples.of(layer.weight)
    kernels, images = np.split(weight.integers, layer.groups), np.split(x.integers, layer.groups)
    parts = []
    for kernel, image in zip(kernels, images, strict=True):
        total: Any = 0
        for tap, part in _windows(layer, image, 0):
            read = part.reshape(len(part), -1)
            total = total + _dot(kernel[:, :, *tap], read, deadline).reshape(-1, *part.shape[1:])
        parts.append(total)
    return Multiples(np.concatenate(parts), x.unit * weight.unit)


def _windows(layer: Any, image: Array, padding: int) -> list[tuple[tuple[int, int], Array]]:
    """For each tap of a window what the outputs read there, (channels, height', width')."""
    axes = window_axes(layer, image.shape[1:])
    sizes = [
        max(axis.before + n, axis.stride * (axis.outputs - 1) + axis.dilation * (axis.taps - 1) + 1)
        for n, axis in zip(image.shape[1:], axes, strict=True)
    ]
    padded: Array = np.full((len(image), *sizes), padding, dtype=object)
    inside = (slice(axis.before, axis.before + n) for n, axis in zip(image.shape[1:], axes, strict=True))
    padded[:, *inside] = image
    found = []
    for first, second in product(*(range(axis.taps) for axis in axes)):
        rows, columns = (
            slice(axis.dilation * t, axis.dilation * t + axis.stride * (axis.outputs - 1) + 1, axis.stride)
            for t, axis in zip((first, second), axes, strict=True)
        )
        found.append(((first, second), padded[:, rows, columns]))
    return found


class WindowAxis(NamedTuple):
    """One axis of sliding windows: at tap t output o reads pixel stride·o + dilation·t − before, if there is one."""

    outputs: int
    taps: int
    stride: int
    dilation: int
    before: int


def window_axes(layer: Any, size: Sequence[int]) -> list[WindowAxis]:
    """The two axes of a convolution or pooling on images of a size."""
    parts = zip(*map(_pair, (layer.kernel_size, layer.stride, getattr(layer, "dilation", 1))), size, strict=True)
    axes = []
    for place, (taps, stride, dilation, n) in enumerate(parts):
        spare = dilation * (taps - 1)
        if isinstance(layer.padding, str):
            padding = spare if layer.padding == "same" else 0  # what is odd goes to the end
            before = padding // 2
        else:
            before = _pair(layer.padding)[place]
            padding = 2 * before
        room = n + padding - spare - 1
        outputs = room // stride + 1
        if getattr(layer, "ceil_mode", False) and room % stride and stride * outputs < n + before:
            outputs += 1  # a window may end beyond the padding, but must start before it
        axes.append(WindowAxis(outputs, taps, stride, dilation, before))
    return axes


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _reshaped(values: list[Any], shape: tuple[int, ...]) -> Array:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array.reshape(shape)
