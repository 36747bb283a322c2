"""The rules of the layers that safeset knows: torch's own, and those of `safeset.layers`."""

import math
import warnings
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.errors import TrainingWarning, UnsupportedLayerError
from safeset.lipschitz.convolution import Axis, Convolution, convolve, convolve_transposed, torus_bound
from safeset.lipschitz.dense import absolute_norm, spectral_bound
from safeset.lipschitz.estimate import power_method
from safeset.lipschitz.exact import cost, exact_bound, kernel_norm
from safeset.lipschitz.rounding import Rounding
from safeset.lipschitz.rules import Bound, Estimate, ExactRule, LayerRule, Shape, register_layer
from safeset.lipschitz.upward import Up, row_norms

AFFORDABLE = {"cpu": 5e11, "cuda": 1e15}  # floating-point operations for one exact bound: well under a minute

# -- layers without rounding ------------------------------------------------------------------------------------------


def _pooling_overlap(layer: nn.MaxPool2d, shape: Shape) -> Up:
    """√ of the windows that a pixel is in, at most: per axis ⌈k·gcd(s, d)/s⌉."""
    overlap = 1
    for k, s, d in zip(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation), strict=True):
        overlap *= -(-k * math.gcd(s, d) // s)
    return Up(overlap).root()


def _freeze_max_pool(layer: nn.MaxPool2d, shape: Shape) -> nn.Module:
    _check_image(shape)
    if layer.return_indices:
        raise UnsupportedLayerError("Expected max-pooling without return_indices, but got return_indices=True.")
    return layer


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

    def rounding(self, layer: nn.LeakyReLU, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """One product for each entry."""
        return before.scaled(bound, layer.negative_slope, math.prod(shape))


# -- affine layers ----------------------------------------------------------------------------------------------------


class LinearRule(LayerRule):
    """Wx + b, on the last axis."""

    def freeze(self, layer: nn.Linear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weights evaluated."""
        return _plain(nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, **_meta()), layer)

    def vector_shape(self, layer: nn.Linear, shape: Shape) -> Shape:
        """(in,)."""
        return (layer.in_features,)

    def estimate(self, layer: nn.Linear, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method."""
        weight = layer.weight
        return power_method(weight.mv, weight.mT.mv, _given(vector, weight), steps)

    def bound(self, layer: nn.Linear, shape: Shape, convolutions: str) -> Bound:
        """By the Gram matrix."""
        return spectral_bound(layer.weight), "dense"

    def rounding(self, layer: nn.Linear, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """Sums of in_features products at each place."""
        places = math.prod(shape[:-1])
        return before.affine(
            sigma=bound,
            alpha=absolute_norm(layer.weight),
            fan_in=layer.in_features,
            bias=_norm(layer.bias) * Up(places).root(),
            outputs=places * layer.out_features,
        )


class Conv2dRule(LayerRule):
    """A zero-padded convolution with any stride, dilation and groups."""

    def freeze(self, layer: nn.Conv2d, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with the weights evaluated."""
        _check_image(shape)
        if layer.padding_mode != "zeros":
            remedy = "Other paddings have other norms; pad with zeros."
            raise UnsupportedLayerError(f"Expected padding_mode='zeros', but got {layer.padding_mode!r}. {remedy}")
        return _plain(
            nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                layer.dilation,  # type: ignore[arg-type]
                layer.groups,
                layer.bias is not None,
                **_meta(),
            ),
            layer,
        )

    def vector_shape(self, layer: nn.Conv2d, shape: Shape) -> Shape:
        """That of what goes in."""
        return shape

    def estimate(self, layer: nn.Conv2d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method, on the image's own size."""
        weight, groups = layer.weight, layer.groups
        rows, columns = axes(layer, shape)
        return power_method(
            lambda x: convolve(x, weight, rows, columns, groups),
            lambda y: convolve_transposed(y, weight, rows, columns, groups),
            _given(vector, weight),
            steps,
        )

    def bound(self, layer: nn.Conv2d, shape: Shape, convolutions: str) -> Bound:
        """By block-banded Cholesky where it is affordable, else by tori; the largest of all groups."""
        rows, columns = axes(layer, shape)
        parts = [Convolution(kernel, rows, columns) for kernel in layer.weight.detach().double().chunk(layer.groups)]
        if convolutions == "auto":
            affordable = sum(map(cost, parts)) <= AFFORDABLE.get(layer.weight.device.type, 0.0)
            convolutions = "exact" if affordable else "torus"
        method = exact_bound if convolutions == "exact" else torus_bound
        return Up(max(map(method, parts))), convolutions

    def rounding(self, layer: nn.Conv2d, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """Sums of in·height·width products at each pixel."""
        kernels = layer.weight.detach().chunk(layer.groups)
        rows, columns = axes(layer, shape)
        pixels = rows.outputs * columns.outputs
        return before.affine(
            sigma=bound,
            alpha=Up(max(map(kernel_norm, kernels))),
            fan_in=kernels[0][0].numel(),
            bias=_norm(layer.bias) * Up(pixels).root(),
            outputs=pixels * layer.out_channels,
        )


class ChannelAffineRule(LayerRule):
    """scale·x + shift, channel by channel; normalisation and batch norm are frozen into it."""

    def estimate(self, layer: layers.ChannelAffine, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|."""
        return self.scale_and_shift(layer)[0].abs().amax(), None

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        scale, shift = self.scale_and_shift(layer)
        if len(scale) != shape[0]:
            raise UnsupportedLayerError(f"Expected {len(scale)} channels, but got {shape[0]}.")
        return layers.ChannelAffine(scale, shift)

    def scale_and_shift(self, layer: Any) -> tuple[Tensor, Tensor]:
        """(channels,) each."""
        return layer.scale, layer.shift

    def bound(self, layer: layers.ChannelAffine, shape: Shape, convolutions: str) -> Bound:
        """The largest |scale|."""
        return Up(float(layer.scale.abs().amax())), "closed form"

    def rounding(self, layer: layers.ChannelAffine, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """One product and one sum for each entry."""
        pixels = math.prod(shape[1:])
        bias = _norm(layer.shift) * Up(pixels).root()
        return before.affine(sigma=bound, alpha=bound, fan_in=1, bias=bias, outputs=math.prod(shape))


class NormalizeRule(ChannelAffineRule):
    """(x − mean) / std; one number may be for all channels."""

    def freeze(self, layer: layers.Normalize, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        if len(layer.mean) == 1:
            layer.mean, layer.std = layer.mean.repeat(shape[0]), layer.std.repeat(shape[0])
        return super().freeze(layer, shape)

    def scale_and_shift(self, layer: layers.Normalize) -> tuple[Tensor, Tensor]:
        """1 / std and −mean / std."""
        return 1 / layer.std, -layer.mean / layer.std


class BatchNormRule(ChannelAffineRule):
    """Batch norm in evaluation: (x − mean) / √(var + eps)·weight + bias, with the running mean and variance."""

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|, with the running variance."""
        if layer.training:
            warnings.warn(
                "Batch norm is certified with its running statistics, but the network is trained with those of the "
                "batch: the loss is about another network. Call net.eval() before the loop.",
                TrainingWarning,
                stacklevel=2,
            )
        return super().estimate(layer, shape, vector, steps)

    def scale_and_shift(self, layer: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Scale = weight / √(var + eps), shift = bias − mean·scale."""
        if layer.running_var is None or layer.running_mean is None:
            raise UnsupportedLayerError("Expected batch norm with running statistics, but got none.")
        scale = (layer.running_var + layer.eps).rsqrt()
        scale = scale if layer.weight is None else layer.weight * scale
        shift = -layer.running_mean * scale
        return scale, shift if layer.bias is None else shift + layer.bias


class AvgPool2dRule(LayerRule):
    """Means over windows, padding counted: a depthwise convolution, the product of one matrix for each axis."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself, if all windows are divided by the same number."""
        _check_image(shape)
        padded = any(_pair(layer.padding))
        if layer.ceil_mode or layer.divisor_override is not None or (padded and not layer.count_include_pad):
            raise UnsupportedLayerError(
                "Expected average pooling over whole windows (no ceil_mode, no divisor_override, padding counted), "
                f"but got ceil_mode={layer.ceil_mode}, divisor_override={layer.divisor_override}, "
                f"count_include_pad={layer.count_include_pad}."
            )
        return layer  # type: ignore[no-any-return]

    def estimate(self, layer: nn.AvgPool2d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The bound itself."""
        return float(self.bound(layer, shape, "")[0]), None

    def bound(self, layer: nn.AvgPool2d, shape: Shape, convolutions: str) -> Bound:
        """The norm of the windows' sums along each axis, over the number of pixels."""
        rows, columns = axes(layer, shape)
        return (_window_norm(rows) * _window_norm(columns)).over(rows.kernel * columns.kernel), "dense"

    def rounding(self, layer: nn.AvgPool2d, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """Sums of the window's pixels, divided."""
        rows, columns = axes(layer, shape)
        outputs = shape[0] * rows.outputs * columns.outputs
        return before.affine(
            sigma=bound, alpha=bound, fan_in=rows.kernel * columns.kernel, bias=Up(0.0), outputs=outputs
        )


class AdaptiveAvgPool2dRule(AvgPool2dRule):
    """Adaptive average pooling where its windows are equal: an ordinary one."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The average pooling with the same windows."""
        _check_image(shape)
        return self.ordinary(layer, shape)

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """That of the ordinary one."""
        return super().estimate(self.ordinary(layer, shape), shape, vector, steps)

    def ordinary(self, layer: nn.AdaptiveAvgPool2d, shape: Shape) -> nn.AvgPool2d:
        """Average pooling with windows of in/out pixels."""
        sizes = [n if out is None else out for n, out in zip(shape[-2:], _pair(layer.output_size), strict=True)]
        if any(out < 1 or n % out for n, out in zip(shape[-2:], sizes, strict=True)):
            raise UnsupportedLayerError(
                f"Expected an output size that divides the image's {shape[-2:]}, but got {tuple(sizes)}."
            )
        return nn.AvgPool2d((shape[-2] // sizes[0], shape[-1] // sizes[1]))


@lru_cache(maxsize=256)
def _window_norm(axis: Axis) -> Up:
    """The norm of sums over windows of one axis."""
    first = torch.arange(axis.outputs)[:, None] * axis.stride - axis.before  # (outputs, 1)
    pixels = torch.arange(axis.size)
    return spectral_bound(((pixels >= first) & (pixels < first + axis.kernel)).double())


# -- inside -----------------------------------------------------------------------------------------------------------


def _check_image(shape: Shape) -> None:
    """Without channels, torch would take the batch for them."""
    if len(shape) != 3:
        raise UnsupportedLayerError(f"Expected images of shape (channels, height, width), but got {shape}.")


def _pair(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) or value is None else (value[0], value[-1])


def axes(layer: nn.Conv2d | nn.AvgPool2d, shape: Shape) -> tuple[Axis, Axis]:
    """Rows and columns of a convolution or pooling."""
    kernels, strides, dilations = _pair(layer.kernel_size), _pair(layer.stride), _pair(getattr(layer, "dilation", 1))
    axes = []
    for place, (n, k, s, d) in enumerate(zip(shape[-2:], kernels, strides, dilations, strict=True)):
        if layer.padding == "same":  # what is odd goes to the end, as in torch
            before, after = d * (k - 1) // 2, d * (k - 1) - d * (k - 1) // 2
        else:
            before = after = 0 if layer.padding == "valid" else int(_pair(layer.padding)[place])
        axes.append(Axis(n, k, s, d, before, after))
    return axes[0], axes[1]


def _norm(bias: Tensor | None) -> Up:
    return Up(0.0) if bias is None else Up(float(row_norms(bias.detach().double())))


def _given(vector: Tensor | None, weight: Tensor) -> Tensor:
    assert vector is not None  # `estimation` has looked
    return vector.to(weight)


def _meta() -> dict[str, Any]:
    return {"device": "meta", "dtype": torch.float64}


def _plain(empty: nn.Module, layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The empty layer with the weights of another, parametrisations evaluated."""
    for name, tensor in list(empty.named_parameters()):
        value = getattr(layer, name)
        if value.shape != tensor.shape or type(value) not in (Tensor, nn.Parameter):
            raise UnsupportedLayerError(
                f"Expected a plain {name} of shape {tuple(tensor.shape)}, as the layer's attributes say, but got "
                f"{type(value).__name__} of shape {tuple(value.shape)}."
            )
        setattr(empty, name, nn.Parameter(value.detach().double().clone(), requires_grad=False))
    return empty


def _identity(layer: nn.Module, shape: Shape) -> nn.Module:
    return nn.Identity()


_EXACT: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, layers.MinMax, layers.Abs),
    *(nn.Identity, nn.Flatten, layers.InvertibleDownsampling, nn.PixelUnshuffle, nn.PixelShuffle, nn.ChannelShuffle),
)
_DROPPED: tuple[type[nn.Module], ...] = (nn.Dropout, nn.Dropout1d, nn.Dropout2d)
for _kind in _EXACT:
    register_layer(_kind, ExactRule())
for _kind in _DROPPED:
    register_layer(_kind, ExactRule(frozen=_identity))
register_layer(nn.MaxPool2d, ExactRule(_pooling_overlap, _freeze_max_pool))
register_layer(nn.LeakyReLU, LeakyReLURule())
register_layer(nn.Linear, LinearRule())
register_layer(nn.Conv2d, Conv2dRule())
register_layer(layers.ChannelAffine, ChannelAffineRule())
register_layer(layers.Normalize, NormalizeRule())
register_layer(nn.BatchNorm1d, BatchNormRule())
register_layer(nn.BatchNorm2d, BatchNormRule())
register_layer(nn.AvgPool2d, AvgPool2dRule())
register_layer(nn.AdaptiveAvgPool2d, AdaptiveAvgPool2dRule())
