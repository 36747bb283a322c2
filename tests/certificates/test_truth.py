"""Certificates of linear networks against the distance to the nearest violation, found by brute force."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
import torch

from helpers.linear_truth import nearest_violation, random_network
from helpers.reference import eligible_ks, ranking
from safeset import Affinity, HeadConstants, RelaxedTopK, Standard, TopK, certify_logits
from safeset.certificates.margins import METHODS


def check_network(rng):
    """Every guarantee, method and window of one random network; returns the number of windows checked."""
    classes, features = int(rng.integers(3, 7)), int(rng.integers(2, 5))
    rows, values = random_network(rng, classes, features)
    order = ranking(values.tolist())
    k = int(rng.integers(1, min(classes, 5)))
    sets = [set(rng.choice(classes, size=rng.integers(1, classes), replace=False).tolist()) for _ in range(3)]
    kinds = [
        (Standard(), ("standard",)),
        (TopK(k), ("top", k)),
        (RelaxedTopK(k), ("rt", k)),
        (Affinity(sets), ("affinity", sets)),
    ]
    largest = min(classes - 1, 4)
    truth = {
        (a, b): nearest_violation(rows, values, list(range(a, b + 1)))
        for a in range(1, largest + 1)
        for b in range(a, largest + 1)
    }
    # What 4u(|f_j| + |f_i|) takes away, relative to the smallest gap.
    ties = 40 * 2.0**-53 * np.abs(values).max() / min(np.abs(np.diff(np.sort(values))))
    checked = 0
    for guarantee, kind in kinds:
        ks = eligible_ks(kind, order)
        for method in METHODS:
            certificate = certify_logits(values[None], HeadConstants(torch.tensor(rows)), 0.0, guarantee, method=method)
            windows = certificate.windows[0].numpy()
            for (a, b), (distance, _) in truth.items():
                if not all(c in ks for c in range(a, b + 1)):
                    assert max(a, b) > len(windows) or windows[a - 1, b - 1] == 0
                    continue
                radius = windows[a - 1, b - 1]
                assert radius <= distance * (1 + 1e-9), (method, guarantee, rows, values)
                if method == "joint" or a == b or (method == "floating" and b == a + 1 and (a, b) == (1, 2)):
                    assert radius >= min(distance, 1e4) * (1 - 1e-6 - ties), (method, guarantee, rows, values)
                checked += 1
            if ks and max(ks) <= largest:
                distance, place = nearest_violation(rows, values, ks)
                assert certificate.radius.item() <= distance * (1 + 1e-9)
                check_answers(certificate, rows, values, order, place, distance)
    return checked


def check_answers(certificate, rows, values, order, place, distance):
    """Beyond the nearest violation nothing is certified, and there the promise is indeed broken."""
    if place is None:
        return
    assert not certificate.at(float(distance * (1 + 1e-6))).certified.item()
    moved = values[order] + rows[order] @ place * (1 + 1e-6)
    for k in (certificate.eligible[0].nonzero()[:, 0] + 1).tolist():
        assert moved[k:].max() >= moved[:k].min() - 1e-6 * np.abs(moved).max()


@pytest.mark.parametrize("networks", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_certificates_are_never_contradicted_and_exact_where_they_should_be(networks):
    rng = np.random.default_rng([2026, networks])
    assert sum(check_network(rng) for _ in range(networks)) > 10 * networks


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_many_networks(seed):
    rng = np.random.default_rng(seed)
    for _ in range(1000):
        check_network(rng)


def test_promises_hold_at_random_points():
    """The definition itself: at points just inside the certified radius, some eligible k keeps its set."""
    rng = np.random.default_rng(7)
    for _ in range(100):
        classes, features = 6, 3
        rows, values = random_network(rng, classes, features)
        order = ranking(values.tolist())
        for method in METHODS:
            certificate = certify_logits(
                values[None], HeadConstants(torch.tensor(rows)), 0.0, RelaxedTopK(4), method=method
            )
            for epsilon in np.unique(certificate.windows[certificate.windows < math.inf].numpy()) * (1 - 1e-9):
                answer = certificate.at(float(epsilon)).preferring(str(rng.choice(["smallest", "largest"])))
                if not answer.certified.item():
                    continue
                core = set(answer.core[0].nonzero()[:, 0].tolist())
                whole = core | set(answer.optional[0].nonzero()[:, 0].tolist())
                a, b = len(core), len(whole)
                steps = rng.normal(size=(200, features))
                steps *= epsilon / np.linalg.norm(steps, axis=1, keepdims=True)
                # And towards every violation of a single pair.
                normals = np.array([rows[i] - rows[j] for j, i in combinations(order, 2)])
                sizes = np.linalg.norm(normals, axis=1, keepdims=True)
                steps = np.concatenate([steps, normals / np.where(sizes > 0, sizes, 1) * epsilon])
                for moved in values + steps @ rows.T:
                    there = ranking(moved.tolist())
                    assert any(set(there[:k]) == set(order[:k]) for k in range(a, b + 1))
                    assert core <= set(there[:b])
                    assert set(there[:a]) <= whole


def head_and_logits(batch=300, classes=7, features=4, seed=0):
    make = torch.Generator().manual_seed(seed)
    values = torch.randn(batch, classes, generator=make, dtype=torch.float64)
    return values, HeadConstants(torch.randn(classes, features, generator=make, dtype=torch.float64))


class TestRelations:
    def test_uniform_within_floating_within_joint(self):
        values, head = head_and_logits()
        for guarantee in (RelaxedTopK(5), RelaxedTopK(6), Affinity([[0, 1, 2, 3], [3, 4, 5, 6]]), TopK(3)):
            uniform, floating, joint = (
                certify_logits(values, head, 0.1, guarantee, method=method).windows for method in METHODS
            )
            assert (uniform <= floating).all()
            assert (floating <= joint).all()
        certified = [certify_logits(values, head, 0.1, "rt5", method=method).certified.sum() for method in METHODS]
        assert certified[0] < certified[1] < certified[2]

    @pytest.mark.parametrize("method", METHODS)
    def test_rt1_is_standard_and_top1(self, method):
        values, head = head_and_logits()
        standard = certify_logits(values, head, 0.1, Standard(), method=method).windows
        assert torch.equal(certify_logits(values, head, 0.1, RelaxedTopK(1), method=method).windows, standard)
        assert torch.equal(certify_logits(values, head, 0.1, TopK(1), method=method).windows, standard)

    @pytest.mark.parametrize("method", METHODS)
    def test_rtk_grows_with_k(self, method):
        values, head = head_and_logits()
        radii = [certify_logits(values, head, 0.1, RelaxedTopK(k), method=method).radius for k in range(1, 7)]
        assert all((small <= large).all() for small, large in pairwise(radii))
        assert (radii[0] < radii[-1]).any()

    def test_windows_of_a_large_k_contain_those_of_a_small_one(self):
        values, head = head_and_logits(batch=20, classes=20)
        large, small = (certify_logits(values, head, 0.1, RelaxedTopK(k), method="joint").windows for k in (16, 9))
        assert torch.equal(large[:, :9, :9], small)
        floating = certify_logits(values, head, 0.1, RelaxedTopK(16), method="floating").windows
        assert (floating <= large).all()

    @pytest.mark.parametrize("method", METHODS)
    def test_affinity_with_singletons_is_standard(self, method):
        values, head = head_and_logits()
        standard = certify_logits(values, head, 0.1, Standard(), method=method)
        for sets in ([[c] for c in range(7)], [[3]]):
            certificate = certify_logits(values, head, 0.1, Affinity(sets), method=method)
            assert torch.equal(certificate.windows, standard.windows)

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("k", [2, 3, 4])
    def test_affinity_with_all_k_subsets_is_rtk(self, method, k):
        values, head = head_and_logits()
        everything = Affinity(combinations(range(7), k))
        relaxed = certify_logits(values, head, 0.1, RelaxedTopK(k), method=method)
        certificate = certify_logits(values, head, 0.1, everything, method=method)
        assert torch.equal(certificate.windows, relaxed.windows)
        assert torch.equal(certificate.core, relaxed.core)

    @pytest.mark.parametrize("method", METHODS)
    def test_top_k_has_one_window(self, method):
        # Section 2 of the mathematics: [1, 2] holds to 2.5, but TopK(2) only to .056.
        head = HeadConstants(torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.1, 0.0]], dtype=torch.float64))
        certificate = certify_logits([[1.0, 0.8, 0.75]], head, 0.01, TopK(2), method=method)
        assert certificate.radius.item() == pytest.approx(0.05 / 0.9)


class TestTies:
    """Boundaries that are not strict at x are never eligible."""

    ROWS = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 0.3], [0.0, 0.1]], dtype=torch.float64)

    def test_the_counterexample_to_floating_without_strictness(self):
        values = torch.tensor([[1.0, 0.6, 0.6 + 2.0**-60, -1.0]], dtype=torch.float64)
        for method in METHODS:
            assert not certify_logits(values, HeadConstants(self.ROWS), 0.2, "rt2", method=method).certified.any()
        # And it is a violation: at x + (.2, 0) the second class leads, and class 2 is above class 1 at x.
        moved = values[0] + self.ROWS @ torch.tensor([0.2, 0.0], dtype=torch.float64)
        assert moved.argmax() == 1

    @pytest.mark.parametrize("method", METHODS)
    @pytest.mark.parametrize("boundary", [1, 2, 3, 4])
    @pytest.mark.parametrize("base", [0.5, 1.0, -2.5, 1e8, 1e-200])
    def test_near_ties_at_every_boundary(self, method, boundary, base):
        """A boundary within its rounding splits the windows; one clearly beyond it does not."""
        steps = torch.tensor([4.25, 3.25, 2.25, 1.25, 0.25], dtype=torch.float64) * abs(base) + base
        head = HeadConstants(torch.randn(5, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))

        def windows(ulps):
            values = steps.clone()
            values[boundary] = values[boundary - 1] - ulps * 2.0**-53 * values[boundary - 1].abs()
            return certify_logits(values[None], head, 0.0, RelaxedTopK(4), method=method).windows[0]

        k = boundary - 1
        for ulps in (0, 2, 4):
            assert (windows(ulps)[: k + 1, k:] == 0).all()
            rest = windows(ulps)
            assert k == 0 or (rest[:k, :k].diagonal() > 0).all()
            assert k == 3 or (rest[k + 1 :, k + 1 :].diagonal() > 0).all()
        assert windows(64)[k, k] > 0

    @pytest.mark.parametrize("method", METHODS)
    def test_all_equal(self, method):
        certificate = certify_logits(torch.ones(2, 4), HeadConstants(self.ROWS), 0.0, "rt3", method=method)
        assert not certificate.certified.any()
        assert (certificate.windows == 0).all()

    @pytest.mark.parametrize("method", METHODS)
    def test_a_tie_inside_the_core_does_no_harm(self, method):
        certificate = certify_logits([[1.0, 1.0, 0.0, -1.0]], HeadConstants(self.ROWS), 0.05, "rt2", method=method)
        assert certificate.core.tolist() == [[True, True, False, False]]

    @pytest.mark.parametrize("method", METHODS)
    def test_signed_zeros_are_equal(self, method):
        assert not certify_logits(
            [[0.0, -0.0, -1.0, -1.0]], HeadConstants(self.ROWS), 0.0, "standard", method=method
        ).certified
