"""What each of ONNX's operations that compute something makes of values; of constants alone, the constants module."""

from collections.abc import Callable
from math import inf
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture.expressions import Squares, Value
from safeset.capture.graph import View
from safeset.capture.onnx_call import Call
from safeset.capture.onnx_choices import CHOICES
from safeset.capture.onnx_images import IMAGES
from safeset.errors import UnsupportedLayerError
from safeset.program.activations import ELU, GELU, Mish, Sigmoid, Softplus, Tanh
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.erf import Erf
from safeset.program.linear import Linear
from safeset.program.operation import Operation
from safeset.program.piecewise import Hardswish, PReLU
from safeset.program.pointwise import Absolute, LeakyReLU, ReLU

SMOOTH = 40.0  # where softplus is x in float64, so that torch's jump to x is less than its rounding
# ONNX's own numbers, which are float32.
SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875
LEAKY, HARD = 0.00999999977648258209228515625, 0.20000000298023223876953125
Handler = Callable[[Call], Any]


def _pointwise(makes: Callable[[Call], Operation]) -> Handler:
    return lambda call: call.graph.add(makes(call), call.view(), name=call.name)


# -- sums and products ------------------------------------------------------------------------------------------------


def _pair(call: Call) -> tuple[Value, Value]:
    x, y = call.value(0), call.value(1)
    _spend_together(call, x, y)
    first, second = call.frame.aligned(x, y)
    return first, second


def _spend_together(call: Call, *values: Value) -> None:
    call.frame.spend(torch.broadcast_shapes(*(call.frame.shape(value) for value in values)))  # type: ignore[no-untyped-call]


def _add(call: Call, sign: int = 1) -> Value:
    x, y = _pair(call)
    for value, constant in ((x, y), (y, x)):
        if sign == 1 and isinstance(value, View) and isinstance(constant, Tensor):
            biased = _biased(call, value, constant)
            if biased is not None:
                return biased
    return ex.added(call.graph, x, y, call.name, sign=sign)


def _biased(call: Call, x: View, constant: Tensor) -> View | None:
    """A product with a matrix and the constants added to it, as one layer; None if it is something else."""
    found = call.graph.operation_of(x)
    if found is None or not isinstance(found[0], Linear) or found[0].bias is not None:
        return None
    outputs = len(found[0].weight)
    if x.shape[-1] != outputs or constant.shape[-1:] != (outputs,) or constant.numel() != outputs:
        return None
    bias = constant.reshape(outputs).double()
    made = call.graph.add(Linear(found[0].weight, bias.to(call.graph.device)), found[1], name=call.name)
    return made.map(lambda places: places.reshape(x.shape))


def _sum(call: Call, mean: bool = False) -> Value:
    values = [call.value(place) for place in range(len(call.inputs))]
    _spend_together(call, *values)
    values = call.frame.aligned(*values)
    found = values[0]
    for value in values[1:]:
        found = ex.added(call.graph, found, value, call.name)
    if mean and isinstance(found, View):
        found = ex.multiplied(call.graph, found, torch.tensor(1 / len(values), dtype=torch.float64), call.name)
    return found


def _mul(call: Call) -> Value | Squares:
    x, y = _pair(call)
    if isinstance(x, View) and isinstance(y, View) and x.shape == y.shape and call.graph.is_same(x, y):
        return ex.squared(call.graph, x)
    return ex.multiplied(call.graph, x, y, call.name)


def _pow(call: Call) -> Any:
    x, exponent = call.input(0), call.number(1, "")
    if exponent == 2 and isinstance(x, View):
        return ex.squared(call.graph, x)
    if exponent == 0.5:
        return ex.rooted(call.graph, x, call.name)
    if exponent == 1:
        return call.view()
    raise UnsupportedLayerError("a power other than a square under a root is arbitrarily steep")


def _extreme(call: Call, smaller: bool) -> Value:
    values = [call.value(place) for place in range(len(call.inputs))]
    _spend_together(call, *values)
    views = [value for value in call.frame.aligned(*values) if isinstance(value, View)]
    constants = [value for value in call.frame.aligned(*values) if isinstance(value, Tensor)]
    found = views[0]
    others: list[Value] = [*views[1:], *constants]
    for value in others:
        found = ex.larger(call.graph, found, value, call.name, smaller=smaller)
    return found


# -- matrices ---------------------------------------------------------------------------------------------------------


def _dense(call: Call, x: View, weight: Tensor, bias: Tensor | None = None) -> View:
    """Wx + b along the last axis; a point with one row is a vector, so that a head is seen to be one."""
    rows, points = x.shape[1:-1], call.graph.points
    call.frame.spend([*rows, len(weight)])
    if len(x.shape) < 3 or x.places.numel() != points * x.shape[-1]:
        return ex.dense(call.graph, x, weight, bias, call.name)
    flat = ex.dense(call.graph, x.map(lambda places: places.reshape(points, -1)), weight, bias, call.name)
    return flat.map(lambda places: places.reshape(points, *rows, -1))


def _product(call: Call, x: Value, y: Value) -> View:
    """The product of two matrices, one of them constant."""
    if isinstance(y, Tensor):
        y = _matrix(y)
        if y.ndim == 2 and isinstance(x, View):
            return _dense(call, x, y.mT)
    if isinstance(x, Tensor) and isinstance(y, View):
        x = _matrix(x)
        if x.ndim == 2 and len(y.shape) == 2 and call.frame.hidden:  # a matrix times a vector
            return _dense(call, y, x)
        if x.ndim == 2 and len(y.shape) > 2:
            return _dense(call, y.map(lambda places: places.mT), x).map(lambda places: places.mT)
    return ex.matrix_product(call.graph, x, y, call.name)


def _matrix(constant: Tensor) -> Tensor:
    """A constant without axes of size 1 in front of a matrix."""
    while constant.ndim > 2 and constant.shape[0] == 1:
        constant = constant[0]
    return constant


def _gemm(call: Call) -> Value:
    x, y, term = call.value(0), call.value(1), call.input(2)
    alpha, beta = call.attribute("alpha", 1.0), call.attribute("beta", 1.0)
    if any(len(call.frame.shape(each)) != 2 for each in (x, y)):
        raise UnsupportedLayerError("a product of matrices with other than two axes")
    x, y = (_turned(each, call.attribute(name, 0)) for each, name in ((x, "transA"), (y, "transB")))
    if isinstance(x, View) and isinstance(y, Tensor):
        weight = y.mT if alpha == 1 else alpha * y.mT
        bias = term.double() * beta if isinstance(term, Tensor) else None
        if bias is not None and (bias.numel() != len(weight) or bias.shape[-1:] != (len(weight),)):
            bias = None
        found: Value = _dense(call, x, weight, None if bias is None else bias.reshape(-1))
        if bias is not None or term is None:
            return found
    else:
        found = _product(call, x, y)
        if alpha != 1:
            found = ex.multiplied(call.graph, found, torch.tensor(alpha, dtype=torch.float64), call.name)
    if term is None:
        return found
    if beta != 1:
        factor = torch.tensor(beta, dtype=torch.float64)
        term = term.double() * beta if isinstance(term, Tensor) else ex.multiplied(call.graph, term, factor, call.name)
    return call.added(found, term)


def _turned(value: Value, turn: int) -> Value:
    if not turn:
        return value
    return value.map(lambda places: places.mT) if isinstance(value, View) else value.mT


# -- reductions -------------------------------------------------------------------------------------------------------


def _reduced(reduce: Callable[..., Any]) -> Handler:
    """Something over axes: all of them, if none are named."""

    def handler(call: Call) -> Any:
        x = call.input(0)
        axes, keep = call.integers(1, "axes"), bool(call.attribute("keepdims", 1))
        nothing = call.attribute("noop_with_empty_axes", 0)
        if not isinstance(x, Squares):
            x = call.view()
        value = x.roots if isinstance(x, Squares) else x
        if not axes:
            if nothing:
                raise UnsupportedLayerError("a reduction over no axes")
            axes = list(range(len(call.frame.shape(value))))
        return reduce(call.graph, x, [call.frame.axis(value, axis) for axis in axes], keep, call.name)

    return handler


def _mean(*arguments: Any) -> Any:
    return ex.summed(*arguments, mean=True)


def _least(*arguments: Any) -> Any:
    return ex.greatest(*arguments, least=True)


def _sum_of_squares(graph: Any, x: View, *others: Any) -> Any:
    return ex.summed(graph, ex.squared(graph, x), *others)


# -- activations ------------------------------------------------------------------------------------------------------


def _prelu(call: Call) -> View:
    x, slopes = call.view(), call.constant(1)
    if slopes is None:
        raise UnsupportedLayerError("no slopes")
    if slopes.numel() == 1:
        return call.graph.add(PReLU(slopes.double().reshape(1)), x, name=call.name)
    image = call.frame.image(x)
    slopes = slopes.reshape((1,) * (len(call.frame.shape(x)) - slopes.ndim) + tuple(slopes.shape))
    if slopes.numel() != image.shape[1] or slopes.shape[1] != image.shape[1]:
        raise UnsupportedLayerError(f"slopes of shape {tuple(slopes.shape)} for values of shape {call.frame.shape(x)}")
    return call.frame.of_image(call.graph.add(PReLU(slopes.double().reshape(-1)), image, name=call.name))


def _clip(call: Call) -> View:
    low, high = call.number(1, "min"), call.number(2, "max")
    ends = [None if end is None or abs(end) == inf else end for end in (low, high)]
    if (low, high) != (None, None) and (low == inf or high == -inf):
        raise UnsupportedLayerError("ends that are infinite")
    return call.graph.add(Clamp(*ends), call.view(), name=call.name)


def _hard_sigmoid(call: Call) -> View:
    alpha, beta = call.attribute("alpha", HARD), call.attribute("beta", 0.5)
    device, ones, x = call.graph.device, (1,) * (len(call.view().shape) - 1), call.view()
    scale, shift = (torch.full(ones, each, dtype=torch.float64, device=device) for each in (alpha, beta))
    for operation in (Scale(scale), Shift(shift), Clamp(0.0, 1.0)):
        x = call.graph.add(operation, x, name=call.name)
    return x


def _selu(call: Call) -> Operation:
    return ELU(float(call.attribute("alpha", SELU_ALPHA)), float(call.attribute("gamma", SELU_GAMMA)), 1.0)


def _celu(call: Call) -> Operation:
    alpha = float(call.attribute("alpha", 1.0))
    if not alpha > 0:
        raise UnsupportedLayerError(f"an alpha of {alpha}")
    return ELU(alpha, 1.0, 1.0 / alpha)


HANDLERS: dict[str, Handler] = {
    **IMAGES,
    "Add": _add,
    "Sub": lambda call: _add(call, -1),
    "Mul": _mul,
    "Div": lambda call: ex.divided(call.graph, *_pair(call), call.name),
    "Neg": lambda call: ex.negated(call.graph, call.view(), call.name),
    "Sum": _sum,
    "Mean": lambda call: _sum(call, mean=True),
    "Max": lambda call: _extreme(call, smaller=False),
    "Min": lambda call: _extreme(call, smaller=True),
    "Pow": _pow,
    "Sqrt": lambda call: ex.rooted(call.graph, call.input(0), call.name),
    "MatMul": lambda call: _product(call, call.value(0), call.value(1)),
    "Gemm": _gemm,
    "ReduceSum": _reduced(ex.summed),
    "ReduceMean": _reduced(_mean),
    "ReduceMax": _reduced(ex.greatest),
    "ReduceMin": _reduced(_least),
    "ReduceL2": _reduced(ex.root_of_squares),
    "ReduceSumSquare": _reduced(_sum_of_squares),
    "Relu": _pointwise(lambda call: ReLU()),
    "LeakyRelu": _pointwise(lambda call: LeakyReLU(float(call.attribute("alpha", LEAKY)))),
    "PRelu": _prelu,
    "Abs": _pointwise(lambda call: Absolute()),
    "Clip": _clip,
    "Sigmoid": _pointwise(lambda call: Sigmoid()),
    "Tanh": _pointwise(lambda call: Tanh()),
    "Softplus": _pointwise(lambda call: Softplus(1.0, SMOOTH)),
    "Elu": _pointwise(lambda call: ELU(float(call.attribute("alpha", 1.0)), 1.0, 1.0)),
    "Selu": _pointwise(_selu),
    "Celu": _pointwise(_celu),
    "Gelu": _pointwise(lambda call: GELU(str(call.attribute("approximate", "none")))),
    "Mish": _pointwise(lambda call: Mish()),
    "Erf": _pointwise(lambda call: Erf()),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _pointwise(lambda call: Hardswish()),
    **CHOICES,
}
