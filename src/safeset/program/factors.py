"""Which channels of a program may be multiplied by a factor of their own, and which must share one.

h ↦ T h with a positive factor for each channel passes through what is positively homogeneous, φ(t·x) = t·φ(x) for
t > 0, channel by channel. What compares or adds channels makes them share a factor: maxima of pairs with different ones
would be of other numbers (W₁ = diag(1, 2), W₂ = [1, 0], T = diag(1, ¼) around a maximum "proves" 1, where 2 is true).
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray

from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.joining import Join
from safeset.program.l2_pool import RootOfSquares
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation, Shape
from safeset.program.piecewise import PReLU
from safeset.program.pointwise import Absolute, LeakyReLU, MinMax, ReLU
from safeset.program.program import INPUT, Program
from safeset.program.reorder import Reorder
from safeset.program.select import Select
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling
from safeset.program.sorting import Greatest, GroupSort, Least
from safeset.program.total import Sum

Channels = NDArray[np.int64]  # for each entry along the first axis of a point the number of its factor

ONE = 0  # the number of the factor that is 1: of the input, of the logits, and of what is not homogeneous

FREE = (Conv2d, ChannelAffine, Scale)  # what leaves them may have other factors than what enters
THROUGH = (ReLU, LeakyReLU, PReLU, Absolute, MaxPooling, AveragePooling, Shift)  # channel by channel
GROUPS = (GroupSort, Greatest, Least, RootOfSquares)  # compare the entries of the last axis, or of a channel


class Factors:
    """The factors of a program's channels: ``of[number]`` has those that leave a node, ``count`` says how many."""

    def __init__(self, program: Program) -> None:
        self._parents = [ONE]
        shapes = _shapes(program)
        found = {INPUT: np.zeros(_channels(program.input_shape), dtype=np.int64)}
        for number, node in enumerate(program.nodes):
            before = [found[read] for read in node.inputs]
            shape = shapes[number]
            own = self._after(node.operation, [shapes[read] for read in node.inputs], before, shape)
            if own is None:  # nothing is known of it: T = 1 before it and after it
                for each in before:
                    self._tie(each, np.zeros_like(each))
                own = np.zeros(_channels(shape), dtype=np.int64)
            found[number] = own
        last = found[len(program.nodes) - 1]
        self._tie(last, np.zeros_like(last))
        roots = sorted({self._root(each) for each in range(len(self._parents))})
        names = {root: place for place, root in enumerate(roots)}  # ONE stays 0: it is the least
        table = np.array([names[self._root(each)] for each in range(len(self._parents))])
        self.count = len(roots)
        self.of = {number: table[channels] for number, channels in found.items()}

    def _after(
        self, operation: Operation, shapes: list[Shape], before: list[Channels], shape: Shape
    ) -> Channels | None:
        """The factors of what leaves an operation; None if they must be 1, and those of what enters too."""
        if not shape:
            return None
        if isinstance(operation, FREE) or (isinstance(operation, Linear) and len(shape) == 1):
            return self._fresh(shape[0])
        if isinstance(operation, THROUGH) or (isinstance(operation, Clamp) and not (operation.low or operation.high)):
            return before[0]  # a clamp whose ends are 0, or none, is ReLU or its mirror image
        if isinstance(operation, MinMax):
            self._tie(*np.split(before[0], 2))
            return before[0]
        if isinstance(operation, GROUPS):
            if len(shapes[0]) == 1:
                self._tie(before[0][1:], before[0][:-1])
            return before[0][: shape[0]]
        if isinstance(operation, Sum):
            for each in before[1:]:
                self._tie(each, before[0])
            return before[0]
        if isinstance(operation, Join):
            return np.concatenate([_entries(*each) for each in zip(before, shapes, strict=True)])
        if isinstance(operation, Reorder):
            return self._taken(_entries(before[0], shapes[0])[operation.order(shapes[0])], shape)
        if isinstance(operation, Select):
            order = operation.order.cpu().numpy()
            zeros = _entries(self._fresh(shape[0]), shape).reshape(shape)
            return self._taken(np.where(order < 0, zeros, _entries(before[0], shapes[0])[order]), shape)
        return None

    def _taken(self, entries: Channels, shape: Shape) -> Channels:
        """The factors of channels from those of their entries, which must agree."""
        rows = entries.reshape(shape[0], -1)
        self._tie(rows[:, 1:], np.broadcast_to(rows[:, :1], rows[:, 1:].shape))
        return rows[:, 0]

    def _fresh(self, count: int) -> Channels:
        start = len(self._parents)
        self._parents += range(start, start + count)
        return np.arange(start, start + count)

    def _root(self, number: int) -> int:
        while self._parents[number] != number:
            self._parents[number] = number = self._parents[self._parents[number]]
        return number

    def _tie(self, first: Channels, second: Channels) -> None:
        """Let channels share factors, one by one; that of the smaller number counts, and 1 before all."""
        for pair in np.unique(np.stack([first.ravel(), second.ravel()]), axis=1).T.tolist():
            low, high = sorted(map(self._root, pair))
            self._parents[high] = low


def _shapes(program: Program) -> dict[int, Shape]:
    """The shapes of all points on the way."""
    x = torch.zeros(1, *program.input_shape, dtype=torch.float64, device=program.device)
    values = {INPUT: x}
    for number, node in enumerate(program.nodes):
        values[number] = node.operation.run(*(values[read] for read in node.inputs))
    return {number: tuple(value.shape[1:]) for number, value in values.items()}


def _channels(shape: Shape) -> int:
    return shape[0] if shape else 1


def _entries(channels: Channels, shape: Shape) -> Channels:
    """The factors of all entries, flattened."""
    return np.repeat(channels, math.prod(shape[1:]))
