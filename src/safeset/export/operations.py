"""What each kind of operation is in ONNX: its own program again, in operators that runtimes have in float64.

onnxruntime's CPU has no Conv, AveragePool or LpPool in float64, so kernels are written as products of matrices with
the patches under them. The proofs of rounding hold for any order of the same sums, and every rule here has no more
roundings than its operation's `rounding` allows for.
"""

import math
from functools import singledispatch

import numpy as np
from torch import Tensor

from safeset.errors import UnsupportedLayerError
from safeset.export.graph import Array, Graph, Value
from safeset.program.circular import CircularConv2d
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.joining import Join
from safeset.program.l2_pool import RootOfSquares
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.one_row import OneRow
from safeset.program.operation import Operation, Shape
from safeset.program.patches import lines
from safeset.program.pointwise import Absolute, HalfAbsolute, LeakyReLU, MinMax, ReLU
from safeset.program.potential import PotentialStep
from safeset.program.reorder import Identity, Reorder
from safeset.program.select import Select
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling, Sliding
from safeset.program.sorting import Greatest, GroupSort, Least
from safeset.program.total import Sum

NOTHING = -1  # the place of what lies outside of an image
FAR, NEAR = 2.0**400, 2.0**-400  # squares of numbers between these neither overflow nor underflow where it counts
POWER = 2.0**600


@singledispatch
def write(operation: Operation, graph: Graph, shape: Shape, *inputs: Value) -> Value:
    """Write an operation, on points of a shape; returns what leaves it.

    Args:
        operation: of a program.
        graph: where it is written.
        shape: of one point that enters.
        inputs: (batch, *shape) each.
    """
    raise UnsupportedLayerError(
        f"Expected operations with a form in ONNX, but got {operation.kind}. What an own layer computes is known "
        "to its rule alone: build it of layers that safeset knows, or let its rule freeze it into one."
    )


def numbers(tensor: Tensor) -> Array:
    """A constant of a program as an array."""
    found: Array = tensor.detach().cpu().numpy()
    return found


# -- sums of products -------------------------------------------------------------------------------------------------


@write.register
def _linear(operation: Linear, graph: Graph, shape: Shape, x: Value) -> Value:
    found = x @ numbers(operation.weight).T
    return found if operation.bias is None else found + numbers(operation.bias)


@write.register
def _channel_affine(operation: ChannelAffine, graph: Graph, shape: Shape, x: Value) -> Value:
    axes = (-1, *(1,) * (len(shape) - 1))
    return x * numbers(operation.scale).reshape(axes) + numbers(operation.shift).reshape(axes)


@write.register
def _conv2d(operation: Conv2d, graph: Graph, shape: Shape, x: Value) -> Value:
    places, (height, width) = _places(operation, shape, around=isinstance(operation, CircularConv2d))
    weight, groups = numbers(operation.weight), operation.groups
    taps, pixels = places.shape
    found = _patches(x, shape, places, 0.0)  # (batch, channels, taps, pixels)
    kernel = weight.reshape(groups, len(weight) // groups, -1)
    if groups == 1:
        found = found.reshaped(shape[0] * taps, pixels)
        found = graph.constant(kernel[0]) @ found  # (batch, out, pixels)
    else:
        found = found.reshaped(groups, shape[0] // groups * taps, pixels)
        found = (graph.constant(kernel) @ found).reshaped(len(weight), pixels)
    if operation.bias is not None:
        found = found + numbers(operation.bias)[:, None]
    return found.reshaped(len(weight), height, width)


@write.register
def _average(operation: AveragePooling, graph: Graph, shape: Shape, x: Value) -> Value:
    places, (height, width) = _places(operation, shape)
    divisor = math.prod(operation.size) if operation.divisor is None else operation.divisor
    found = _patches(x, shape, places, 0.0).sum(2) / float(divisor)
    return found.reshaped(shape[0], height, width)


@write.register
def _max_pool(operation: MaxPooling, graph: Graph, shape: Shape, x: Value) -> Value:
    places, (height, width) = _places(operation, shape)
    return _patches(x, shape, places, -math.inf).max(2).reshaped(shape[0], height, width)


@write.register
def _one_row(operation: OneRow, graph: Graph, shape: Shape, x: Value) -> Value:
    channels, entries = shape
    return write(operation.inside, graph, (channels, 1, entries), x.unsqueezed(2)).squeezed(2)


@write.register
def _potential(operation: PotentialStep, graph: Graph, shape: Shape, x: Value) -> Value:
    hidden = write(operation.there, graph, shape, x)
    inside = (*shape[:-1], len(operation.weight)) if operation.weight.ndim == 2 else (len(operation.weight), *shape[1:])
    return x - write(operation.back, graph, inside, hidden.apply("Relu"))


@write.register
def _scale(operation: Scale, graph: Graph, shape: Shape, x: Value) -> Value:
    return x * numbers(operation.scale)


@write.register
def _shift(operation: Shift, graph: Graph, shape: Shape, x: Value) -> Value:
    return x + numbers(operation.shift)


@write.register
def _sum(operation: Sum, graph: Graph, shape: Shape, *inputs: Value) -> Value:
    total = inputs[0] if operation.signs[0] == 1 else -inputs[0]
    for sign, part in zip(operation.signs[1:], inputs[1:], strict=True):
        total = total + part if sign == 1 else total - part
    return total


@write.register
def _root_of_squares(operation: RootOfSquares, graph: Graph, shape: Shape, x: Value) -> Value:
    """√Σz² with a power of two before it, and its inverse after it, where squares would not be normal numbers.

    A group whose largest entry is between 2⁻⁴⁰⁰ and 2⁴⁰⁰ needs none: what its squares lose below all numbers is less
    than 2⁻²⁷⁰ of their sum. n roundings under the root count half, so that all of it is below γ_{n+1} of the norm.
    """
    if operation.patch is not None:
        rows, columns = operation.patch
        channels, height, width = shape
        high, wide = height // rows, width // columns
        places = np.arange(height * width).reshape(height, width)[: high * rows, : wide * columns]
        places = places.reshape(high, rows, wide, columns).transpose(0, 2, 1, 3).reshape(high, wide, rows * columns)
        x = x.reshaped(channels, height * width).taken(places, 2)
        shape = (channels, high, wide, rows * columns)
    axis = len(shape)
    largest = abs(x).max(axis, keep=True)
    power = graph.where(largest > FAR, 1 / POWER, graph.where(largest < NEAR, POWER, 1.0))
    scaled = x * power
    root = (scaled * scaled).sum(axis).apply("Sqrt")
    return root / power.squeezed(axis)  # exact, or below all numbers: powers of two


def _places(operation: Sliding, shape: Shape, *, around: bool = False) -> tuple[Array, tuple[int, int]]:
    """(taps, pixels that leave): which pixel each tap reads, flattened; and the size of the image that leaves."""
    read = []
    rows, columns = lines(operation, shape[1:])
    for line, size in zip((rows, columns), shape[1:], strict=True):
        at = line.stride * np.arange(line.outputs) + line.dilation * np.arange(line.taps)[:, None] - line.before
        read.append(at % size if around else np.where((at >= 0) & (at < size), at, NOTHING))  # (taps, outputs)
    down, along = read[0][:, None, :, None], read[1][None, :, None, :]
    both = np.where((down < 0) | (along < 0), NOTHING, down * shape[2] + along)
    return both.reshape(rows.taps * columns.taps, -1), (rows.outputs, columns.outputs)


def _patches(x: Value, shape: Shape, places: Array, outside: float) -> Value:
    """What the taps read of images: (batch, channels, height, width) → (batch, channels, taps, pixels)."""
    channels, height, width = shape
    flat = x.reshaped(channels, height * width)
    if (places == NOTHING).any():
        flat = flat.padded(1, 0, outside)
        places = places + 1
    return flat.taken(places, 2)


# -- places and orders ------------------------------------------------------------------------------------------------


@write.register
def _identity(operation: Identity, graph: Graph, shape: Shape, x: Value) -> Value:
    return x


@write.register
def _reorder(operation: Reorder, graph: Graph, shape: Shape, x: Value) -> Value:
    order = operation.order(shape)
    if np.array_equal(order.reshape(-1), np.arange(order.size)):
        return x.reshaped(*order.shape)
    return x.reshaped(math.prod(shape)).taken(order, 1)


@write.register
def _select(operation: Select, graph: Graph, shape: Shape, x: Value) -> Value:
    order = numbers(operation.order)
    entries = x.reshaped(1, math.prod(shape))
    if (order < 0).any():
        entries, order = entries.padded(1, 0, 0.0), order + 1
    return entries.taken(order, 2).squeezed(1)


@write.register
def _join(operation: Join, graph: Graph, shape: Shape, *inputs: Value) -> Value:
    return graph.beside((each.apply("Flatten", axis=1) for each in inputs), 1)


@write.register
def _sort(operation: GroupSort, graph: Graph, shape: Shape, x: Value) -> Value:
    largest = int(operation.descending)
    return graph.several("TopK", 2, x, np.array([operation.group]), axis=-1, largest=largest, sorted=1)[0]


@write.register
def _greatest(operation: Greatest, graph: Graph, shape: Shape, x: Value) -> Value:
    return x.max(len(shape))


@write.register
def _least(operation: Least, graph: Graph, shape: Shape, x: Value) -> Value:
    return x.min(len(shape))


# -- entry by entry, without rounding but for one product -------------------------------------------------------------


@write.register
def _relu(operation: ReLU, graph: Graph, shape: Shape, x: Value) -> Value:
    return x.apply("Relu")


@write.register
def _absolute(operation: Absolute, graph: Graph, shape: Shape, x: Value) -> Value:
    return abs(x)


@write.register
def _min_max(operation: MinMax, graph: Graph, shape: Shape, x: Value) -> Value:
    one, two = x.split(1, [shape[0] // 2] * 2)
    return graph.beside([graph.larger(one, two), graph.smaller(one, two)], 1)


@write.register
def _half_absolute(operation: HalfAbsolute, graph: Graph, shape: Shape, x: Value) -> Value:
    chosen = operation._chosen(shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    return graph.where(chosen, abs(x), x)


@write.register
def _leaky(operation: LeakyReLU, graph: Graph, shape: Shape, x: Value) -> Value:
    return graph.where(x > 0.0, x, x * operation.slope)


@write.register
def _clamp(operation: Clamp, graph: Graph, shape: Shape, x: Value) -> Value:
    found = x if operation.low is None else graph.larger(x, operation.low)
    return found if operation.high is None else graph.smaller(found, operation.high)
