"""Whether a number is at least the spectral norm of a matrix, in 60 digits; and convolutions as matrices."""

from itertools import product

import mpmath
import numpy as np

DIGITS = 60


def at_least_norm(matrix, bound):
    """Whether bound²·I − AAᵀ has no negative pivot."""
    matrix = np.asarray(matrix, dtype=float)
    matrix = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    with mpmath.workdps(DIGITS):
        rows = [[mpmath.mpf(float(value)) for value in row] for row in matrix]
        n, square = len(rows), mpmath.mpf(bound) ** 2
        left = [[-mpmath.fdot(rows[i], rows[j]) for j in range(i + 1)] for i in range(n)]
        for i in range(n):
            left[i][i] += square
        tiny = square * mpmath.mpf(10) ** -45
        for k in range(n):
            pivot = left[k][k]
            if pivot < -tiny:
                return False
            if pivot <= tiny:  # 0: then so is its column, or the matrix is not positive semidefinite
                if any(abs(left[i][k]) > mpmath.sqrt(tiny * square) for i in range(k + 1, n)):
                    return False
                continue
            for i in range(k + 1, n):
                factor = left[i][k] / pivot
                if factor:
                    for j in range(k + 1, i + 1):
                        left[i][j] -= factor * left[j][k]
        return True


def within(matrix, bound, tolerance):
    """Whether the bound is above the norm, by a relative ``tolerance`` at most."""
    with mpmath.workdps(DIGITS):
        return at_least_norm(matrix, bound) and (
            not np.any(matrix) or not at_least_norm(matrix, mpmath.mpf(bound) * (1 - mpmath.mpf(tolerance)))
        )


def convolution_matrix(kernel, size, stride, dilation, before, after):
    """The operator of a zero-padded convolution, by its definition: (out·pixels', in·pixels)."""
    out, into, *taps = kernel.shape
    outputs = [
        (n + b + a - d * (k - 1) - 1) // s + 1
        for n, b, a, d, k, s in zip(size, before, after, dilation, taps, stride, strict=True)
    ]
    matrix = np.zeros((out, *outputs, into, *size))
    for place in product(*map(range, outputs)):
        for tap in product(*map(range, taps)):
            pixel = [s * o + d * t - b for s, o, d, t, b in zip(stride, place, dilation, tap, before, strict=True)]
            if all(0 <= at < n for at, n in zip(pixel, size, strict=True)):
                matrix[:, place[0], place[1], :, pixel[0], pixel[1]] = kernel[:, :, tap[0], tap[1]]
    return matrix.reshape(out * outputs[0] * outputs[1], into * size[0] * size[1])
