"""Operations of ONNX on images and signals: convolutions, pooling, normalisation."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from safeset.capture import expressions as ex
from safeset.capture import images
from safeset.capture.expressions import Absent
from safeset.capture.graph import View
from safeset.capture.onnx_call import Call
from safeset.errors import UnsupportedLayerError
from safeset.program.entries import Scale
from safeset.program.l2_pool import RootOfSquares
from safeset.program.sorting import Greatest

EPSILON = 9.99999974737875163555145263671875e-06  # of batch norm, ONNX's own number, which is float32
PLACES = Absent("where the largest values stand, or statistics of a batch: only values can be used")
Ends = list[tuple[int, int]]  # pads before and after, for each axis


class _Kernel:
    """How a kernel slides over an image.

    Attributes:
        size, stride, dilation: for each axis.
        ends: zeros before and after the image, for each axis.
        ceil: whether a kernel may begin inside and end outside.
        outputs: how often it is placed along each axis.
    """

    def __init__(self, call: Call, lengths: Sequence[int], size: Sequence[int]) -> None:
        axes = len(lengths)
        if len(size) != axes or axes not in (1, 2) or min(size) < 1:
            raise UnsupportedLayerError(f"a kernel of sizes {list(size)} for an image of {list(lengths)}")
        self.size, self.lengths = list(size), list(lengths)
        self.stride, self.dilation = (_whole(call, name, [1] * axes, 1) for name in ("strides", "dilations"))
        self.ceil = bool(call.attribute("ceil_mode", 0))
        pads, auto = _whole(call, "pads", [0] * (2 * axes), 0), call.attribute("auto_pad", "NOTSET")
        if any(pads) and auto != "NOTSET":
            raise UnsupportedLayerError(f"pads beside auto_pad {auto!r}: ONNX allows one of them")
        self.ends = list(zip(pads[:axes], pads[axes:], strict=True))
        if auto in ("SAME_UPPER", "SAME_LOWER"):
            self.ends = [self._same(axis, auto == "SAME_UPPER") for axis in range(axes)]
        elif auto not in ("NOTSET", "VALID"):
            raise UnsupportedLayerError(f"padding {auto!r}")
        self.outputs = [self._count(axis) for axis in range(axes)]

    @property
    def is_padded_like_torch(self) -> bool:
        """Whether torch pools with such padding: the same on both sides, and at most half of the kernel."""
        return self.is_symmetric and all(2 * p <= k for p, k in zip(self.padding, self.size, strict=True))

    @property
    def leaves_out(self) -> bool:
        """Whether the last placing of some axis ends before the image does."""
        ends = zip(self.outputs, self.stride, map(self._reach, range(len(self.size))), self.lengths, strict=True)
        return any((count - 1) * stride + reach < length for count, stride, reach, length in ends)

    @property
    def is_symmetric(self) -> bool:
        """Whether there are as many zeros before as after."""
        return all(before == after for before, after in self.ends)

    @property
    def padding(self) -> list[int]:
        """Before each axis."""
        return [before for before, _ in self.ends]

    def _reach(self, axis: int) -> int:
        return self.dilation[axis] * (self.size[axis] - 1) + 1

    def _same(self, axis: int, upper: bool) -> tuple[int, int]:
        length, stride = self.lengths[axis], self.stride[axis]
        total = max((-(-length // stride) - 1) * stride + self._reach(axis) - length, 0)
        return (total // 2, total - total // 2) if upper else (total - total // 2, total // 2)

    def _count(self, axis: int) -> int:
        before, after = self.ends[axis]
        room = self.lengths[axis] + before + after - self._reach(axis)
        if room < 0:
            raise UnsupportedLayerError(f"a kernel of {self.size} that is larger than the image, {self.lengths}")
        count = (-(-room // self.stride[axis]) if self.ceil else room // self.stride[axis]) + 1
        return count - (self.ceil and (count - 1) * self.stride[axis] >= self.lengths[axis] + before)

    def rows(self, axis: int) -> Tensor:
        """Which entries each placing reads, (outputs, size), from 0 where the image begins."""
        starts = torch.arange(self.outputs[axis]) * self.stride[axis] - self.ends[axis][0]
        return starts[:, None] + torch.arange(self.size[axis]) * self.dilation[axis]


def _whole(call: Call, name: str, default: list[int], least: int) -> list[int]:
    """An attribute of as many integers as its default has."""
    found = call.attribute(name, default) or default
    if len(found) != len(default) or not all(isinstance(each, int) and least <= each < 2**31 for each in found):
        raise UnsupportedLayerError(f"{name} {found[:8]}")
    return list(found)


def _image(call: Call) -> View:
    """The first argument as (points, channels, …)."""
    return call.frame.image(call.view())


def _pooled(makes: Callable[[Call, View, _Kernel], View]) -> Callable[[Call], View]:
    """Pooling by a kernel; an image of one axis is one row."""

    def handler(call: Call) -> View:
        x = _image(call)
        kernel = _Kernel(call, x.shape[2:], call.attribute("kernel_shape", [0]))
        if str(call.attribute("auto_pad", "NOTSET")).startswith("SAME") and set(kernel.dilation) != {1}:
            # ONNX counts the dilated kernel, onnxruntime the plain one.
            raise UnsupportedLayerError("pooling with dilation and padding 'SAME', which runtimes read differently")
        if str(call.attribute("auto_pad", "NOTSET")).startswith("SAME") and kernel.leaves_out:
            # The padding would be negative: onnxruntime fails, or pads nothing.
            raise UnsupportedLayerError("pooling with strides beyond the kernel and padding 'SAME'")
        call.frame.spend([*x.shape[1:2], *kernel.outputs, *kernel.size])
        return call.frame.of_image(makes(call, x, kernel))

    return handler


def _conv(call: Call) -> View:
    x, weight, bias = _image(call), call.constant(1), call.constant(2)
    if weight is None or weight.ndim not in (3, 4):
        raise UnsupportedLayerError("a convolution in other than one or two dimensions, or without a kernel")
    if call.attribute("kernel_shape", list(weight.shape[2:])) != list(weight.shape[2:]):
        raise UnsupportedLayerError(f"a kernel of shape {tuple(weight.shape)} that is called otherwise")
    kernel = _Kernel(call, x.shape[2:], weight.shape[2:])
    call.frame.spend([len(weight), *kernel.outputs])
    padding = kernel.padding
    if not kernel.is_symmetric:
        x, padding = _zeros_around(call, x, kernel.ends), [0] * len(padding)
    found = images.convolved(
        call.graph,
        x,
        weight,
        bias,
        stride=kernel.stride,
        padding=padding,
        dilation=kernel.dilation,
        groups=call.attribute("group", 1),
        name=call.name,
    )
    return call.frame.of_image(found)


def _zeros_around(call: Call, x: View, ends: Ends) -> View:
    call.frame.spend([x.shape[1], *(n + sum(end) for n, end in zip(x.shape[2:], ends, strict=True))])
    pads = [number for end in reversed(ends) for number in end]
    return x.map(lambda places: functional.pad(places, pads))


def _max_pool(call: Call) -> Any:
    call.attribute("storage_order", 0)
    found = _pooled(_largest)(call)
    return [found, PLACES][: call.outputs]


def _largest(call: Call, x: View, kernel: _Kernel) -> View:
    """Maxima; where torch has no such padding, of patches in which an entry stands in for what is outside."""
    if kernel.is_padded_like_torch:
        return images.max_pooled(
            call.graph,
            x,
            size=kernel.size,
            stride=kernel.stride,
            padding=kernel.padding,
            dilation=kernel.dilation,
            ceil=kernel.ceil,
            name=call.name,
        )
    rows = []
    for axis, length in enumerate(kernel.lengths):
        reads = kernel.rows(axis)
        inside = (reads >= 0) & (reads < length)
        if not bool(inside.any(dim=1).all()):
            raise UnsupportedLayerError("max-pooling with a kernel that lies in the padding")
        instead = reads.gather(1, inside.int().argmax(dim=1, keepdim=True))
        rows.append(torch.where(inside, reads, instead))
    return call.graph.add(Greatest(), _patches(x, rows), name=call.name)


def _patches(x: View, rows: Sequence[Tensor]) -> View:
    """What a kernel reads at each place, together in the last axis."""
    if len(rows) == 1:
        return x.map(lambda places: places[:, :, rows[0]])
    first, second = rows
    return x.map(lambda places: places[:, :, first[:, None, :, None], second[None, :, None, :]].flatten(-2))


def _average(call: Call, x: View, kernel: _Kernel) -> View:
    """Means; where torch has none of the kind, means with zeros around, and a factor for each entry."""
    counts = bool(call.attribute("count_include_pad", 0))
    if set(kernel.dilation) != {1}:
        raise UnsupportedLayerError("average pooling with dilation")
    if kernel.is_padded_like_torch:
        return images.average_pooled(
            call.graph,
            x,
            size=kernel.size,
            stride=kernel.stride,
            padding=kernel.padding,
            ceil=kernel.ceil,
            padding_counts=counts,
            divisor=None,
            name=call.name,
        )
    ends, factor = [], torch.ones((), dtype=torch.float64)
    for axis, length in enumerate(kernel.lengths):
        reads, (before, after) = kernel.rows(axis), kernel.ends[axis]
        counted = (reads >= 0) & (reads < length) if not counts else reads < length + after
        if not bool(counted.any(dim=1).all()):
            raise UnsupportedLayerError("average pooling with a kernel that lies in the padding")
        ends.append((before, max(int(reads.max()) + 1 - length, 0)))
        factor = factor[..., None] * (kernel.size[axis] / counted.sum(dim=1).double())
    found = images.average_pooled(
        call.graph,
        _zeros_around(call, x, ends),
        size=kernel.size,
        stride=kernel.stride,
        padding=[0] * len(ends),
        ceil=False,
        padding_counts=True,
        divisor=None,
        name=call.name,
    )
    return call.graph.add(Scale(factor[None].to(call.graph.device)), found, name=call.name)


def _root(call: Call, x: View, kernel: _Kernel) -> View:
    """Roots of sums of squares, zeros around the image."""
    _check_two(call)
    ends = [
        (end[0], max(int(kernel.rows(axis).max()) + 1 - kernel.lengths[axis], 0))
        for axis, end in enumerate(kernel.ends)
    ]
    rows = [kernel.rows(axis) + before for axis, (before, _) in enumerate(ends)]
    return call.graph.add(RootOfSquares(), _patches(_zeros_around(call, x, ends), rows), name=call.name)


def _check_two(call: Call) -> None:
    if call.attribute("p", 2) != 2:
        raise UnsupportedLayerError("a norm of another order than 2")


def _global(reduced: Callable[..., View]) -> Callable[[Call], View]:
    """Of all places of an image."""

    def handler(call: Call) -> View:
        x = _image(call)
        return call.frame.of_image(reduced(call.graph, x, list(range(2, len(x.shape))), True, call.name))

    return handler


def _global_average(call: Call) -> View:
    x = _image(call)
    found = images.adaptively_averaged(call.graph, x, [1] * (len(x.shape) - 2), call.name)
    return call.frame.of_image(found)


def _global_root(call: Call) -> View:
    _check_two(call)
    return _global(ex.root_of_squares)(call)


def _batch_norm(call: Call) -> Any:
    if call.attribute("training_mode", 0) or call.outputs > 1:  # before opset 14, more outputs mean training
        raise UnsupportedLayerError(
            "batch norm with the statistics of the batch mixes its points: export it after .eval()"
        )
    call.attribute("momentum", 0.9), call.attribute("spatial", 1)
    numbers = [call.constant(place) for place in (1, 2, 3, 4)]
    if len({None if each is None else tuple(each.shape) for each in numbers}) > 1:
        raise UnsupportedLayerError("batch norm with numbers for other channels")
    x = _image(call)
    epsilon = call.attribute("epsilon", EPSILON)
    weight, bias, mean, variance = numbers
    found = images.normalised(call.graph, x, weight, bias, mean, variance, epsilon, call.name)
    return [call.frame.of_image(found), *[PLACES] * 4][: call.outputs]


IMAGES: dict[str, Callable[[Call], Any]] = {
    "Conv": _conv,
    "MaxPool": _max_pool,
    "AveragePool": _pooled(_average),
    "LpPool": _pooled(_root),
    "GlobalAveragePool": _global_average,
    "GlobalMaxPool": _global(ex.greatest),
    "GlobalLpPool": _global_root,
    "BatchNormalization": _batch_norm,
}
