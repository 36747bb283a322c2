"""Random convolutions beside their matrices."""

import numpy as np
import torch
from hypothesis import reject

from helpers.exact_norm import convolution_matrix
from helpers.matrices import matrix_of_a_kind
from safeset.lipschitz.convolution import Axis, Convolution


def possible(condition):
    if not condition:
        reject()


def convolutions(seed, rows, columns, out, into, kind="random", most=24):
    """A convolution, and its matrix by definition."""
    rng = np.random.default_rng(seed)
    axes = [Axis(*axis) for axis in (rows, columns)]
    possible(all(axis.size + axis.before + axis.after >= axis.extent for axis in axes))
    taps = (rows[1], columns[1])
    flat = matrix_of_a_kind(rng, kind, out, into * taps[0] * taps[1])
    kernel = flat.reshape(out, into, *taps)
    transposed = list(zip(rows, columns, strict=True))
    matrix = convolution_matrix(kernel, transposed[0], *transposed[2:])
    possible(min(matrix.shape) <= most)
    return Convolution(torch.tensor(kernel), *axes), matrix
