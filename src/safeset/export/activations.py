"""Smooth activations in ONNX, from Exp and Tanh alone: onnxruntime's CPU has no Erf, Softplus or Elu in float64.

Each stays as near to the exact function as `Activation.strays` allows, if Exp and Tanh are within 8 units in the last
place, which is what certificates assume of any library. Sums of 1 and a power lose u of 1, and so does the
logarithm; where the exact function is near 0 and that is too much, it is written with Tanh, which is right relative to
its argument.
"""

import math
from functools import cache
from typing import Any

from safeset.export.graph import Graph, Value
from safeset.export.operations import numbers, write
from safeset.program.activations import ELU, GELU, Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.erf import Erf, ErfGELU
from safeset.program.operation import Shape
from safeset.program.piecewise import Hardsigmoid, Hardswish, PReLU

ERF_ENDS = 6.0  # beyond, erf is 1 to less than half a unit
ERF_TERMS = 24  # up to 1 those that are left out are less than 2⁻⁶⁰ of the sum
ERF_DEGREE = 26  # of the polynomial from 1 to 6, whose error is below 2⁻⁶⁰ too


@write.register
def _tanh(operation: Tanh, graph: Graph, shape: Shape, x: Value) -> Value:
    return x.apply("Tanh")


@write.register
def _sigmoid(operation: Sigmoid, graph: Graph, shape: Shape, x: Value) -> Value:
    return sigmoid(x)


@write.register
def _silu(operation: SiLU, graph: Graph, shape: Shape, x: Value) -> Value:
    return x * sigmoid(x)


@write.register
def _gelu(operation: GELU, graph: Graph, shape: Shape, x: Value) -> Value:
    if operation.approximate == "none":
        return _by_erf(x, math.sqrt(0.5))
    inner = (x + x * x * x * 0.044715) * math.sqrt(2 / math.pi)
    return x * 0.5 * (inner.apply("Tanh") + 1.0)


@write.register
def _erf_gelu(operation: ErfGELU, graph: Graph, shape: Shape, x: Value) -> Value:
    return _by_erf(x, operation.rate)


@write.register
def _erf(operation: Erf, graph: Graph, shape: Shape, x: Value) -> Value:
    return erf(x)


@write.register
def _mish(operation: Mish, graph: Graph, shape: Shape, x: Value) -> Value:
    return x * softplus(x).apply("Tanh")


@write.register
def _softplus(operation: Softplus, graph: Graph, shape: Shape, x: Value) -> Value:
    inner = x * operation.beta
    return graph.where(inner > operation.threshold, x, softplus(inner) / operation.beta)


@write.register
def _elu(operation: ELU, graph: Graph, shape: Shape, x: Value) -> Value:
    """e^t − 1 = 2·tanh(t/2) / (1 − tanh(t/2)): for t ≤ 0 nothing cancels."""
    half = (graph.smaller(x, 0.0) * operation.input_scale * 0.5).apply("Tanh")
    below = half * 2.0 / (1.0 - half) * operation.alpha
    return graph.where(x > 0.0, x, below) * operation.scale


@write.register
def _hard_swish(operation: Hardswish, graph: Graph, shape: Shape, x: Value) -> Value:
    return x * _ramp(x) / 6.0


@write.register
def _hard_sigmoid(operation: Hardsigmoid, graph: Graph, shape: Shape, x: Value) -> Value:
    return _ramp(x) / 6.0


@write.register
def _prelu(operation: PReLU, graph: Graph, shape: Shape, x: Value) -> Value:
    slopes = numbers(operation.slopes).reshape(-1, *(1,) * (len(shape) - 1))
    return graph.where(x > 0.0, x, x * slopes)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e⁻ˣ); where the power overflows it is 0, as it should be to the smallest number."""
    return 1.0 / ((-x).apply("Exp") + 1.0)


def softplus(x: Value) -> Value:
    """log(1 + eˣ) as max(x, 0) + log(1 + e^−|x|): right to a few units of 1, and of x."""
    return x.graph.larger(x, 0.0) + ((-abs(x)).apply("Exp") + 1.0).apply("Log")


def erf(x: Value) -> Value:
    """Up to 1 by a series, from there on by its complement; odd, so that |x| is enough.

    2/√π · e^(−x²) · Σ 2ⁿ x²ⁿ⁺¹ / (1·3·…·(2n + 1)) has no term below 0, so nothing cancels: in Horner's form term n has
    5n roundings, and up to 1 the sum loses less than 12u, the power 17u. 1 − e^(−x²)·p(x), p near e^(x²)(1 − erf x),
    may lose 100u of the product, which is below 0.16. Both are less than 64u|x|, and for GELU than 64u.
    """
    graph = x.graph
    size = graph.smaller(abs(x), ERF_ENDS)
    square = size * size
    power = (-square).apply("Exp")
    total: Value = graph.constant(1.0)
    for n in range(ERF_TERMS, 0, -1):
        total = total * (graph.smaller(square, 1.0) * (2.0 / (2 * n + 1))) + 1.0
    near = size * (2 / math.sqrt(math.pi)) * (power * total)
    middle, stretch = _ends()
    place = (size - middle) / (size + middle) * (1 / stretch)
    first, *others = _complement()
    rest: Value = graph.constant(first)
    for coefficient in others:
        rest = rest * place + coefficient
    found = graph.where(size < 1.0, near, 1.0 - power * rest)
    return graph.where(x < 0.0, -found, found)


def _ends() -> tuple[float, float]:
    """C and d, so that (t − c) / (t + c) is within ±d for t from 1 to 6."""
    middle = math.sqrt(ERF_ENDS)
    return middle, (ERF_ENDS - middle) / (ERF_ENDS + middle)


@cache
def _complement() -> tuple[float, ...]:
    """Coefficients, the highest first, of e^(t²)(1 − erf t) for t from 1 to 6, as a polynomial of t's place in ±1."""
    import mpmath

    middle, stretch = _ends()

    def scaled(place: Any) -> Any:
        part = place * stretch
        t = middle * (1 + part) / (1 - part)
        return mpmath.exp(t * t) * mpmath.erfc(t)

    with mpmath.workdps(50):
        return tuple(map(float, mpmath.chebyfit(scaled, [-1, 1], ERF_DEGREE + 1)))


def _by_erf(x: Value, rate: float) -> Value:
    return x * 0.5 * (erf(x * rate) + 1.0)


def _ramp(x: Value) -> Value:
    """min(max(x + 3, 0), 6)."""
    return x.graph.smaller(x.graph.larger(x + 3.0, 0.0), 6.0)
