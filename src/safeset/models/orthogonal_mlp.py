"""Dense layers that are rotations: for tables of numbers what `shift_net` is for images."""

import math

import torch
from torch import nn

from safeset.layers import HalfAbs, OrthogonalLinear, UnitRowLinear
from safeset.models.architecture import Layers, check_width

START = 0.5  # norm of a layer's biases at the start


def orthogonal_mlp(shape: tuple[int, ...], classes: int, *, depth: int = 6, width: int = 256) -> Layers:
    """``depth`` layers σ(Qz + b) with orthogonal Q, and a head with rows of norm 1: its Lipschitz constant is 1.

    σ is |·| on every other entry. The first Q is not square: it has orthonormal columns, or rows where there are more
    inputs than ``width``. Biases start at random, as large as the entries of inputs of norm 1: with biases of 0 all
    kinks would meet in one point.

    Args:
        shape: of one input.
        classes: of the head.
        depth: layers before the head.
        width: of each of them.
    """
    check_width(width)
    layers: Layers = [nn.Flatten()] if len(shape) > 1 else []
    for into in [math.prod(shape)] + [width] * (depth - 1):
        turned = OrthogonalLinear(into, width)
        turned.bias = nn.Parameter(START / math.sqrt(width) * torch.randn(width))
        layers += [turned, HalfAbs("even")]
    return [*layers, UnitRowLinear(width, classes)]
