"""The score `fitted`: against exact arithmetic, against the ball, as a record, and with what it must refuse."""

import json
import math
from functools import cache
from itertools import pairwise

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.digits_net import digits, trained
from safeset import ArgumentError, CertifiedNet, Coverage, fit_logits
from safeset.certificates.radii import ClassError
from safeset.coverage.fit import least_entropy
from safeset.coverage.logit_map import LogitMap
from safeset.coverage.scores import Score


def linear_net(classes, features, seed=0, size=1.0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layer = nn.Linear(features, classes, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.mul_(size)
    return CertifiedNet(nn.Sequential(layer), input_shape=(features,), guarantee="standard", epsilon=0.1)


def drawn(net, points, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(points, *net.input_shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        logits = net(x)
    return x, (logits + 0.5 * torch.randn(logits.shape, generator=generator, dtype=torch.float64)).argmax(dim=1)


@cache
def calibrated(classes=5, features=3, seed=0, wild=False):
    """A net, and a calibration with a fitted map; or with one of random entries, which proves as well."""
    net = linear_net(classes, features, seed)
    x, y = drawn(net, 200, seed=1)
    fit = fit_logits(net, x, y, ridge=1.0)
    if wild:
        generator = torch.Generator().manual_seed(seed)
        found = LogitMap.of(
            3 * torch.randn(classes, classes, generator=generator, dtype=torch.float64),
            torch.randn(classes, generator=generator, dtype=torch.float64),
        )
        constant = found.head(net.network[0].weight.detach(), 1.0).constant
        fit = LogitMap(found.entries, found.exponent, found.shift, 1.001 * constant)
    x, y = drawn(net, 100, seed=2)
    return net, Coverage.calibrate(net, x, y, score="fitted", fit=fit)


def exact_scores(net, fit, x):
    """−(1/K) ln Σ_{j≠y} exp(g_j − g_y) in 60 digits, K as τ is rounded: by loops, from the inputs."""
    layer = net.network[0]
    weight, bias, entries = layer.weight.tolist(), layer.bias.tolist(), fit.entries.tolist()
    table = []
    with mpmath.workdps(60):
        tau, power = mpmath.mpf(1 / fit.constant), mpmath.mpf(2) ** fit.exponent
        for point in x.tolist():
            logits = [
                mpmath.fsum(mpmath.mpf(w) * mpmath.mpf(one) for w, one in zip(row, point, strict=True)) + mpmath.mpf(b)
                for row, b in zip(weight, bias, strict=True)
            ]
            mapped = [
                mpmath.fsum(mpmath.mpf(n) * power * f for n, f in zip(row, logits, strict=True)) + mpmath.mpf(c)
                for row, c in zip(entries, fit.shift.tolist(), strict=True)
            ]
            unit = tau * mpmath.mpf(fit.constant)
            table.append(
                [
                    -tau * mpmath.log(mpmath.fsum(mpmath.exp((g - own) / unit) for j, g in enumerate(mapped) if j != y))
                    for y, own in enumerate(mapped)
                ]
            )
    return table


@pytest.mark.parametrize("wild", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 6])
def test_both_roundings_enclose_sixty_digits(classes, wild):
    net, coverage = calibrated(classes, wild=wild)
    x, _ = drawn(net, 5, seed=3)
    down, up = coverage.scores(x, round="down").tolist(), coverage.scores(x).tolist()
    for point, row in enumerate(exact_scores(net, coverage.score.fit, x)):
        for y, exact in enumerate(row):
            assert mpmath.mpf(down[point][y]) <= exact <= mpmath.mpf(up[point][y])
            assert up[point][y] - down[point][y] < 1e-11 * (1 + abs(up[point][y]))
    plain = coverage.plain_scores(net(x).detach())
    assert torch.allclose(plain, coverage.scores(x), atol=1e-11)


def test_logits_that_lost_digits_widen_the_score():
    """With biases of 10¹² the computed logits are wrong in the fourth digit: the exact score is still between."""
    net = linear_net(3, 2)
    with torch.no_grad():
        net.network[0].bias.add_(1e12)
    x, y = drawn(linear_net(3, 2), 50)
    fit = fit_logits(linear_net(3, 2), x, y)
    coverage = Coverage.calibrate(net, x, y, score="fitted", fit=fit)
    down, up = coverage.scores(x, round="down"), coverage.scores(x)
    assert float((up - down).min()) > 1e-6
    for point, row in enumerate(exact_scores(net, fit, x[:10])):
        for y, exact in enumerate(row):
            assert mpmath.mpf(down[point, y].item()) <= exact <= mpmath.mpf(up[point, y].item())


@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(1, 4), st.booleans(), st.floats(0.001, 3))
@settings(max_examples=40, deadline=None)
def test_no_point_of_the_ball_has_a_larger_score(seed, classes, features, wild, epsilon):
    net, coverage = calibrated.__wrapped__(classes, features, seed, wild)
    x, _ = drawn(net, 3, seed=seed)
    bound, here = coverage.scores(x, epsilon=epsilon), coverage.scores(x)
    assert bool((here <= bound).all())
    assert bool((bound <= here + epsilon + 1e-9).all())
    generator = torch.Generator().manual_seed(seed)
    for step in range(30):
        z = torch.randn(x.shape, generator=generator, dtype=torch.float64)
        reach = 1 if step % 2 else torch.rand(1, generator=generator).item()
        z = z / z.norm(dim=1, keepdim=True) * (epsilon * reach * (1 - 1e-12))
        moved = coverage.scores(x + z, round="down")
        assert bool((moved <= bound).all())
        assert bool((coverage.scores(x + z) >= coverage.scores(x, epsilon=epsilon, round="down")).all())
    for y in range(classes):  # uphill, where random points never come
        z = torch.zeros_like(x)
        for _ in range(5):
            at = (x + z).requires_grad_()
            (slope,) = torch.autograd.grad(coverage.plain_scores(net(at))[:, y].sum(), at)
            z = z + slope / slope.norm(dim=1, keepdim=True).clamp(min=1e-12) * epsilon
            z = z * (epsilon * (1 - 1e-12) / z.norm(dim=1, keepdim=True).clamp(min=epsilon))
        assert bool((coverage.scores(x + z, round="down")[:, y] <= bound[:, y]).all())


def test_a_deeper_net_is_covered_too():
    net, _ = trained()
    (x, y), (new, labels) = digits()
    fit = fit_logits(net, x, y)
    coverage = Coverage.calibrate(net, new[:300], labels[:300], score="fitted", fit=fit)
    sets = [coverage.sets(new[300:], epsilon, allow_empty=True) for epsilon in (0.0, 0.1, 0.5, 5.0)]
    assert all(bool((small <= large).all()) for small, large in pairwise(sets))
    assert float(sets[0].gather(1, labels[300:, None]).double().mean()) > 0.85


def test_what_is_not_finite_is_in_every_set():
    _, coverage = calibrated()
    odd = torch.tensor([[math.nan, 0.0, 0.0], [math.inf, 0.0, 0.0], [1e308, 1e308, 1e308]], dtype=torch.float64)
    assert bool((coverage.scores(odd, round="down") == -math.inf).all())
    for epsilon in (0.0, 0.1):
        assert bool((coverage.scores(odd, epsilon=epsilon) == math.inf).all())
        assert bool(coverage.sets(odd, epsilon).all())


def test_an_unknown_error_is_no_nan():
    """0 · ∞ in the product of sizes and errors."""
    found = LogitMap.of(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.zeros(2))
    error = ClassError(torch.full((1, 2), math.inf, dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    _, widened = found.enclosed(torch.zeros(1, 2, dtype=torch.float64), error)
    assert bool((widened.offset == math.inf).all())


def test_errors_of_differences_go_through_the_map():
    """g_0 = f_0 − f_1 errs by a_0 + a_1, taken as (a_0 + a_0) + (a_1 + a_0); g_1 = 0 by nothing."""
    found = LogitMap.of(torch.tensor([[1.0, -1.0], [0.0, 0.0]]), torch.zeros(2))
    error = ClassError(torch.tensor([[0.25, 0.5]], dtype=torch.float64), torch.zeros(2, dtype=torch.float64))
    mapped, widened = found.enclosed(torch.tensor([[3.0, 1.0]], dtype=torch.float64), error)
    assert mapped.tolist() == [[2.0, 0.0]]
    assert 1.25 <= widened.offset[0, 0] < 1.25 + 1e-12
    assert 0 <= widened.offset[0, 1] < 1e-12


def test_equal_logits_have_equal_scores():
    layer = nn.Linear(3, 4, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.ones(4, 3))  # rows that are all equal: nothing moves a difference
        layer.bias.zero_()
    net = CertifiedNet(nn.Sequential(layer), input_shape=(3,), guarantee="standard", epsilon=0.1)
    x = torch.randn(40, 3, dtype=torch.float64)
    fit = fit_logits(net, x, torch.arange(40) % 4)
    coverage = Coverage.calibrate(net, x, torch.arange(40) % 4, score="fitted", fit=fit)
    assert bool(coverage.sets(x, 0.1).all())
    assert not bool(coverage.scores(x, epsilon=0.1).isnan().any())


# -- the map ----------------------------------------------------------------------------------------------------------


@given(st.integers(0, 10**6), st.integers(2, 9), st.sampled_from([1e-30, 1e-3, 1.0, 1e30]))
@settings(max_examples=50)
def test_rows_of_a_map_sum_to_exactly_nothing(seed, classes, size):
    matrix = torch.from_numpy(np.random.default_rng(seed).normal(size=(classes, classes))) * size
    centred = matrix - matrix.mean(dim=1, keepdim=True)
    found = LogitMap.of(centred, torch.zeros(classes))
    assert all(math.fsum(row) == 0 for row in found.matrix.tolist())
    assert torch.equal(found.matrix, found.entries.double() * 2.0**found.exponent)
    assert float((found.matrix - centred).abs().max()) <= classes * 2.0**-20 * float(centred.abs().max())


def test_the_constant_is_above_that_of_every_pair():
    """Against rows in 60 digits, with entries that cancel."""
    generator = torch.Generator().manual_seed(0)
    rows = 1e6 + torch.randn(4, 7, generator=generator, dtype=torch.float64)
    found = LogitMap.of(torch.randn(4, 4, generator=generator, dtype=torch.float64), torch.zeros(4))
    mapped = found.head(rows, 1.25)
    with mpmath.workdps(60):
        exact = mpmath.matrix(found.matrix.tolist()) * mpmath.matrix(rows.tolist())
        for y in range(4):
            error = mpmath.norm([exact[y, n] - mpmath.mpf(mapped.rows[y, n].item()) for n in range(7)])
            assert error <= mapped.error
            for j in range(4):
                apart = mpmath.norm([exact[y, n] - exact[j, n] for n in range(7)]) * mpmath.mpf(1.25)
                assert apart <= mapped.constant
    assert mapped.error < 1e-12


def test_a_map_shows_itself_in_a_line():
    """The table has a number for each pair of classes."""
    shown = LogitMap.of(torch.eye(30, dtype=torch.float64), torch.zeros(30, dtype=torch.float64), 2.5)
    assert repr(shown) == "LogitMap(30 logits, constant 2.5)"


def test_a_fit_is_better_than_the_logits():
    """A net that takes two classes for one another too seldom: the map finds it."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3000) % 3
    logits = nn.functional.one_hot(labels, 3).double() + torch.randn(3000, 3, generator=generator, dtype=torch.float64)
    mixed = logits @ torch.tensor([[1.0, 0.5, 0.0], [0.0, 1.0, 0.5], [0.5, 0.0, 1.0]], dtype=torch.float64)
    entropies = []
    for ridge in (1e9, 1.0):
        matrix, shift = least_entropy(mixed, labels, ridge)
        entropies.append(float(nn.functional.cross_entropy(mixed @ matrix.T + shift, labels)))
        assert torch.allclose(matrix.sum(dim=1), torch.zeros(3, dtype=torch.float64), atol=1e-9)
    best = float(nn.functional.cross_entropy(logits, labels))
    assert entropies[1] < best + 0.01 < entropies[0] - 0.02


def test_labels_that_are_all_right_or_all_equal_do_not_run_away():
    logits = 100 * torch.eye(3, dtype=torch.float64).repeat(10, 1)
    for labels in (torch.arange(30) % 3, torch.zeros(30, dtype=torch.long)):
        for table in (logits, torch.zeros_like(logits)):
            matrix, shift = least_entropy(table, labels, 300.0)
            assert bool(matrix.isfinite().all() & shift.isfinite().all())
            assert LogitMap.of(matrix, shift).entries.abs().max() > 0


@pytest.mark.parametrize("size", [1e-200, 1e-60, 1e60, 1e200, 1e307])
def test_logits_of_a_size_that_no_map_has_are_refused_with_a_remedy(size):
    """At 1e-200 squares were 0, and a map was found whose sets had nearly all classes."""
    net = linear_net(5, 3, size=size)
    x, y = drawn(linear_net(5, 3), 60)
    with torch.no_grad():
        net.network[0].bias.mul_(size)
    with pytest.raises(ArgumentError, match=r"a power of 2 that brings them near 1.*or take the score 'soft-min'"):
        fit_logits(net, x, y)


def test_a_power_of_two_changes_no_fit():
    net, scaled = linear_net(5, 3), linear_net(5, 3)
    x, y = drawn(net, 60)
    with torch.no_grad():
        for one in scaled.network[0].parameters():
            one.mul_(2.0**100)
    first, second = (fit_logits(each, x, y) for each in (net, scaled))
    assert torch.equal(first.entries, second.entries)
    assert second.exponent == first.exponent - 100


# -- records and refusals ---------------------------------------------------------------------------------------------


def test_a_record_comes_back():
    net, coverage = calibrated()
    x, _ = drawn(net, 30, seed=4)
    text = json.dumps(coverage.to_record(), allow_nan=False)
    again = Coverage.from_record(json.loads(text), net)
    assert repr(again) == repr(coverage)
    assert "score fitted" in repr(again)
    assert "exp and log" in again.promise
    assert torch.equal(again.scores(x, epsilon=0.2), coverage.scores(x, epsilon=0.2))
    assert again.to_record() == coverage.to_record()


def changed(record, **changes):
    return {**record, "fit": {**record["fit"], **changes}}


@pytest.mark.parametrize(
    "change",
    [
        lambda record: {key: value for key, value in record.items() if key != "fit"},
        lambda record: {**record, "score": "membership", "k": 1},
        lambda record: {**record, "score": "soft-min", "tau": 0.1},
        lambda record: {**record, "tau": 0.1},
        lambda record: {**record, "k": 1},
        lambda record: changed(record, constant=record["fit"]["constant"] * 0.99),
        lambda record: changed(record, constant=0.0),
        lambda record: changed(record, constant=math.inf),
        lambda record: changed(record, exponent=1000),
        lambda record: changed(record, exponent=True),
        lambda record: changed(record, shift=[0.0]),
        lambda record: changed(record, shift=[math.nan] * 5),
        lambda record: changed(record, shift=["x"] * 5),
        lambda record: changed(record, entries=[[1] * 5] * 5),
        lambda record: changed(record, entries=[[0.0] * 5] * 5),
        lambda record: changed(record, entries=[[2**60, -(2**60), 0, 0, 0]] * 5),
        lambda record: changed(record, entries=[[0] * 4] * 5),
        lambda record: changed(record, entries=None),
        lambda record: changed(record, more=1),
        lambda record: {**record, "fit": None},
    ],
)
def test_damaged_records_are_refused(change):
    net, coverage = calibrated()
    with pytest.raises(ArgumentError, match="Expected"):
        Coverage.from_record(change(json.loads(json.dumps(coverage.to_record()))), net)


def test_a_map_of_another_network_is_refused():
    """One whose constant is too small there: the score would not be 1-Lipschitz."""
    _, coverage = calibrated()
    other = linear_net(5, 3, size=10.0)
    x, y = drawn(other, 30)
    with pytest.raises(ArgumentError, match="fit_logits"):
        Coverage.calibrate(other, x, y, score="fitted", fit=coverage.score.fit)


@pytest.mark.parametrize(
    "given_",
    [
        {"score": "fitted"},
        {"score": "fitted", "fit": 3},
        {"score": "membership", "fit": "own"},
        {"score": "soft-min", "fit": "own"},
        {"score": "fitted", "fit": "own", "k": 1},
        {"score": "fitted", "fit": "own", "tau": 0.1},
    ],
)
def test_mistakes_are_named(given_):
    net, coverage = calibrated()
    x, y = drawn(net, 30)
    fit = coverage.score.fit if given_.get("fit") == "own" else given_.get("fit")
    with pytest.raises(ArgumentError, match="Expected"):
        Coverage.calibrate(net, x, y, **{**given_, "fit": fit})


def test_what_cannot_be_fitted_is_refused():
    net = linear_net(3, 2)
    x, y = drawn(net, 10)
    for wrong in (
        lambda: fit_logits(net.network, x, y),
        lambda: fit_logits(net, x, y[:-1]),
        lambda: fit_logits(net, x, y, ridge=0),
        lambda: fit_logits(net, torch.full_like(x, math.nan), y),
        lambda: LogitMap.of(torch.zeros(3, 3), torch.zeros(3)),
        lambda: Score.of("fitted", 4, fit=LogitMap.of(torch.eye(3), torch.zeros(3))),
    ):
        with pytest.raises(ArgumentError, match="Expected"):
            wrong()
    assert fit_logits(net, net.measure(x), y).shift.shape == (3,)


def test_points_of_another_network_are_not_fitted_with():
    """Of other classes they ended in an error of torch's."""
    net = linear_net(3, 2)
    for other in (linear_net(4, 2), linear_net(3, 2, seed=1)):
        x, y = drawn(other, 10)
        with pytest.raises(ArgumentError, match=r"Take net\.measure"):
            fit_logits(net, other.measure(x), y % 3)


def test_fits_are_found_in_inference_mode_too():
    net = linear_net(3, 2)
    x, y = drawn(net, 30)
    with torch.inference_mode():
        found = fit_logits(net, x, y)
    assert found.to_values() == fit_logits(net, x, y).to_values()


@pytest.mark.parametrize("name", ["entries", "shift"])
def test_a_map_that_is_written_to_later_changes_no_calibration(name):
    """Scores would be others at prediction than at calibration, and nothing be covered."""
    net = linear_net(5, 3)
    x, y = drawn(net, 60)
    fit = fit_logits(net, x, y)
    coverage = Coverage.calibrate(net, x, y, score="fitted", fit=fit)
    before, record = coverage.scores(x, epsilon=0.1), coverage.to_record()
    getattr(fit, name).mul_(-3)
    assert torch.equal(coverage.scores(x, epsilon=0.1), before)
    assert coverage.to_record() == record


@pytest.mark.parametrize(
    "entries",
    [
        torch.eye(5).long(),  # rows with another sum: of g nothing is proved by the distances of rows of B W
        torch.eye(5, dtype=torch.float64) - 0.2,
        torch.zeros(4, 4).long(),
        torch.full((5, 5), 2**50),
        [[0] * 5] * 5,
    ],
)
def test_maps_that_were_made_by_hand_are_checked(entries):
    net = linear_net(5, 3)
    x, y = drawn(net, 60)
    fit = LogitMap(entries, 0, torch.zeros(5, dtype=torch.float64), 2.0**100)
    with pytest.raises(ArgumentError, match="a map of"):
        Coverage.calibrate(net, x, y, score="fitted", fit=fit)
