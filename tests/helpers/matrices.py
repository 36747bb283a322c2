"""Matrices of every kind and scale, and geometries of convolutions, for tests of bounds."""

import math

import numpy as np
from hypothesis import strategies as st

SCALES = [1.0, 3e-5, 1e-30, 1e-160, 1e-290, 1e-310, 1e30, 1e160, 1e300]


def orthogonal(rng, n):
    return np.linalg.qr(rng.normal(size=(n, n)))[0]


def matrix_of_a_kind(rng, kind, rows, columns):
    n = max(rows, columns)
    if kind == "random":
        return rng.normal(size=(rows, columns))
    if kind == "nearly orthogonal":
        return (orthogonal(rng, n) + 10.0 ** -rng.integers(6, 16) * rng.normal(size=(n, n)))[:rows, :columns]
    if kind == "orthogonal":
        return orthogonal(rng, n)[:rows, :columns]
    if kind == "rank one":
        return np.outer(rng.normal(size=rows), rng.normal(size=columns))
    if kind == "repeated":  # 2, 2, 2, then smaller
        values = np.where(np.arange(n) < 3, 2.0, 1.0)
        return (orthogonal(rng, n) * values @ orthogonal(rng, n))[:rows, :columns]
    if kind == "integers":
        return rng.integers(-3, 4, size=(rows, columns)).astype(float)
    if kind == "ones":
        return np.ones((rows, columns))
    if kind == "one entry":
        matrix = np.zeros((rows, columns))
        matrix[rng.integers(rows), rng.integers(columns)] = -math.pi
        return matrix
    return rng.normal(size=(rows, columns)) * 10.0 ** rng.uniform(-200, 5, size=(rows, 1))  # "uneven"


KINDS = ["random", "nearly orthogonal", "orthogonal", "rank one", "repeated", "integers", "ones", "one entry", "uneven"]

GEOMETRY = st.tuples(
    st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(1, 2), st.integers(0, 4), st.integers(0, 4)
)  # size, kernel, stride, dilation, before, after
