"""Choices between values of an ONNX file: all jump, but the one by which torch writes softplus."""

from dataclasses import dataclass

from torch import Tensor

from safeset.capture.aten_refusals import REFUSED
from safeset.capture.expressions import Absent
from safeset.capture.graph import View
from safeset.capture.onnx_call import Call
from safeset.errors import UnsupportedLayerError
from safeset.program.activations import Softplus


@dataclass(frozen=True)
class Above(Absent):
    """Where a value is above a number: only a choice that is torch's softplus may use it."""

    value: View
    number: float


def greater(call: Call) -> Above:
    """Where a value is above a number."""
    x, number = call.input(0), call.input(1)
    if not isinstance(x, View) or not isinstance(number, Tensor) or number.numel() != 1:
        raise UnsupportedLayerError(REFUSED["where"])
    return Above(REFUSED["where"], x, float(number.reshape(())))


def where(call: Call) -> View:
    """A value above a threshold, else its softplus: so torch exports softplus, whose own threshold this is."""
    if len(call.inputs) == 3 and isinstance(above := call.inputs[0], Above):
        x, smooth = call.view(1), call.view(2)
        found = call.graph.operation_of(smooth)
        if found is not None and isinstance(found[0], Softplus) and x.shape == smooth.shape == above.value.shape:
            threshold = min(above.number, found[0].threshold)
            if all(call.graph.is_same_value(found[1], each) for each in (x, above.value)):
                return call.graph.add(Softplus(1.0, threshold), x, name=call.name)
    raise UnsupportedLayerError(REFUSED["where"])


CHOICES = {"Greater": greater, "Where": where}
