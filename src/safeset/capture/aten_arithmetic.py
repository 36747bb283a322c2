"""What PyTorch's sums, differences, products and means make of values, by their names in ATen."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture import squares
from safeset.capture.aten_refusals import REFUSED, SQUARES
from safeset.capture.expressions import Squares, Value
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError

Arguments = SimpleNamespace  # of a call, by their names in ATen's own signature
Handler = Callable[[Graph, Arguments, str], Any]

# -- arguments --------------------------------------------------------------------------------------------------------


def view_of(value: Any) -> View:
    """A value that depends on the input."""
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if not isinstance(value, View):
        raise UnsupportedLayerError(f"a value that depends on the input where {type(value).__name__} stands")
    return value


def value_of(value: Any) -> Value:
    """A value, or a constant as a tensor."""
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    return value if isinstance(value, View | Tensor) else number_of(value)


def number_of(number: Any) -> Tensor:
    """A number as a constant."""
    return torch.tensor(float(number), dtype=torch.float64)


def axes_of(a: Arguments) -> list[int]:
    """The axes of a reduction; none for all."""
    given = getattr(a, "dim", None)
    return [] if given is None else [given] if isinstance(given, int) else list(given)


# -- operations -------------------------------------------------------------------------------------------------------


def _add(graph: Graph, a: Arguments, name: str, sign: int = 1) -> Value | Squares:
    if sign == 1 and getattr(a, "alpha", 1) == 1 and (isinstance(a.input, Squares) or isinstance(a.other, Squares)):
        return squares.plus(graph, a.input, a.other, name)
    x, y = value_of(a.input), value_of(a.other)
    alpha = getattr(a, "alpha", 1)
    if alpha != 1:
        y = y * alpha if isinstance(y, Tensor) else ex.multiplied(graph, y, number_of(alpha), name)
    return ex.added(graph, x, y, name, sign=sign)


def _rsub(graph: Graph, a: Arguments, name: str) -> Value | Squares:
    return _add(graph, Arguments(input=a.other, other=a.input, alpha=getattr(a, "alpha", 1)), name, -1)


def _times(graph: Graph, x: Value, y: Value, name: str) -> Value:
    return x * y if isinstance(x, Tensor) and isinstance(y, Tensor) else ex.multiplied(graph, x, y, name)


def _lerp(graph: Graph, a: Arguments, name: str) -> Value:
    weight = value_of(a.weight)
    if not isinstance(weight, Tensor):
        raise UnsupportedLayerError("a mixture whose weights depend on the input has no Lipschitz constant")
    first, second = _times(graph, value_of(a.input), 1 - weight, name), _times(graph, value_of(a.end), weight, name)
    return ex.added(graph, first, second, name)


def _add_product(graph: Graph, a: Arguments, name: str) -> Value:
    product = _times(graph, value_of(a.tensor1), value_of(a.tensor2), name)
    product = product if a.value == 1 else _times(graph, product, number_of(a.value), name)
    return ex.added(graph, value_of(a.input), product, name)


def _div(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if getattr(a, "rounding_mode", None) is not None:
        raise UnsupportedLayerError(REFUSED["round"])
    if isinstance(a.input, Squares) and not isinstance(a.other, View | Squares):
        return squares.times(graph, a.input, 1 / a.other, name)
    return ex.divided(graph, value_of(a.input), value_of(a.other), name)


def _cumulative(graph: Graph, a: Arguments, name: str) -> View:
    x, axis = view_of(a.input), a.dim % len(a.input.shape)
    if axis == 0:
        raise UnsupportedLayerError("a sum over points of a batch: each must be computed alone")
    ones = torch.ones(x.shape[axis], x.shape[axis], dtype=torch.float64, device=graph.device)
    return ex.along(graph, x, ones.tril(), axis, name)


def unless_squares(otherwise: Handler) -> Handler:
    """Squares as they are: they are ≥ 0."""

    def handler(graph: Graph, a: Arguments, name: str) -> Any:
        return a.input if isinstance(a.input, Squares) else otherwise(graph, a, name)

    return handler


def _sign(graph: Graph, a: Arguments, name: str) -> squares.Signs:
    if isinstance(a.input, Squares):
        return squares.Signs(a.input)
    raise UnsupportedLayerError(REFUSED["sign"])


def _mul(graph: Graph, a: Arguments, name: str) -> Value | Squares:
    for one, other in ((a.input, a.other), (a.other, a.input)):
        if isinstance(one, Squares):
            return squares.times(graph, one, other, name)
    x, y = value_of(a.input), value_of(a.other)
    if isinstance(x, View) and isinstance(y, View) and x.shape == y.shape and graph.is_same(x, y):
        return ex.squared(graph, x)
    return ex.multiplied(graph, x, y, name)


def _pow(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if a.exponent == 2 and isinstance(a.input, View):
        return ex.squared(graph, a.input)
    if a.exponent == 0.5:
        return ex.rooted(graph, a.input, name)
    if a.exponent == 1:
        return view_of(a.input)
    raise UnsupportedLayerError(REFUSED["pow"])


def _reduced(graph: Graph, a: Arguments, name: str, *, mean: bool) -> View | Squares:
    if getattr(a, "dtype", None) not in (None, torch.float64):
        raise UnsupportedLayerError(f"a sum in {a.dtype}")
    x = a.input if isinstance(a.input, Squares) else view_of(a.input)
    return ex.summed(graph, x, axes_of(a), bool(getattr(a, "keepdim", False)), name, mean=mean)


ARITHMETIC: dict[str, Handler] = {
    "add": _add,
    "sub": lambda graph, a, name: _add(graph, a, name, -1),
    "subtract": lambda graph, a, name: _add(graph, a, name, -1),
    "rsub": _rsub,
    "neg": lambda graph, a, name: ex.negated(graph, view_of(a.input), name),
    "mul": _mul,
    "multiply": _mul,
    "square": lambda graph, a, name: ex.squared(graph, view_of(a.input)),
    "div": _div,
    "divide": _div,
    "true_divide": _div,
    "lerp": _lerp,
    "addcmul": _add_product,
    "cumsum": _cumulative,
    "sign": _sign,
    "sgn": _sign,
    "pow": _pow,
    "sqrt": lambda graph, a, name: ex.rooted(graph, a.input, name),
    "sum": lambda graph, a, name: _reduced(graph, a, name, mean=False),
    "mean": lambda graph, a, name: _reduced(graph, a, name, mean=True),
}
