"""Shapes of what operations of an ONNX file give: a constant may have more axes than a value, and so has the result."""

from typing import Any

import torch
from torch import Tensor

from safeset.capture.expressions import Squares
from safeset.capture.graph import View
from safeset.capture.onnx_call import Call
from safeset.errors import UnsupportedLayerError

BROADCASTING = frozenset({"Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu", "MatMul", "Gemm"})


def check_shape(call: Call, found: Any) -> None:
    """Refuse a value whose shape is not that of the file: its later axes would be others.

    Raises:
        UnsupportedLayerError: where a constant has axes that the value did not get.
    """
    value = found.roots if isinstance(found, Squares) else found
    if call.kind not in BROADCASTING or not isinstance(value, View):
        return
    shapes = [_shape(call, each) for each in call.inputs if each is not None]
    shape = _gives(call, shapes)
    if call.frame.shape(value) != shape:
        raise UnsupportedLayerError(
            f"inputs of shapes {', '.join(str(list(each)) for each in shapes)} together: only constants with no more "
            "axes than the values are read"
        )


def _shape(call: Call, given: Any) -> tuple[int, ...]:
    if isinstance(given, Squares):
        given = given.roots if given.shape is None else View(torch.empty(given.shape, device="meta"))
    assert isinstance(given, View | Tensor)
    return call.frame.shape(given)


def _gives(call: Call, shapes: list[tuple[int, ...]]) -> tuple[int, ...]:
    if call.kind not in ("MatMul", "Gemm"):
        return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]
    first, second, *term = (torch.empty(shape, device="meta") for shape in shapes)
    if call.kind == "Gemm":
        first, second = (
            each.mT if call.attribute(name, 0) else each for each, name in ((first, "transA"), (second, "transB"))
        )
    product = first @ second
    return tuple(product.shape if not term else (product + term[0]).shape)
