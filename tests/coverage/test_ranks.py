"""Exact order statistics against the definitions in fractions, and against what floating point makes of them."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safeset import ArgumentError
from safeset.coverage import ranks
from safeset.coverage.ranks import _confident, _exact, as_level, fewest, rank


@given(st.integers(1, 2000), st.integers(1, 99))
def test_the_rank_is_the_least_integer_of_the_definition(points, percent):
    alpha = as_level(percent / 100, "`alpha`")
    assert alpha == Fraction(percent, 100)
    m = rank(points, alpha)
    assert m >= (points + 1) * (1 - alpha) > m - 1


def test_where_floating_point_is_off_by_one():
    assert rank(9, as_level(0.1, "`alpha`")) == 9  # the least score of nine
    assert rank(299, as_level(0.1, "`alpha`")) == 270
    levels = [(n, percent / 100) for percent in range(1, 100) for n in range(1, 400)]
    assert any(math.ceil((n + 1) * (1 - alpha)) != rank(n, as_level(alpha, "`alpha`")) for n, alpha in levels)
    # numpy's quantile of the scores themselves is another point, too high.
    scores = np.arange(300.0)
    q = np.sort(scores)[::-1][rank(300, Fraction(1, 10)) - 1]
    assert q < np.quantile(scores, 0.1)


def tail(points, probability, least):
    """P(B ≥ least) in fractions."""
    terms = range(least, points + 1)
    return sum(math.comb(points, k) * probability**k * (1 - probability) ** (points - k) for k in terms)


@given(st.integers(1, 60), st.sampled_from(["1/10", "1/20", "1/3"]), st.sampled_from(["19/20", "9/10", "1/2"]))
def test_the_confident_rank_is_the_least_of_the_definition(points, alpha, confidence):
    alpha, confidence = Fraction(alpha), Fraction(confidence)
    m = rank(points, alpha, confidence)
    assert tail(points, 1 - alpha, m) <= 1 - confidence
    assert m == 0 or tail(points, 1 - alpha, m - 1) > 1 - confidence


@given(st.integers(1, 60), st.integers(1, 11), st.sampled_from([None, "1/2", "19/20", "9/10"]))
def test_rounded_sums_decide_as_integers_do(points, twelfths, confidence):
    alpha = Fraction(twelfths, 12)
    risk = (1 - alpha) ** points if confidence is None else 1 - Fraction(confidence)  # P(B ≥ n): neither more nor less
    assert _confident(points, alpha, risk) == _exact(points, alpha, risk)


def test_long_levels_of_many_points_need_no_integers_of_a_million_digits(monkeypatch):
    monkeypatch.setattr(ranks, "_exact", None)  # it takes a minute here
    m = rank(20_000, Fraction("0.4999999999999999999999999999999999999"), Fraction("0.9500000000000000000000000000001"))
    assert m == 10_117


def test_the_confident_rank_of_the_page():
    assert rank(300, Fraction(1, 10)) == 271
    assert rank(300, Fraction(1, 10), Fraction(19, 20)) == 279
    # Beyond what is summed exactly, a larger index, never a smaller one.
    exact = rank(20_000, Fraction(1, 10), Fraction(19, 20))
    assert exact <= rank(20_001, Fraction(1, 10), Fraction(19, 20)) <= exact + 150


@given(st.sampled_from(["1/10", "1/20", "1/4"]), st.sampled_from([None, "19/20"]), st.integers(0, 5))
def test_the_fewest_points(alpha, confidence, poisoned):
    about = Fraction(alpha), confidence and Fraction(confidence), poisoned
    least = fewest(*about)
    assert rank(least, *about) <= least
    assert least == 1 or rank(least - 1, *about) > least - 1


@pytest.mark.parametrize("alpha", [0, 1, -0.1, 1.5, math.nan, math.inf, "a", "1/0", None, True, [0.1], "1" * 500])
def test_levels_that_are_none(alpha):
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        as_level(alpha, "`alpha`")


def test_the_fewest_points_are_the_fewest_where_sums_stop_being_exact():
    alpha, confidence = Fraction(15, 100_000), Fraction(19, 20)
    assert fewest(alpha, confidence) == 19_971
    assert rank(19_971, alpha, confidence) <= 19_971
    assert rank(19_970, alpha, confidence) > 19_970


@pytest.mark.parametrize("alpha", ["1e-3000000", "1e-999999999", Decimal("1e-99999"), "0x1", "1_0/100", "nan"])
def test_levels_that_would_take_all_memory_are_refused_at_once(alpha):
    with pytest.raises(ArgumentError, match="between 0 and 1"):
        as_level(alpha, "`alpha`")


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
def test_levels_of_fewer_digits_are_as_they_are_written(kind):
    """The float32 next to 0.01 is below it, and 99 points were too few."""
    for text in ("0.01", "0.05", "0.1", "0.3"):
        for value in (kind(text), np.array([text], dtype=kind), torch.tensor(kind(text))):
            assert as_level(value, "`alpha`") == Fraction(text)
    assert fewest(as_level(torch.tensor(0.01), "`alpha`")) == 99
