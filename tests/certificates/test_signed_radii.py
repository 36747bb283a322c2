"""Signed radii and the soft minimum: both roundings enclose the exact value, in fractions and in 60 digits."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.strategies import logits, matrices
from safeset import ArgumentError, HeadConstants, membership_radii, signed_radii
from safeset.certificates.signed_radii import EnclosedConstants
from safeset.certificates.soft_min import Directions, soft_min, tangent

LARGE = Fraction(1.7e308)


def exact_radius(first, second, constant, error=Fraction(0)):
    """(f_y − f_j ∓ e)/K in fractions, both ends; ±∞ where K = 0, 0 where K = ∞."""
    gap = Fraction(first) - Fraction(second)
    if constant == math.inf:
        return 0, 0
    if constant == 0:
        return tuple(math.inf if end >= 0 else -math.inf for end in (gap - error, gap + error))
    return tuple(end / Fraction(constant) for end in (gap - error, gap + error))


def smallest(row, matrix, y, k, error=Fraction(0)):
    """The definition: the k-th smallest over the other classes, both ends."""
    ends = [exact_radius(row[y], row[j], max(matrix[y][j], matrix[j][y]), error) for j in range(len(row)) if j != y]
    return sorted(low for low, _ in ends)[k - 1], sorted(high for _, high in ends)[k - 1]


@given(st.data(), logits(), st.sampled_from([0.0, 0.0, 0.25, 1e-9, 1e300]))
@settings(max_examples=150)
def test_both_roundings_enclose_the_fractions(data, values, error):
    classes = values.shape[1]
    matrix = data.draw(matrices(classes))
    k = data.draw(st.integers(1, classes - 1))
    down, up = (signed_radii(values, matrix, k, round=way, error=error).tolist() for way in ("down", "up"))
    for point, row in enumerate(values.tolist()):
        for y in range(classes):
            low, high = smallest(row, matrix.tolist(), y, k, Fraction(error))
            assert down[point][y] <= low, (down[point][y], float(low))
            assert up[point][y] >= high
            for found, wanted in ((down[point][y], low), (up[point][y], high)):
                if abs(wanted) < LARGE and abs(row[y]) < 1e100 and error < 1e100:
                    assert abs(Fraction(found) - wanted) <= (abs(wanted) + Fraction(error)) * Fraction(1, 10**12) + (
                        Fraction(1, 10**300)
                        + 8
                        * Fraction(2.0**-52)
                        * max(map(abs, map(Fraction, row)))
                        / Fraction(min((c for c in matrix.flat if 0 < c < math.inf), default=1.0))
                    )


def test_a_negative_gap_is_rounded_down_too():
    """The radii that are proofs divide a negative gap by a constant that is rounded up: that rounds it up."""
    values = torch.tensor([[0.1, 0.7]], dtype=torch.float64)
    exact = (Fraction(0.1) - Fraction(0.7)) / Fraction(0.3)
    down, up = (signed_radii(values, torch.full((2, 2), 0.3), 1, round=way) for way in ("down", "up"))
    third = Fraction(torch.full((1,), 0.3).double().item())
    assert Fraction(down[0, 0].item()) < (Fraction(0.1) - Fraction(0.7)) / third < Fraction(up[0, 0].item())
    assert abs(exact - Fraction(up[0, 0].item())) < 1e-6
    assert membership_radii(values, torch.full((2, 2), 0.3), 1)[0, 0] == 0.0  # clamped: no score


@given(st.integers(0, 10**6), st.integers(2, 5), st.integers(1, 6), st.sampled_from([1.0, 1e-3, 1e-150, 1e150]))
@settings(max_examples=60)
def test_heads_enclose_sixty_digits(seed, classes, features, size):
    generator = np.random.default_rng(seed)
    rows, values = generator.normal(size=(classes, features)) * size, generator.normal(size=(2, classes))
    scale = float(generator.uniform(0.1, 3))
    k = int(generator.integers(1, classes))
    head = HeadConstants(torch.tensor(rows), scale)
    down, up = (signed_radii(values, head, k, round=way) for way in ("down", "up"))
    with mpmath.workdps(60):
        for point in range(2):
            for y in range(classes):
                radii = sorted(
                    (mpmath.mpf(values[point, y]) - mpmath.mpf(values[point, j]))
                    / (
                        mpmath.norm([mpmath.mpf(a) - mpmath.mpf(b) for a, b in zip(rows[y], rows[j], strict=True)])
                        * scale
                    )
                    for j in range(classes)
                    if j != y
                )
                low, high = down[point, y].item(), up[point, y].item()
                assert mpmath.mpf(low) <= radii[k - 1] <= mpmath.mpf(high)
                assert high - low <= 1e-13 * (abs(low) + float(1 / (size * scale)))


def test_the_same_function_from_other_bits_of_the_distances():
    """A machine that sums squares in another order finds other bits: both enclose the same exact score."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(6, 300, generator=generator, dtype=torch.float64)
    values = torch.randn(50, 6, generator=generator, dtype=torch.float64)
    order = torch.randperm(300, generator=generator)
    one, other = HeadConstants(rows, 1.25), HeadConstants(rows[:, order], 1.25)
    for k in (1, 3):
        assert bool((signed_radii(values, one, k) <= signed_radii(values, other, k, round="up")).all())
        assert bool((signed_radii(values, other, k) <= signed_radii(values, one, k, round="up")).all())


def test_what_is_not_finite_says_nothing():
    values = torch.tensor([[1.0, math.nan, 0.0], [1.0, math.inf, 0.0], [1.0, -math.inf, 2.0], [1.0, 0.5, 0.0]])
    down, up = (signed_radii(values, torch.ones(3, 3), 1, round=way) for way in ("down", "up"))
    assert bool((down[:3] == -math.inf).all())
    assert bool((up[:3] == math.inf).all())
    assert bool(down[3].isfinite().all() & up[3].isfinite().all())


def test_constants_that_are_zero_or_unknown():
    values = [[1.0, 1.0, 0.0]]
    still = torch.zeros(3, 3)
    for way in ("down", "up"):
        assert signed_radii(values, still, 1, round=way).tolist() == [[math.inf, math.inf, -math.inf]]  # ties are +∞
        assert signed_radii(values, torch.full((3, 3), math.inf), 1, round=way).tolist() == [[0.0, 0.0, 0.0]]
        rows = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]], dtype=torch.float64)
        found = signed_radii(values, HeadConstants(rows, 1.0), 2, round=way)
        assert found[0, 0] == math.inf  # f_0 ≥ f_1 with equal rows
        assert signed_radii(values, HeadConstants(rows, 0.0), 1, round=way)[0, 2] == -math.inf
    # With an error the sign of a gap is not known: both ends are said.
    assert signed_radii(values, still, 1, error=0.1)[0, 0] == -math.inf
    assert signed_radii(values, still, 1, round="up", error=0.1)[0, 0] == math.inf


def test_biases_decide_classes_with_equal_rows():
    rows = torch.tensor([[1.0], [1.0], [0.0]], dtype=torch.float64)
    head = HeadConstants(rows, 1.0).checked(3, torch.device("cpu"))
    ties = EnclosedConstants.of(head, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)).ties
    assert ties[0, 1] == ties[1, 0] == math.inf
    assert bool(ties[0, 2].isnan())
    ties = EnclosedConstants.of(head, torch.tensor([0.5, 0.4, 0.0], dtype=torch.float64)).ties
    assert (ties[0, 1].item(), ties[1, 0].item()) == (math.inf, -math.inf)


def test_logits_whose_difference_overflows():
    values = [[1.7e308, -1.7e308]]
    for constant in (0.5, 10.0, 1e300):
        low, high = exact_radius(*values[0], constant)
        down, up = (signed_radii(values, [[0, constant], [constant, 0]], 1, round=way)[0] for way in ("down", "up"))
        assert Fraction(down[0].item()) <= low <= (Fraction(up[0].item()) if up[0] < math.inf else high)
        assert down[0] > 0
        assert up[1] == -down[0]


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"k": 3}, r"`k`.*1\.\.2"),
        ({"k": 0}, "`k`"),
        ({"round": "nearest"}, "one of down, up"),
        ({"lipschitz": -torch.ones(3, 3)}, "≥ 0"),
        ({"error": (0.1, 0.1)}, "without slope"),
        ({"logits": [1.0, 2.0]}, "shape"),
    ],
)
def test_mistakes_are_named(changes, match):
    given_ = {"logits": torch.zeros(1, 3), "lipschitz": torch.ones(3, 3), "k": 1, **changes}
    with pytest.raises(ArgumentError, match=match):
        signed_radii(given_.pop("logits"), given_.pop("lipschitz"), given_.pop("k"), **given_)


# -- the soft minimum -------------------------------------------------------------------------------------------------


def exact_soft_min(radii, tau):
    with mpmath.workdps(60):
        total = mpmath.fsum(mpmath.exp(-mpmath.mpf(one) / mpmath.mpf(tau)) for one in radii if one < math.inf)
        return -mpmath.mpf(tau) * mpmath.log(total)


@given(
    st.lists(
        st.one_of(st.floats(-3, 3), st.sampled_from([0.0, 1e-300, -700.0, 1e10, -1e10, 1e200])), min_size=1, max_size=8
    ),
    st.sampled_from([0.01, 0.1, 0.15, 1.0, 7.0, 1e-6, 1e6]),
)
@settings(max_examples=150)
def test_the_soft_minimum_is_enclosed(radii, tau):
    table = torch.tensor([[*radii, math.inf]], dtype=torch.float64)
    low, high = (soft_min(table, tau, rounded=way).item() for way in ("down", "up"))
    exact = exact_soft_min(radii, tau)
    assert mpmath.mpf(low) <= exact <= mpmath.mpf(high)
    assert high - low <= 1e-12 * (abs(low) + tau)


def test_the_soft_minimum_of_infinities():
    table = torch.tensor([[math.inf, math.inf], [-math.inf, 1.0]], dtype=torch.float64)
    for way in ("down", "up"):
        assert soft_min(table, 0.1, rounded=way).tolist() == [math.inf, -math.inf]


def tangents(seed, classes, features, tau, epsilon):
    """For linear scores of random rows at random points: radii, bound by the tangent, and the rows."""
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(classes, features, generator=generator, dtype=torch.float64)
    biases = torch.randn(classes, generator=generator, dtype=torch.float64)
    x = torch.randn(4, features, generator=generator, dtype=torch.float64)
    distances = (rows[:, None] - rows).norm(dim=2).fill_diagonal_(1.0)

    def radii(points):
        values = points @ rows.T + biases
        found = (values[:, :, None] - values[:, None, :]) / distances
        return found.masked_fill(torch.eye(classes, dtype=torch.bool), math.inf)

    head = HeadConstants(rows, 1.0).remembered()
    return x, radii, tangent(radii(x), tau, Directions.of(head), epsilon), generator


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 5), st.sampled_from([0.02, 0.3]), st.floats(0.001, 3))
@settings(max_examples=60)
def test_the_tangent_is_above_the_score_everywhere_in_the_ball(seed, classes, features, tau, epsilon):
    x, radii, bound, generator = tangents(seed, classes, features, tau, epsilon)
    score = soft_min(radii(x), tau, rounded="down")
    assert bool((bound >= score).all())
    assert bool((bound <= score + epsilon + 1e-9).all())
    for step in range(40):
        z = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        z = z / z.norm(dim=1, keepdim=True) * epsilon * (1 if step % 2 else torch.rand(1, generator=generator).item())
        assert bool((soft_min(radii(x + z), tau, rounded="down") <= bound + 1e-12).all())
    for y in range(classes):  # the steepest ascent of each class's own score, which random points never find
        moved = torch.zeros_like(x).requires_grad_()
        for _ in range(5):
            powers = -tau * torch.logsumexp(-radii_of(x + moved, radii, y) / tau, dim=1)
            (slope,) = torch.autograd.grad(powers.sum(), moved)
            with torch.no_grad():
                longer = moved + slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12) * epsilon
                moved = longer * (epsilon / longer.norm(dim=1, keepdim=True).clamp(min=epsilon))
            moved.requires_grad_()
        assert bool((soft_min(radii(x + moved.detach()), tau, rounded="down")[:, y] <= bound[:, y] + 1e-12).all())


def radii_of(points, radii, y):
    others = [j for j in range(radii(points).shape[1]) if j != y]
    return radii(points)[:, y, others]


def test_the_tangent_is_sharper_than_the_lipschitz_constant():
    x, radii, bound, _ = tangents(0, 6, 5, 0.3, 0.5)
    assert float((soft_min(radii(x), 0.3, rounded="up") + 0.5 - bound).max()) > 0.1


def test_rows_that_are_nearly_equal_leave_the_lipschitz_constant():
    rows = torch.tensor([[1.0, 0.0], [1.0, 1e-16], [0.0, 1.0]], dtype=torch.float64)
    directions = Directions.of(HeadConstants(rows, 1.0).remembered())
    radii = torch.tensor([[[math.inf, 0.1, 0.2], [-0.1, math.inf, 0.3], [-0.2, -0.3, math.inf]]], dtype=torch.float64)
    found = tangent(radii, 0.1, directions, 0.5)
    assert bool((found <= soft_min(radii, 0.1, rounded="up") + 0.5 + 1e-12).all())
    assert not bool(found.isnan().any())
