"""The spectral norm of a convolution whose image goes on at its other side, from above."""

import math

import torch
from torch import Tensor

from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.dense import spectral_bound, unit_scaled
from safeset.lipschitz.torus import Torus
from safeset.numerics.directed import Up


def circular_bound(kernel: Tensor, rows: Axis, columns: Axis) -> Up:
    """An upper bound for a kernel (out, in, height, width): the norm on a torus of the image's own size.

    Exact, to rounding, where strides divide the image and no output comes twice. Otherwise each output of the torus
    counts as often as it is computed, and where a stride does not divide the image, all of stride 1 are counted.
    """
    scaled, exponent = unit_scaled(kernel)
    if not bool((scaled != 0).any()):
        return Up(0.0)
    torus = circular_torus(scaled, rows, columns)
    largest = Up(max(spectral_bound(wide) for _, wide in torus.matrices()))
    repeated = Up(repetitions(rows) * repetitions(columns)).root()
    return ((largest + torus.matrix_error) * repeated).shifted(exponent)


def circular_torus(kernel: Tensor, rows: Axis, columns: Axis) -> Torus:
    """The torus of exactly the image's size; a larger one has a smaller norm."""
    around = [
        Axis(axis.size, axis.kernel, 1 if axis.size % axis.stride else axis.stride, axis.dilation, 0, 0)
        for axis in (rows, columns)
    ]
    return Torus(Convolution(kernel, *around), outputs=True)


def pad_around(x: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """Images (…, height, width) with the pixels of their other sides around them."""
    return x[..., _places(rows, x)[:, None], _places(columns, x)]


def folded(padded: Tensor, rows: Axis, columns: Axis) -> Tensor:
    """Its transpose: what stands around images added to the pixels where it came from."""
    for dim, axis in ((-2, rows), (-1, columns)):
        shape = list(padded.shape)
        shape[dim] = axis.size
        padded = padded.new_zeros(shape).index_add(dim, _places(axis, padded), padded)
    return padded


def _places(axis: Axis, like: Tensor) -> Tensor:
    return torch.arange(-axis.before, axis.size + axis.after, device=like.device) % axis.size


def repetitions(axis: Axis) -> int:
    """How often the same output of the torus is computed, at most.

    Outputs start at multiples of s, which are n / gcd(s, n) different places modulo n, taken in turn.
    """
    return -(-axis.outputs * math.gcd(axis.stride, axis.size) // axis.size)
