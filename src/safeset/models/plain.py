"""The paper's networks, and small ones of the same kind for the embedded data: MinMax after every layer."""

import math

from torch import nn

from safeset.errors import expected
from safeset.inputs import as_count
from safeset.layers import InvertibleDownsampling, MinMax
from safeset.models.architecture import Build, Layers, image


def mlp(*widths: int) -> Build:
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
        return [*start, *dense(features, *widths), nn.Linear((features, *widths)[-1], classes)]

    return build


def downsampling(*convolutions: int, widths: tuple[int, ...], first: int = 1) -> Build:
    """3×3 convolutions, each with MinMax and invertible downsampling, then dense layers; downsampled ``first``."""

    def build(shape: tuple[int, ...], classes: int) -> Layers:
        channels, height, width = image(shape, first * 2 ** len(convolutions))
        channels, height, width = first**2 * channels, height // first, width // first
        layers: Layers = [InvertibleDownsampling(first)] if first > 1 else []
        for out in convolutions:
            layers += [nn.Conv2d(channels, out, 3, padding=1), MinMax(), InvertibleDownsampling(2)]
            channels, height, width = 4 * out, height // 2, width // 2
        return [*layers, nn.Flatten(), *dense(channels * height * width, *widths), nn.Linear(widths[-1], classes)]

    return build


def striding(shape: tuple[int, ...], classes: int) -> Layers:
    """Blocks of 3×3 convolutions that end in a 4×4 one of stride 2 (Lee et al., 2020)."""
    channels, height, width = image(shape, 8)
    layers: Layers = []
    for out, plain in ((64, 2), (128, 2), (256, 1)):
        for _ in range(plain):
            layers += [nn.Conv2d(channels, out, 3, padding=1), MinMax()]
            channels = out
        layers += [nn.Conv2d(channels, out, 4, stride=2, padding=1), MinMax()]
    return [*layers, nn.Flatten(), *dense(channels * height * width // 64, 256), nn.Linear(256, classes)]


def dense(features: int, *widths: int) -> Layers:
    """Dense layers, MinMax after each."""
    layers: Layers = []
    for into, out in zip((features, *widths), widths, strict=False):
        layers += [nn.Linear(into, out), MinMax()]
    return layers
