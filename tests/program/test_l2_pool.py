"""L2 pooling: what it computes at the edges of float64, its bound by pairs, its rounding against 60 digits."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from safeset.errors import ArgumentError, UnsupportedLayerError
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.numerics.directed import Up
from safeset.numerics.integers import NEVER
from safeset.numerics.multiples import Multiples
from safeset.program.l2_pool import RootOfSquares


def double(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(-1074, 990), st.integers(0, 500))
def test_the_rounding_is_within_what_is_allowed_twice(seed, size, exponent, spread):
    """Groups of any size at any scale, entries up to 2⁵⁰⁰ apart."""
    generator = torch.Generator().manual_seed(seed)
    uneven = -(spread * torch.rand(1, 2, size, dtype=torch.float64, generator=generator)).floor()
    x = torch.randn(1, 2, size, dtype=torch.float64, generator=generator) * torch.exp2(uneven)
    x = x * 2.0 ** (exponent // 2) * 2.0 ** (exponent - exponent // 2)
    pool = RootOfSquares()
    first = pool.rounding((2, size), Up(1.0), Rounding.start())
    second = pool.second_rounding((2, size), Fraction(1), Carried.start())
    assert Fraction(first.error.slope) >= second.strays.slope
    assert Fraction(first.error.offset) >= second.strays.constant
    with mpmath.workdps(60):
        exact = [mp.sqrt(sum(mpf(each) ** 2 for each in group)) for group in x[0].tolist()]
        off = mp.sqrt(sum((mpf(a) - b) ** 2 for a, b in zip(pool.run(x)[0].tolist(), exact, strict=True)))
        norm = mp.sqrt(sum(each**2 for each in exact))
        slope, constant = (
            mpf(each.numerator) / each.denominator for each in (second.strays.slope, second.strays.constant)
        )
        assert off <= slope * norm + constant


@given(st.integers(0, 10**6), st.sampled_from([None, (2, 3)]))
def test_no_pair_of_points_is_moved_apart(seed, patch):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(8, 2, 4, 6, dtype=torch.float64, generator=generator)
    y = (
        x
        + torch.randn(8, 2, 4, 6, dtype=torch.float64, generator=generator)
        * double([1e-6, 1e-2, 1, 10] * 2)[:, None, None, None]
    )
    y[0], y[1] = 2 * x[0], -x[1]
    pool = RootOfSquares(patch)
    moved = (pool.run(x) - pool.run(y)).flatten(1).norm(dim=1)
    assert bool((moved <= (x - y).flatten(1).norm(dim=1) * (1 + 1e-12) + 1e-14).all())
    assert float(moved[0]) == pytest.approx(float((x - y)[0].norm()), rel=1e-12)  # along x the bound is attained


@given(st.integers(0, 10**6))
def test_patches_are_those_of_torch(seed):
    x = torch.randn(2, 3, 5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wanted = torch.nn.functional.lp_pool2d(x, 2.0, (2, 3))
    torch.testing.assert_close(RootOfSquares((2, 3)).run(x), wanted, rtol=1e-13, atol=0)


def test_nothing_overflows_and_nothing_vanishes():
    x = double([[[3.0, 4.0], [0.0, 0.0], [5e-324, 0.0], [3e-200, -4e-200], [3e307, 4e307], [1e308, 1e-308]]])
    assert RootOfSquares().run(x)[0].tolist() == pytest.approx([5.0, 0.0, 5e-324, 5e-200, 5e307, 1e308], rel=1e-15)
    bad = RootOfSquares().run(double([[[math.nan, 0.0], [math.inf, 1.0]]]))[0].tolist()
    assert math.isnan(bad[0])
    assert not bad[1] < math.inf  # no number that could be taken for one


def test_attacks_get_a_slope_everywhere():
    x = double([[[3.0, 4.0], [0.0, 0.0]]]).requires_grad_()
    RootOfSquares().run(x).sum().backward()
    assert x.grad.tolist() == [[pytest.approx([0.6, 0.8]), [0.0, 0.0]]]


def test_roots_are_no_fractions():
    with pytest.raises(UnsupportedLayerError, match=r"in fractions, but got RootOfSquares.*Roots are none"):
        RootOfSquares().exact(NEVER, Multiples.of(double([1.0, 1.0])))
    with pytest.raises(ArgumentError, match="groups along the last axis"):
        RootOfSquares().run(double([1.0]))
