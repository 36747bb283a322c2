"""Residual networks: shortcuts that are folded into kernels (LiResNet), or that add to the constant (ResNet)."""

import math

import torch
from torch import nn

from safeset.layers import (
    Centre,
    InvertibleDownsampling,
    L2Pool,
    LinearResidualConv2d,
    MinMax,
    OrthogonalConv1x1,
    OrthogonalLinear,
    Residual,
    UnitRowLinear,
)
from safeset.models.architecture import Layers, check_width, image

SMALL = 0.1  # how large the last convolution of a body starts, beside torch's own


def liresnet(
    shape: tuple[int, ...], classes: int, *, depth: int = 8, width: int = 128, features: int = 512, dense: int = 2
) -> Layers:
    """Centring, a 5 × 5 stem of stride 2, ``depth`` linear residual convolutions, a 4 × 4 neck, dense layers, head.

    After LiResNet (Hu et al., 2023): x + conv(x)/√depth is one convolution, so it has one bound; MinMax after each. The
    neck and the dense layers are orthogonal, the head has rows of norm 1.

    Args:
        shape: of one image, its sides multiples of 8.
        classes: of the head.
        depth: residual convolutions.
        width: their channels.
        features: width of the dense layers.
        dense: how many.
    """
    channels, height, across = image(shape, 8)
    for each in (width, features):
        check_width(each)
    layers: Layers = [Centre(), nn.Conv2d(channels, width, 5, stride=2, padding=2), MinMax()]
    for _ in range(depth):
        layers += [LinearResidualConv2d(width, 3, scale=1 / math.sqrt(depth)), MinMax()]
    layers += [InvertibleDownsampling(4), OrthogonalConv1x1(16 * width, 2 * width), MinMax(), nn.Flatten()]
    flat = 2 * width * (height // 8) * (across // 8)
    for into in [flat] + [features] * (dense - 1):
        layers += [OrthogonalLinear(into, features), MinMax()]
    return [*layers, UnitRowLinear(features, classes)]


def resnet(shape: tuple[int, ...], classes: int, *, depth: int = 2, width: int = 32, stages: int = 3) -> Layers:
    """Centring, a 3 × 3 stem, stages of ``depth`` blocks x + conv(MinMax(conv(x))), each stage with half the pixels.

    Between stages squares of 2 × 2 pixels become channels, of which an orthonormal matrix keeps half: shortcuts need no
    projections. At the end L2 pooling and a head with rows of norm 1. Bodies start small, because a shortcut adds its
    body's constant to 1.

    Args:
        shape: of one image, its sides multiples of 2^(stages − 1).
        classes: of the head.
        depth: blocks in a stage.
        width: channels of the first stage, doubled in each of the others.
        stages: how many.
    """
    channels, _, _ = image(shape, 2 ** (stages - 1))
    check_width(width)
    layers: Layers = [Centre(), nn.Conv2d(channels, width, 3, padding=1), MinMax()]
    for stage in range(stages):
        if stage:
            layers += [InvertibleDownsampling(2), OrthogonalConv1x1(4 * width, 2 * width), MinMax()]
            width *= 2
        layers += [_block(width) for _ in range(depth)]
    return [*layers, L2Pool(), nn.Flatten(), UnitRowLinear(width, classes)]


def _block(width: int) -> Residual:
    last = nn.Conv2d(width, width, 3, padding=1)
    with torch.no_grad():
        for parameter in last.parameters():
            parameter.mul_(SMALL)
    return Residual(nn.Sequential(nn.Conv2d(width, width, 3, padding=1), MinMax(), last))
