"""The layers that safeset knows: torch's own, and those of `safeset.layers`, each with the operation that it becomes.

What is proved is proved of the operation; here is how a layer is frozen, and what training estimates of it.
"""

import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.errors import TrainingWarning, UnsupportedLayerError, callers_level
from safeset.lipschitz.convolution import convolve, convolve_transposed
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.power_method import power_method
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation, Proved, Shape
from safeset.program.pointwise import Absolute, LeakyReLU, MinMax, ReLU
from safeset.program.reorder import ChannelShuffle, Flatten, Identity, Shuffle, Unshuffle
from safeset.program.rules import Bound, Computation, Estimate, LayerRule, register_layer
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling, Pair


class KnownRule(LayerRule):
    """A layer that becomes an operation, which knows all that is asked of it."""

    @abstractmethod
    def value(self, layer: Any, shape: Shape) -> Operation:
        """The operation that a frozen layer becomes."""

    def operation(self, layer: Any, shape: Shape) -> Computation:
        """By ATen."""
        return self.value(layer, shape).run

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The bound itself."""
        return float(self.bound(layer, shape, "auto")[0]), None

    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """That of the operation."""
        return self.prove(layer, shape, convolutions, None)[:2]

    def prove(self, layer: Any, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """That of the operation."""
        return self.value(layer, shape).prove(shape, convolutions, witness)

    def work(self, layer: Any, shape: Shape, witness: Witness | None) -> float:
        """That of the operation."""
        return self.value(layer, shape).work(shape, witness)

    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """That of the operation."""
        return self.value(layer, shape).rounding(shape, bound, before)


@dataclass(frozen=True)
class PlainRule(KnownRule):
    """A layer without weights: the operation that it becomes, and what it is frozen into, if not itself."""

    makes: Callable[[Any], Operation]
    frozen: Callable[[Any, Shape], nn.Module] = lambda layer, shape: layer

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself, or another."""
        return self.frozen(layer, shape)

    def value(self, layer: Any, shape: Shape) -> Operation:
        """As it was given."""
        return self.makes(layer)


class LinearRule(KnownRule):
    """nn.Linear."""

    def freeze(self, layer: nn.Linear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weights evaluated."""
        return _filled(nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, **_meta()), layer)

    def value(self, layer: nn.Linear, shape: Shape) -> Linear:
        """Its weights."""
        return Linear(*_constants(layer))

    def vector_shape(self, layer: nn.Linear, shape: Shape) -> Shape:
        """(in,)."""
        return (layer.in_features,)

    def estimate(self, layer: nn.Linear, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method."""
        weight = layer.weight
        return power_method(weight.mv, weight.mT.mv, _given_vector(vector, weight), steps)


class Conv2dRule(KnownRule):
    """nn.Conv2d with zeros around the image, any stride, dilation and groups."""

    def freeze(self, layer: nn.Conv2d, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with the weights evaluated."""
        _check_image(shape)
        if layer.padding_mode != "zeros":
            remedy = "Other paddings have other norms; pad with zeros."
            raise UnsupportedLayerError(f"Expected padding_mode='zeros', but got {layer.padding_mode!r}. {remedy}")
        plain = nn.Conv2d(
            layer.in_channels,
            layer.out_channels,
            layer.kernel_size,  # type: ignore[arg-type]
            layer.stride,  # type: ignore[arg-type]
            layer.padding,  # type: ignore[arg-type]
            layer.dilation,  # type: ignore[arg-type]
            layer.groups,
            layer.bias is not None,
            **_meta(),
        )
        return _filled(plain, layer)

    def value(self, layer: nn.Conv2d, shape: Shape) -> Conv2d:
        """Its weights and sizes."""
        return self._sliding(layer, *_constants(layer))

    def _sliding(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> Conv2d:
        """Its sizes, with weights as they are given."""
        padding = layer.padding if isinstance(layer.padding, str) else _pair(layer.padding)
        return Conv2d(
            stride=_pair(layer.stride),
            padding=padding,
            dilation=_pair(layer.dilation),
            weight=weight,
            bias=bias,
            groups=int(layer.groups),
        )

    def vector_shape(self, layer: nn.Conv2d, shape: Shape) -> Shape:
        """That of what goes in."""
        return shape

    def estimate(self, layer: nn.Conv2d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method, on the image's own size."""
        weight, groups = layer.weight, layer.groups
        rows, columns = self._sliding(layer, weight, None).axes(shape)
        return power_method(
            lambda x: convolve(x, weight, rows, columns, groups),
            lambda y: convolve_transposed(y, weight, rows, columns, groups),
            _given_vector(vector, weight),
            steps,
        )


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


class AvgPool2dRule(KnownRule):
    """nn.AvgPool2d where all kernels are divided by the same number."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself."""
        _check_image(shape)
        padded = any(_pair(layer.padding))
        if layer.ceil_mode or layer.divisor_override is not None or (padded and not layer.count_include_pad):
            raise UnsupportedLayerError(
                "Expected average pooling over whole windows (no ceil_mode, no divisor_override, padding counted), "
                f"but got ceil_mode={layer.ceil_mode}, divisor_override={layer.divisor_override}, "
                f"count_include_pad={layer.count_include_pad}."
            )
        return layer  # type: ignore[no-any-return]

    def value(self, layer: nn.AvgPool2d, shape: Shape) -> AveragePooling:
        """Its sizes."""
        return AveragePooling(
            stride=_pair(layer.stride),
            padding=_pair(layer.padding),
            dilation=(1, 1),
            size=_pair(layer.kernel_size),
        )


class AdaptiveAvgPool2dRule(AvgPool2dRule):
    """Adaptive average pooling where its kernels are equal: an ordinary one."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The average pooling with the same kernels."""
        _check_image(shape)
        sizes = [n if out is None else out for n, out in zip(shape[-2:], _both(layer.output_size), strict=True)]
        if any(out < 1 or n % out for n, out in zip(shape[-2:], sizes, strict=True)):
            raise UnsupportedLayerError(
                f"Expected an output size that divides the image's {shape[-2:]}, but got {tuple(sizes)}."
            )
        return nn.AvgPool2d((shape[-2] // sizes[0], shape[-1] // sizes[1]))

    def value(self, layer: Any, shape: Shape) -> AveragePooling:
        """That of the ordinary one."""
        plain: Any = self.freeze(layer, shape) if isinstance(layer, nn.AdaptiveAvgPool2d) else layer
        return super().value(plain, shape)


def _freeze_max_pool(layer: nn.MaxPool2d, shape: Shape) -> nn.Module:
    """Itself, if it returns nothing but the maxima."""
    _check_image(shape)
    if layer.return_indices:
        raise UnsupportedLayerError("Expected max-pooling without return_indices, but got return_indices=True.")
    return layer


def _max_pool(layer: nn.MaxPool2d) -> MaxPooling:
    return MaxPooling(
        stride=_pair(layer.stride),
        padding=_pair(layer.padding),
        dilation=_pair(layer.dilation),
        size=_pair(layer.kernel_size),
        ceil=bool(layer.ceil_mode),
    )


def _freeze_leaky_relu(layer: nn.LeakyReLU, shape: Shape) -> nn.Module:
    """Itself, if its slope is a number."""
    if not isinstance(layer.negative_slope, int | float) or not math.isfinite(layer.negative_slope):
        raise UnsupportedLayerError(f"Expected a finite negative_slope, but got {layer.negative_slope}.")
    layer.negative_slope = float(layer.negative_slope)
    return layer


def _floating(numbers: Tensor) -> Tensor:
    """Integers as float64: of an int8, |−128| would be −128."""
    return numbers if numbers.is_floating_point() else numbers.double()


def _constants(layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Weight and bias in float64, as they are now."""
    bias = layer.bias
    return layer.weight.detach().double(), None if bias is None else bias.detach().double()


def _given_vector(vector: Tensor | None, weight: Tensor) -> Tensor:
    """The power method's vector, like the weights."""
    assert vector is not None  # `estimate` has looked
    return vector.to(weight)


def _meta() -> dict[str, Any]:
    """For layers whose weights come later."""
    return {"device": "meta", "dtype": torch.float64}


def _filled(empty: nn.Module, layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The empty layer with the weights of another, which is given up for it, parametrisations evaluated."""
    for name, tensor in list(empty.named_parameters()):
        value = getattr(layer, name)
        if value.shape != tensor.shape or type(value) not in (Tensor, nn.Parameter):
            raise UnsupportedLayerError(
                f"Expected a plain {name} of shape {tuple(tensor.shape)}, as the layer's attributes say, but got "
                f"{type(value).__name__} of shape {tuple(value.shape)}."
            )
        setattr(empty, name, nn.Parameter(value.detach().double().contiguous(), requires_grad=False))
    return empty


def _check_image(shape: Shape) -> None:
    """Without channels, torch would take the batch for them."""
    if len(shape) != 3:
        raise UnsupportedLayerError(f"Expected images of shape (channels, height, width), but got {shape}.")


def _both(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) or value is None else (value[0], value[-1])


def _pair(value: Any) -> Pair:
    first, second = _both(value)
    return int(index(first)), int(index(second))  # a stride of 1.9 is no stride, for torch neither


_PLAIN: dict[type[nn.Module], PlainRule] = {
    nn.ReLU: PlainRule(lambda layer: ReLU()),
    layers.MinMax: PlainRule(lambda layer: MinMax()),
    layers.Abs: PlainRule(lambda layer: Absolute()),
    nn.LeakyReLU: PlainRule(lambda layer: LeakyReLU(float(layer.negative_slope)), _freeze_leaky_relu),
    nn.Identity: PlainRule(lambda layer: Identity()),
    **dict.fromkeys(
        (nn.Dropout, nn.Dropout1d, nn.Dropout2d),
        PlainRule(lambda layer: Identity(), lambda layer, shape: nn.Identity()),
    ),
    nn.Flatten: PlainRule(lambda layer: Flatten(int(layer.start_dim), int(layer.end_dim))),
    layers.InvertibleDownsampling: PlainRule(lambda layer: Unshuffle(int(layer.size))),
    nn.PixelUnshuffle: PlainRule(lambda layer: Unshuffle(int(layer.downscale_factor))),
    nn.PixelShuffle: PlainRule(lambda layer: Shuffle(int(layer.upscale_factor))),
    nn.ChannelShuffle: PlainRule(lambda layer: ChannelShuffle(int(layer.groups))),
    nn.MaxPool2d: PlainRule(_max_pool, _freeze_max_pool),
}
_KNOWN: dict[type[nn.Module], KnownRule] = {
    **_PLAIN,
    nn.Linear: LinearRule(),
    nn.Conv2d: Conv2dRule(),
    layers.ChannelAffine: ChannelAffineRule(),
    layers.Normalize: NormalizeRule(),
    nn.BatchNorm1d: BatchNormRule(),
    nn.BatchNorm2d: BatchNormRule(),
    nn.AvgPool2d: AvgPool2dRule(),
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2dRule(),
}
for _kind, _rule in _KNOWN.items():
    register_layer(_kind, _rule)
