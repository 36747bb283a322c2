"""What frozen layers compute, by ATen's own operations: no module's ``forward`` and no function of torch.nn is asked.

Whoever patches those changes what a network does, but not what is certified of it. Each function here reads a frozen
layer once and returns what it computes of a batch.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.numerics.strict import convolved

Operation = Callable[[Tensor], Tensor]

_aten = torch.ops.aten
_relu, _abs, _leaky_relu = _aten.relu.default, _aten.abs.default, _aten.leaky_relu.default
_maximum, _minimum, _cat, _split = _aten.maximum.default, _aten.minimum.default, _aten.cat.default, _aten.split.Tensor
_linear, _convolution, _times, _plus = _aten.linear.default, _aten.conv2d, _aten.mul.Tensor, _aten.add.Tensor
_mean, _largest, _flat = _aten.avg_pool2d.default, _aten.max_pool2d.default, _aten.flatten.using_ints
_unshuffled, _shuffled = _aten.pixel_unshuffle.default, _aten.pixel_shuffle.default
_exchanged = _aten.channel_shuffle.default


def identity(layer: Any) -> Operation:
    """Nothing."""
    return lambda x: x


def relu(layer: Any) -> Operation:
    """max(x, 0)."""
    return _relu


def absolute(layer: Any) -> Operation:
    """|x|."""
    return _abs


def leaky_relu(layer: Any) -> Operation:
    """x, or slope·x below 0."""
    return _with(_leaky_relu, float(layer.negative_slope))


def min_max(layer: Any) -> Operation:
    """The larger ones of channels i and i + n/2, then the smaller ones."""

    def run(x: Tensor) -> Tensor:
        if x.shape[1] % 2:
            raise expected("an even number of channels for MinMax", x.shape[1])
        first, second = _split(x, x.shape[1] // 2, 1)
        return _cat([_maximum(first, second), _minimum(first, second)], 1)  # type: ignore[no-any-return]

    return run


def flatten(layer: Any) -> Operation:
    """Axes as one."""
    return _with(_flat, int(layer.start_dim), int(layer.end_dim))


def downsampling(layer: Any) -> Operation:
    """Squares of pixels as channels."""
    return _with(_unshuffled, int(layer.size))


def pixel_unshuffle(layer: Any) -> Operation:
    """The same, of torch's layer."""
    return _with(_unshuffled, int(layer.downscale_factor))


def pixel_shuffle(layer: Any) -> Operation:
    """Channels as squares of pixels."""
    return _with(_shuffled, int(layer.upscale_factor))


def channel_shuffle(layer: Any) -> Operation:
    """Channels in another order."""
    return _with(_exchanged, int(layer.groups))


def linear(layer: Any) -> Operation:
    """Wx + b, on the last axis."""
    return _with(_linear, *_constants(layer.weight, layer.bias))


def channel_affine(layer: Any) -> Operation:
    """scale·x + shift, channel by channel."""
    scale, shift = layer.scale.detach(), layer.shift.detach()

    def run(x: Tensor) -> Tensor:
        shape = (-1, *(1,) * (x.ndim - 2))
        return _plus(_times(x, scale.view(shape)), shift.view(shape))  # type: ignore[no-any-return]

    return run


def convolution(layer: Any) -> Operation:
    """The zero-padded convolution; on a GPU by products of matrices, since its other ways have no error bound."""
    weight, bias = _constants(layer.weight, layer.bias)
    stride, dilation, groups = list(layer.stride), list(layer.dilation), int(layer.groups)
    padding = layer.padding if isinstance(layer.padding, str) else list(layer.padding)
    way = _convolution.padding if isinstance(padding, str) else convolved if weight.is_cuda else _convolution.default
    return _with(way, weight, bias, stride, padding, dilation, groups)


def average_pooling(layer: Any) -> Operation:
    """Means of windows."""
    windows = (_pair(each) for each in (layer.kernel_size, layer.stride, layer.padding))
    return _with(_mean, *windows, False, True, None)


def max_pooling(layer: Any) -> Operation:
    """Maxima of windows."""
    windows = (_pair(each) for each in (layer.kernel_size, layer.stride, layer.padding, layer.dilation))
    return _with(_largest, *windows, bool(layer.ceil_mode))


def _with(operation: Callable[..., Any], *constants: Any) -> Operation:
    """An operation of x and constants, as one of x."""
    return lambda x: operation(x, *constants)


def _constants(first: Tensor, second: Tensor | None) -> tuple[Tensor, Tensor | None]:
    return first.detach(), None if second is None else second.detach()


def _pair(value: Any) -> list[int]:
    return [int(value)] * 2 if isinstance(value, int) else [int(each) for each in value]
