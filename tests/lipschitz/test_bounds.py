"""Bounds against 60 digits: never below the spectral norm, and close to it."""

import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.convolutions import convolutions
from helpers.exact_norm import at_least_norm, convolution_matrix, within
from helpers.matrices import GEOMETRY, KINDS, SCALES, matrix_of_a_kind
from safeset.errors import ArgumentError
from safeset.lipschitz import convolution_proof, dense
from safeset.lipschitz.block_cholesky import largest_eigenvalue
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import exact_bound, torus_bound
from safeset.lipschitz.dense import spectral_bound
from safeset.numerics.circle import circle
from safeset.numerics.directed import SUBNORMAL, Up, gamma, row_norms


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_a_dense_bound_is_just_above_the_norm(kind, scale):
    rng = np.random.default_rng(KINDS.index(kind))
    for _ in range(5):
        matrix = matrix_of_a_kind(rng, kind, *rng.integers(1, 8, size=2)) * scale
        bound = spectral_bound(torch.tensor(matrix))
        assert within(matrix, bound, 1e-8 if np.abs(matrix).max() > 1e-290 else 1.0), matrix.tolist()


@pytest.fixture
def as_if_large(monkeypatch):
    """Small matrices by what large ones get: strips of two rows, one eigenvalue instead of all; images in blocks."""
    monkeypatch.setattr(dense, "STRIP", 2)
    monkeypatch.setattr(dense, "LARGE", 1)
    monkeypatch.setattr(convolution_proof, "_prefers_torus", lambda torus, blocks: False)


@pytest.mark.usefixtures("as_if_large")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", SCALES)
def test_bounds_of_large_matrices_are_just_above_the_norm_too(kind, scale):
    test_a_dense_bound_is_just_above_the_norm(kind, scale)


@pytest.mark.usefixtures("as_if_large")
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KINDS))
def test_bounds_of_large_convolutions_are_above_the_norm_too(seed, rows, columns, out, into, kind):
    convolution, matrix = convolutions(seed, rows, columns, out, into, kind)
    assert within(matrix, exact_bound(convolution), 1e-9)


def test_a_large_matrix_in_strips():
    weight = torch.randn(dense.LARGE + 100, 1300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    norm = float(torch.linalg.matrix_norm(weight, 2))
    assert norm * (1 - 1e-12) <= spectral_bound(weight) <= norm * (1 + 1e-8)


@pytest.mark.slow
@settings(max_examples=3000)
@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.floats(-320, 300), st.integers(1, 12), st.integers(1, 12))
def test_dense_bounds_of_thousands_of_matrices(seed, kind, exponent, rows, columns):
    matrix = matrix_of_a_kind(np.random.default_rng(seed), kind, rows, columns)
    matrix = matrix * 10.0 ** (exponent / 2) * 10.0 ** (exponent / 2)
    assert within(matrix, spectral_bound(torch.tensor(matrix)), 1e-8 if np.abs(matrix).max() > 1e-290 else 1.0)


def test_a_stack_has_the_largest_norm():
    stack = torch.stack([torch.eye(3, dtype=torch.float64) * value for value in (1.0, 5.0, 2.0)])
    assert 0 <= spectral_bound(stack) - 5 < 1e-12
    assert spectral_bound(torch.zeros(2, 3)) == 0
    assert spectral_bound(torch.zeros(0, 3)) == 0


def test_the_power_method_stalls_where_the_bound_does_not():
    """Weights on which the power method finds 1 from a start without the best direction; the norm is 3."""
    weights = torch.diag(torch.tensor([1.0, 3.0, 1.0]))
    assert 0 <= spectral_bound(weights) - 3 < 1e-12


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_weights_that_are_not_finite_raise(value):
    with pytest.raises(ArgumentError, match="Expected finite weights"):
        spectral_bound(torch.tensor([[1.0, value]]))


@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KINDS))
def test_convolution_bounds_are_above_the_norm(seed, rows, columns, out, into, kind):
    convolution, matrix = convolutions(seed, rows, columns, out, into, kind)
    assert at_least_norm(matrix, torus_bound(convolution))
    assert within(matrix, exact_bound(convolution), 1e-9)


@pytest.mark.slow
@settings(max_examples=1000)
@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KINDS))
def test_convolution_bounds_of_every_geometry(seed, rows, columns, out, into, kind):
    convolution, matrix = convolutions(seed, rows, columns, out, into, kind, most=50)
    assert at_least_norm(matrix, torus_bound(convolution))
    assert within(matrix, exact_bound(convolution), 1e-9)


@pytest.mark.parametrize("scale", [1e-30, 1e-160, 1e-290, 1e160, 1e300])
def test_convolution_bounds_at_any_scale(scale):
    axis = (5, 3, 1, 1, 1, 1)
    convolution, matrix = convolutions(0, axis, axis, 2, 1, most=60)
    scaled = Convolution(convolution.kernel * scale, convolution.rows, convolution.columns)
    assert within(matrix * scale, exact_bound(scaled), 1e-9)
    assert at_least_norm(matrix * scale, torus_bound(scaled))


@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3))
def test_the_operator_and_its_transpose_are_those_of_the_definition(seed, rows, columns, out, into):
    convolution, matrix = convolutions(seed, rows, columns, out, into)
    matrix = torch.tensor(matrix)
    x = torch.randn(convolution.inputs, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    y = torch.randn(convolution.outputs, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(convolution.apply(x).flatten(), matrix @ x.flatten())
    torch.testing.assert_close(convolution.transposed(y).flatten(), matrix.T @ y.flatten())
    assert largest_eigenvalue(convolution) == pytest.approx(torch.linalg.matrix_norm(matrix, 2).item() ** 2, rel=1e-9)


def test_a_torus_of_the_image_is_not_enough():
    """Filter [1, 0, −1] on 6 pixels: the norm is 1.802 with zero padding, 1.732 on a circle of 6."""
    kernel = torch.tensor([[[[1.0, 0.0, -1.0]]]], dtype=torch.float64)
    convolution = Convolution(kernel, Axis(1, 1, 1, 1, 0, 0), Axis(6, 3, 1, 1, 1, 1))
    assert torus_bound(convolution) >= 2 * math.cos(math.pi / 7)
    assert exact_bound(convolution) == pytest.approx(2 * math.cos(math.pi / 7), rel=1e-9)


@pytest.mark.parametrize("n", [300, 1000])
def test_long_thin_images_have_close_bounds_too(n):
    """Where the Lanczos method converges slowly: the norm is 1 + 2 cos(π/(n + 1))."""
    kernel = torch.ones(1, 1, 1, 3, dtype=torch.float64)
    bound = exact_bound(Convolution(kernel, Axis(1, 1, 1, 1, 0, 0), Axis(n, 3, 1, 1, 1, 1)))
    truth = 1 + 2 * math.cos(math.pi / (n + 1))
    assert truth * (1 - 1e-15) <= bound <= truth * (1 + 1e-7)


def test_taps_that_only_see_the_padding_do_not_count():
    axis = Axis(1, 3, 1, 1, 1, 1)
    kernel = torch.tensor([[7.0, 7, 7], [7, 0, 7], [7, 7, 7]], dtype=torch.float64)[None, None]
    assert exact_bound(Convolution(kernel, axis, axis)) == 0
    assert torus_bound(Convolution(kernel, axis, axis)) == 0
    kernel[0, 0, 1, 1] = 1e-200
    for bound in (exact_bound, torus_bound):
        assert bound(Convolution(kernel, axis, axis)) == pytest.approx(1e-200, rel=1e-9, abs=0)
    kernel[0, 0, 0, 0] = math.nan
    with pytest.raises(ArgumentError, match="finite"):
        exact_bound(Convolution(kernel, axis, axis))


@pytest.mark.parametrize(("before", "after"), [(0, 1), (1, 0), (0, 2)])
@pytest.mark.parametrize("n", [3, 5, 6])
def test_padding_on_one_side_needs_its_torus(before, after, n):
    kernel = torch.tensor([[[[1.0]], [[-1.0]]]], dtype=torch.float64).view(1, 1, 2, 1)
    convolution = Convolution(kernel, Axis(n, 2, 1, 1, before, after), Axis(1, 1, 1, 1, 0, 0))
    matrix = convolution_matrix(kernel.numpy(), (n, 1), (1, 1), (1, 1), (before, 0), (after, 0))
    assert at_least_norm(matrix, torus_bound(convolution))
    assert within(matrix, exact_bound(convolution), 1e-9)


@pytest.mark.parametrize("stride", [1, 2])
def test_a_torus_is_within_one_percent_at_32_pixels(stride):
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(6, 4, 3, 3, generator=generator, dtype=torch.float64)
    axis = Axis(32, 3, stride, 1, 1, 1)
    convolution = Convolution(kernel, axis, axis)
    assert 1 <= torus_bound(convolution) / exact_bound(convolution) * (1 + 1e-9) < 1.01


NUMBERS = st.one_of(st.floats(0, 1e308), st.sampled_from([0.0, 1.0, SUBNORMAL, 1e-308, 1 + 2.0**-52, 2.0**-53]))


@given(NUMBERS, NUMBERS, st.integers(1, 1000), st.integers(-2000, 2000))
def test_upward_arithmetic_is_above_the_exact_value(a, b, divisor, exponent):
    from fractions import Fraction

    def above(value, exact):
        return value == math.inf or Fraction(value) >= exact

    first, second = Fraction(a), Fraction(b)
    assert above(Up(a) + b, first + second)
    assert above(a + Up(b), first + second)
    assert above(Up(a) * b, first * second)
    assert above(Up(a).over(divisor), first / divisor)
    assert above(Up(a).root(), 0)
    assert Up(a).root() == math.inf or Fraction(Up(a).root()) ** 2 >= first
    assert above(Up(a).shifted(exponent), first * Fraction(2) ** exponent)
    if a + b < math.inf:
        assert Up(a) + b <= math.nextafter(a + b, math.inf)


def test_unknown_numbers_are_infinite():
    assert Up(0.0) * math.inf == math.inf
    assert Up(math.nan) + 1 == math.inf
    assert Up(1e308) + 1e308 == math.inf
    assert float(gamma(3)) == pytest.approx(3 * 2.0**-53, rel=1e-15)


@given(st.lists(st.one_of(st.floats(-10, 10), st.sampled_from([1e-200, 1e200, 5e-324, 0.0])), min_size=1, max_size=9))
def test_row_norms_are_from_above(row):
    from fractions import Fraction

    norm = row_norms(torch.tensor([row], dtype=torch.float64)).item()
    exact = sum(Fraction(value) ** 2 for value in row)
    assert Fraction(norm) ** 2 >= exact
    assert exact == 0 or norm <= 5e-324 or Fraction(norm) ** 2 <= exact * Fraction(1 + 1e-14) + Fraction(2) ** -2100


@pytest.mark.parametrize("period", [1, 2, 3, 4, 7, 17, 33, 66, 289, 1000])
def test_the_circle_is_right_to_the_unit_roundoff(period):
    with mpmath.workprec(150):
        for q, (cosine, sine) in enumerate(zip(*(part.tolist() for part in circle(period)), strict=True)):
            angle = mpmath.mpf(2 * q) / period
            assert abs(cosine - mpmath.cospi(angle)) <= 2.0**-53
            assert abs(sine - mpmath.sinpi(angle)) <= 2.0**-53
