"""The rules of safeset's own layers: what each becomes when it is frozen, and what training estimates of it.

Most are frozen into a plain layer with their weights evaluated: bound, rounding and second proof are then that layer's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.errors import UnsupportedLayerError, expected
from safeset.program.entries import Shift
from safeset.program.known_rule import KnownRule, PlainRule, filled, meta
from safeset.program.l2_pool import RootOfSquares
from safeset.program.operation import Operation, Shape
from safeset.program.pointwise import HalfAbsolute
from safeset.program.potential import PotentialStep
from safeset.program.reorder import ChannelShift
from safeset.program.rules import Estimate, register_layer
from safeset.program.sliding import Conv2d
from safeset.program.torch_images import estimate_convolution
from safeset.program.torch_layers import ChannelAffineRule, LinearRule, estimate_matrix, floating


class MaterialisedRule(KnownRule):
    """A layer that is frozen into another, which has a rule of its own; its norm is 1 but for rounding."""

    def value(self, layer: Any, shape: Shape) -> Operation:
        """Nobody asks: what is frozen is another layer."""
        raise UnsupportedLayerError(f"Expected a frozen layer, but got {type(layer).__name__}.")

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """1: none is needed."""
        return 1.0, None


class OrthogonalLinearRule(MaterialisedRule):
    """A dense layer whose weight has orthonormal rows or columns."""

    def freeze(self, layer: layers.OrthogonalLinear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weight as it is."""
        return dense(layer)


class OrthogonalConv1x1Rule(MaterialisedRule):
    """The same at every pixel."""

    def freeze(self, layer: layers.OrthogonalConv1x1, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with kernels of one pixel."""
        out, into = layer.weight.shape
        plain = nn.Conv2d(into, out, 1, bias=layer.bias is not None, **meta())
        return filled(plain, layer, weight=layer.weight[:, :, None, None])


class MadeLinearRule(LinearRule):
    """A dense layer that makes its weight: rows divided by their norms, or rescaled. Its norm is estimated as ever."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weight as it is."""
        return dense(layer)


class MadeConv2dRule(KnownRule):
    """A convolution that makes its kernel: with the identity folded in, or rescaled. Zeros keep the image's size."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with the kernel as it is."""
        out, into, *size = layer.weight.shape
        stride, padding = _stride(layer), size[0] // 2
        plain = nn.Conv2d(into, out, size[0], stride, padding, bias=layer.bias is not None, **meta())
        return filled(plain, layer)

    def value(self, layer: Any, shape: Shape) -> Conv2d:
        """What it is as a convolution."""
        return _same(layer.weight.detach().double(), None, _stride(layer))

    def vector_shape(self, layer: Any, shape: Shape) -> Shape:
        """That of what goes in."""
        return shape

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method, on the image's own size."""
        return estimate_convolution(_same(layer.weight, None, _stride(layer)), shape, vector, steps)


class PotentialRule(KnownRule):
    """A step down a convex potential with free weights."""

    def value(self, layer: layers.PotentialLinear | layers.PotentialConv2d, shape: Shape) -> PotentialStep:
        """Its weights."""
        return PotentialStep(layer.weight.detach().double(), layer.bias.detach().double())

    def vector_shape(self, layer: Any, shape: Shape) -> Shape:
        """That of what goes in, at one place."""
        return shape[-1:] if layer.weight.ndim == 2 else shape

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """max(1, ‖B‖² − 1), ‖B‖ by the power method."""
        weight = layer.weight
        if weight.ndim == 2:
            norm, following = estimate_matrix(weight, vector, steps)
        else:
            norm, following = estimate_convolution(_same(weight, None, 1), shape, vector, steps)
        return torch.as_tensor(norm**2 - 1).clamp(min=1.0), following


class MadePotentialRule(MaterialisedRule):
    """A step that keeps ‖B‖² at 2 or below, but for rounding."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """A step with plain weights."""
        hidden, channels, *size = layer.weight.shape
        with torch.device("meta"):
            plain: nn.Module = layers.PotentialLinear(channels, hidden)
            if size:
                plain = layers.PotentialConv2d(channels, hidden, size[0])
        return filled(plain.double(), layer)


class PositionBiasRule(KnownRule):
    """x + p."""

    def value(self, layer: layers.PositionBias, shape: Shape) -> Shift:
        """Its numbers, repeated over channels where one is for all."""
        return Shift(layer.bias.detach().double())

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """1, without a look at its numbers."""
        return 1.0, None


class CentreRule(ChannelAffineRule):
    """x − mean; one number may be for all channels."""

    def freeze(self, layer: layers.Centre, shape: Shape) -> nn.Module:
        """One product by 1, which is exact, and one sum."""
        if len(layer.mean) == 1:
            layer.mean = layer.mean.repeat(shape[0])
        return super().freeze(layer, shape)

    def scale_and_shift(self, layer: layers.Centre) -> tuple[Tensor, Tensor]:
        """1 and −mean."""
        mean = floating(layer.mean)
        return torch.ones_like(mean), -mean


def dense(layer: Any) -> nn.Module:
    """A plain nn.Linear with the weight that a layer makes."""
    out, into = layer.weight.shape
    return filled(nn.Linear(into, out, layer.bias is not None, **meta()), layer)


def _l2_pool(layer: layers.L2Pool, shape: Shape) -> RootOfSquares:
    """Over all pixels, or over squares that leave none out."""
    if len(shape) != 3:
        raise expected("images of shape (channels, height, width)", shape)
    _, height, width = shape
    rows, columns = (height, width) if layer.size is None else (int(layer.size),) * 2
    if height % rows or width % columns:
        raise expected(f"images whose sides are multiples of {layer.size}", (height, width))
    return RootOfSquares((rows, columns))


def _stride(layer: Any) -> int:
    """Of a convolution that makes its kernel; 1 where it has none."""
    return int(getattr(layer, "stride", 1))


def _same(weight: Tensor, bias: Tensor | None, stride: int) -> Conv2d:
    """A convolution with zeros around the image, as many as keep its size."""
    middle = weight.shape[2] // 2
    return Conv2d((stride, stride), (middle, middle), (1, 1), weight, bias, 1)


_KNOWN: dict[type[nn.Module], KnownRule] = {
    layers.OrthogonalLinear: OrthogonalLinearRule(),
    layers.OrthogonalConv1x1: OrthogonalConv1x1Rule(),
    layers.UnitRowLinear: MadeLinearRule(),
    layers.Centre: CentreRule(),
    layers.PositionBias: PositionBiasRule(),
    layers.AOLLinear: MadeLinearRule(),
    **dict.fromkeys((layers.AOLConv2d, layers.LinearResidualConv2d), MadeConv2dRule()),
    **dict.fromkeys((layers.PotentialLinear, layers.PotentialConv2d), PotentialRule()),
    **dict.fromkeys((layers.SLLLinear, layers.SLLConv2d, layers.CPLLinear, layers.CPLConv2d), MadePotentialRule()),
    layers.ChannelShift: PlainRule(lambda layer, shape: ChannelShift(int(layer.part))),
    layers.L2Pool: PlainRule(_l2_pool),
    layers.HalfAbs: PlainRule(lambda layer, shape: HalfAbsolute(layer.which == "even")),
}
for _kind, _rule in _KNOWN.items():
    register_layer(_kind, _rule)
