"""Rules of torch's layers that slide over images: convolutions and pooling."""

from dataclasses import replace
from operator import index
from typing import Any

from torch import Tensor, conv2d, nn
from torch.nn.grad import conv2d_input

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.circular import folded, pad_around
from safeset.lipschitz.convolution import convolve, convolve_transposed
from safeset.lipschitz.power_method import power_method
from safeset.program.circular import CircularConv2d
from safeset.program.known_rule import KnownRule, PlainRule, filled, given_vector, meta, weight_and_bias
from safeset.program.l2_pool import RootOfSquares
from safeset.program.operation import Shape
from safeset.program.rules import Estimate
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling, Pair

PADDINGS = ("zeros", "circular")  # whose norms are known


class Conv2dRule(KnownRule):
    """nn.Conv2d with zeros around the image, or with its other side, any stride, dilation and groups."""

    def takes(self, layer: nn.Conv2d) -> bool:
        """Other paddings have other norms."""
        return layer.padding_mode in PADDINGS

    def freeze(self, layer: nn.Conv2d, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with the weights evaluated."""
        _check_image(shape)
        return plain_convolution(nn.Conv2d, layer)

    def value(self, layer: nn.Conv2d, shape: Shape) -> Conv2d:
        """Its weights and sizes."""
        return self.sliding(layer, *weight_and_bias(layer))

    def sliding(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor | None) -> Conv2d:
        """Its sizes, with weights as they are given."""
        padding = layer.padding if isinstance(layer.padding, str) else _pair(layer.padding)
        kind = CircularConv2d if layer.padding_mode == "circular" else Conv2d
        return kind(
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
        return estimate_convolution(self.sliding(layer, layer.weight, None), shape, vector, steps)


def estimate_convolution(sliding: Conv2d, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
    """The norm of a convolution by the power method, on the image's own size."""
    weight, groups, (rows, columns) = sliding.weight, sliding.groups, sliding.axes(shape)
    if isinstance(sliding, CircularConv2d):
        inner, outer = (
            replace(axis, size=axis.before + axis.size + axis.after, before=0, after=0) for axis in (rows, columns)
        )
        return power_method(
            lambda x: convolve(pad_around(x, rows, columns), weight, inner, outer, groups),
            lambda y: folded(convolve_transposed(y, weight, inner, outer, groups), rows, columns),
            given_vector(vector, weight),
            steps,
        )
    if (rows.before, columns.before) == (rows.after, columns.after):  # zeros that torch itself puts around, uncopied
        sizes = (sliding.stride, (rows.before, columns.before), sliding.dilation)
        return power_method(
            lambda x: conv2d(x[None], weight, None, *sizes, groups),
            lambda y: conv2d_input((1, *shape), weight, y, *sizes, groups)[0],  # type: ignore[no-untyped-call]
            given_vector(vector, weight),
            steps,
        )
    return power_method(
        lambda x: convolve(x, weight, rows, columns, groups),
        lambda y: convolve_transposed(y, weight, rows, columns, groups),
        given_vector(vector, weight),
        steps,
    )


def plain_convolution(kind: type[nn.Module], layer: Any) -> nn.Module:
    """A convolution of torch's own type, with the weights of a layer, evaluated."""
    if layer.padding_mode not in PADDINGS:
        raise UnsupportedLayerError(
            f"Expected padding_mode='zeros' or 'circular', but got {layer.padding_mode!r}. Other paddings have other "
            "norms: pad by a layer, such as nn.ReflectionPad2d, before it."
        )
    sizes = (layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride, layer.padding, layer.dilation)
    plain = kind(*sizes, layer.groups, layer.bias is not None, layer.padding_mode, **meta())
    return filled(plain, layer)


class AvgPool2dRule(KnownRule):
    """nn.AvgPool2d where all kernels are divided by the same number."""

    def takes(self, layer: Any) -> bool:
        """Kernels that are cut off at a border are divided by other numbers."""
        padded = any(_pair(layer.padding)) and layer.divisor_override is None
        return not (layer.ceil_mode or (padded and not layer.count_include_pad))

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself."""
        _check_image(shape)
        if not self.takes(layer):
            raise UnsupportedLayerError(
                "Expected average pooling over whole patches (no ceil_mode, padding counted), "
                f"but got ceil_mode={layer.ceil_mode}, count_include_pad={layer.count_include_pad}."
            )
        if layer.divisor_override is not None and not index(layer.divisor_override) >= 1:
            raise UnsupportedLayerError(f"Expected a divisor ≥ 1, but got {layer.divisor_override}.")
        return layer  # type: ignore[no-any-return]

    def value(self, layer: nn.AvgPool2d, shape: Shape) -> AveragePooling:
        """Its sizes."""
        return AveragePooling(
            stride=_pair(layer.stride),
            padding=_pair(layer.padding),
            dilation=(1, 1),
            size=_pair(layer.kernel_size),
            divisor=None if (given := getattr(layer, "divisor_override", None)) is None else index(given),
        )


class AdaptiveAvgPool2dRule(AvgPool2dRule):
    """Adaptive average pooling where its kernels are equal: an ordinary one."""

    def takes(self, layer: Any) -> bool:
        """Whether kernels are equal is seen in the shape of the image."""
        return True

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The average pooling with the same kernels."""
        return nn.AvgPool2d(_equal_kernels(layer, shape))

    def value(self, layer: Any, shape: Shape) -> AveragePooling:
        """That of the ordinary one."""
        plain: Any = self.freeze(layer, shape) if isinstance(layer, nn.AdaptiveAvgPool2d) else layer
        return super().value(plain, shape)


def _equal_kernels(layer: Any, shape: Shape) -> Pair:
    """The kernels of adaptive pooling, if all are of one size."""
    _check_image(shape)
    sizes = [n if out is None else out for n, out in zip(shape[-2:], _both(layer.output_size), strict=True)]
    if any(out < 1 or n % out for n, out in zip(shape[-2:], sizes, strict=True)):
        raise UnsupportedLayerError(
            f"Expected an output size that divides the image's {shape[-2:]}, but got {tuple(sizes)}."
        )
    return shape[-2] // sizes[0], shape[-1] // sizes[1]


def _freeze_adaptive_max_pool(layer: nn.AdaptiveMaxPool2d, shape: Shape) -> nn.Module:
    """The max-pooling with the same kernels."""
    check_no_indices(layer)
    return nn.MaxPool2d(_equal_kernels(layer, shape))


def check_no_indices(layer: Any) -> None:
    """Refuse max-pooling that also says where the maxima were."""
    if layer.return_indices:
        raise UnsupportedLayerError("Expected max-pooling without return_indices, but got return_indices=True.")


def freeze_max_pool(layer: nn.MaxPool2d, shape: Shape) -> nn.Module:
    """Itself, if it returns nothing but the maxima."""
    _check_image(shape)
    check_no_indices(layer)
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


def _adaptive_max_pool(layer: Any, shape: Shape) -> MaxPooling:
    """That of the ordinary one."""
    adaptive = isinstance(layer, nn.AdaptiveMaxPool2d)
    return max_pool(nn.MaxPool2d(_equal_kernels(layer, shape)) if adaptive else layer, shape)


class L2PoolRule(KnownRule):
    """nn.LPPool2d with norm_type=2 over patches that do not overlap."""

    def takes(self, layer: nn.LPPool2d) -> bool:
        """Patches that overlap are no rows of roots; other norms and parts of patches are nothing that can be read."""
        return self._is_known(layer) or layer.norm_type != 2 or bool(layer.ceil_mode)

    def _is_known(self, layer: nn.LPPool2d) -> bool:
        is_apart = layer.stride is None or _pair(layer.stride) == _pair(layer.kernel_size)
        return bool(layer.norm_type == 2 and is_apart and not layer.ceil_mode)

    def freeze(self, layer: nn.LPPool2d, shape: Shape) -> nn.Module:
        """Itself."""
        _check_image(shape)
        if not self._is_known(layer):
            raise UnsupportedLayerError(
                "Expected pooling with norm_type=2 over patches that do not overlap, without ceil_mode, but got "
                f"norm_type={layer.norm_type}, stride={layer.stride} for {_pair(layer.kernel_size)}, "
                f"ceil_mode={layer.ceil_mode}."
            )
        return layer

    def value(self, layer: nn.LPPool2d, shape: Shape) -> RootOfSquares:
        """Its size."""
        return RootOfSquares(_pair(layer.kernel_size))


POOLING: dict[type[nn.Module], KnownRule] = {
    nn.MaxPool2d: PlainRule(max_pool, freeze_max_pool),
    nn.AdaptiveMaxPool2d: PlainRule(_adaptive_max_pool, _freeze_adaptive_max_pool),
    nn.AvgPool2d: AvgPool2dRule(),
    nn.AdaptiveAvgPool2d: AdaptiveAvgPool2dRule(),
    nn.LPPool2d: L2PoolRule(),
}


def _check_image(shape: Shape) -> None:
    """Without channels, torch would take the batch for them."""
    if len(shape) != 3:
        raise UnsupportedLayerError(f"Expected images of shape (channels, height, width), but got {shape}.")


def _both(value: Any) -> tuple[Any, Any]:
    return (value, value) if isinstance(value, int) or value is None else (value[0], value[-1])


def _pair(value: Any) -> Pair:
    first, second = _both(value)
    return int(index(first)), int(index(second))  # a stride of 1.9 is no stride, for torch neither
