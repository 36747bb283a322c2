"""Rules of torch's layers that slide over images: convolutions and pooling."""

from operator import index
from typing import Any

from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.convolution import convolve, convolve_transposed
from safeset.lipschitz.power_method import power_method
from safeset.program.known_rule import KnownRule, filled, given_vector, meta, weight_and_bias
from safeset.program.operation import Shape
from safeset.program.rules import Estimate
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling, Pair


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
            **meta(),
        )
        return filled(plain, layer)

    def value(self, layer: nn.Conv2d, shape: Shape) -> Conv2d:
        """Its weights and sizes."""
        return self._sliding(layer, *weight_and_bias(layer))

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
        return estimate_convolution(self._sliding(layer, layer.weight, None), shape, vector, steps)


def estimate_convolution(sliding: Conv2d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
    """The norm of a convolution by the power method, on the image's own size."""
    weight, groups, (rows, columns) = sliding.weight, sliding.groups, sliding.axes(shape)
    return power_method(
        lambda x: convolve(x, weight, rows, columns, groups),
        lambda y: convolve_transposed(y, weight, rows, columns, groups),
        given_vector(vector, weight),
        steps,
    )


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


def freeze_max_pool(layer: nn.MaxPool2d, shape: Shape) -> nn.Module:
    """Itself, if it returns nothing but the maxima."""
    _check_image(shape)
    if layer.return_indices:
        raise UnsupportedLayerError("Expected max-pooling without return_indices, but got return_indices=True.")
    return layer


def max_pool(layer: nn.MaxPool2d, shape: Shape) -> MaxPooling:
    """Its sizes."""
    return MaxPooling(
        stride=_pair(layer.stride),
        padding=_pair(layer.padding),
        dilation=_pair(layer.dilation),
        size=_pair(layer.kernel_size),
        ceil=bool(layer.ceil_mode),
    )


def _check_image(shape: Shape) -> None:
    """Without channels, torch would take the batch for them."""
    if len(shape) != 3:
        raise UnsupportedLayerError(f"Expected images of shape (channels, height, width), but got {shape}.")


def _both(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) or value is None else (value[0], value[-1])


def _pair(value: Any) -> Pair:
    first, second = _both(value)
    return int(index(first)), int(index(second))  # a stride of 1.9 is no stride, for torch neither
