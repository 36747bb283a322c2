"""Circular padding: bounds against the operator's own matrix in every geometry, and what is not to be mixed up."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from safeset.audit.second_proof import _layer
from safeset.lipschitz.circular import folded, pad_around, repetitions
from safeset.numerics.integers import NEVER
from safeset.program.circular import CircularConv2d
from safeset.program.program import INPUT, Node, Place
from safeset.program.sliding import Conv2d


def matrix(operation, shape):
    """(outputs, inputs), column by column, by definition: loops over outputs and taps."""
    rows, columns = operation.axes(shape)
    kernel = operation.weight
    found = torch.zeros(len(kernel), rows.outputs, columns.outputs, *shape, dtype=torch.float64)
    for y in range(rows.outputs):
        for x in range(columns.outputs):
            for s in range(rows.kernel):
                for t in range(columns.kernel):
                    down = (rows.stride * y + rows.dilation * s - rows.before) % rows.size
                    right = (columns.stride * x + columns.dilation * t - columns.before) % columns.size
                    found[:, y, x, :, down, right] += kernel[:, :, s, t]
    return found.flatten(3).flatten(0, 2)


@st.composite
def geometries(draw):
    """A circular convolution and the shape of its images."""
    shape = (draw(st.integers(1, 2)), draw(st.integers(2, 6)), draw(st.integers(2, 6)))

    def pair(least, most):
        return (draw(st.integers(least, most)), draw(st.integers(least, most)))

    kernel, stride, dilation, padding = pair(1, 3), pair(1, 4), pair(1, 2), pair(0, 4)
    assume(
        all(p <= n and n + 2 * p > d * (k - 1) for p, n, k, d in zip(padding, shape[1:], kernel, dilation, strict=True))
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    weight = torch.randn(draw(st.integers(1, 3)), shape[0], *kernel, dtype=torch.float64, generator=generator)
    return CircularConv2d(stride, padding, dilation, weight, None, 1), shape


@given(geometries())
def test_bounds_hold_in_every_geometry_and_are_exact_where_nothing_repeats(case):
    operation, shape = case
    bound = float(operation.prove(shape, "auto", None)[0])
    whole = matrix(operation, shape)
    norm = float(torch.linalg.matrix_norm(whole, 2))
    assert norm <= bound * (1 + 1e-14)
    axes = operation.axes(shape)
    if all(axis.outputs * axis.stride == axis.size for axis in axes):
        assert bound <= norm * (1 + 1e-8)
    found = _layer(Node(Place("0", "Conv2d", (INPUT,), shape, is_layer=True), operation), bound, NEVER)
    assert found[0] == ("proved" if operation.second_bound(shape) is not None else "not covered")
    x = torch.randn(2, *shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(operation.run(x).flatten(1), x.flatten(1) @ whole.mT, rtol=1e-12, atol=1e-12)


@given(geometries())
def test_the_norm_of_magnitudes_is_bounded_twice(case):
    operation, shape = case
    seen = []

    class Before:
        def affine(self, **facts):
            seen.append(facts)

        def summed(self, norm, **facts):
            seen.append(facts)

    operation.rounding(shape, operation.prove(shape, "auto", None)[0], Before())
    operation.second_rounding(shape, Fraction(1), Before())
    magnitudes = float(torch.linalg.matrix_norm(matrix(operation, shape).abs(), 2))
    assert seen[0]["alpha"] >= magnitudes * (1 - 1e-13)
    assert float(seen[1]["absolute"]) >= magnitudes * (1 - 1e-13)
    assert seen[0]["outputs"] == seen[1]["outputs"] == len(matrix(operation, shape))


@given(geometries())
def test_padding_and_folding_are_transposes(case):
    operation, shape = case
    rows, columns = operation.axes(shape)
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    padded = pad_around(x, rows, columns)
    y = torch.randn(padded.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert float((padded * y).sum()) == pytest.approx(float((x * folded(y, rows, columns)).sum()), rel=1e-10, abs=1e-10)


def test_outputs_that_repeat_are_counted():
    """A kernel of one tap, padded by the whole image on both sides: each pixel leaves three times."""
    operation = CircularConv2d((1, 1), (0, 4), (1, 1), torch.ones(1, 1, 1, 1, dtype=torch.float64), None, 1)
    assert [repetitions(axis) for axis in operation.axes((1, 1, 4))] == [1, 3]
    assert float(operation.prove((1, 1, 4), "auto", None)[0]) == pytest.approx(math.sqrt(3), rel=1e-12)
    assert torch.linalg.matrix_norm(matrix(operation, (1, 1, 4)), 2).item() == pytest.approx(math.sqrt(3))


def test_it_is_another_operator_than_with_zeros():
    """[1, 1] on a ring has norm 2, on a line less: neither bound serves for the other."""
    weight = torch.tensor([[[[1.0, 0.0, -1.0]]]], dtype=torch.float64)
    ring = CircularConv2d((1, 1), (0, 1), (1, 1), weight, None, 1)
    line = Conv2d((1, 1), (0, 1), (1, 1), weight, None, 1)
    around, along = (float(each.prove((1, 1, 6), "exact", None)[0]) for each in (ring, line))
    assert around == pytest.approx(math.sqrt(3), rel=1e-9)
    assert along == pytest.approx(1.802, abs=1e-3)
