"""Products of integers by limbs are those of Python's integers, whatever their sizes and signs."""

import random
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safeset.numerics import products
from safeset.numerics.integers import NEVER, Deadline, OutOfTimeError
from safeset.numerics.products import dot


def integers(draw, shape, bits):
    """Of up to so many bits, some of them 0, all bits set or a power of two."""
    kinds = (lambda: draw.getrandbits(bits), lambda: 0, lambda: 2**bits - 1, lambda: 2 ** (bits - 1))
    numbers = [draw.choice((-1, 1)) * draw.choice(kinds)() for _ in range(shape[0] * shape[1])]
    return np.array([*numbers, None], dtype=object)[:-1].reshape(shape)


@given(
    st.integers(0, 2**32),
    st.tuples(*[st.integers(1, 40)] * 3),
    st.sampled_from([1, 15, 16, 17, 53, 80, 200]),
    st.sampled_from([1, 16, 31, 32, 900]),
    st.booleans(),
)
def test_products_are_those_of_pythons_integers(seed, shape, bits, others, short):
    """Also of sums so short, or numbers so long, that Python's integers would be taken."""
    draw, (rows, terms, columns) = random.Random(seed), shape
    matrix, others = integers(draw, (rows, terms), bits), integers(draw, (terms, columns), others)
    with mock.patch.object(products, "SHORT", 0 if short else products.SHORT):
        found = dot(matrix, others, NEVER)
    assert found.shape == (rows, columns)
    assert found.tolist() == matrix.dot(others).tolist()
    assert all(type(number) is int for number in found.flat)


@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_are_exact(sign, monkeypatch):
    """2²⁰ products of the largest limbs, all of one sign, are the most that a float is asked to add up."""
    monkeypatch.setattr(products, "FEW", 1)
    most = 2**16 - 1
    row, column = np.full((1, 2**20 + 3), most, dtype=object), np.full((2**20 + 3, 1), sign * most, dtype=object)
    assert dot(row, column, NEVER).tolist() == [[sign * most**2 * (2**20 + 3)]]


@pytest.mark.parametrize("setting", ["TERMS", "LIMBS_AT_ONCE", "MOST"])
def test_parts_of_large_products_add_up(setting, monkeypatch):
    monkeypatch.setattr(products, setting, 7)
    monkeypatch.setattr(products, "SHORT", 0)
    draw = random.Random(0)
    matrix, others = integers(draw, (20, 30), 80), integers(draw, (30, 25), 300)
    assert dot(matrix, others, NEVER).tolist() == matrix.dot(others).tolist()


@pytest.mark.parametrize("rows", [1, 40])
def test_it_stops(rows):
    ones = np.ones((rows, rows), dtype=object)
    with pytest.raises(OutOfTimeError):
        dot(ones, ones, Deadline(0.0))


def test_nothing_added_up_is_0():
    nothing = np.zeros((20, 0), dtype=object)
    assert dot(nothing, nothing.T, NEVER).tolist() == np.zeros((20, 20), dtype=object).tolist()
    assert dot(nothing.T, np.ones((20, 3), dtype=object), NEVER).shape == (0, 3)


def test_limbs_are_taken_where_they_are_faster(monkeypatch):
    """Of long sums alone: digits of wide integers cost more than a few products."""
    asked = []
    monkeypatch.setattr(products, "_product", lambda left, *rest: asked.append(left.shape) or np.zeros((20, 20)))
    for terms, bits, is_taken in ((1000, 80, True), (1, 1000, False), (3, 45, False), (20, 10_000, False)):
        asked.clear()
        ones = np.full((20, terms), 2**bits - 1, dtype=object)
        dot(ones, ones.T, NEVER)
        assert bool(asked) == is_taken
