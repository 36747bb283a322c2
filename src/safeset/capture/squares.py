"""Squares on their way to a root: sums with other squares and with constants, products with numbers, pooling.

√(Σ x² + c) is the norm of x beside the constant √c, so it has the Lipschitz constant of what is squared.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture.aten_refusals import SQUARES
from safeset.capture.expressions import Squares
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError


@dataclass(frozen=True, eq=False)
class Signs:
    """The signs of sums of squares: 1, and 0 where the sum is."""

    squares: Squares


def times(graph: Graph, x: Squares | Signs, factor: object, name: str) -> Squares:
    """Squares times a number ≥ 0, or times their own signs, which changes nothing."""
    if isinstance(factor, Signs) or isinstance(x, Signs):
        squares, signs = (x, factor) if isinstance(factor, Signs) else (factor, x)
        if isinstance(squares, Squares) and isinstance(signs, Signs) and signs.squares is squares:
            return squares
        raise UnsupportedLayerError(SQUARES)
    number = factor.double() if isinstance(factor, Tensor) else factor
    if isinstance(number, Tensor) and number.numel() == 1:
        number = float(number)
    if not isinstance(number, int | float) or not 0 <= number < math.inf:
        raise UnsupportedLayerError("a square times something other than a number ≥ 0")
    return Squares(x.roots, x.shape, x.factor * number)


def plus(graph: Graph, x: object, y: object, name: str) -> Squares:
    """The sum of squares, or of squares and a number ≥ 0: one more square under the root."""
    first, second = (x, y) if isinstance(x, Squares) else (y, x)
    assert isinstance(first, Squares)
    roots = _with_axis(graph, first, name)
    if isinstance(second, Squares):
        other = _with_axis(graph, second, name)
        if roots.shape[:-1] != other.shape[:-1]:
            raise UnsupportedLayerError("a sum of squares of different shapes")
        joined = View(torch.cat([roots.places, other.places], dim=-1))
    else:
        is_number = isinstance(second, int | float) or (isinstance(second, Tensor) and second.numel() == 1)
        number = float(second) if is_number else -1.0  # type: ignore[arg-type]
        if not 0 <= number < math.inf:
            raise UnsupportedLayerError("a sum of squares and something other than a number ≥ 0")
        if number == 0:
            return first
        zeros = torch.zeros_like(roots.places[..., :1])
        beside = torch.zeros(roots.shape[-1] + 1, dtype=torch.float64)
        beside[-1] = math.sqrt(number)
        with_zero = View(torch.cat([roots.places, zeros], dim=-1))
        moved = ex.added(graph, with_zero, beside, name)
        assert isinstance(moved, View)
        joined = moved
    return Squares(joined, tuple(joined.shape[:-1]))


def pooled(x: Squares, size: Sequence[int], stride: Sequence[int], padding: Sequence[int], ceil: bool) -> Squares:
    """Means of squares over patches of the last two axes."""
    if x.shape is not None or len(x.roots.shape) != 4:
        raise UnsupportedLayerError("pooling of squares other than those of images")
    sizes, strides, paddings = (list(each) * (2 // len(each)) for each in (size, stride or size, padding))
    left = [(n - k) % s for n, k, s in zip(x.roots.shape[2:], sizes, strides, strict=True)]
    if any(paddings) or (ceil and any(left)):
        raise UnsupportedLayerError("pooling of squares with patches that lie in the padding or outside")
    patches = x.roots.places.unfold(2, sizes[0], strides[0]).unfold(3, sizes[1], strides[1])
    count = math.prod(sizes)
    shape = tuple(patches.shape[:4])
    return Squares(View(patches.reshape(*shape, count)), shape, x.factor / count)


def _with_axis(graph: Graph, x: Squares, name: str) -> View:
    """What is squared, with the axis that is summed, scaled so that the factor is 1."""
    roots = x.roots if x.shape is not None else x.roots.map(lambda places: places.unsqueeze(-1))
    if x.shape is not None:
        summed, shape = roots.shape[-1], x.shape
        roots = roots.map(lambda places: places.reshape(*shape, summed))
    if x.factor == 1:
        return roots
    return ex.multiplied(graph, roots, torch.tensor(math.sqrt(x.factor), dtype=torch.float64), name)
