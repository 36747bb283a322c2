"""What networks compute of values, whoever wrote them: sums, products with constants, reductions, maxima.

A value is a view of nodes or a constant tensor. What has no Lipschitz constant is refused with a reason, to which a
reader of modules or files adds the place.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.capture.aten_refusals import GATES
from safeset.capture.extremes import Extreme, extreme
from safeset.capture.gates import gated, multiple
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.l2_pool import RootOfSquares
from safeset.program.linear import Linear
from safeset.program.operation import Operation
from safeset.program.pointwise import MinMax, ReLU
from safeset.program.sorting import Greatest, GroupSort, Least

Value = View | Tensor
FIXED = "FixedLinear"  # the type of matrices that an operation makes itself, as a mean does: nothing trains them


@dataclass(frozen=True, eq=False)
class Squares:
    """Squares, or sums of squares along the last axis: they have no Lipschitz constant, but the root of a sum has one.

    Attributes:
        roots: what is squared.
        shape: of the sums; None if nothing has been summed yet.
        factor: of the sums, 1 / n for means.
    """

    roots: View
    shape: tuple[int, ...] | None = None
    factor: float = 1.0


@dataclass(frozen=True)
class Absent:
    """What an operation gives beside its values, and nothing may use."""

    reason: str


# -- sums and products ------------------------------------------------------------------------------------------------


def added(graph: Graph, x: Value, y: Value, name: str, *, sign: int = 1) -> Value:
    """X + y, or x − y."""
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return x + sign * y
    if isinstance(x, View) and isinstance(y, View):
        x, y = _together(x, y)
        found = extreme(graph, [(x, 1), (y, sign)])
        return graph.total((x, y), (1, sign), name=name) if found is None else _extreme(graph, found, x, name)
    if isinstance(x, View):
        assert isinstance(y, Tensor)
        return _shifted(graph, x, sign * y.double(), name)
    assert isinstance(y, View)
    return _shifted(graph, y if sign > 0 else negated(graph, y, name), x.double(), name)


def negated(graph: Graph, x: View, name: str) -> View:
    """−x; of a negative what it is the negative of."""
    positive = _unnegated(graph, x)
    return positive if positive is not None else multiplied(graph, x, torch.tensor(-1.0, dtype=torch.float64), name)


def multiplied(graph: Graph, x: Value, y: Value, name: str) -> View:
    """The product with a constant; x·sigmoid(x) is SiLU, and x·½(1 + erf(x/√2)) is GELU: see `gated`."""
    if isinstance(x, View) and isinstance(y, View):
        return _product(graph, x, y, name)
    value, constant = (x, y) if isinstance(x, View) else (y, x)
    assert isinstance(value, View)
    assert isinstance(constant, Tensor)
    _check_finite(constant)
    found = extreme(graph, [(value, float(constant))]) if constant.numel() == 1 else None
    if found is not None and constant.ndim <= len(value.shape):
        return _extreme(graph, found, value, name)
    return _with(graph, value, constant.double(), name, Scale)


def divided(graph: Graph, x: Value, y: Value, name: str) -> View:
    """The quotient by a constant."""
    if not isinstance(x, View) or not isinstance(y, Tensor):
        raise UnsupportedLayerError("a quotient by something that depends on the input has no Lipschitz constant")
    if not bool((y != 0).all()):
        raise UnsupportedLayerError("a quotient by 0 is not finite")
    return multiplied(graph, x, 1 / y.double(), name)


def _shifted(graph: Graph, x: View, constant: Tensor, name: str) -> View:
    return _with(graph, x, constant, name, Shift)


def _with(graph: Graph, x: View, constant: Tensor, name: str, makes: Callable[[Tensor], Operation]) -> View:
    """An operation with a constant for each entry; the value is repeated where the constant is larger."""
    _check_finite(constant)
    shape = torch.broadcast_shapes(x.shape, constant.shape)  # type: ignore[no-untyped-call]
    x = x.map(lambda places: places.expand(shape))
    constant = constant.reshape((1,) * (len(shape) - constant.ndim) + tuple(constant.shape))
    if constant.shape[0] != 1 and not bool((constant == constant[:1]).all()):
        raise UnsupportedLayerError(
            "a constant with numbers of its own for each point of a batch treats them differently"
        )
    return graph.add(makes(constant[0].contiguous().to(graph.device)), x, name=name)


def _extreme(graph: Graph, found: Extreme, like: View, name: str) -> View:
    """The larger or the smaller of two values, as which a sum was recognised."""
    first, second = (each.map(lambda places: places.reshape(like.shape)) for each in (found.first, found.second))
    return larger(graph, first, second, name, smaller=found.smaller, factor=found.factor)


def _unnegated(graph: Graph, value: View) -> View | None:
    """What a value is the negative of, if it is just that."""
    found = multiple(graph, value)
    if found is None or found.number != -1 or found.is_trained:  # what training changes is no sign
        return None
    return found.value.map(lambda places: places.reshape(value.shape))


def _together(x: View, y: View) -> tuple[View, View]:
    """Both in the shape that they have together, as torch broadcasts."""
    places = torch.broadcast_tensors(x.places, y.places)  # type: ignore[no-untyped-call]
    return View(places[0]), View(places[1])


def _product(graph: Graph, x: View, y: View, name: str) -> View:
    """Products of two values that have a Lipschitz constant all the same."""
    for value, factor in ((x, y), (y, x)):
        found = gated(graph, value, factor)
        if found is not None:
            graph.is_trained |= found.is_trained
            argument = found.value.map(lambda places: places.reshape(value.shape))  # noqa: B023 (called at once)
            entering = _times(graph, argument, found.before, name)
            return _times(graph, graph.add(found.activation, entering, name=name), found.after, name)
    raise UnsupportedLayerError(GATES)


def _times(graph: Graph, value: View, number: float, name: str) -> View:
    """A value times one number."""
    return value if number == 1 else multiplied(graph, value, torch.tensor(number, dtype=torch.float64), name)


# -- matrices ---------------------------------------------------------------------------------------------------------


def dense(graph: Graph, x: View, weight: Tensor, bias: Tensor | None, name: str, kind: str = "") -> View:
    """Wx + b along the last axis; weight (out, in)."""
    weight, bias = _constant(weight), None if bias is None else _constant(bias)
    if weight.ndim != 2 or len(x.shape) < 2 or weight.shape[1] != x.shape[-1]:
        raise UnsupportedLayerError(f"a matrix of shape {tuple(weight.shape)} for values of shape {x.shape}")
    if bias is not None and bias.shape != weight.shape[:1]:
        return _shifted(graph, dense(graph, x, weight, None, name, kind), bias, name)
    return graph.add(Linear(weight.contiguous(), bias), x, name=name, kind=kind)


def matrix_product(graph: Graph, x: Value, y: Value, name: str) -> View:
    """X @ y, one of them constant."""
    if isinstance(x, View) and isinstance(y, Tensor) and y.ndim == 2:
        return dense(graph, x, y.mT, None, name)
    if isinstance(x, View) and isinstance(y, Tensor) and y.ndim == 1:
        return dense(graph, x, y[None], None, name).map(lambda places: places.squeeze(-1))
    if isinstance(x, Tensor) and x.ndim == 2 and isinstance(y, View) and len(y.shape) > 2:
        return dense(graph, y.map(lambda places: places.mT), x, None, name).map(lambda places: places.mT)
    raise UnsupportedLayerError(
        "a product of two values that both depend on the input, as in attention, has no Lipschitz constant"
        if isinstance(x, View) and isinstance(y, View)
        else "a product with constants that are no matrix, or that mix the points of a batch"
    )


def contracted(graph: Graph, equation: str, operands: Sequence[Value], name: str) -> View:
    """A sum of products as `torch.einsum` writes it, of one value and one constant that share only what is summed."""
    inputs, arrow, result = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    kinds = [isinstance(each, View) for each in operands]
    if "." in equation or not arrow or sorted(kinds) != [False, True] or len(terms) != 2:
        raise UnsupportedLayerError("sums of products other than of one value and one constant, with an arrow")
    first, second = zip(operands, terms, strict=True)
    (value, letters), (constant, others) = (first, second) if kinds[0] else (second, first)
    summed_over = [each for each in letters if each in others]
    free, new = ([each for each in term if each not in summed_over] for term in (letters, others))
    repeated = any(len(set(term)) < len(term) for term in (letters, others, result))
    if repeated or sorted(result) != sorted([*free, *new]) or letters[0] not in free:
        raise UnsupportedLayerError("sums of products in which a letter is more than a sum or a place")
    assert isinstance(value, View)
    assert isinstance(constant, Tensor)
    sizes = dict(zip(letters, value.shape, strict=True)) | dict(zip(others, constant.shape, strict=True))
    count = math.prod(sizes[each] for each in summed_over)
    moved = value.places.permute([letters.index(each) for each in (*free, *summed_over)])
    matrix = constant.permute([others.index(each) for each in (*new, *summed_over)]).reshape(-1, count)
    found = dense(graph, View(moved.reshape(*(sizes[each] for each in free), count)), matrix, None, name)
    places = found.places.reshape([sizes[each] for each in (*free, *new)])
    return View(places.permute([[*free, *new].index(each) for each in result]))


def along(graph: Graph, x: View, matrix: Tensor, axis: int, name: str) -> View:
    """A matrix that nothing trains along one axis of the points: (out, in)."""
    moved = x.map(lambda places: places.movedim(axis, -1))
    return dense(graph, moved, matrix, None, name, FIXED).map(lambda places: places.movedim(-1, axis))


# -- reductions -------------------------------------------------------------------------------------------------------


def squared(graph: Graph, x: View) -> Squares:
    """x², to be summed."""
    return Squares(x)


def summed(
    graph: Graph, x: View | Squares, axes: Sequence[int], keep: bool, name: str, *, mean: bool = False
) -> View | Squares:
    """Sums, or means, over axes of the points."""
    if isinstance(x, Squares) and x.shape is not None:
        raise UnsupportedLayerError("a sum of squares that is summed again")
    grouped, shape = _grouped(x.roots if isinstance(x, Squares) else x, axes, keep)
    count = grouped.shape[-1]
    if isinstance(x, Squares):
        return Squares(grouped, shape, x.factor / count if mean else x.factor)
    row = torch.full((1, count), 1.0 / count if mean else 1.0, dtype=torch.float64, device=graph.device)
    return dense(graph, grouped, row, None, name, FIXED).map(lambda places: places.reshape(shape))


def rooted(graph: Graph, x: Value | Squares, name: str) -> View:
    """√ of a sum or a mean of squares."""
    if not isinstance(x, Squares) or x.shape is None:
        raise UnsupportedLayerError("a root is infinitely steep at 0, unless it is that of a sum of squares")
    shape, factor = x.shape, math.sqrt(x.factor)
    found = graph.add(RootOfSquares(), x.roots, name=name).map(lambda places: places.reshape(shape))
    return found if factor == 1 else multiplied(graph, found, torch.tensor(factor, dtype=torch.float64), name)


def root_of_squares(graph: Graph, x: View, axes: Sequence[int], keep: bool, name: str) -> View:
    """√Σ x² over axes of the points."""
    grouped, shape = _grouped(x, axes, keep)
    return graph.add(RootOfSquares(), grouped, name=name).map(lambda places: places.reshape(shape))


def greatest(graph: Graph, x: View, axes: Sequence[int], keep: bool, name: str, *, least: bool = False) -> View:
    """Maxima, or minima, over axes of the points."""
    grouped, shape = _grouped(x, axes, keep)
    if grouped.shape[-1] == 2:  # the larger and the smaller of the same pairs are one node
        first, second = (View(grouped.places[..., each]) for each in (0, 1))
        return larger(graph, first, second, name, smaller=least).map(lambda places: places.reshape(shape))
    return graph.add(Least() if least else Greatest(), grouped, name=name).map(lambda places: places.reshape(shape))


def ordered(graph: Graph, x: View, axis: int, descending: bool, name: str) -> View:
    """Sorted along one axis of the points."""
    _check_axes([axis % len(x.shape)])
    moved = x.map(lambda places: places.movedim(axis, -1))
    found = graph.add(GroupSort(moved.shape[-1], descending), moved, name=name)
    return found.map(lambda places: places.movedim(-1, axis))


def _grouped(x: View, axes: Sequence[int], keep: bool) -> tuple[View, tuple[int, ...]]:
    """The axes that are reduced, together as the last one; and the shape of what is left."""
    dimensions = len(x.shape)
    reduced = sorted({axis % dimensions for axis in axes} or range(dimensions))
    _check_axes(reduced)
    kept = [axis for axis in range(dimensions) if axis not in reduced]
    shape = [1 if axis in reduced else x.shape[axis] for axis in range(dimensions) if keep or axis not in reduced]
    count = math.prod(x.shape[axis] for axis in reduced)
    lengths = [x.shape[axis] for axis in kept] + [1] * (len(kept) == 1)  # a point keeps an axis
    return View(x.places.permute(*kept, *reduced).reshape(*lengths, count)), tuple(shape)


def _check_axes(axes: Sequence[int]) -> None:
    if 0 in axes:
        raise UnsupportedLayerError("something over all points of a batch: each must be computed alone")


# -- maxima -----------------------------------------------------------------------------------------------------------


def larger(graph: Graph, x: Value, y: Value, name: str, *, smaller: bool = False, factor: float = 1.0) -> View:
    """The larger, or the smaller, of two values, entry by entry; both of the same two are one node.

    Of two values that depend on the input it is multiplied by a factor, both at once.
    """
    if isinstance(x, View) and isinstance(y, View):
        one, other = _unnegated(graph, x), _unnegated(graph, y)
        if one is not None and other is not None:  # max(−x, −y) is −min(x, y)
            return larger(graph, one, other, name, smaller=not smaller, factor=-factor)
        first, second = _together(x, y)
        if float(first.places.reshape(-1)[0]) > float(second.places.reshape(-1)[0]):
            first, second = second, first  # so that max(x, y) and min(y, x) are of the same two
        pair = View(torch.stack([each.places.reshape(graph.points, -1) for each in (first, second)], dim=1))
        both = graph.add_once(MinMax(), pair, name=name)
        if factor != 1:
            scale = torch.full((1,) * len(both.point), factor, dtype=torch.float64, device=graph.device)
            both = graph.add_once(Scale(scale), both, name=name)
        return View(both.places[:, int(smaller)].reshape(first.shape))
    value, constant = (x, y) if isinstance(x, View) else (y, x)
    assert isinstance(value, View)
    assert isinstance(constant, Tensor)
    if constant.numel() == 1:
        end = float(constant)
        if end == 0 and not smaller:
            return graph.add(ReLU(), value, name=name)
        return graph.add(Clamp(None, end) if smaller else Clamp(end, None), value, name=name)
    sign = torch.tensor(-1.0 if smaller else 1.0, dtype=torch.float64)
    moved = multiplied(graph, _shifted(graph, value, -constant.double(), name), sign, name)
    bent = multiplied(graph, graph.add(ReLU(), moved, name=name), sign, name)
    return _shifted(graph, bent, constant.double(), name)


def _constant(numbers: Tensor) -> Tensor:
    numbers = numbers.detach().double()
    _check_finite(numbers)
    return numbers


def _check_finite(numbers: Tensor) -> None:
    if numbers.is_complex() or not bool(numbers.isfinite().all()):
        raise UnsupportedLayerError("constants that are NaN, infinite or complex")
