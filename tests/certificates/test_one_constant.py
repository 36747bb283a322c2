"""One Lipschitz constant for all of the logits, given as a number."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.reference import window_table
from helpers.strategies import guarantees, logits
from safeset import ArgumentError, certify_logits, membership_radii, target_table
from safeset.certificates.constants import pair_constant

NUMBERS = st.one_of(
    st.floats(0, 100),
    st.floats(0, allow_infinity=False, allow_nan=False),
    st.integers(0, 2**70),
    st.fractions(0, 10),
    st.sampled_from([0, -0.0, 5e-324, 2.5, 2**53 + 1, 1.7e308]),
)


@given(NUMBERS)
def test_the_constant_of_a_pair_is_above_the_root_of_two_times_the_number_and_hardly(number):
    found = pair_constant(number)
    if found == math.inf:
        assert number > 1.2e308
        return
    exact = 2 * Fraction(number) ** 2  # of the square: rational
    assert Fraction(found) ** 2 >= exact
    if found > 1e-300:
        assert Fraction(found) ** 2 <= exact * (1 + Fraction(1, 2**49))
    assert (found == 0) == (number == 0)


@given(data=st.data(), values=logits(), number=NUMBERS, epsilon=st.sampled_from([0.0, 0.1, 0.5, 2.0]))
def test_a_number_says_what_its_matrix_says_and_what_the_definition_says(data, values, number, epsilon):
    classes = values.shape[1]
    guarantee, kind = data.draw(guarantees(classes))
    method = data.draw(st.sampled_from(["uniform", "floating"]))
    matrix = np.full((classes, classes), pair_constant(number))
    found = certify_logits(values, number, epsilon, guarantee, method=method)
    assert torch.equal(found.windows, certify_logits(values, matrix, epsilon, guarantee, method=method).windows)
    assert torch.equal(target_table(values, number), target_table(values, matrix))
    k = data.draw(st.integers(1, classes - 1))
    assert torch.equal(membership_radii(values, number, k), membership_radii(values, matrix, k))
    if not 1e-100 < float(number) < 1e100 and number != 0:
        return  # the slow reference does not round: it over- and underflows
    slow = [[math.sqrt(2) * float(number)] * classes for _ in range(classes)]
    for point, row in enumerate(values.tolist()):
        for (a, b), radius in window_table(row, slow, kind, method).items():
            computed = found.windows[point, a - 1, b - 1].item()
            if radius == math.inf:  # or too large for a number, which is rounded down
                assert computed > 1e300
                continue
            assert computed == pytest.approx(radius, rel=1e-12, abs=1e-280)
            assert computed <= radius * (1 + 1e-15)


@pytest.mark.parametrize("classes", [2, 5])
def test_the_function_that_needs_the_root_of_two_gets_all_of_its_radius(classes):
    """f(x) = L·x·(e_0 − e_1)/√2 has the constant L, and its best two classes tie at distance |x|."""
    number, x = 3.0, 0.7
    values = torch.zeros(1, classes, dtype=torch.float64)
    values[0, 0], values[0, 1] = number * x / math.sqrt(2), -number * x / math.sqrt(2)
    radius = target_table(values, number)[0, 0, 1].item()
    assert x * (1 - 1e-12) < radius <= x


@pytest.mark.parametrize(
    "number", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), torch.tensor(2.0), torch.tensor(2, dtype=torch.int32)]
)
def test_numbers_of_every_kind(number):
    certificate = certify_logits([[1.0, 0.0, -1.0]], lipschitz=number, epsilon=0.1, guarantee="rt2")
    assert certificate.method == "floating"
    assert certificate.radius.item() == pytest.approx(2 / (math.sqrt(2) * 2))


@pytest.mark.parametrize(
    "number", [-1.0, -1, math.nan, math.inf, -math.inf, 10**400, True, torch.tensor(math.nan), np.array("two"), 1j]
)
def test_what_cannot_be_a_constant_is_refused(number):
    for call in (
        lambda: certify_logits([[1.0, 0.0]], number, 0.1),
        lambda: membership_radii([[1.0, 0.0]], number, 1),
        lambda: target_table([[1.0, 0.0]], number),
    ):
        with pytest.raises(ArgumentError, match="Expected"):
            call()


def test_an_infinite_constant_says_what_a_matrix_can_say():
    with pytest.raises(ArgumentError, match="in a matrix ∞ is a pair whose constant is unknown"):
        certify_logits([[1.0, 0.0]], math.inf, 0.1)


def test_joint_needs_the_rows_of_a_head():
    with pytest.raises(ArgumentError, match="Use method='floating'"):
        certify_logits([[1.0, 0.0]], 2.5, 0.1, method="joint")
