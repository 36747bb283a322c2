"""Convolutions of images that go on at their other side: circular padding."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from fractions import Fraction
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from safeset.lipschitz.circular import circular_bound, circular_torus, repetitions
from safeset.lipschitz.convolution import Axis, kernel_norm
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried, absolute_norm, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline, Incidence
from safeset.numerics.multiples import Multiples
from safeset.program.linear import bias_norm
from safeset.program.operation import Named, Part, Proved, Shape
from safeset.program.patches import lines
from safeset.program.sliding import Conv2d

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class CircularConv2d(Conv2d):
    """A convolution with ``padding`` pixels on each side, which are those of the other side."""

    kind = "CircularConv2d"

    @cached_property
    def _plain(self) -> Conv2d:
        """That of the image as it is padded."""
        parts = {each.name: getattr(self, each.name) for each in fields(self)}
        return Conv2d(**{**parts, "padding": (0, 0)})

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        rows, columns = self.axes(tuple(x.shape[1:]))
        around = [columns.before, columns.after, rows.before, rows.after]
        return self._plain.run(_aten.pad.default(x, around, "circular") if any(around) else x)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """By the torus of the image's own size; the largest of all groups."""
        axes = self.axes(shape)
        return Up(max(circular_bound(each, *axes) for each in self.weight.chunk(self.groups))), "torus", None

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """The matrices of all waves, in each group."""
        return self.groups * circular_torus(self.weight.chunk(self.groups)[0], *self.axes(shape)).cost

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Sums of in·height·width products at each pixel; a pixel is read as often as outputs are repeated."""
        kernels, (rows, columns) = self.weight.chunk(self.groups), self.axes(shape)
        pixels = rows.outputs * columns.outputs
        return before[0].affine(
            sigma=bound,
            alpha=Up(max(map(kernel_norm, kernels))) * Up(repetitions(rows) * repetitions(columns)).root(),
            fan_in=kernels[0][0].numel(),
            bias=bias_norm(self.bias) * Up(pixels).root(),
            outputs=pixels * len(self.weight),
        )

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition: the image, padded by itself."""
        rows, columns = self.axes(x[0].integers.shape)
        around = [(0, 0), (rows.before, rows.after), (columns.before, columns.after)]
        return self._plain.exact(deadline, x[0].like(np.pad(x[0].integers, around, mode="wrap")))

    def second_bound(self, shape: Shape) -> Iterator[Part] | None:
        """Each group alone, with what its outputs read; None if one reads a pixel by two taps."""
        rows, columns = (self._reads(axis) for axis in self.axes(shape))
        if any(len({(o, pixel) for o, _, pixel in reads}) < len(reads) for reads in (rows, columns)):
            return None
        return self._parts(rows, columns)

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same sums; repetitions are counted."""
        most, pixels = 1, math.prod(line.outputs for line in lines(self, shape[1:]))
        for axis in self.axes(shape):
            starts = [axis.stride * o % axis.size for o in range(axis.outputs)]
            most *= max(map(starts.count, set(starts)))
        return before[0].summed(
            norm,
            terms=self.weight[0].numel(),
            absolute=max(map(absolute_norm, self.weight.chunk(self.groups))) * root(Fraction(most)),
            bias=self.bias,
            places=pixels,
            outputs=pixels * len(self.weight),
        )

    def portable(self, shape: Shape, name: Named) -> None:
        """The checker knows zeros around images only."""
        return

    @staticmethod
    def _reads(axis: Axis) -> list[Incidence]:
        """What the outputs read along one axis."""
        return [
            (o, t, (axis.stride * o + axis.dilation * t - axis.before) % axis.size)
            for o in range(axis.outputs)
            for t in range(axis.kernel)
        ]
