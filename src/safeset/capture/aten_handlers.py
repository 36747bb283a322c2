"""What each of PyTorch's operations that compute something makes of values, by its name in ATen."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture import images, squares
from safeset.capture.aten_refusals import REFUSED, SQUARES
from safeset.capture.expressions import Absent, Squares, Value
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError
from safeset.program.activations import ELU, GELU, Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.entries import Clamp
from safeset.program.erf import Erf
from safeset.program.operation import Operation
from safeset.program.piecewise import Hardsigmoid, Hardswish, PReLU
from safeset.program.pointwise import Absolute, LeakyReLU, ReLU

SELU_ALPHA = 1.6732632423543772  # torch's own numbers
SELU_SCALE = 1.0507009873554805
PLACES = Absent("where values stand, or their statistics, jumps or is not computed: only values can be used")
Arguments = SimpleNamespace  # of a call, by their names in ATen's own signature
Handler = Callable[[Graph, Arguments, str], Any]


def _pointwise(makes: Callable[[Arguments], Operation]) -> Handler:
    def handler(graph: Graph, a: Arguments, name: str) -> View:
        return graph.add(makes(a), _view(a.input), name=name)

    return handler


def _add(graph: Graph, a: Arguments, name: str, sign: int = 1) -> Value | Squares:
    if sign == 1 and getattr(a, "alpha", 1) == 1 and (isinstance(a.input, Squares) or isinstance(a.other, Squares)):
        return squares.plus(graph, a.input, a.other, name)
    x, y = _value(a.input), _value(a.other)
    alpha = getattr(a, "alpha", 1)
    if alpha != 1:
        y = y * alpha if isinstance(y, Tensor) else ex.multiplied(graph, y, _number(alpha), name)
    return ex.added(graph, x, y, name, sign=sign)


def _rsub(graph: Graph, a: Arguments, name: str) -> Value | Squares:
    return _add(graph, Arguments(input=a.other, other=a.input, alpha=getattr(a, "alpha", 1)), name, -1)


def _lerp(graph: Graph, a: Arguments, name: str) -> Value:
    weight = _value(a.weight)
    if not isinstance(weight, Tensor):
        raise UnsupportedLayerError("a mixture whose weights depend on the input has no Lipschitz constant")
    first, second = ex.multiplied(graph, a.input, 1 - weight, name), ex.multiplied(graph, a.end, weight, name)
    return ex.added(graph, first, second, name)


def _add_product(graph: Graph, a: Arguments, name: str) -> Value:
    product = ex.multiplied(graph, _value(a.tensor1), _value(a.tensor2), name)
    product = product if a.value == 1 else ex.multiplied(graph, product, _number(a.value), name)
    return ex.added(graph, _value(a.input), product, name)


def _div(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if getattr(a, "rounding_mode", None) is not None:
        raise UnsupportedLayerError(REFUSED["round"])
    if isinstance(a.input, Squares) and not isinstance(a.other, View | Squares):
        return squares.times(graph, a.input, 1 / a.other, name)
    return ex.divided(graph, _value(a.input), _value(a.other), name)


def _cumulative(graph: Graph, a: Arguments, name: str) -> View:
    x, axis = _view(a.input), a.dim % len(a.input.shape)
    if axis == 0:
        raise UnsupportedLayerError("a sum over points of a batch: each must be computed alone")
    ones = torch.ones(x.shape[axis], x.shape[axis], dtype=torch.float64, device=graph.device)
    return ex.along(graph, x, ones.tril(), axis, name)


def _same_squares(otherwise: Handler) -> Handler:
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
    x, y = _value(a.input), _value(a.other)
    if isinstance(x, View) and isinstance(y, View) and x.shape == y.shape and graph.is_same(x, y):
        return ex.squared(graph, x)
    return ex.multiplied(graph, x, y, name)


def _pow(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if a.exponent == 2 and isinstance(a.input, View):
        return ex.squared(graph, a.input)
    if a.exponent == 0.5:
        return ex.rooted(graph, a.input, name)
    if a.exponent == 1:
        return _view(a.input)
    raise UnsupportedLayerError(REFUSED["pow"])


def _reduced(graph: Graph, a: Arguments, name: str, *, mean: bool) -> View | Squares:
    if getattr(a, "dtype", None) not in (None, torch.float64):
        raise UnsupportedLayerError(f"a sum in {a.dtype}")
    x = a.input if isinstance(a.input, Squares) else _view(a.input)
    return ex.summed(graph, x, _axes(a), bool(getattr(a, "keepdim", False)), name, mean=mean)


def _extreme(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    if hasattr(a, "other"):
        return ex.larger(graph, _value(a.input), _value(a.other), name, smaller=least)
    return ex.greatest(graph, _view(a.input), _axes(a), bool(getattr(a, "keepdim", False)), name, least=least)


def _extreme_with_place(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    found = _extreme(graph, a, name, least=least)
    return found if hasattr(a, "other") or not hasattr(a, "dim") else (found, PLACES)


def _norm(graph: Graph, a: Arguments, name: str) -> View:
    order = getattr(a, "ord", getattr(a, "p", 2))
    if order is None or float(order) != 2:
        raise UnsupportedLayerError(f"a norm of order {order}: only that of order 2 is supported")
    return ex.root_of_squares(graph, _view(a.input), _axes(a), bool(getattr(a, "keepdim", False)), name)


def _sort(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent]:
    axis, descending = getattr(a, "dim", -1), bool(getattr(a, "descending", False))
    return ex.ordered(graph, _view(a.input), axis, descending, name), PLACES


def _linear(graph: Graph, a: Arguments, name: str) -> View:
    if not isinstance(a.weight, Tensor) or isinstance(a.bias, View):
        raise UnsupportedLayerError(REFUSED["bmm"])
    return ex.dense(graph, _view(a.input), a.weight, a.bias, name)


def _matmul(graph: Graph, a: Arguments, name: str) -> View:
    second = next(vars(a)[key] for key in ("other", "mat2", "vec") if key in vars(a))
    return ex.matrix_product(graph, a.input, second, name)


def _addmm(graph: Graph, a: Arguments, name: str) -> Value:
    product: Value = ex.matrix_product(graph, a.mat1, a.mat2, name)
    product = product if a.alpha == 1 else ex.multiplied(graph, product, _number(a.alpha), name)
    term = _value(a.input)
    if a.beta != 1:
        term = term * a.beta if isinstance(term, Tensor) else ex.multiplied(graph, term, _number(a.beta), name)
    return ex.added(graph, product, term, name)


def _conv(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "transposed", False):
        raise UnsupportedLayerError("transposed convolutions are not supported: use upsampling and a convolution")
    axes = a.weight.ndim - 2 if isinstance(a.weight, Tensor) else 2
    stride, dilation = (_list(each, axes) for each in (a.stride, a.dilation))
    padding = a.padding if isinstance(a.padding, str) else _list(a.padding, axes)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": a.groups}
    return images.convolved(graph, _view(a.input), a.weight, a.bias, **settings, name=name)


def _batch_norm(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "training", False):
        raise UnsupportedLayerError("batch norm with the statistics of the batch mixes its points: call .eval()")
    tensors = (a.weight, a.bias, a.running_mean, a.running_var)
    return images.normalised(graph, _view(a.input), *tensors, a.eps, name)


def _native_batch_norm(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent, Absent]:
    return _batch_norm(graph, a, name), PLACES, PLACES


def _max_pool(graph: Graph, a: Arguments, name: str) -> View:
    return images.max_pooled(
        graph,
        _view(a.input),
        size=a.kernel_size,
        stride=a.stride,
        padding=a.padding,
        dilation=a.dilation,
        ceil=bool(a.ceil_mode),
        name=name,
    )


def _average_pool(graph: Graph, a: Arguments, name: str) -> View | Squares:
    if isinstance(a.input, Squares) and getattr(a, "divisor_override", None) is None:
        return squares.pooled(a.input, a.kernel_size, a.stride, a.padding, bool(a.ceil_mode))
    return images.average_pooled(
        graph,
        _view(a.input),
        size=a.kernel_size,
        stride=a.stride,
        padding=a.padding,
        ceil=bool(a.ceil_mode),
        padding_counts=bool(a.count_include_pad),
        divisor=getattr(a, "divisor_override", None),
        name=name,
    )


def _adaptive_max(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent]:
    x = _view(a.input)
    lengths = x.shape[-len(a.output_size) :]
    if any(n % out for n, out in zip(lengths, a.output_size, strict=True)):
        raise UnsupportedLayerError("adaptive max-pooling with parts that overlap")
    size = [n // out for n, out in zip(lengths, a.output_size, strict=True)]
    settings = {"size": size, "stride": size, "padding": [0] * len(size), "dilation": [1] * len(size)}
    return images.max_pooled(graph, x, **settings, ceil=False, name=name), PLACES


def _adaptive_average(graph: Graph, a: Arguments, name: str) -> View:
    return images.adaptively_averaged(graph, _view(a.input), a.output_size, name)


def _elu(graph: Graph, a: Arguments, name: str) -> View:
    alpha, scale, rate = (float(getattr(a, key, 1.0)) for key in ("alpha", "scale", "input_scale"))
    return graph.add(ELU(alpha, scale, rate), _view(a.input), name=name)


def _prelu(graph: Graph, a: Arguments, name: str) -> View:
    x = _view(a.input)
    return graph.add(PReLU(a.weight.detach().double().reshape(-1)), x, name=name)


def _gelu(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(GELU(str(a.approximate)), _view(a.input), name=name)


def _clamp(graph: Graph, a: Arguments, name: str) -> View:
    found = _view(a.input)
    for end, smaller in ((getattr(a, "min", None), False), (getattr(a, "max", None), True)):
        if isinstance(end, Tensor | View):
            found = ex.larger(graph, found, end, name, smaller=smaller)
        elif end is not None:
            found = graph.add(Clamp(None, float(end)) if smaller else Clamp(float(end), None), found, name=name)
    return found


def _hardtanh(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(Clamp(float(a.min_val), float(a.max_val)), _view(a.input), name=name)


HANDLERS: dict[str, Handler] = {
    "add": _add,
    "sub": lambda graph, a, name: _add(graph, a, name, -1),
    "subtract": lambda graph, a, name: _add(graph, a, name, -1),
    "rsub": _rsub,
    "neg": lambda graph, a, name: ex.negated(graph, _view(a.input), name),
    "mul": _mul,
    "multiply": _mul,
    "square": lambda graph, a, name: ex.squared(graph, _view(a.input)),
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
    "amax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "amin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "max": lambda graph, a, name: _extreme_with_place(graph, a, name, least=False),
    "min": lambda graph, a, name: _extreme_with_place(graph, a, name, least=True),
    "maximum": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "minimum": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "fmax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "fmin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "linalg_vector_norm": _norm,
    "norm": _norm,
    "sort": _sort,
    "msort": lambda graph, a, name: ex.ordered(graph, _view(a.input), 0, False, name),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "einsum": lambda graph, a, name: ex.contracted(graph, a.equation, a.tensors, name),
    "conv1d": _conv,
    "conv2d": _conv,
    "convolution": _conv,
    "batch_norm": _batch_norm,
    "_native_batch_norm_legit_no_training": _native_batch_norm,
    "max_pool1d": _max_pool,
    "max_pool2d": _max_pool,
    "max_pool2d_with_indices": lambda graph, a, name: (_max_pool(graph, a, name), PLACES),
    "avg_pool1d": _average_pool,
    "avg_pool2d": _average_pool,
    "adaptive_avg_pool1d": _adaptive_average,
    "adaptive_avg_pool2d": _adaptive_average,
    "_adaptive_avg_pool2d": _adaptive_average,
    "adaptive_max_pool1d": _adaptive_max,
    "adaptive_max_pool2d": _adaptive_max,
    "relu": _same_squares(_pointwise(lambda a: ReLU())),
    "relu6": _pointwise(lambda a: Clamp(0.0, 6.0)),
    "abs": _same_squares(_pointwise(lambda a: Absolute())),
    "leaky_relu": _pointwise(lambda a: LeakyReLU(float(a.negative_slope))),
    "prelu": _prelu,
    "_prelu_kernel": _prelu,
    "clamp": _clamp,
    "clip": _clamp,
    "clamp_min": _clamp,
    "clamp_max": _clamp,
    "hardtanh": _hardtanh,
    "tanh": _pointwise(lambda a: Tanh()),
    "sigmoid": _pointwise(lambda a: Sigmoid()),
    "erf": _pointwise(lambda a: Erf()),
    "softplus": _pointwise(lambda a: Softplus(float(a.beta), float(a.threshold))),
    "elu": _elu,
    "selu": lambda graph, a, name: graph.add(ELU(SELU_ALPHA, SELU_SCALE, 1.0), _view(a.input), name=name),
    "celu": lambda graph, a, name: graph.add(ELU(float(a.alpha), 1.0, 1.0 / float(a.alpha)), _view(a.input), name=name),
    "silu": _pointwise(lambda a: SiLU()),
    "gelu": _gelu,
    "mish": _pointwise(lambda a: Mish()),
    "hardswish": _pointwise(lambda a: Hardswish()),
    "hardsigmoid": _pointwise(lambda a: Hardsigmoid()),
}


def _view(value: Any) -> View:
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if not isinstance(value, View):
        raise UnsupportedLayerError(f"a value that depends on the input where {type(value).__name__} stands")
    return value


def _value(value: Any) -> Value:
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    return value if isinstance(value, View | Tensor) else _number(value)


def _number(number: Any) -> Tensor:
    return torch.tensor(float(number), dtype=torch.float64)


def _axes(a: Arguments) -> list[int]:
    given = getattr(a, "dim", None)
    return [] if given is None else [given] if isinstance(given, int) else list(given)


def _list(value: Any, count: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * count if len(numbers) == 1 else numbers
