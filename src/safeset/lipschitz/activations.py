"""The layers that safeset knows: torch's own, and those of `safeset.layers`, each with its rule."""

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from safeset import layers
from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.linear import BatchNormRule, ChannelAffineRule, LinearRule, NormalizeRule
from safeset.lipschitz.rules import Bound, Estimate, ExactRule, LayerRule, Shape, register_layer
from safeset.lipschitz.sliding import (
    AdaptiveAvgPool2dRule,
    AvgPool2dRule,
    Conv2dRule,
    freeze_max_pool,
    pooling_overlap,
)
from safeset.numerics.directed import Up
from safeset.program import operations
from safeset.program.operations import Operation


class LeakyReLURule(LayerRule):
    """x, or slope·x below 0: max(1, |slope|)-Lipschitz."""

    def freeze(self, layer: nn.LeakyReLU, shape: Shape) -> nn.Module:
        """Itself."""
        if not isinstance(layer.negative_slope, int | float) or not math.isfinite(layer.negative_slope):
            raise UnsupportedLayerError(f"Expected a finite negative_slope, but got {layer.negative_slope}.")
        return layer

    def estimate(self, layer: nn.LeakyReLU, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """max(1, |slope|)."""
        return max(1.0, abs(layer.negative_slope)), None

    def bound(self, layer: nn.LeakyReLU, shape: Shape, convolutions: str) -> Bound:
        """max(1, |slope|)."""
        return Up(max(1.0, abs(layer.negative_slope))), "closed form"

    def operation(self, layer: nn.LeakyReLU, shape: Shape) -> Operation:
        """By ATen."""
        return operations.leaky_relu(layer)

    def rounding(self, layer: nn.LeakyReLU, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """One product for each entry."""
        return before.scaled(bound, layer.negative_slope, math.prod(shape))


def _identity(layer: nn.Module, shape: Shape) -> nn.Module:
    return nn.Identity()


_EXACT: dict[type[nn.Module], Callable[[Any], Operation]] = {
    nn.ReLU: operations.relu,
    layers.MinMax: operations.min_max,
    layers.Abs: operations.absolute,
    nn.Identity: operations.identity,
    nn.Flatten: operations.flatten,
    layers.InvertibleDownsampling: operations.downsampling,
    nn.PixelUnshuffle: operations.pixel_unshuffle,
    nn.PixelShuffle: operations.pixel_shuffle,
    nn.ChannelShuffle: operations.channel_shuffle,
}
_DROPPED: tuple[type[nn.Module], ...] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
for _kind, _operation in _EXACT.items():
    register_layer(_kind, ExactRule(computes=_operation))
for _kind in _DROPPED:
    register_layer(_kind, ExactRule(frozen=_identity))
register_layer(nn.MaxPool2d, ExactRule(pooling_overlap, freeze_max_pool, operations.max_pooling))
register_layer(nn.LeakyReLU, LeakyReLURule())
register_layer(nn.Linear, LinearRule())
register_layer(nn.Conv2d, Conv2dRule())
register_layer(layers.ChannelAffine, ChannelAffineRule())
register_layer(layers.Normalize, NormalizeRule())
register_layer(nn.BatchNorm1d, BatchNormRule())
register_layer(nn.BatchNorm2d, BatchNormRule())
register_layer(nn.AvgPool2d, AvgPool2dRule())
register_layer(nn.AdaptiveAvgPool2d, AdaptiveAvgPool2dRule())
