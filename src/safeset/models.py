"""Named architectures: the paper's networks, and small ones for the embedded data."""

import math
from collections.abc import Callable

from torch import nn

from safeset.errors import expected, nearest
from safeset.inputs import as_count, check_shape
from safeset.layers import InvertibleDownsampling, MinMax

Layers = list[nn.Module]
INITIALISATIONS = ("torch", "orthogonal")


def create_model(
    name: str, *, input_shape: tuple[int, ...], classes: int, initialisation: str = "torch"
) -> nn.Sequential:
    """A new network by its name: layers, then a linear head.

    Args:
        name: one of `list_models()`.
        input_shape: shape of one input: (channels, height, width), or (features,) for an ``mlp``.
        classes: number of classes.
        initialisation: ``torch``, its default, or ``orthogonal``: weights are matrices of orthonormal rows or columns,
            those of a convolution as (out, in · height · width), and biases are 0.

    >>> create_model("mlp-2x32", input_shape=(2,), classes=4)[-1]
    Linear(in_features=32, out_features=4, bias=True)
    """
    if name not in _MODELS:
        raise expected(f"`name` to be one of {', '.join(list_models())}", repr(name), nearest(name, _MODELS))
    count = as_count(classes)
    if count is None or count < 2:
        raise expected("`classes` to be an integer ≥ 2", repr(classes))
    if initialisation not in INITIALISATIONS:
        remedy = nearest(initialisation, INITIALISATIONS)
        raise expected(f"`initialisation` to be one of {', '.join(INITIALISATIONS)}", repr(initialisation), remedy)
    network = nn.Sequential(*_MODELS[name](check_shape(input_shape), count))
    for layer in network if initialisation == "orthogonal" else ():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
    return network


def list_models() -> list[str]:
    """The names that `create_model` knows.

    >>> list_models()
    ['cnn-1c1f', 'cnn-2c1f', 'cnn-2c2f', 'cnn-8c2f', 'mlp-2x256', 'mlp-2x32', 'mlp-3x1000']
    """
    return sorted(_MODELS)


def mlp(*widths: int) -> Callable[[tuple[int, ...], int], Layers]:
    """A function of shape and classes that makes dense layers of even widths, MinMax after each, and a linear head.

    >>> len(mlp(32, 32)((2,), 4)), len(mlp()((2,), 4))
    (5, 1)
    """
    for width in widths:
        if as_count(width) is None or width % 2:
            raise expected("widths of layers to be even integers", repr(width))

    def build(shape: tuple[int, ...], classes: int) -> Layers:
        features = math.prod(shape)
        start: Layers = [nn.Flatten()] if len(shape) > 1 else []
        return [*start, *_dense(features, *widths), nn.Linear((features, *widths)[-1], classes)]

    return build


def _downsampling(
    *convolutions: int, dense: tuple[int, ...], first: int = 1
) -> Callable[[tuple[int, ...], int], Layers]:
    """3×3 convolutions, each with MinMax and invertible downsampling, then dense layers; downsampled ``first``."""

    def build(shape: tuple[int, ...], classes: int) -> Layers:
        channels, height, width = _image(shape, first * 2 ** len(convolutions))
        channels, height, width = first**2 * channels, height // first, width // first
        layers: Layers = [InvertibleDownsampling(first)] if first > 1 else []
        for out in convolutions:
            layers += [nn.Conv2d(channels, out, 3, padding=1), MinMax(), InvertibleDownsampling(2)]
            channels, height, width = 4 * out, height // 2, width // 2
        return [*layers, nn.Flatten(), *_dense(channels * height * width, *dense), nn.Linear(dense[-1], classes)]

    return build


def _striding(shape: tuple[int, ...], classes: int) -> Layers:
    """Blocks of 3×3 convolutions that end in a 4×4 one of stride 2 (Lee et al., 2020)."""
    channels, height, width = _image(shape, 8)
    layers: Layers = []
    for out, plain in ((64, 2), (128, 2), (256, 1)):
        for _ in range(plain):
            layers += [nn.Conv2d(channels, out, 3, padding=1), MinMax()]
            channels = out
        layers += [nn.Conv2d(channels, out, 4, stride=2, padding=1), MinMax()]
    return [*layers, nn.Flatten(), *_dense(channels * height * width // 64, 256), nn.Linear(256, classes)]


def _dense(features: int, *widths: int) -> Layers:
    layers: Layers = []
    for into, out in zip((features, *widths), widths, strict=False):
        layers += [nn.Linear(into, out), MinMax()]
    return layers


def _image(shape: tuple[int, ...], multiple: int) -> tuple[int, int, int]:
    if len(shape) != 3 or shape[1] % multiple or shape[2] % multiple:
        raise expected(f"images (channels, height, width), height and width multiples of {multiple}", shape)
    return shape[0], shape[1], shape[2]


_MODELS: dict[str, Callable[[tuple[int, ...], int], Layers]] = {
    "cnn-2c2f": _downsampling(32, 64, dense=(256, 256)),  # the paper's, for CIFAR-100 and EuroSAT
    "cnn-8c2f": _striding,  # the paper's, for Tiny-ImageNet
    "mlp-3x1000": mlp(1000, 1000, 1000),  # the paper's, for ACAS Xu
    "cnn-1c1f": _downsampling(16, dense=(64,)),  # for digits
    "cnn-2c1f": _downsampling(16, 32, dense=(64,), first=2),  # for some hundred photos
    "mlp-2x32": mlp(32, 32),  # for points in the plane
    "mlp-2x256": mlp(256, 256),  # for tables
}
