"""Which convolutions of a large network get exact bounds, and how bounds are printed."""

import pytest
import torch
from torch import nn

import safeset
import safeset.lipschitz.convolution_proof as convolution_proof
import safeset.proofs.prove as proving


def net():
    """Two convolutions: on a small image, where a torus gives much away, and on a large one, where it gives little."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.AvgPool2d(4), nn.Conv2d(3, 4, 3, padding=1), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))
    return safeset.CertifiedNet(network, input_shape=(2, 16, 16), guarantee="standard", epsilon=0.1)


def methods(bounds):
    return [line.method for line in bounds.layers if line.type == "Conv2d"]


def works():
    """What an exact bound of each convolution takes beyond a torus."""
    nodes = [node for node in net().frozen().program.nodes if node.place.type == "Conv2d"]
    return [node.operation.refinement(node.shape) for node in nodes]


@pytest.fixture
def nothing_is_quick(monkeypatch):
    monkeypatch.setattr(proving, "QUICK", 0.0)
    monkeypatch.setattr(convolution_proof, "_steepness", lambda torus: 2 / torus.convolution.rows.size)


def test_small_networks_are_proved_exactly():
    assert methods(net().bounds()) == ["exact", "exact"]


@pytest.mark.usefixtures("nothing_is_quick")
def test_exact_bounds_go_where_they_gain_most(monkeypatch):
    (first, little), (second, much) = works()
    assert first > 0
    assert second > 0
    assert much / second > little / first
    exact = net().bounds()
    for left, expected in ((0.0, ["torus", "torus"]), (second, ["torus", "exact"]), (first + second, ["exact"] * 2)):
        monkeypatch.setitem(proving.REFINED, "cpu", left)
        bounds = net().bounds()
        assert methods(bounds) == expected
        assert bounds.head.scale >= exact.head.scale * (1 - 1e-9)
        assert methods(net().bounds(convolutions="exact")) == ["exact", "exact"]  # who asks for it gets it


def test_bounds_are_printed_as_a_table():
    bounds = net().bounds()
    text = str(bounds)
    assert max(map(len, text.splitlines())) <= 80
    for line in bounds.layers:
        assert f"{line.bound:.6g}" in text
    assert f"{float(bounds.head.scale):.6g}" in text.splitlines()[-2]
    assert f"{float(bounds.pairs.amax()):.6g}" in text.splitlines()[-1]
