"""Operations of ONNX on constants alone: shapes and numbers that a file computes, known once its input's shape is."""

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from safeset.capture.onnx_call import Call
from safeset.errors import UnsupportedLayerError


def _constant(call: Call) -> Tensor:
    names = [name for name in call.attributes if name in _VALUES]
    if len(names) != 1:
        raise UnsupportedLayerError("a constant that is not one tensor of numbers")
    found = call.attribute(names[0])
    if isinstance(found, Tensor):
        return found
    return torch.tensor(found, dtype=torch.float64 if "float" in names[0] else torch.int64)


INT32 = torch.iinfo(torch.int32)
_VALUES = ("value", "value_float", "value_int", "value_floats", "value_ints")


def _filled(call: Call) -> Tensor:
    shape, value = call.integers(0, "shape"), call.attribute("value", None)
    if shape is None or (value is not None and (not isinstance(value, Tensor) or value.numel() != 1)):
        raise UnsupportedLayerError("no shape, or more than one number")
    call.frame.spend(shape)
    number = torch.zeros((), dtype=torch.float64) if value is None else value.reshape(())
    return number.expand(shape)


def _range(call: Call) -> Tensor:
    start, end, step = (_given(call, place) for place in range(3))
    if not float(step) or not all(bool(each.isfinite()) for each in (start, end, step)):
        raise UnsupportedLayerError("a range without a step")
    call.frame.spend([max(int((float(end) - float(start)) / float(step)) + 1, 0)])
    return torch.arange(start.item(), end.item(), step.item(), dtype=start.dtype)


def _given(call: Call, place: int) -> Tensor:
    found = call.value(place)
    assert isinstance(found, Tensor)
    return found


def _of_two(compute: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Call], Tensor]:
    def handler(call: Call) -> Tensor:
        values = [_given(call, place) for place in range(len(call.inputs))]
        call.frame.spend(torch.broadcast_shapes(*(value.shape for value in values)))  # type: ignore[no-untyped-call]
        return _not_wrapped(reduce(compute, values), values)

    return handler


def _of_one(compute: Callable[[Tensor], Tensor]) -> Callable[[Call], Tensor]:
    return lambda call: _not_wrapped(compute(_given(call, 0)), [_given(call, 0)])


def _not_wrapped(found: Tensor, given: Sequence[Tensor]) -> Tensor:
    """Refuse integers that int32 does not have, of integers that it has: in a file of int32 they wrap around."""
    exact = not (found.is_floating_point() or found.dtype == torch.bool)
    if exact and not _has(INT32, found) and all(_has(INT32, each) for each in given):
        raise UnsupportedLayerError("integers that grow beyond int32")
    return found


def _has(limits: torch.iinfo, numbers: Tensor) -> bool:
    return bool(((numbers >= limits.min) & (numbers <= limits.max)).all())


def _quotient(x: Tensor, y: Tensor) -> Tensor:
    return x / y if x.is_floating_point() or y.is_floating_point() else torch.div(x, y, rounding_mode="trunc")


def _power(x: Tensor, y: Tensor) -> Tensor:
    """Of the type of what is raised: of an integer an integer, cut off."""
    found = torch.pow(x.double(), y.double())
    if x.is_floating_point():
        return found
    if not bool((found.abs() < 2.0**53).all()):
        raise UnsupportedLayerError("a power that is no integer of float64")
    return found.to(torch.int64)


def _product(call: Call) -> Tensor:
    x, y = _given(call, 0), _given(call, 1)
    call.frame.spend([*x.shape[:-1], *y.shape[-1:]])
    return _not_wrapped(x @ y, [x, y])


def _reduced(compute: Callable[[Tensor, list[int], bool], Tensor]) -> Callable[[Call], Tensor]:
    def handler(call: Call) -> Tensor:
        x, axes = _given(call, 0), call.integers(1, "axes")
        keep, nothing = bool(call.attribute("keepdims", 1)), call.attribute("noop_with_empty_axes", 0)
        return x if not axes and nothing else _not_wrapped(compute(x, axes or list(range(x.ndim)), keep), [x])

    return handler


def _times(x: Tensor, axes: list[int], keep: bool) -> Tensor:
    for axis in sorted((axis % x.ndim for axis in axes), reverse=True):
        x = x.prod(axis, keepdim=keep)
    return x


def _where(call: Call) -> Tensor:
    condition, x, y = (_given(call, place) for place in range(3))
    call.frame.spend(torch.broadcast_shapes(condition.shape, x.shape, y.shape))  # type: ignore[no-untyped-call]
    return torch.where(condition.bool(), x, y)


CONSTANTS: dict[str, Callable[[Call], Any]] = {
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Range": _range,
    "Where": _where,
    "MatMul": _product,
    "Add": _of_two(torch.add),
    "Sub": _of_two(torch.sub),
    "Mul": _of_two(torch.mul),
    "Div": _of_two(_quotient),
    "Max": _of_two(torch.maximum),
    "Min": _of_two(torch.minimum),
    "Sum": _of_two(torch.add),
    "Pow": _of_two(_power),
    "Equal": _of_two(torch.eq),
    "Greater": _of_two(torch.gt),
    "Less": _of_two(torch.lt),
    "And": _of_two(torch.logical_and),
    "Or": _of_two(torch.logical_or),
    "Not": _of_one(torch.logical_not),
    "Neg": _of_one(torch.neg),
    "Abs": _of_one(torch.abs),
    "Sqrt": _of_one(torch.sqrt),
    "Exp": _of_one(torch.exp),
    "Reciprocal": _of_one(torch.reciprocal),
    "Floor": _of_one(torch.floor),
    "Ceil": _of_one(torch.ceil),
    "Relu": _of_one(torch.relu),
    "ReduceProd": _reduced(_times),
    "ReduceSum": _reduced(lambda x, axes, keep: x.sum(axes, keepdim=keep)),
    "ReduceMean": _reduced(lambda x, axes, keep: x.mean(axes, keepdim=keep)),
    "ReduceMax": _reduced(lambda x, axes, keep: x.amax(axes, keepdim=keep)),
    "ReduceMin": _reduced(lambda x, axes, keep: x.amin(axes, keepdim=keep)),
}
