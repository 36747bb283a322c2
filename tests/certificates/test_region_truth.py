"""Certificates of small trained networks against the true distance to the nearest violation."""

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from helpers import small_networks
from helpers.linear_truth import nearest_violation, random_network
from helpers.region_truth import nearest_violations
from safeset import CertifiedNet
from safeset.certificates.margins import METHODS
from safeset.layers import Abs, MinMax
from safeset.nets.frozen import FrozenNet
from safeset.numerics.multiples import rational
from safeset.program.exact import evaluate

WINDOWS = [(a, b) for a in range(1, 4) for b in range(a, 4)]
ACTIVATIONS = {
    "ReLU": (nn.ReLU(), nn.ReLU()),
    "LeakyReLU": (nn.LeakyReLU(0.3), nn.LeakyReLU(-1.5)),
    "Abs": (Abs(), Abs()),
    "MinMax": (MinMax(), MinMax()),
    "mixed": (MinMax(), nn.ReLU(), Abs()),
}


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def random_layers(rng, inputs, width, activations, classes):
    """Random linear layers with activations between them, in float64."""
    widths = (inputs, *(width for _ in activations), classes)
    layers = []
    for place, (into, out) in enumerate(pairwise(widths)):
        layer = nn.Linear(into, out).double()
        layer.weight.data = torch.tensor(rng.normal(size=(out, into)) / np.sqrt(into))
        layer.bias.data = torch.tensor(0.5 * rng.normal(size=out))
        layers += [layer, *activations[place : place + 1]]
    return nn.Sequential(*layers)


def logits(network, x):
    with torch.no_grad():
        return network(torch.tensor(x)).numpy()


def broken(values, order, window):
    """Whether every k of the window is broken: (points, classes) logits, classes by rank at x → (points,)."""
    ranked = values[:, order]
    a, b = window
    return np.all([ranked[:, k:].max(axis=1) >= ranked[:, :k].min(axis=1) for k in range(a, b + 1)], axis=0)


def check_violation(network, x, z, order, window):
    """Evaluated exactly, every k of the window is broken at x + z; returns the logits there."""
    exact = evaluate(network, rational(torch.tensor(x)) + rational(torch.tensor(z)))
    ranked = exact[order]
    assert all(max(ranked[k:]) - min(ranked[:k]) >= -1e-9 for k in range(window[0], window[1] + 1))
    return exact


class TestTheTruthItself:
    def test_without_hidden_layers_it_is_that_of_linear_networks(self):
        rng = np.random.default_rng(0)
        found = 0
        for _ in range(60):
            inputs = int(rng.integers(2, 6))
            rows, values = random_network(rng, int(rng.integers(4, 6)), inputs)
            x = rng.normal(size=inputs)
            layer = nn.Linear(inputs, len(rows)).double()
            layer.weight.data, layer.bias.data = torch.tensor(rows), torch.tensor(values - rows @ x)
            network = nn.Sequential(layer)
            values = logits(network, x[None])[0]
            for window, (distance, _) in nearest_violations(network, x, WINDOWS, 5.0).items():
                truth, _ = nearest_violation(rows, values, list(range(window[0], window[1] + 1)))
                assert distance == pytest.approx(truth, rel=1e-6, abs=1e-9) if truth < 5 else distance == np.inf
                found += truth < 5
        assert found > 200

    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_there_is_a_violation_and_none_is_nearer(self, name):
        self.check(name, range(3))

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ACTIVATIONS)
    def test_of_many_networks(self, name):
        self.check(name, range(3, 100))

    def check(self, name, seeds, radius=5.0):
        """The place is a violation, and no point of a circle or disc just within its distance is one."""
        found, crossed = 0, 0
        for seed in seeds:
            rng = np.random.default_rng(seed)
            network = random_layers(rng, 2, 12, ACTIVATIONS[name], 4)
            x = rng.normal(size=2)
            order = np.argsort(-logits(network, x[None])[0])
            turns = np.linspace(0, 2 * np.pi, 4001)[:, None]
            circle = np.hstack([np.cos(turns), np.sin(turns)])
            disc = circle * np.sqrt(rng.random(size=(len(circle), 1)))
            slopes = torch.autograd.functional.jacobian(network, torch.tensor(x[None]))[0, :, 0].numpy()
            for window, (distance, z) in nearest_violations(network, x, WINDOWS, radius).items():
                within = min(distance, radius) * (1 - 1e-9)
                points = x + within * np.concatenate([circle, disc])
                assert not broken(logits(network, points), order, window).any(), (seed, window)
                if z is None:
                    continue
                found += 1
                assert np.linalg.norm(z) == pytest.approx(distance, rel=1e-12)
                exact = check_violation(network, x, z, order, window)
                crossed += not np.allclose(logits(network, x[None])[0] + slopes @ z, exact.astype(float), atol=1e-6)
        assert found > 3 * len(seeds)
        assert crossed > len(seeds)  # violations in other regions than the point's own

    def test_with_more_inputs_none_is_nearer(self):
        found = 0
        for seed, activations in enumerate(ACTIVATIONS.values()):
            rng = np.random.default_rng(seed)
            network = random_layers(rng, 5, 8, activations, 5)
            x = rng.normal(size=5)
            order = np.argsort(-logits(network, x[None])[0])
            steps = rng.normal(size=(4000, 5))
            for window, (distance, z) in nearest_violations(network, x, WINDOWS, 1.5).items():
                near = [steps] if z is None else [steps, z + 0.05 * distance * steps, z + 1e-3 * distance * steps]
                near = np.concatenate(near) / np.linalg.norm(np.concatenate(near), axis=1, keepdims=True)
                within = min(distance, 1.5) * (1 - 1e-9)
                assert not broken(logits(network, x + within * near), order, window).any()
                if z is not None:
                    found += 1
                    check_violation(network, x, z, order, window)
        assert found > 10

    def test_a_tie_is_a_violation_at_once_and_a_constant_network_has_none(self):
        network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double()
        nn.init.zeros_(network[2].weight)
        network[2].bias.data = torch.tensor([1.0, 0.5, 0.5], dtype=torch.float64)
        found = nearest_violations(network, np.zeros(2), [(1, 1), (2, 2), (1, 2)], 10.0)
        assert [distance for distance, _ in found.values()] == [np.inf, 0.0, np.inf]


@cache
def compared(name, points):
    net, x = small_networks.trained(small_networks.NETWORKS[name])
    return small_networks.compare(net, x[:points])


def check(rows):
    """Nothing is false, and each method certifies what the one before does."""
    for row in rows.values():
        assert row["false"] == dict.fromkeys(METHODS, 0)
        uniform, floating, joint = (row["certified"][method] for method in METHODS)
        assert uniform <= floating <= joint <= row["robust"]


def total(every):
    """Truly robust points, and those certified by method, over all networks and guarantees."""
    rows = [row for rows in every for row in rows.values()]
    return sum(row["robust"] for row in rows), [sum(row["certified"][method] for row in rows) for method in METHODS]


class TestTrainedNetworks:
    @pytest.mark.parametrize("name", small_networks.NETWORKS)
    def test_what_is_certified_is_true(self, name):
        rows = compared(name, 40)
        check(rows)
        assert sum(row["windows"] for row in rows.values()) > 400

    def test_most_of_the_truth_is_recovered(self):
        every = {name: compared(name, 40) for name in small_networks.NETWORKS}
        robust, (uniform, floating, joint) = total(every.values())
        assert uniform < floating < joint < robust
        assert joint > 0.7 * robust
        robust, (_, _, joint) = total(rows for name, rows in every.items() if "plain" not in name)
        assert joint > 0.8 * robust

    @pytest.mark.slow
    @pytest.mark.parametrize("name", small_networks.NETWORKS)
    def test_hundreds_of_points(self, name):
        rows = compared(name, small_networks.POINTS)
        check(rows)
        for guarantee, row in rows.items():
            print(f"{name}, {guarantee}: {row['robust']} robust, share {row['share']}")


class TestIsometries:
    """Every layer only turns and folds the space, so within a region the certificates are those of a linear network."""

    @pytest.mark.parametrize("seed", range(4))
    def test_what_is_certified_is_true(self, seed):
        check(small_networks.compare(*isometry(seed)))

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", range(4, 100))
    def test_many(self, seed):
        check(small_networks.compare(*isometry(seed)))

    def test_radii_a_little_too_large_are_found_out(self, monkeypatch):
        certify = FrozenNet.certify

        def careless(self, *args, **options):
            found = certify(self, *args, **options)
            return replace(found, windows=(1 + 1e-6) * found.windows)

        monkeypatch.setattr(FrozenNet, "certify", careless)
        rows = small_networks.compare(*isometry(0))
        assert all(row["false"][method] for row in rows.values() for method in METHODS)


def isometry(seed):
    """A net of square orthogonal layers with Abs and MinMax between them, and points."""
    rng = np.random.default_rng(seed)
    inputs = int(rng.choice([2, 4]))
    activations = [(Abs(), MinMax()), (MinMax(), Abs()), (Abs(), Abs()), (MinMax(), MinMax())][seed % 4]
    network = random_layers(rng, inputs, inputs, activations, 4 + seed % 2)
    for layer in network[:-1:2]:
        layer.weight.data = torch.tensor(np.linalg.qr(rng.normal(size=layer.weight.shape))[0])
    net = CertifiedNet(network, input_shape=(inputs,), guarantee="standard", epsilon=0.3)
    return net, torch.tensor(rng.normal(size=(30, inputs)))
