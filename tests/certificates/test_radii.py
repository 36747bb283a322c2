"""The proving side: radii against the slow reference, exact fractions and 60-digit arithmetic."""

import math
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.reference import pair_radius, ranking, window_table
from helpers.strategies import guarantees, logits, matrices
from safeset import HeadConstants, RelaxedTopK, certify_logits, membership_radii, target_table
from safeset.certificates.constants import MatrixConstants
from safeset.certificates.margins import best_classes
from safeset.certificates.radii import window_radii

U = 2.0**-53


def close(got, wanted):
    """Equal to a few roundings, and never above by more than the reference's own rounding."""
    if math.isinf(wanted) or wanted == 0:
        return got == wanted or (wanted == 0 and 0 <= got <= 1e-300) or (wanted > 1e300 and got > 1e300)
    return wanted * (1 - 1e-12) - 1e-307 <= got <= wanted * (1 + 4 * U) + 5e-324


def finite_gaps(values):
    return all(math.isfinite(abs(a) + abs(b)) for row in values for a in row for b in row)


def check_windows(certificate, values, table_of):
    for point, row in enumerate(values):
        table = table_of(row)
        windows = certificate.windows[point]
        k = len(windows)
        for a in range(k):
            for b in range(k):
                wanted = table.get((a + 1, b + 1), 0.0)
                assert close(windows[a, b].item(), wanted), (a, b, windows[a, b].item(), wanted)


def windows_are_those_of_the_definition(data, values, method):
    classes = values.shape[1]
    matrix = data.draw(matrices(classes))
    guarantee, kind = data.draw(guarantees(classes))
    offset = data.draw(st.sampled_from([0.0, 0.0, 0.25, 1e-9]))
    slope = data.draw(st.sampled_from([0.0, 0.0, 0.5, 1e-9]))
    certificate = certify_logits(values, matrix, 0.1, guarantee, method=method, error=(offset, slope))
    assert not certificate.windows.isnan().any()
    assert (certificate.windows >= 0).all()
    if finite_gaps(values.tolist()):
        check_windows(
            certificate, values.tolist(), lambda row: window_table(row, matrix.tolist(), kind, method, offset, slope)
        )


@given(data=st.data(), values=logits(), method=st.sampled_from(["uniform", "floating"]))
@settings(max_examples=300)
def test_windows_are_those_of_the_definition(data, values, method):
    windows_are_those_of_the_definition(data, values, method)


@pytest.mark.slow
@given(data=st.data(), values=logits(), method=st.sampled_from(["uniform", "floating"]))
def test_windows_are_those_of_the_definition_in_thousands_of_cases(data, values, method):
    windows_are_those_of_the_definition(data, values, method)


@given(data=st.data(), values=logits())
def test_no_pair_radius_is_above_the_exact_fraction(data, values):
    classes = values.shape[1]
    matrix = data.draw(matrices(classes))
    table = target_table(values, matrix)
    for point, row in enumerate(values.tolist()):
        for j in range(classes):
            for i in range(classes):
                got = table[point, j, i].item()
                if i == j:
                    assert got == math.inf
                elif got > 0:
                    gap = Fraction(row[j]) - Fraction(row[i])
                    constant = matrix[j, i]
                    assert constant < math.inf
                    assert gap > 0
                    assert constant == 0 if got == math.inf else Fraction(got) * Fraction(constant) < gap


@given(data=st.data())
def test_upper_constants_are_above_the_exact_distance(data):
    number = st.one_of(
        st.floats(-3, 3), st.sampled_from([1.0, 1.0 + 2.0**-52, 1e-160, 3e-162, 1e-308, 5e-324, 1e160, 1e308, -1e308])
    )
    rows = np.array(data.draw(st.lists(st.lists(number, min_size=3, max_size=3), min_size=2, max_size=5)))
    scale = data.draw(st.sampled_from([1.0, 0.7, 1.7, 0.0, 1e-200, 1e10, 1e200, 5e-324]))
    head = HeadConstants(torch.tensor(rows), scale)
    upper = head.checked(len(rows), torch.device("cpu")).upper(torch.arange(len(rows)))
    for j, first in enumerate(rows.tolist()):
        for i, second in enumerate(rows.tolist()):
            exact = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in zip(first, second, strict=True))
            got = upper[j, i].item()
            assert got == math.inf or Fraction(got) ** 2 >= exact * Fraction(scale) ** 2
            if exact == 0 or scale == 0:
                assert got == 0
            true = mpmath.sqrt(mpmath.mpf(exact.numerator) / exact.denominator) * mpmath.mpf(scale)
            if 1e-290 < true < 1e290 and scale > 1e-290 and exact > Fraction(1e-290) ** 2:
                assert got <= true * (1 + 1e-13)


def test_rows_that_are_almost_equal():
    # Gram matrices say 0 here, hence radius ∞: one of the field's false certificates.
    rows = torch.tensor([[1.0, 1.0], [1.0 + 1e-8, 1.0]], dtype=torch.float64)
    radius = certify_logits(torch.tensor([[1.0, 0.5]]), HeadConstants(rows), 0.0, "standard").radius.item()
    assert radius == pytest.approx(0.5e8, rel=1e-6)


def joint_truth(rows, values):
    """Radius of the window [1, 3] of four classes in rank order, in 60 digits: the pair (1, 4), or (1, 3) and (2, 4).

    Also returns how many times the two pairs' own radii it is.
    """
    with mpmath.workdps(60):
        w = [[mpmath.mpf(v) for v in row] for row in rows]
        f = [mpmath.mpf(v) for v in values]

        def normal(j, i):
            return [a - b for a, b in zip(w[j], w[i], strict=True)]

        def dot(a, b):
            return mpmath.fsum(x * y for x, y in zip(a, b, strict=True))

        def alone(gap, square):
            return gap / mpmath.sqrt(square) if square else mpmath.inf

        single = alone(f[0] - f[3], dot(normal(0, 3), normal(0, 3)))
        p, q, alpha, beta = normal(0, 2), normal(1, 3), f[0] - f[2], f[1] - f[3]
        pp, qq, pq = dot(p, p), dot(q, q), dot(p, q)
        if pp == 0 or qq == 0:
            double = mpmath.inf
        elif alpha * pq >= beta * pp:
            double = alone(alpha, pp)
        elif beta * pq >= alpha * qq:
            double = alone(beta, qq)
        else:
            determinant = pp * qq - pq**2
            square = alpha**2 * qq - 2 * alpha * beta * pq + beta**2 * pp
            double = mpmath.sqrt(square / determinant) if determinant > 0 else mpmath.inf
        own = max(alone(alpha, pp), alone(beta, qq))
        return min(single, double), min(single, double) / own


def near_parallel_cases(seed, number):
    rng = np.random.default_rng(seed)
    for _ in range(number):
        features = rng.integers(2, 5)
        rows = rng.normal(size=(4, features))
        kind = rng.integers(5)
        tiny = 10.0 ** -rng.integers(1, 16)
        if kind == 0:  # normals (1, 3) and (2, 4) almost parallel
            rows[1] = rows[0] + tiny * rng.normal(size=features)
            rows[3] = rows[2]
        elif kind == 1:  # almost opposite
            rows[1] = rows[2] + tiny * rng.normal(size=features)
            rows[3] = rows[0] + tiny * rng.normal(size=features)
        elif kind == 2:  # all rows close together beside a large common part
            rows = 10 * rng.normal(size=features) + tiny * rows
        elif kind == 3:  # one pair of rows close together
            rows[3] = rows[1] + tiny * rng.normal(size=features)
        rows = rows * 10.0 ** rng.choice([0, 0, 0, -100, 100, -200, 200])
        gaps = rng.exponential(size=3) * 10.0 ** rng.choice([0, 0, 0, -3, -6], size=3)
        values = np.cumsum(np.array([0.0, *gaps]))[::-1] + rng.choice([0.0, 1.0])
        if kind == 0 and rng.random() < 0.5:  # equal gaps: the optimum is between the two pairs
            values[1] = values[0] - (values[2] - values[3])
        if all(a > b for a, b in pairwise(values)):
            yield rows, values.copy()


def joint_is_never_above_the_truth(seed, number):
    """And below it by no more than roundings, times (radius of the chain / radius of its pairs)²."""
    for rows, values in near_parallel_cases(seed, number):
        certificate = certify_logits(values[None], HeadConstants(torch.tensor(rows)), 0.0, RelaxedTopK(3))
        got = certificate.radius.item()
        truth, ratio = joint_truth(rows, values)
        assert mpmath.mpf(got) <= truth, (rows, values, got, truth)
        if truth < mpmath.inf:
            cancelled = np.abs(values).max() / -np.diff(values).max()
            roundings = 100 * U * (rows.shape[1] + 8) * (1 + ratio**2) + 64 * U * cancelled * (1 + ratio)
            assert got >= truth * (1 - roundings), (rows, values, got, truth)


def test_joint_is_never_above_the_truth_and_close_to_it():
    joint_is_never_above_the_truth(0, 1500)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 9))
def test_joint_is_never_above_the_truth_in_many_cases(seed):
    joint_is_never_above_the_truth(seed, 15_000)


def test_the_closed_form_alone_would_be_wrong():
    # Rows p, q, 0, 0 with p and q 1e-8 apart: the closed form says ∞, so RT3 to .649; the truth is .367.
    p = np.array([1.0, 1.4637])
    rows = np.array([p, p + np.array([1e-8, 0.0]), [0.0, 0.0], [0.0, 0.0]])
    values = np.array([1.152, 0.652, 0.5, 0.0])
    got = certify_logits(values[None], HeadConstants(torch.tensor(rows)), 0.0, RelaxedTopK(3)).radius.item()
    truth = float(joint_truth(rows, values)[0])
    assert truth * (1 - 1e-7) < got <= truth


def test_small_rows_beside_a_large_one():
    # Products of squares of the small rows' distances underflow; the radii do not.
    rng = np.random.default_rng(0)
    tiny = 2.0**-268
    for _ in range(300):
        rows = np.concatenate([rng.normal(size=(4, 2)) * tiny, [[1.0, 0.0]]])
        values = np.array([*np.sort(rng.uniform(size=4))[::-1] * tiny, -9.0])
        got = certify_logits(values[None], HeadConstants(torch.tensor(rows)), 0.0, RelaxedTopK(3)).radius.item()
        assert got <= joint_truth(rows[:4], values[:4])[0]


def test_a_distance_that_overflows_is_unknown():
    rows = torch.tensor([[8e307, 8e307], [-8e307, -8e307]], dtype=torch.float64)
    head = HeadConstants(rows, 1e-300)
    assert head.distances(torch.tensor([0]))[0, 1] == math.inf
    assert not certify_logits([[1.0, 0.0]], head, 0.0, "standard").certified.any()


def test_a_slope_that_overflows_the_constant():
    # The pair (1, 3) may invert at once, so the chain (1, 3), (2, 4) holds no longer than (2, 4) alone.
    rows = torch.tensor([[1.0, 0.0], [-0.5, 0.75], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    values = torch.tensor([[1.5e307, 0.5e307, 0.25e307, 0.0]], dtype=torch.float64)
    slope = torch.zeros(4, 4)
    slope[0, 2] = 1.0
    slopes = slope.double() * 1.7e308
    certificate = certify_logits(values, HeadConstants(rows, 1e308), 0.0, "rt3", error=(0.0, slopes))
    alone = target_table(values, HeadConstants(rows, 1e308))[0, 1, 3].item()
    assert 0 < certificate.radius.item() <= alone


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
@pytest.mark.parametrize("k", [1, 3, 5, 7, 13])
def test_chunks_change_nothing(method, k):
    make = torch.Generator().manual_seed(k)
    values = torch.randn(23, k + 3, generator=make, dtype=torch.float64)
    head = HeadConstants(torch.randn(k + 3, 4, generator=make, dtype=torch.float64))
    order = best_classes(values, k)
    eligible = torch.ones_like(order, dtype=torch.bool)
    whole = window_radii(values, order, eligible, head, method)
    for chunk in (1, 5, 23, 100):
        assert torch.equal(window_radii(values, order, eligible, head, method, chunk=chunk), whole)


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_points_do_not_depend_on_their_neighbours(method):
    make = torch.Generator().manual_seed(0)
    values = torch.randn(11, 8, generator=make, dtype=torch.float64)
    head = HeadConstants(torch.randn(8, 3, generator=make, dtype=torch.float64))
    together = certify_logits(values, head, 0.1, "rt4", method=method).windows
    alone = [certify_logits(values[place : place + 1], head, 0.1, "rt4", method=method).windows for place in range(11)]
    assert torch.equal(together, torch.cat(alone))


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_windows_rise_with_b_and_fall_with_a(method):
    make = torch.Generator().manual_seed(1)
    values = torch.randn(200, 9, generator=make, dtype=torch.float64)
    head = HeadConstants(torch.randn(9, 4, generator=make, dtype=torch.float64))
    windows = certify_logits(values, head, 0.1, "rt8", method=method).windows
    for a in range(8):
        for b in range(a, 8):
            assert b == a or (windows[:, a, b] >= windows[:, a, b - 1]).all()
            assert a == 0 or (windows[:, a - 1, b] >= windows[:, a, b]).all()
        assert (windows[:, a, :a] == 0).all()


@pytest.mark.parametrize("method", ["floating", "joint"])
def test_a_factored_head_agrees_with_its_matrix(method):
    make = torch.Generator().manual_seed(2)
    values = torch.randn(50, 7, generator=make, dtype=torch.float64)
    head = HeadConstants(torch.randn(7, 4, generator=make, dtype=torch.float64), 1.7)
    matrix = head.upper(torch.arange(7))
    for guarantee in ("standard", "top2", "rt2"):  # joint adds nothing to floating for K ≤ 2
        factored = certify_logits(values, head, 0.1, guarantee, method=method)
        assert torch.equal(factored.windows, certify_logits(values, matrix, 0.1, guarantee, method="floating").windows)


@given(values=logits(), data=st.data())
@settings(max_examples=50)
def test_membership_is_the_kth_least(values, data):
    classes = values.shape[1]
    matrix = data.draw(matrices(classes))
    k = data.draw(st.integers(1, classes - 1))
    got = membership_radii(values, matrix, k)
    if not finite_gaps(values.tolist()):
        return
    for point, row in enumerate(values.tolist()):
        for j in range(classes):
            radii = sorted(pair_radius(row, matrix.tolist(), j, i) for i in range(classes) if i != j)
            assert close(got[point, j].item(), max(0.0, radii[k - 1]))


def test_membership_and_targets_of_a_head():
    make = torch.Generator().manual_seed(3)
    values = torch.randn(5, 6, generator=make)
    head = HeadConstants(torch.randn(6, 4, generator=make))
    matrix = head.upper(torch.arange(6))
    assert torch.equal(target_table(values, head), target_table(values, matrix))
    assert torch.equal(membership_radii(values, head, 2), membership_radii(values, matrix, 2))
    standard = certify_logits(values, head, 0.0, "standard").radius
    assert torch.equal(membership_radii(values, head, 1).amax(dim=1), standard)


def test_rows_that_are_not_finite_have_no_targets():
    values = [[1.0, math.nan, 0.0], [1.0, math.inf, 0.0]]
    assert (target_table(values, np.ones((3, 3))) == 0).all()
    assert (membership_radii(values, np.ones((3, 3)), 2) == 0).all()


BAD_ERRORS = [
    *(-1.0, math.nan, math.inf, (0.0, -1.0), torch.ones(5), (1.0,), (1.0, 1.0, 1.0)),
    *([0.1, 0.1], True, 1j, torch.tensor(0.5j), (None, 0.0), "x", {}, 10**400),
]


class TestErrors:
    """The affine rounding error e(ε) = offset + slope·ε of each pair."""

    VALUES = torch.tensor([[3.0, 2.0, 0.0], [2.0, 5.0, 1.0]], dtype=torch.float64)

    def radius(self, error, method="floating"):
        return certify_logits(
            self.VALUES, torch.ones(3, 3), 0.1, "standard", method=method, error=error
        ).radius.tolist()

    def test_forms(self):
        assert self.radius(None) == pytest.approx([1.0, 3.0])
        assert self.radius(0.5) == pytest.approx([0.5, 2.5])
        assert self.radius((0.5, 1.0)) == pytest.approx([0.25, 1.25])
        assert self.radius(torch.tensor([0.5, 1.0])) == pytest.approx([0.5, 2.0])
        assert self.radius((torch.zeros(2, 3, 3), torch.tensor([0.0, 2.0]))) == pytest.approx([1.0, 1.0])
        pairs = torch.zeros(3, 3)
        pairs[2, 1] = 2.0  # only the classes 1 and 2, in both orders
        assert self.radius(pairs) == self.radius(pairs.mT) == pytest.approx([1.0, 2.0])

    def test_boundaries_are_strict_only_beyond_the_error(self):
        assert self.radius(1.0)[0] == 0.0
        assert self.radius(1.0 - 1e-9)[0] > 0

    @pytest.mark.parametrize("error", BAD_ERRORS)
    def test_bad_ones(self, error):
        with pytest.raises(ValueError, match="Expected"):
            self.radius(error)

    def test_joint_with_slopes_stays_below_the_truth(self):
        rng = np.random.default_rng(5)
        for _ in range(200):
            rows, values = rng.normal(size=(4, 3)), np.sort(rng.normal(size=4))[::-1].copy()
            plain = certify_logits(values[None], HeadConstants(torch.tensor(rows)), 0.0, "rt3").radius.item()
            for slope in (1e-9, 1e-3, 1.0):
                got = certify_logits(
                    values[None], HeadConstants(torch.tensor(rows)), 0.0, "rt3", error=(0.0, slope)
                ).radius.item()
                # The pairs' own constants grow by the slope, so the radius shrinks at least that much.
                largest = np.linalg.norm(rows[:, None] - rows[None], axis=2).max()
                assert got <= plain / (1 + slope / largest) * (1 + 1e-12)
                assert got >= plain * (1 - 40 * slope)


def test_strictness_is_about_logits_not_about_constants():
    # The pair (second, third) has an unknown constant, but the boundary is strict: [1, 2] still holds.
    matrix = np.array([[0, 1, 1], [1, 0, math.inf], [1, math.inf, 0.0]])
    certificate = certify_logits([[3.0, 2.9, 0.0]], matrix, 0.5, "rt2")
    assert certificate.core.tolist() == [[True, False, False]]
    assert certificate.optional.tolist() == [[False, True, False]]


def test_unknown_constants_are_not_certified_even_at_zero():
    matrix = np.full((3, 3), math.inf)
    certificate = certify_logits([[3.0, 2.0, 1.0]], matrix, 0.0, "rt2")
    assert not certificate.certified.any()
    assert (certificate.windows == 0).all()
    assert not certify_logits([[3.0, 2.0]], HeadConstants(torch.ones(2, 2), math.inf), 0.0, "standard").certified.any()


def test_unknown_constants_beside_gaps_that_overflow():
    values = [[1.7e308, 1.6e308, 0.0], [1.7e308, -1.7e308, 0.0]]
    matrix = np.array([[0, math.inf, 1], [math.inf, 0, 1], [1, 1, 0.0]])
    for constants in (matrix, HeadConstants(torch.eye(3), math.inf)):
        table = target_table(values, constants)
        assert not table.isnan().any()
        assert (table[:, 0, 1] == 0).all()
        assert (table[:, 1, 0] == 0).all()
        assert (membership_radii(values, constants, 1)[:, :2] == 0).all()
        assert (membership_radii(values, constants, 2) < math.inf).all()


def test_nothing_is_proved_where_subnormals_are_flushed():
    torch.set_flush_denormal(True)
    try:
        for prove in (lambda *given: certify_logits(*given, 0.0, "standard"), target_table):
            with pytest.raises(ValueError, match="set_flush_denormal"):
                prove([[1e-300, 0.0]], [[0, 1e-310], [1e-310, 0]])
    finally:
        torch.set_flush_denormal(False)
    assert certify_logits([[1e-300, 0.0]], [[0, 1e-310], [1e-310, 0]], 0.0, "standard").radius.item() < 1.1e10


FLUSHED = """
import torch
torch.set_num_threads(2)
torch.set_flush_denormal(True)
import safeset, safeset.inputs
(torch.randn(1_000_000) * 2).sum()  # the second thread starts now, and keeps the mode
torch.set_flush_denormal(False)
for points in (1, 100_000):  # few are certified by this thread alone
    try:
        safeset.certify_logits(torch.eye(2)[:1].expand(points, 2), [[0, 1], [1, 0]], 0.0, "standard")
        print("certified")
    except safeset.ArgumentError as error:
        print(error)
"""


def test_a_thread_that_flushes_is_found():
    done = subprocess.run([sys.executable, "-c", FLUSHED], capture_output=True, text=True, check=True)
    few, many = done.stdout.splitlines()
    assert few == "certified"
    assert "flushed to zero" in many


def test_large_integers_are_not_rounded_down():
    constant = 2**53 + 1
    radius = certify_logits([[1.0, 0.0]], torch.tensor([[0, constant], [constant, 0]]), 0.0, "standard").radius.item()
    assert Fraction(radius) * constant <= 1


def test_constants_of_zero_hold_everywhere():
    certificate = certify_logits([[3.0, 2.0, 1.0]], np.zeros((3, 3)), 1e300, "standard")
    assert certificate.radius.item() == math.inf
    assert certificate.certified.all()
    assert not certify_logits([[3.0, 3.0, 1.0]], np.zeros((3, 3)), 0.0, "standard").certified.any()


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_inside_torch_compile(method):
    make = torch.Generator().manual_seed(0)
    values, head = torch.randn(9, 6, generator=make), HeadConstants(torch.randn(6, 3, generator=make))

    def answers(given):
        certificate = certify_logits(given * 2, head, 0.1, "rt4", method=method)
        return certificate.windows, certificate.core, certificate.radii, membership_radii(given, head, 2)

    for got, wanted in zip(torch.compile(answers, backend="aot_eager")(values), answers(values), strict=True):
        assert torch.equal(got, wanted)


def test_ranking_reference_agrees():
    values = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    assert best_classes(values, 6).tolist() == [ranking(row) for row in values.tolist()]


def test_matrix_constants_take_the_larger_of_two_rounded_ones():
    matrix = torch.tensor([[0.0, 1.0], [1.0 + 1e-9, 0.0]], dtype=torch.float64)
    assert MatrixConstants(matrix).checked(2, torch.device("cpu")).matrix.min() == 0
    assert certify_logits([[1.0, 0.0]], matrix, 0.0, "standard").radius.item() < 1.0 / (1.0 + 1e-9)
