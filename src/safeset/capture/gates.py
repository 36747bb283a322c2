"""Activations that are written as a product, of a value and of a gate that reads the same value."""

from typing import NamedTuple

from safeset.capture.graph import Graph, View
from safeset.program.activations import Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.erf import Erf, ErfGELU
from safeset.program.operation import Operation
from safeset.program.piecewise import Hardsigmoid, Hardswish


class Gated(NamedTuple):
    """An activation, the value that it reads, and the numbers by which that and the result are multiplied.

    ``is_trained``: training changes some of the numbers.
    """

    activation: Operation
    value: View
    before: float
    after: float
    is_trained: bool = False


class Multiple(NamedTuple):
    """A value times one number, which training may change."""

    value: View
    number: float
    is_trained: bool


def gated(graph: Graph, value: View, factor: View) -> Gated | None:
    """The activation that value·factor is: with f(z) = z·g(z), a·x times b·g(c·x) is f(c·x) times ab/c."""
    if value.shape != factor.shape:
        return None
    x, gate = unscaled(graph, value), unscaled(graph, factor)
    found = _by_gate(graph, gate.value) or _gelu(graph, gate.value)
    if found is None:
        return None
    argument = unscaled(graph, found.value)
    outer, rate = x.number * gate.number, argument.number
    if rate == 0 or not graph.is_same_value(argument.value, x.value):
        return None
    is_trained = x.is_trained or gate.is_trained or argument.is_trained
    if isinstance(found.activation, Erf):
        return Gated(ErfGELU(rate), x.value, 1.0, 2 * outer, is_trained) if rate > 0 else None
    return found._replace(after=found.after * (outer / (found.before * rate)), is_trained=is_trained)


def unscaled(graph: Graph, value: View) -> Multiple:
    """A value as what it was before all products with one number, and their product."""
    whole = Multiple(value, 1.0, False)
    while (found := multiple(graph, whole.value)) is not None:
        whole = Multiple(found.value, whole.number * found.number, whole.is_trained or found.is_trained)
    return whole


def multiple(graph: Graph, value: View) -> Multiple | None:
    """A value as a product with one number, if it is just that."""
    found = graph.operation_of(value)
    if found is None or not isinstance(found[0], Scale) or found[0].scale.numel() != 1:
        return None
    return Multiple(found[1], float(found[0].scale), graph.origin(value) is None)


def _by_gate(graph: Graph, gate: View) -> Gated | None:
    """SiLU, Mish and Hardswish, by g(z)."""
    found = graph.operation_of(gate)
    if found is None:
        return None
    operation, entering = found
    if isinstance(operation, Sigmoid):
        return Gated(SiLU(), entering, 1.0, 1.0)
    if isinstance(operation, Hardsigmoid):
        return Gated(Hardswish(), entering, 1.0, 1.0)
    inside = graph.operation_of(entering)
    if inside is None:
        return None
    if isinstance(operation, Tanh) and isinstance(inside[0], Softplus) and inside[0].beta == 1:
        return Gated(Mish(), inside[1], 1.0, 1.0)
    if isinstance(operation, Clamp) and operation.low == 0 and isinstance(inside[0], Shift):
        shift = inside[0].shift
        if operation.high == 6 and bool((shift == 3).all()):  # relu6(z + 3) is 6·hardsigmoid(z)
            return Gated(Hardswish(), inside[1], 1.0, 6.0)
        if operation.high == 1 and bool((shift == 0.5).all()):  # ONNX's HardSigmoid: z/6 with any digits of 1/6
            return Gated(Hardswish(), inside[1], 6.0, 1.0)
    return None


def _gelu(graph: Graph, gate: View) -> Gated | None:
    """What erf reads in 1 + erf(z)."""
    shifted = graph.operation_of(gate)
    if shifted is None or not isinstance(shifted[0], Shift) or not bool((shifted[0].shift == 1).all()):
        return None
    found = graph.operation_of(shifted[1])
    return Gated(found[0], found[1], 1.0, 1.0) if found is not None and isinstance(found[0], Erf) else None
