"""The layers that safeset knows: torch's own, and those of `safeset.layers`, each with the operation that it becomes.

What is proved is proved of the operation; here is how a layer is frozen, and what training estimates of it.
"""

import math
import warnings
from typing import Any

from torch import Tensor, nn

from safeset import layers
from safeset.errors import TrainingWarning, UnsupportedLayerError, callers_level
from safeset.lipschitz.power_method import power_method
from safeset.program.known_rule import KnownRule, PlainRule, filled, given_vector, meta, weight_and_bias
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Shape
from safeset.program.pointwise import Absolute, LeakyReLU, MinMax, ReLU
from safeset.program.reorder import ChannelShuffle, Flatten, Identity, Shuffle, Unshuffle
from safeset.program.rules import Estimate, register_layer
from safeset.program.torch_activations import ACTIVATIONS
from safeset.program.torch_images import POOLING, Conv2dRule
from safeset.program.torch_rows import ROWS
from safeset.program.torch_shapes import SHAPES


class LinearRule(KnownRule):
    """nn.Linear."""

    def freeze(self, layer: nn.Linear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weights evaluated."""
        return filled(nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, **meta()), layer)

    def value(self, layer: nn.Linear, shape: Shape) -> Linear:
        """Its weights."""
        return Linear(*weight_and_bias(layer))

    def vector_shape(self, layer: nn.Linear, shape: Shape) -> Shape:
        """(in,)."""
        return (layer.in_features,)

    def estimate(self, layer: nn.Linear, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method."""
        weight = layer.weight
        return power_method(weight.mv, weight.mT.mv, given_vector(vector, weight), steps)


class ChannelAffineRule(KnownRule):
    """scale·x + shift, channel by channel; normalisation and batch norm are frozen into it."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        scale, shift = self.scale_and_shift(layer)
        if len(scale) != shape[0]:
            raise UnsupportedLayerError(f"Expected {len(scale)} channels, but got {shape[0]}.")
        return layers.ChannelAffine(scale.double(), shift.double())

    def value(self, layer: layers.ChannelAffine, shape: Shape) -> ChannelAffine:
        """Its numbers."""
        return ChannelAffine(layer.scale.detach().double(), layer.shift.detach().double())

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|."""
        return self.scale_and_shift(layer)[0].abs().amax(), None

    def scale_and_shift(self, layer: Any) -> tuple[Tensor, Tensor]:
        """(channels,) each."""
        return _floating(layer.scale), _floating(layer.shift)


class NormalizeRule(ChannelAffineRule):
    """(x − mean) / std; one number may be for all channels."""

    def freeze(self, layer: layers.Normalize, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        if len(layer.mean) == 1:
            layer.mean, layer.std = layer.mean.repeat(shape[0]), layer.std.repeat(shape[0])
        return super().freeze(layer, shape)

    def scale_and_shift(self, layer: layers.Normalize) -> tuple[Tensor, Tensor]:
        """1 / std and −mean / std."""
        mean, std = _floating(layer.mean), _floating(layer.std)
        return 1 / std, -mean / std


class BatchNormRule(ChannelAffineRule):
    """Batch norm in evaluation: (x − mean) / √(var + eps)·weight + bias, with the running mean and variance."""

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|, with the running variance."""
        if layer.training:
            warnings.warn(
                "Batch norm is certified with its running statistics, but the network is trained with those of the "
                "batch: the loss is about another network. Call net.eval() before the loop.",
                TrainingWarning,
                stacklevel=callers_level(),
            )
        return super().estimate(layer, shape, vector, steps)

    def scale_and_shift(self, layer: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Scale = weight / √(var + eps), shift = bias − mean·scale."""
        if layer.running_var is None or layer.running_mean is None:
            raise UnsupportedLayerError("Expected batch norm with running statistics, but got none.")
        scale = (_floating(layer.running_var) + layer.eps).rsqrt()
        scale = scale if layer.weight is None else layer.weight * scale
        shift = -_floating(layer.running_mean) * scale
        return scale, shift if layer.bias is None else shift + layer.bias


def _freeze_leaky_relu(layer: nn.LeakyReLU, shape: Shape) -> nn.Module:
    """Itself, if its slope is a number."""
    if not isinstance(layer.negative_slope, int | float) or not math.isfinite(layer.negative_slope):
        raise UnsupportedLayerError(f"Expected a finite negative_slope, but got {layer.negative_slope}.")
    layer.negative_slope = float(layer.negative_slope)
    return layer


def _floating(numbers: Tensor) -> Tensor:
    """Integers as float64: of an int8, |−128| would be −128."""
    return numbers if numbers.is_floating_point() else numbers.double()


_PLAIN: dict[type[nn.Module], PlainRule] = {
    nn.ReLU: PlainRule(lambda layer, shape: ReLU()),
    layers.MinMax: PlainRule(lambda layer, shape: MinMax()),
    layers.Abs: PlainRule(lambda layer, shape: Absolute()),
    nn.LeakyReLU: PlainRule(lambda layer, shape: LeakyReLU(float(layer.negative_slope)), _freeze_leaky_relu),
    nn.Identity: PlainRule(lambda layer, shape: Identity()),
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout),
        PlainRule(lambda layer, shape: Identity(), lambda layer, shape: nn.Identity()),
    ),
    nn.Flatten: PlainRule(lambda layer, shape: Flatten(int(layer.start_dim), int(layer.end_dim))),
    layers.InvertibleDownsampling: PlainRule(lambda layer, shape: Unshuffle(int(layer.size))),
    nn.PixelUnshuffle: PlainRule(lambda layer, shape: Unshuffle(int(layer.downscale_factor))),
    nn.PixelShuffle: PlainRule(lambda layer, shape: Shuffle(int(layer.upscale_factor))),
    nn.ChannelShuffle: PlainRule(lambda layer, shape: ChannelShuffle(int(layer.groups))),
}
_KNOWN: dict[type[nn.Module], KnownRule] = {
    **_PLAIN,
    **ACTIVATIONS,
    **SHAPES,
    **POOLING,
    **ROWS,
    nn.Linear: LinearRule(),
    nn.Conv2d: Conv2dRule(),
    layers.ChannelAffine: ChannelAffineRule(),
    layers.Normalize: NormalizeRule(),
    nn.BatchNorm1d: BatchNormRule(),
    nn.BatchNorm2d: BatchNormRule(),
}
for _kind, _rule in _KNOWN.items():
    register_layer(_kind, _rule)
