"""What each of PyTorch's operations that compute something makes of values, by its name in ATen."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture import images, squares
from safeset.capture.aten_arithmetic import (
    ARITHMETIC,
    Arguments,
    Handler,
    axes_of,
    number_of,
    unless_squares,
    value_of,
    view_of,
)
from safeset.capture.aten_refusals import REFUSED
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


def _pointwise(makes: Callable[[Arguments], Operation]) -> Handler:
    def handler(graph: Graph, a: Arguments, name: str) -> View:
        return graph.add(makes(a), view_of(a.input), name=name)

    return handler


def _extreme(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    if hasattr(a, "other"):
        return ex.larger(graph, value_of(a.input), value_of(a.other), name, smaller=least)
    return ex.greatest(graph, view_of(a.input), axes_of(a), bool(getattr(a, "keepdim", False)), name, least=least)


def _extreme_with_place(graph: Graph, a: Arguments, name: str, *, least: bool) -> Any:
    found = _extreme(graph, a, name, least=least)
    return found if hasattr(a, "other") or not hasattr(a, "dim") else (found, PLACES)


def _norm(graph: Graph, a: Arguments, name: str) -> View:
    order = getattr(a, "ord", getattr(a, "p", 2))
    if order is None or float(order) != 2:
        raise UnsupportedLayerError(f"a norm of order {order}: only that of order 2 is supported")
    return ex.root_of_squares(graph, view_of(a.input), axes_of(a), bool(getattr(a, "keepdim", False)), name)


def _linalg_norm(graph: Graph, a: Arguments, name: str) -> View:
    if a.ord is not None and len(axes_of(a)) != 1:
        raise UnsupportedLayerError("a norm of a matrix: only that of vectors is supported, x.norm(dim=…)")
    a.ord = 2 if a.ord is None else a.ord
    return _norm(graph, a, name)


def _sort(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent]:
    axis, descending = getattr(a, "dim", -1), bool(getattr(a, "descending", False))
    return ex.ordered(graph, view_of(a.input), axis, descending, name), PLACES


def _topk(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent]:
    if not a.sorted:
        raise UnsupportedLayerError("topk without sorted=True, whose order is not defined")
    found, places = _sort(graph, Arguments(input=a.input, dim=a.dim, descending=a.largest), name)
    return found.map(lambda entries: entries.narrow(a.dim, 0, a.k)), places


def _threshold(graph: Graph, a: Arguments, name: str) -> View:
    if not a.threshold == a.value == 0:
        raise UnsupportedLayerError(REFUSED["threshold"])
    return graph.add(ReLU(), view_of(a.input), name=name)


def _linear(graph: Graph, a: Arguments, name: str) -> View:
    if not isinstance(a.weight, Tensor) or isinstance(a.bias, View):
        raise UnsupportedLayerError(REFUSED["bmm"])
    return ex.dense(graph, view_of(a.input), a.weight, a.bias, name)


def _matmul(graph: Graph, a: Arguments, name: str) -> View:
    second = next(vars(a)[key] for key in ("other", "mat2", "vec") if key in vars(a))
    return ex.matrix_product(graph, a.input, second, name)


def _addmm(graph: Graph, a: Arguments, name: str) -> Value:
    product: Value = ex.matrix_product(graph, a.mat1, a.mat2, name)
    product = product if a.alpha == 1 else ex.multiplied(graph, product, number_of(a.alpha), name)
    term = value_of(a.input)
    if a.beta != 1:
        term = term * a.beta if isinstance(term, Tensor) else ex.multiplied(graph, term, number_of(a.beta), name)
    return ex.added(graph, product, term, name)


def _conv(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "transposed", False):
        return _conv_transpose(graph, a, name)
    axes = a.weight.ndim - 2 if isinstance(a.weight, Tensor) else 2
    stride, dilation = (_list(each, axes) for each in (a.stride, a.dilation))
    padding = a.padding if isinstance(a.padding, str) else _list(a.padding, axes)
    settings = {"stride": stride, "padding": padding, "dilation": dilation, "groups": a.groups}
    return images.convolved(graph, view_of(a.input), a.weight, a.bias, **settings, name=name)


def _conv_transpose(graph: Graph, a: Arguments, name: str) -> View:
    stride, padding, more, dilation = (_list(each, 2) for each in (a.stride, a.padding, a.output_padding, a.dilation))
    settings = {"stride": stride, "padding": padding, "more": more, "dilation": dilation, "groups": a.groups}
    return images.convolved_backwards(graph, view_of(a.input), a.weight, a.bias, **settings, name=name)


def _batch_norm(graph: Graph, a: Arguments, name: str) -> View:
    if getattr(a, "training", False):
        raise UnsupportedLayerError("batch norm with the statistics of the batch mixes its points: call .eval()")
    tensors = (a.weight, a.bias, a.running_mean, a.running_var)
    return images.normalised(graph, view_of(a.input), *tensors, a.eps, name)


def _native_batch_norm(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent, Absent]:
    return _batch_norm(graph, a, name), PLACES, PLACES


def _max_pool(graph: Graph, a: Arguments, name: str) -> View:
    return images.max_pooled(
        graph,
        view_of(a.input),
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
        view_of(a.input),
        size=a.kernel_size,
        stride=a.stride,
        padding=a.padding,
        ceil=bool(a.ceil_mode),
        padding_counts=bool(a.count_include_pad),
        divisor=getattr(a, "divisor_override", None),
        name=name,
    )


def _adaptive_max(graph: Graph, a: Arguments, name: str) -> tuple[View, Absent]:
    x = view_of(a.input)
    lengths = x.shape[-len(a.output_size) :]
    if any(n % out for n, out in zip(lengths, a.output_size, strict=True)):
        raise UnsupportedLayerError("adaptive max-pooling with parts that overlap")
    size = [n // out for n, out in zip(lengths, a.output_size, strict=True)]
    settings = {"size": size, "stride": size, "padding": [0] * len(size), "dilation": [1] * len(size)}
    return images.max_pooled(graph, x, **settings, ceil=False, name=name), PLACES


def _adaptive_average(graph: Graph, a: Arguments, name: str) -> View:
    return images.adaptively_averaged(graph, view_of(a.input), a.output_size, name)


def _elu(graph: Graph, a: Arguments, name: str) -> View:
    alpha, scale, rate = (float(getattr(a, key, 1.0)) for key in ("alpha", "scale", "input_scale"))
    return graph.add(ELU(alpha, scale, rate), view_of(a.input), name=name)


def _prelu(graph: Graph, a: Arguments, name: str) -> View:
    x = view_of(a.input)
    return graph.add(PReLU(a.weight.detach().double().reshape(-1)), x, name=name)


def _gelu(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(GELU(str(a.approximate)), view_of(a.input), name=name)


def _clamp(graph: Graph, a: Arguments, name: str) -> View:
    found = view_of(a.input)
    for end, smaller in ((getattr(a, "min", None), False), (getattr(a, "max", None), True)):
        if end is not None:
            given = end if isinstance(end, Tensor | View) else torch.tensor(float(end), dtype=torch.float64)
            found = ex.larger(graph, found, given, name, smaller=smaller)
    return found


def _hardtanh(graph: Graph, a: Arguments, name: str) -> View:
    return graph.add(Clamp(float(a.min_val), float(a.max_val)), view_of(a.input), name=name)


HANDLERS: dict[str, Handler] = {
    **ARITHMETIC,
    "amax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "amin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "max": lambda graph, a, name: _extreme_with_place(graph, a, name, least=False),
    "min": lambda graph, a, name: _extreme_with_place(graph, a, name, least=True),
    "maximum": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "minimum": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "fmax": lambda graph, a, name: _extreme(graph, a, name, least=False),
    "fmin": lambda graph, a, name: _extreme(graph, a, name, least=True),
    "linalg_vector_norm": _norm,
    "linalg_norm": _linalg_norm,
    "norm": _norm,
    "sort": _sort,
    "topk": _topk,
    "msort": lambda graph, a, name: ex.ordered(graph, view_of(a.input), 0, False, name),
    "linear": _linear,
    "matmul": _matmul,
    "mm": _matmul,
    "mv": _matmul,
    "addmm": _addmm,
    "einsum": lambda graph, a, name: ex.contracted(graph, a.equation, a.tensors, name),
    "conv1d": _conv,
    "conv2d": _conv,
    "convolution": _conv,
    "conv_transpose2d": _conv_transpose,
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
    "relu": unless_squares(_pointwise(lambda a: ReLU())),
    "relu6": _pointwise(lambda a: Clamp(0.0, 6.0)),
    "threshold": _threshold,
    "abs": unless_squares(_pointwise(lambda a: Absolute())),
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
    "selu": _pointwise(lambda a: ELU(SELU_ALPHA, SELU_SCALE, 1.0)),
    "celu": lambda graph, a, name: graph.add(
        ELU(float(a.alpha), 1.0, 1.0 / float(a.alpha)), view_of(a.input), name=name
    ),
    "silu": _pointwise(lambda a: SiLU()),
    "gelu": _gelu,
    "mish": _pointwise(lambda a: Mish()),
    "hardswish": _pointwise(lambda a: Hardswish()),
    "hardsigmoid": _pointwise(lambda a: Hardsigmoid()),
}


def _list(value: Any, count: int) -> list[int]:
    numbers = [value] if isinstance(value, int) else list(value)
    return numbers * count if len(numbers) == 1 else numbers
