"""Operations of ONNX that move entries and compute nothing: of constants they give constants, of views views."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from safeset.capture.expressions import Absent, Value
from safeset.capture.graph import View
from safeset.capture.onnx_call import Call
from safeset.errors import UnsupportedLayerError

_FLOATS = {1: torch.float32, 10: torch.float16, 11: torch.float64, 16: torch.bfloat16}
_INTEGERS = {6: (-(2**31), 2**31 - 1), 7: (-(2**63), 2**63 - 1)}  # the others wrap around sooner
MASK = Absent("which entries were dropped: only values can be used")


def _move(call: Call, move: Callable[[Tensor], Tensor]) -> Value:
    x = call.value()
    return call.frame.moved(move, x) if isinstance(x, View) else move(x)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise UnsupportedLayerError(f"axis {axis} of a value with {rank}")
    return axis % rank


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    found = [_axis(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise UnsupportedLayerError(f"axes {list(axes)}, one of them twice")
    return found


def _wanted(call: Call, place: int, name: str) -> list[int]:
    found = call.integers(place, name)
    if found is None:
        raise UnsupportedLayerError(f"no {name}")
    return found


def _reshape(call: Call) -> Value:
    x, wanted = call.value(), _wanted(call, 1, "shape")
    shape, keep_zeros = call.frame.shape(x), call.attribute("allowzero", 0)
    target = wanted
    if not keep_zeros:
        if any(size == 0 and place >= len(shape) for place, size in enumerate(target)):
            raise UnsupportedLayerError(f"a shape {wanted} for a value of shape {list(shape)}")
        target = [shape[place] if size == 0 else size for place, size in enumerate(target)]
    return _move(call, lambda places: places.reshape(target))


def _flatten(call: Call) -> Value:
    shape, axis = call.frame.shape(call.value()), call.attribute("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise UnsupportedLayerError(f"axis {axis} of a value with {len(shape)}")
    axis = axis % len(shape) if axis < len(shape) and shape else axis
    return _move(call, lambda places: places.reshape(math.prod(shape[:axis]), math.prod(shape[axis:])))


def _transpose(call: Call) -> Value:
    rank = len(call.frame.shape(call.value()))
    order = call.attribute("perm", list(range(rank))[::-1])
    if sorted(order) != list(range(rank)):
        raise UnsupportedLayerError(f"an order {order} of {rank} axes")
    return _move(call, lambda places: places.permute(order))


def _squeeze(call: Call) -> Value:
    shape, axes = call.frame.shape(call.value()), call.integers(1, "axes")
    if axes is not None and not axes:
        raise UnsupportedLayerError(
            "a list of axes without any: for some runtimes that is none, for others all of size 1"
        )
    chosen = _axes(axes, len(shape)) if axes is not None else [place for place, n in enumerate(shape) if n == 1]
    if any(shape[axis] != 1 for axis in chosen):
        raise UnsupportedLayerError(f"axes {chosen} of {list(shape)}, which are not all of size 1")
    left = [size for place, size in enumerate(shape) if place not in chosen]
    return _move(call, lambda places: places.reshape(left))


def _unsqueeze(call: Call) -> Value:
    shape, axes = call.frame.shape(call.value()), _wanted(call, 1, "axes")
    rank, rest = len(shape) + len(axes), iter(shape)
    chosen = _axes(axes, rank)
    target = [1 if place in chosen else next(rest) for place in range(rank)]
    return _move(call, lambda places: places.reshape(target))


def _split(call: Call) -> list[Value]:
    shape, sizes = call.frame.shape(call.value()), call.integers(1, "split")
    axis = _axis(call.attribute("axis", 0), len(shape))
    count = call.attribute("num_outputs", call.outputs)
    if sizes is None:
        each = -(-shape[axis] // max(count, 1))
        sizes = [min(each, shape[axis] - start) for start in range(0, shape[axis], max(each, 1))]
    if sum(sizes) != shape[axis] or len(sizes) != call.outputs or min(sizes) < 0:
        raise UnsupportedLayerError(
            f"parts of sizes {sizes[:8]} of an axis of {shape[axis]}, for {call.outputs} values"
        )
    starts = [sum(sizes[:place]) for place in range(len(sizes))]
    return [_part(call, axis, start, size) for start, size in zip(starts, sizes, strict=True)]


def _part(call: Call, axis: int, start: int, size: int) -> Value:
    return _move(call, lambda places: places.narrow(axis, start, size))


def _slice(call: Call) -> Value:
    shape = call.frame.shape(call.value())
    starts, ends = _wanted(call, 1, "starts"), _wanted(call, 2, "ends")
    axes = call.integers(3, "axes")
    chosen = _axes(range(len(starts)) if axes is None else axes, len(shape))
    steps = call.integers(4, "steps") or [1] * len(starts)
    if not len(starts) == len(ends) == len(chosen) == len(steps) or 0 in steps:
        raise UnsupportedLayerError("starts, ends, axes and steps that do not fit each other")
    rows: dict[int, range] = {}
    for axis, start, *others in zip(chosen, starts, ends, steps, strict=True):
        # A start before the first place is the first place, backwards too: there Python takes nothing.
        rows[axis] = range(shape[axis])[slice(max(start, -shape[axis]), *others)]

    def move(places: Tensor) -> Tensor:
        for axis, row in rows.items():
            places = places.index_select(axis, torch.tensor(list(row), dtype=torch.int64))
        return places

    return _move(call, move)


def _gather(call: Call) -> Value:
    shape, places = call.frame.shape(call.value()), call.constant(1)
    if places is None or places.is_floating_point() or not shape:
        raise UnsupportedLayerError("places that are no integers")
    axis = _axis(call.attribute("axis", 0), len(shape))
    size = shape[axis]
    if not bool(((places >= -size) & (places < size)).all()):
        raise UnsupportedLayerError(f"places outside of an axis of {size}")
    target = (*shape[:axis], *places.shape, *shape[axis + 1 :])
    call.frame.spend(target)
    chosen = torch.where(places < 0, places + size, places).flatten()
    return _move(call, lambda entries: entries.index_select(axis, chosen).reshape(target))


def _pad(call: Call) -> Value:
    shape = call.frame.shape(call.value())
    pads, value = _wanted(call, 1, "pads"), call.number(2, "value") or 0.0
    axes = call.integers(3, "axes")
    chosen = _axes(range(len(shape)) if axes is None else axes, len(shape))
    mode = call.attribute("mode", "constant")
    if len(pads) != 2 * len(chosen):
        raise UnsupportedLayerError(f"{len(pads)} pads for {len(chosen)} axes")
    ends = [(axis, pads[place], pads[place + len(chosen)]) for place, axis in enumerate(chosen)]
    sizes = [shape[axis] + before + after for axis, before, after in ends]
    call.frame.spend([size for place, size in enumerate(shape) if place not in chosen] + sizes)
    if mode == "constant":
        return _padded_by(call, ends, value)
    if min(pads, default=0) < 0:
        raise UnsupportedLayerError(f"padding by {mode!r} that also cuts off: runtimes cut before or after")
    rows = {axis: _around(shape[axis], before, after, mode) for axis, before, after in ends if before or after}

    def move(places: Tensor) -> Tensor:
        for axis, row in rows.items():
            places = places.index_select(axis, torch.tensor(row))
        return places

    return _move(call, move)


def _padded_by(call: Call, ends: Sequence[tuple[int, int, int]], value: float) -> Value:
    """A number around a value: zeros, to which it is added."""
    x = call.value()
    pads = [0] * (2 * len(call.frame.shape(x)))
    for axis, before, after in ends:
        place = len(pads) - 2 * axis - 2
        pads[place : place + 2] = [before, after]
    moved = _move(call, lambda places: functional.pad(places, pads))
    if not value or not isinstance(x, View):
        return moved if not isinstance(x, Tensor) else functional.pad(x, pads, value=value)
    around = functional.pad(torch.zeros(call.frame.shape(x), dtype=torch.float64), pads, value=value)
    return call.added(moved, around)


def _around(size: int, before: int, after: int, mode: str) -> list[int]:
    """Which entries stand where an axis is continued beyond its ends."""
    wanted = range(-before, size + after)
    if mode == "edge":
        return [min(max(place, 0), size - 1) for place in wanted]
    if mode == "wrap":
        return [place % size for place in wanted]
    if mode == "reflect" and before < size and after < size:
        return [size - 1 - abs(size - 1 - abs(place)) for place in wanted]
    raise UnsupportedLayerError(f"padding by {mode!r} of an axis of {size}")


def _expand(call: Call) -> Value:
    x, wanted = call.value(), _wanted(call, 1, "shape")
    shape = call.frame.shape(x)
    target = list(torch.broadcast_shapes(shape, wanted))  # type: ignore[no-untyped-call]
    call.frame.spend(target)
    return _move(call, lambda places: places.expand(target))


def _tile(call: Call) -> Value:
    shape, counts = call.frame.shape(call.value()), _wanted(call, 1, "repeats")
    if len(counts) != len(shape):
        raise UnsupportedLayerError(f"{len(counts)} counts for {len(shape)} axes")
    call.frame.spend([n * count for n, count in zip(shape, counts, strict=True)])
    return _move(call, lambda places: places.repeat(counts))


def _depth_to_space(call: Call) -> Value:
    n, c, h, w = _four(call)
    b, mode = call.attribute("blocksize", 0), call.attribute("mode", "DCR")
    if b < 1 or c % (b * b) or mode not in ("DCR", "CRD"):
        raise UnsupportedLayerError(f"blocks of {b} × {b} of {c} channels, in the order {mode!r}")
    parts, order = (
        ((n, b, b, -1, h, w), (0, 3, 4, 1, 5, 2)) if mode == "DCR" else ((n, -1, b, b, h, w), (0, 1, 4, 2, 5, 3))
    )
    return _move(call, lambda places: places.reshape(parts).permute(order).reshape(n, c // (b * b), h * b, w * b))


def _space_to_depth(call: Call) -> Value:
    (n, c, h, w), b = _four(call), call.attribute("blocksize", 0)
    if b < 1 or h % b or w % b:
        raise UnsupportedLayerError(f"blocks of {b} × {b} of an image of {h} × {w}")
    parts, order = (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4)
    return _move(call, lambda places: places.reshape(parts).permute(order).reshape(n, c * b * b, h // b, w // b))


def _four(call: Call) -> tuple[int, ...]:
    shape = call.frame.shape(call.value())
    if len(shape) != 4:
        raise UnsupportedLayerError(f"images of shape {list(shape)}")
    return shape


def _concat(call: Call) -> Value:
    """Values next to each other; constants among them are added to zeros."""
    parts = [call.value(place) for place in range(len(call.inputs))]
    frame = call.frame
    axis = _axis(call.attribute("axis"), len(frame.shape(parts[0])))
    if not any(isinstance(part, View) for part in parts):
        return torch.cat([part for part in parts if isinstance(part, Tensor)], axis)
    frame.spend([sum(math.prod(frame.shape(part)) for part in parts)])
    zeros = [torch.zeros(frame.shape(part), dtype=torch.float64) for part in parts]
    views = [part if isinstance(part, View) else _view_of_zeros(call, part) for part in parts]
    found = frame.moved(lambda *places: torch.cat(places, axis), *views)
    if all(isinstance(part, View) for part in parts):
        return found
    fixed = [zero if isinstance(part, View) else part.double() for part, zero in zip(parts, zeros, strict=True)]
    return call.added(found, torch.cat(fixed, axis))


def _view_of_zeros(call: Call, part: Tensor) -> View:
    zeros = torch.zeros(part.shape, dtype=torch.float64)
    return View(zeros.expand(call.graph.points, *part.shape) if call.frame.hidden else zeros)


def _shape(call: Call) -> Tensor:
    shape = call.frame.shape(call.value())
    start, end = call.attribute("start", 0), call.attribute("end", len(shape))
    return torch.tensor(shape[start:end], dtype=torch.int64)


def _dropout(call: Call) -> Any:
    call.attribute("seed", 0), call.attribute("ratio", 0.5)
    training = call.constant(2)
    call.constant(1)
    if training is not None and bool(training.any()):
        raise UnsupportedLayerError("a dropout that is active is random: export the network in evaluation mode")
    return [call.value(), MASK][: call.outputs]


def _cast(call: Call) -> Value:
    x, wanted = call.value(), call.attribute("to", 0)
    call.attribute("saturate", 1), call.attribute("round_mode", "up")
    if isinstance(x, View):
        if wanted not in (1, 11):
            raise UnsupportedLayerError("a cast to another type than float or double: leave the type of values alone")
        return x
    if wanted in _FLOATS:
        return x.to(_FLOATS[wanted]).double()
    if wanted == 9:
        return x.bool()
    if wanted in _INTEGERS:
        least, largest = _INTEGERS[wanted]
        numbers = x.double()
        fits = (numbers > float(least - 1)) & (numbers < float(largest + 1))
        if not bool(fits.all()) and (x.is_floating_point() or wanted != 7):
            raise UnsupportedLayerError(f"a cast of numbers that type {wanted} does not have")
        return x.to(torch.int64)
    raise UnsupportedLayerError(f"a cast to type {wanted}")


def _cast_like(call: Call) -> Value:
    x, like = call.value(), call.value(1)
    call.attribute("saturate", 1)
    if isinstance(x, View) or isinstance(like, View):
        return x if isinstance(x, View) else x.double()
    return x.to(like.dtype)


SHAPES: dict[str, Callable[[Call], Any]] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Concat": _concat,
    "Shape": _shape,
    "Size": lambda call: torch.tensor(math.prod(call.frame.shape(call.value()))),
    "Dropout": _dropout,
    "Identity": lambda call: call.value(),
    "Cast": _cast,
    "CastLike": _cast_like,
}
