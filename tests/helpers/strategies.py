"""Hypothesis strategies: logits with ties, near-ties and extreme values; constants; guarantees of every kind."""

import math

import numpy as np
from hypothesis import strategies as st

from safeset import Affinity, RelaxedTopK, Standard, TopK

PLAIN = st.floats(-4, 4)
TIED = st.sampled_from([0.0, -0.0, 0.5, 1.0, math.nextafter(1.0, 2), 1.0 + 2.0**-50, 2.0])
EXTREME = st.sampled_from([1e300, -1e300, 1.7e308, -1.7e308, 1e-300, -1e-300, 5e-324, 0.0, 1.0])


@st.composite
def logits(draw, batch=3):
    """(batch, classes) float64."""
    classes = draw(st.integers(2, 6))
    rows = [
        draw(st.lists(draw(st.sampled_from([PLAIN, TIED, EXTREME])), min_size=classes, max_size=classes))
        for _ in range(batch)
    ]
    return np.array(rows)


@st.composite
def matrices(draw, classes):
    """Symmetric (classes, classes) constants, some zero, tiny, huge or unknown, with any diagonal."""
    entry = st.one_of(st.floats(0.01, 5), st.sampled_from([0.0, 1.0, 1e-200, 1e200, 5e-324, math.inf]))
    matrix = np.zeros((classes, classes))
    for j in range(classes):
        matrix[j, j] = draw(st.sampled_from([0.0, -1.0, math.nan, 7.0]))
        for i in range(j):
            matrix[j, i] = matrix[i, j] = draw(entry)
    return matrix


@st.composite
def guarantees(draw, classes):
    """A guarantee, and the same for the slow reference."""
    kind = draw(st.sampled_from(["standard", "top", "rt", "affinity"]))
    if kind == "standard":
        return Standard(), ("standard",)
    if kind == "affinity":
        one = st.sets(st.integers(0, classes - 1), min_size=1, max_size=max(1, classes - 1))
        sets = draw(st.lists(one, min_size=1, max_size=4))
        return Affinity(sets), ("affinity", sets)
    k = draw(st.integers(1, classes - 1))
    return (TopK(k) if kind == "top" else RelaxedTopK(k)), (kind, k)
