"""What networks compute of images and signals, whoever wrote them: convolutions, pooling, normalisation."""

from collections.abc import Sequence

import torch
from torch import Tensor

from safeset.capture.expressions import Value, along
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError
from safeset.program.circular import CircularConv2d
from safeset.program.linear import ChannelAffine
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling, Pair


def convolved(
    graph: Graph,
    x: View,
    weight: Value,
    bias: Value | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int] | str,
    dilation: Sequence[int],
    groups: int,
    name: str,
) -> View:
    """A convolution in one or two dimensions with zeros around; weight (out, in / groups, …)."""
    if not isinstance(weight, Tensor) or isinstance(bias, View):
        raise UnsupportedLayerError("a convolution whose kernel depends on the input has no Lipschitz constant")
    axes = weight.ndim - 2
    if axes == 1:
        flat = convolved(
            graph,
            x.map(lambda places: places.unsqueeze(-2)),
            weight.unsqueeze(-2),
            bias,
            stride=(1, *stride),
            padding=padding if isinstance(padding, str) else (0, *padding),
            dilation=(1, *dilation),
            groups=groups,
            name=name,
        )
        return flat.map(lambda places: places.squeeze(-2))
    if axes != 2 or len(x.shape) != 4:
        raise UnsupportedLayerError(f"a convolution in {axes} dimensions of values of shape {x.shape}")
    around = _circular(x, weight, dilation) if not isinstance(padding, str) and not any(padding) else (0, 0)
    kind, padding = (CircularConv2d, around) if any(around) else (Conv2d, padding)
    x = x.map(lambda places: places[:, :, around[0] : -around[0] or None, around[1] : -around[1] or None])
    operation = kind(
        stride=_pair(stride),
        padding=padding if isinstance(padding, str) else _pair(padding),
        dilation=_pair(dilation),
        weight=weight.detach().double().contiguous(),
        bias=None if bias is None else bias.detach().double(),
        groups=groups,
    )
    if not all(bool(tensor.isfinite().all()) for tensor in operation.constants().values()):
        raise UnsupportedLayerError("a convolution with NaN or infinite weights")
    return graph.add(operation, x, name=name)


def _circular(x: View, weight: Tensor, dilation: Sequence[int]) -> Pair:
    """How many pixels of a value, on each side of each axis, are those of the other side."""
    found = []
    for axis, taps, step in zip((2, 3), weight.shape[2:], _pair(dilation), strict=True):
        rows = x.places.movedim(axis, 0)
        fits = (
            width
            for width in range(min(len(rows) // 3, (taps - 1) * step), 0, -1)
            if torch.equal(rows[:width], rows[-2 * width : -width])
            and torch.equal(rows[-width:], rows[width : 2 * width])
        )
        found.append(next(fits, 0))
    return found[0], found[1]


def convolved_backwards(
    graph: Graph,
    x: View,
    weight: Value,
    bias: Value | None,
    *,
    stride: Sequence[int],
    padding: Sequence[int],
    more: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    name: str,
) -> View:
    """A transposed convolution; weight (in, out / groups, …): a convolution of the image with zeros between pixels.

    ``more`` rows and columns are added at the end, as torch's ``output_padding`` says.
    """
    if not isinstance(weight, Tensor) or weight.ndim != 4 or len(x.shape) != 4:
        raise UnsupportedLayerError("a transposed convolution other than with constants, of images")
    strides, paddings, ends, steps = (_pair(each) for each in (stride, padding, more, dilation))
    channels, (batch, _, height, width) = weight.shape[0], x.shape
    around = [step * (taps - 1) - pad for step, taps, pad in zip(steps, weight.shape[2:], paddings, strict=True)]
    spread = torch.zeros(
        (batch, channels, (height - 1) * strides[0] + 1, (width - 1) * strides[1] + 1), dtype=torch.float64
    )
    spread[:, :, :: strides[0], :: strides[1]] = x.places
    # Zeros around belong to the convolution where both sides have as many, because then they are none of its input.
    inside = [0 if end else max(each, 0) for each, end in zip(around, ends, strict=True)]
    sides = [(each - own, each - own + end) for each, own, end in zip(around, inside, ends, strict=True)]
    padded = torch.nn.functional.pad(spread, (*sides[1], *sides[0]))
    kernel = weight.view(groups, channels // groups, *weight.shape[1:]).transpose(1, 2).flatten(0, 1).flip(2, 3)
    return convolved(
        graph,
        View(padded),
        kernel,
        bias,
        stride=(1, 1),
        padding=inside,
        dilation=steps,
        groups=groups,
        name=name,
    )


def max_pooled(
    graph: Graph,
    x: View,
    *,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil: bool,
    name: str,
) -> View:
    """Max-pooling over the last two axes, or the last one."""
    if len(size) == 1 and len(x.shape) == 3:
        settings = {"size": (1, *size), "stride": (1, *(stride or size)), "padding": (0, *padding)}
        flat = x.map(lambda places: places.unsqueeze(-2))
        found = max_pooled(graph, flat, **settings, dilation=(1, *dilation), ceil=ceil, name=name)
        return found.map(lambda places: places.squeeze(-2))
    _check_images(x)
    operation = MaxPooling(
        stride=_pair(stride or size),
        padding=_pair(padding),
        dilation=_pair(dilation),
        size=_pair(size),
        ceil=ceil,
    )
    return graph.add(operation, x, name=name)


def average_pooled(
    graph: Graph,
    x: View,
    *,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil: bool,
    padding_counts: bool,
    divisor: int | None,
    name: str,
) -> View:
    """Average pooling over the last two axes, or the last one."""
    axes = len(x.shape) - 2
    size, stride, padding = (_repeated(each, axes) for each in (size, stride or size, padding))
    plain = not ceil and divisor is None and (padding_counts or not any(padding))
    if axes == 2 and plain:
        _check_images(x)
        operation = AveragePooling(stride=_pair(stride), padding=_pair(padding), dilation=(1, 1), size=_pair(size))
        return graph.add(operation, x, name=name)
    first = len(x.shape) - axes
    for place in range(axes):  # each kernel's divisor is a product of one number for each axis, so axes are separate
        geometry = (x.shape[first + place], size[place], stride[place], padding[place])
        matrix = _averages(*geometry, ceil, padding_counts) if divisor is None else _averages(*geometry, ceil, None)
        if divisor is not None and place == 0:
            matrix /= divisor
        x = along(graph, x, matrix.to(graph.device), first + place, name)
    return x


def adaptively_averaged(graph: Graph, x: View, sizes: Sequence[int | None], name: str) -> View:
    """Averages of so many parts of about the same size, over the last axes."""
    first = len(x.shape) - len(sizes)
    lengths = x.shape[first:]
    outputs = [length if size is None else size for length, size in zip(lengths, sizes, strict=True)]
    if len(sizes) == 2 and len(x.shape) == 4 and not any(n % out for n, out in zip(lengths, outputs, strict=True)):
        size = [n // out for n, out in zip(lengths, outputs, strict=True)]
        operation = AveragePooling(stride=_pair(size), padding=(0, 0), dilation=(1, 1), size=_pair(size))
        return graph.add(operation, x, name=name)
    for place, (length, out) in enumerate(zip(lengths, outputs, strict=True)):
        matrix = torch.zeros(out, length, dtype=torch.float64)
        for row in range(out):
            start, end = row * length // out, -(-(row + 1) * length // out)
            matrix[row, start:end] = 1 / (end - start)
        x = along(graph, x, matrix.to(graph.device), first + place, name)
    return x


def normalised(
    graph: Graph,
    x: View,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor | None,
    variance: Tensor | None,
    epsilon: float,
    name: str,
    kind: str = "",
) -> View:
    """Batch norm with statistics that are constants."""
    if mean is None or variance is None:
        raise UnsupportedLayerError("batch norm without running statistics has no Lipschitz constant")
    scale = (variance.double() + epsilon).rsqrt()
    scale = scale if weight is None else weight.double() * scale
    shift = -mean.double() * scale
    shift = shift if bias is None else shift + bias.double()
    if not bool(scale.isfinite().all()) or not bool(shift.isfinite().all()):
        raise UnsupportedLayerError("batch norm with NaN or infinite numbers")
    return graph.add(ChannelAffine(scale.detach(), shift.detach()), x, name=name, kind=kind)


def _averages(length: int, size: int, stride: int, padding: int, ceil: bool, padding_counts: bool | None) -> Tensor:
    """The matrix of average pooling along one axis, (outputs, length), as torch defines it; of sums, for None."""
    room = length + 2 * padding - size
    outputs = (-(-room // stride) if ceil else room // stride) + 1
    if ceil and (outputs - 1) * stride >= length + padding:
        outputs -= 1  # a kernel must start inside the image or the padding before it
    matrix = torch.zeros(outputs, length, dtype=torch.float64)
    for row in range(outputs):
        start = row * stride - padding
        end = min(start + size, length + padding)
        inside = slice(max(start, 0), min(end, length))
        counted = end - start if padding_counts else inside.stop - inside.start
        if counted < 1:
            raise UnsupportedLayerError("average pooling with a kernel that lies in the padding")
        matrix[row, inside] = 1.0 if padding_counts is None else 1 / counted
    return matrix


def _check_images(x: View) -> None:
    if len(x.shape) != 4:
        raise UnsupportedLayerError(f"pooling of values of shape {x.shape}, which are no images")


def _repeated(numbers: Sequence[int], count: int) -> list[int]:
    return list(numbers) * count if len(numbers) == 1 else list(numbers)


def _pair(numbers: Sequence[int]) -> Pair:
    first, second = _repeated(numbers, 2)
    return int(first), int(second)
