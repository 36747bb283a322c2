"""Operations that slide a kernel over an image: convolutions and pooling."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.lipschitz.convolution import Axis, Convolution, kernel_norm
from safeset.lipschitz.convolution_proof import confirmed_bound, convolution_proof, cost, method_of, refinement
from safeset.lipschitz.dense import spectral_bound
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried, absolute_norm
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline, Incidence
from safeset.numerics.multiples import Multiples
from safeset.numerics.products import dot
from safeset.numerics.strict import convolved, strict_arithmetic
from safeset.program.linear import bias_norm, dense_proof, dense_work, shifted
from safeset.program.operation import ClosedForm, Named, Operation, Part, Proved, Shape
from safeset.program.patches import incidences_of, outputs_of, patches

_aten = torch.ops.aten

Pair = tuple[int, int]  # of rows, of columns


@dataclass(frozen=True, eq=False)
class Sliding(Operation):
    """A kernel that is moved over an image with zeros around it."""

    stride: Pair
    padding: Pair | str
    dilation: Pair

    @property
    def kernel(self) -> Pair:
        """Rows and columns of the kernel."""
        raise NotImplementedError

    def axes(self, shape: Shape) -> tuple[Axis, Axis]:
        """Rows and columns of the image under it."""
        axes = []
        for place, (n, k, s, d) in enumerate(zip(shape[-2:], self.kernel, self.stride, self.dilation, strict=True)):
            if self.padding == "same":  # what is odd goes to the end, as in torch
                before, after = d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2
            else:
                before = after = 0 if isinstance(self.padding, str) else self.padding[place]
            axes.append(Axis(n, k, s, d, before, after))
        return axes[0], axes[1]

    def geometry(self, shape: Shape) -> dict[str, Any]:
        """Stride, dilation and padding as plain values, for a portable proof."""
        rows, columns = self.axes(shape)
        return {
            "stride": [rows.stride, columns.stride],
            "dilation": [rows.dilation, columns.dilation],
            "padding": [rows.before, rows.after, columns.before, columns.after],
        }


@dataclass(frozen=True, eq=False)
class Conv2d(Sliding):
    """A zero-padded convolution: weight (out, in / groups, height, width), bias (out,)."""

    kind = "Conv2d"
    weight: Tensor
    bias: Tensor | None
    groups: int

    @property
    def kernel(self) -> Pair:
        """The last two axes of the weights."""
        return self.weight.shape[2], self.weight.shape[3]

    @property
    def _is_pointwise(self) -> bool:
        """Whether it is one matrix, at each pixel that it reads, once: its norm is then that of the matrix.

        A subclass may read pixels more than once, such as one that pads with copies.
        """
        return type(self) is Conv2d and self.kernel == (1, 1) and self.groups == 1

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen; on a GPU as products of matrices, where its own way in float64 takes one point at a time."""
        (x,) = inputs
        stride, dilation = list(self.stride), list(self.dilation)
        padding = self.padding if isinstance(self.padding, str) else list(self.padding)
        way: Callable[..., Any] = _aten.conv2d.padding if isinstance(padding, str) else _aten.conv2d.default
        if self.weight.is_cuda and not isinstance(padding, str) and not torch.is_grad_enabled():
            way = convolved
        return way(x, self.weight, self.bias, stride, padding, dilation, self.groups)  # type: ignore[no-any-return]

    def products(self, shape: Shape) -> int:
        """One for each weight, at each pixel that leaves."""
        return self.weight.numel() * math.prod(shape[1:]) // math.prod(self.stride)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """Exact where that is affordable, else by a torus; the largest of all groups. A witness spares the search."""
        rows, columns = self.axes(shape)
        if self._is_pointwise:
            return dense_proof(self.weight[:, :, 0, 0], witness)
        parts = [Convolution(kernel, rows, columns) for kernel in self.weight.chunk(self.groups)]
        if witness is not None and len(parts) == 1:
            confirmed = confirmed_bound(parts[0], convolutions, witness)
            if confirmed is not None:
                return confirmed, method_of(witness), witness
        largest, method = Up(0.0), "exact"
        for part in sorted(parts, key=lambda each: kernel_norm(each.kernel), reverse=True):
            if kernel_norm(part.kernel) > largest:  # else another group is larger, whatever this one's norm is
                bound, witness = convolution_proof(part, convolutions)
                if bound >= largest:
                    largest, method = bound, method_of(witness)
        return largest, method, witness if len(parts) == 1 else None

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """That of the cheapest proof; of the groups the first may be enough."""
        if self._is_pointwise:
            return dense_work(self.weight, witness)
        return cost(Convolution(self.weight.chunk(self.groups)[0], *self.axes(shape)), witness)

    def refinement(self, shape: Shape) -> tuple[float, float]:
        """Of blocks or singular vectors beyond a torus; of the groups the first may be enough."""
        if self._is_pointwise:
            return 0.0, 0.0
        return refinement(Convolution(self.weight.chunk(self.groups)[0], *self.axes(shape)))

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Sums of in·height·width products at each pixel."""
        kernels = self.weight.chunk(self.groups)
        rows, columns = self.axes(shape)
        pixels = rows.outputs * columns.outputs
        return before[0].affine(
            sigma=bound,
            alpha=Up(max(map(kernel_norm, kernels))),
            fan_in=kernels[0][0].numel(),
            bias=bias_norm(self.bias) * Up(pixels).root(),
            outputs=pixels * len(self.weight),
        )

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition: for each group the sum over taps of K_t times what the outputs read at t."""
        weight, parts = Multiples.of(self.weight), []
        groups = (np.split(each.integers, self.groups) for each in (weight, x[0]))
        for kernel, image in zip(*groups, strict=True):
            total: Any = 0
            for tap, part in patches(self, image, 0):
                read = part.reshape(len(part), -1)
                total = total + dot(kernel[:, :, *tap], read, deadline).reshape(-1, *part.shape[1:])
            parts.append(total)
        return shifted(Multiples(np.concatenate(parts), x[0].unit * weight.unit), self.bias, 0)

    def second_bound(self, shape: Shape) -> Iterator[Part] | None:
        """Each group alone; a matrix at every pixel is as large as at one."""
        return self._parts(*(([(0, 0, 0)],) * 2 if self._is_pointwise else incidences_of(self, shape)))

    def _parts(self, rows: list[Incidence], columns: list[Incidence]) -> Iterator[Part]:
        """The groups, with what their outputs read."""
        for kernel in np.split(self.weight.detach().cpu().numpy(), self.groups):
            yield Part(kernel, rows, columns)

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same sums."""
        pixels = math.prod(outputs_of(self, shape))
        return before[0].summed(
            norm,
            terms=self.weight[0].numel(),
            absolute=max(absolute_norm(kernel) for kernel in self.weight.chunk(self.groups)),
            bias=self.bias,
            places=pixels,
            outputs=pixels * len(self.weight),
        )

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """By its numbers."""
        own = {"kind": "conv", "weight": name("weight"), "bias": name("bias"), "groups": [self.groups]}
        return {**own, **self.geometry(shape)}


@dataclass(frozen=True, eq=False)
class Pooling(Sliding):
    """Something of all pixels under a kernel of a size."""

    size: Pair

    @property
    def kernel(self) -> Pair:
        """Its size."""
        return self.size


@dataclass(frozen=True, eq=False)
class AveragePooling(Pooling):
    """Means, zeros around the image counted: a depthwise convolution, the product of one matrix for each axis."""

    kind = "AvgPool2d"
    divisor: int | None = None  # of the sums, if it is not the number of pixels under the kernel

    @property
    def _divisor(self) -> int:
        return math.prod(self.size) if self.divisor is None else self.divisor

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        sizes = (list(each) for each in (self.size, self.stride, self.padding))
        return _aten.avg_pool2d.default(*inputs, *sizes, False, True, self.divisor)  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The norm of the sums along each axis, over the number of pixels."""
        rows, columns = self.axes(shape)
        return (_sums_norm(rows) * _sums_norm(columns)).over(self._divisor), "dense", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Sums of the kernel's pixels, divided."""
        rows, columns = self.axes(shape)
        outputs = shape[0] * rows.outputs * columns.outputs
        return before[0].affine(
            sigma=bound, alpha=bound, fan_in=rows.kernel * columns.kernel, bias=Up(0.0), outputs=outputs
        )

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        total: Any = sum(part for _, part in patches(self, x[0].integers, 0))
        return Multiples(total, x[0].unit / self._divisor)

    def second_bound(self, shape: Shape) -> Iterator[Part]:
        """Each channel alone: sums, divided."""
        kernel, (rows, columns) = np.ones((1, 1, *self.size)), incidences_of(self, shape)
        yield Part(kernel, rows, columns, divisor=self._divisor)

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same sums."""
        outputs = shape[0] * math.prod(outputs_of(self, shape))
        return before[0].summed(norm, terms=math.prod(self.size), absolute=norm, bias=None, places=0, outputs=outputs)

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """By its sizes, unless it has a divisor of its own."""
        return (
            None if self.divisor is not None else {"kind": "avgpool", "size": list(self.size), **self.geometry(shape)}
        )


@dataclass(frozen=True, eq=False)
class MaxPooling(Pooling):
    """Maxima; a kernel may end beyond the padding if ``ceil``."""

    kind = "MaxPool2d"
    ceil: bool

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        sizes = (list(each) for each in (self.size, self.stride, self.padding, self.dilation))
        return _aten.max_pool2d.default(*inputs, *sizes, self.ceil)  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """√ of the kernels that a pixel is under, at most: per axis ⌈k·gcd(s, d)/s⌉."""
        overlap = 1
        for k, s, d in zip(self.size, self.stride, self.dilation, strict=True):
            overlap *= -(-k * math.gcd(s, d) // s)
        return Up(overlap).root(), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Nothing is added."""
        return before[0].exact(bound)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        values = x[0].integers
        largest, *others = (part for _, part in patches(self, values, values.min() - 1))
        for part in others:
            largest = np.maximum(largest, part)
        return x[0].like(largest)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The kernels that a pixel is under, counted."""
        counts = (Counter(pixel for _, _, pixel in reads).values() for reads in incidences_of(self, shape))
        most = math.prod(map(max, counts))
        return ClosedForm(Fraction(most), math.sqrt(most), f"a pixel is in up to {most} patches, counted")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """Nothing is added."""
        return before[0].unrounded(norm)

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """By its sizes, unless a kernel may end beyond the padding."""
        return None if self.ceil else {"kind": "maxpool", "size": list(self.size), **self.geometry(shape)}


@lru_cache(maxsize=256)
def _sums_norm(axis: Axis) -> Up:
    """The norm of the sums over a kernel's pixels along one axis."""
    reads = np.zeros((axis.outputs, axis.size))
    for output in range(axis.outputs):
        first = output * axis.stride - axis.before
        reads[output, max(0, first) : max(0, first + axis.kernel)] = 1.0
    with strict_arithmetic():  # it is remembered: no mode of a caller may have a part in it
        return spectral_bound(torch.from_numpy(reads))
