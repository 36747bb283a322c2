"""Rules of layers that slide a window over an image: convolutions and pooling."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.convolution import Axis, Convolution, convolve, convolve_transposed, kernel_norm
from safeset.lipschitz.convolution_proof import confirmed_bound, convolution_proof, cost, method_of
from safeset.lipschitz.dense import spectral_bound
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.linear import bias_norm, filled, given_vector, meta
from safeset.lipschitz.power_method import power_method
from safeset.lipschitz.rules import Bound, Estimate, LayerRule, Proved, Shape
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.program import operations
from safeset.program.operations import Operation


class Conv2dRule(LayerRule):
    """A zero-padded convolution with any stride, dilation and groups."""

    def freeze(self, layer: nn.Conv2d, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with the weights evaluated."""
        _check_image(shape)
        if layer.padding_mode != "zeros":
            remedy = "Other paddings have other norms; pad with zeros."
            raise UnsupportedLayerError(f"Expected padding_mode='zeros', but got {layer.padding_mode!r}. {remedy}")
        return filled(
            nn.Conv2d(
                layer.in_channels,
                layer.out_channels,
                layer.kernel_size,  # type: ignore[arg-type]
                layer.stride,  # type: ignore[arg-type]
                layer.padding,  # type: ignore[arg-type]
                layer.dilation,  # type: ignore[arg-type]
                layer.groups,
                layer.bias is not None,
                **meta(),
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
            given_vector(vector, weight),
            steps,
        )

    def bound(self, layer: nn.Conv2d, shape: Shape, convolutions: str) -> Bound:
        """Exact where that is affordable, else by a torus; the largest of all groups."""
        return self.prove(layer, shape, convolutions, None)[:2]

    def prove(self, layer: nn.Conv2d, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The same; a witness spares the search, where there is one group."""
        rows, columns = axes(layer, shape)
        parts = [Convolution(kernel, rows, columns) for kernel in layer.weight.detach().double().chunk(layer.groups)]
        if witness is not None and len(parts) == 1:
            confirmed = confirmed_bound(parts[0], convolutions, witness)
            if confirmed is not None:
                return confirmed, method_of(witness), witness
        largest, method = Up(0.0), "exact"
        for part in sorted(parts, key=lambda each: kernel_norm(each.kernel), reverse=True):
            if kernel_norm(part.kernel) > largest:  # else another group is larger, whatever this one's norm is
                bound, witness = convolution_proof(part, convolutions)
                if bound >= largest:
                    largest, method = bound, method_of(witness)
        return largest, method, witness if len(parts) == 1 else None

    def operation(self, layer: nn.Conv2d, shape: Shape) -> Operation:
        """By ATen."""
        return operations.convolution(layer)

    def work(self, layer: nn.Conv2d, shape: Shape, witness: Witness | None) -> float:
        """That of the cheapest proof; of the groups the first may be enough."""
        kernel = layer.weight.detach().double().chunk(layer.groups)[0]
        return cost(Convolution(kernel, *axes(layer, shape)), witness)

    def rounding(self, layer: nn.Conv2d, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """Sums of in·height·width products at each pixel."""
        kernels = layer.weight.detach().chunk(layer.groups)
        rows, columns = axes(layer, shape)
        pixels = rows.outputs * columns.outputs
        return before.affine(
            sigma=bound,
            alpha=Up(max(map(kernel_norm, kernels))),
            fan_in=kernels[0][0].numel(),
            bias=bias_norm(layer.bias) * Up(pixels).root(),
            outputs=pixels * layer.out_channels,
        )


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

    def operation(self, layer: nn.AvgPool2d, shape: Shape) -> Operation:
        """By ATen."""
        return operations.average_pooling(layer)

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


def pooling_overlap(layer: nn.MaxPool2d, shape: Shape) -> Up:
    """√ of the windows that a pixel is in, at most: per axis ⌈k·gcd(s, d)/s⌉."""
    overlap = 1
    for k, s, d in zip(_pair(layer.kernel_size), _pair(layer.stride), _pair(layer.dilation), strict=True):
        overlap *= -(-k * math.gcd(s, d) // s)
    return Up(overlap).root()


def freeze_max_pool(layer: nn.MaxPool2d, shape: Shape) -> nn.Module:
    """Itself, if it returns nothing but the maxima."""
    _check_image(shape)
    if layer.return_indices:
        raise UnsupportedLayerError("Expected max-pooling without return_indices, but got return_indices=True.")
    return layer


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
