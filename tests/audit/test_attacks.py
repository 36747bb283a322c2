"""Attacks: they break what is broken by the definition, and come as near as truth allows."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import nnls
from torch import nn

from helpers.linear_truth import nearest_violation, random_network
from safeset import CertifiedNet, HeadConstants, certify_logits
from safeset.audit.attacks import Windows, attack_windows, breaking_margin, chains, least_norm
from safeset.layers import MinMax


def windows_of(x, logits, first, last, radius):
    ranking = logits.argsort(dim=1, descending=True, stable=True)
    count = len(x)
    whole = [torch.full((count,), each) for each in (first, last)]
    return Windows(x, ranking, *whole, torch.as_tensor(radius, dtype=torch.float64).expand(count))


@given(st.integers(0, 2**31), st.integers(3, 6), st.data())
def test_a_window_is_broken_by_its_definition(seed, classes, data):
    first = data.draw(st.integers(1, classes - 1))
    last = data.draw(st.integers(first, classes - 1))
    make = torch.Generator().manual_seed(seed)
    before, after = (torch.randint(-3, 4, (8, classes), generator=make).double() for _ in range(2))
    windows = windows_of(torch.zeros(8, 2), before, first, last, 1.0)
    margins = breaking_margin(after, windows)
    for row in range(8):
        order = windows.ranking[row].tolist()
        broken = all(
            any(after[row, i] >= after[row, j] for j in order[:k] for i in order[k:]) for k in range(first, last + 1)
        )
        assert bool(margins[row] <= 0) == broken


@given(st.integers(0, 2**31))
def test_the_shortest_step_of_two_pairs(seed):
    rng = np.random.default_rng(seed)
    normals, gaps = rng.normal(size=(2, 3)), rng.normal(size=2) + 0.5
    gram = torch.tensor(normals @ normals.T)
    one, two = least_norm(*torch.tensor(gaps), gram[0, 0], gram[1, 1], gram[0, 1])
    # min ‖z‖ with −normals·z ≥ gaps, by Lawson and Hanson's reduction to non-negative least squares
    matrix = np.vstack([-normals.T, gaps])
    weights, _ = nnls(matrix, np.array([0, 0, 0, 1.0]))
    residual = matrix @ weights - np.array([0, 0, 0, 1.0])
    wanted = -residual[:3] / residual[3] if np.abs(residual).max() > 1e-12 else None
    found = -(float(one) * normals[0] + float(two) * normals[1])
    if wanted is not None and (gaps > 0).any():
        assert np.allclose(found, wanted, atol=1e-6)


@pytest.mark.parametrize("window", [(1, 1), (2, 2), (1, 2), (1, 3), (2, 3)])
def test_linear_networks_are_broken_where_truth_says(window):
    rng = np.random.default_rng([2026, *window])
    found = checked = 0
    for _ in range(16):
        rows, values = random_network(rng, 6, 4)
        if np.diff(np.sort(values)).min() < 1e-6 or np.abs(rows).max() > 50:
            continue
        distance, _ = nearest_violation(rows, values, list(range(window[0], window[1] + 1)))
        if not distance < 1e3:
            continue
        network = nn.Linear(4, 6).double().requires_grad_(False)
        network.weight.copy_(torch.tensor(rows))
        network.bias.copy_(torch.tensor(values))
        for factor, breaks in ((0.999, False), (1.02, True)):
            windows = windows_of(torch.zeros(1, 4).double(), torch.tensor(values)[None], *window, distance * factor)
            result = attack_windows(network, torch.tensor(rows), windows)
            assert result.distance.item() >= distance * (1 - 1e-6)
            assert breaks or not result.broken.item()
            if breaks:
                checked += 1
                found += result.broken.item() and result.distance.item() <= distance * 1.02
    assert checked > 5
    assert found > 0.9 * checked


def trained(seed=0):
    """A small network on three spirals' worth of noise: nothing is learnt, much is curved."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 32), MinMax(), nn.Linear(32, 16), MinMax(), nn.Linear(16, 5))
    return CertifiedNet(network, input_shape=(4,), guarantee="rt3", epsilon=0.05)


def test_nothing_certified_is_broken_and_too_small_constants_are():
    net = trained().frozen()
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1)).double()
    logits, head = net(x), net.bounds().head
    broken = {}
    for factor in (1.0, 0.05):
        small = HeadConstants(head.rows, float(head.scale) * factor)
        certificate = certify_logits(logits, small, 0.0, "rt3", method="joint")
        first = certificate.core.sum(dim=1)
        last = first + certificate.optional.sum(dim=1)
        ranking = logits.argsort(dim=1, descending=True)
        windows = Windows(x, ranking, first, last, 0.9999 * certificate.core_radius)
        found = attack_windows(net.network, head.rows, windows)
        broken[factor] = int(found.broken.sum())
        assert ((found.inside - x).norm(dim=1) <= windows.radius).all()
        assert (found.distance[found.broken] <= windows.radius[found.broken]).all()
    assert broken[1.0] == 0
    assert broken[0.05] > 40


def test_chains_cover_their_window():
    make = torch.Generator().manual_seed(0)
    rows, logits = torch.randn(8, 3, generator=make).double(), torch.randn(30, 8, generator=make).double()
    windows = windows_of(torch.zeros(30, 3).double(), logits, 2, 4, 1.0)
    aims = chains(logits, rows, windows, 4)
    assert aims.shape == (30, 4, 2, 2)
    doubles = 0
    for row in range(30):
        rank = {int(each): place for place, each in enumerate(windows.ranking[row])}
        for chain in aims[row].tolist():
            spans = [range(rank[j] + 1, rank[i] + 1) for j, i in chain]
            assert all(any(k in span for span in spans) for k in (2, 3, 4)), spans
            doubles += chain[0] != chain[1]
    assert doubles > 5
