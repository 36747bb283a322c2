"""Why a network certifies so little: numbers that are true, and words that say what to do."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from helpers.commands import safeset
from helpers.nets import image_network, inputs, plain_net
from safeset import ArgumentError, CertifiedNet, train


@pytest.mark.parametrize("count", [1, 2, 7, 40])
def test_half_of_the_points_are_certified_below_the_median_radius_and_not_at_it(count):
    net = plain_net()
    x = torch.randn(count, 6, generator=torch.Generator().manual_seed(1))
    radius = net.diagnose(x).median_radius
    certificate = net.certify(x)
    below, at = certificate.at(math.nextafter(radius, 0.0)), certificate.at(radius)
    assert 2 * int(below.certified.sum()) >= count
    assert 2 * int(at.certified.sum()) < count or int(at.certified.sum()) < int(below.certified.sum())


def test_the_numbers_are_those_of_the_proof():
    net = plain_net(epsilon=0.02)
    x = torch.randn(50, 6)
    found = net.diagnose(x, method="uniform")
    bounds = net.bounds()
    assert found.lipschitz == bounds.pairs.max().item()
    assert found.layers == bounds.layers
    assert found.costliest.name == "1"
    assert found.costliest.bound == pytest.approx(10, rel=1e-3)
    logs = [math.log(layer.bound) for layer in bounds.layers if layer.bound > 1]
    assert found.share == pytest.approx(max(logs) / sum(logs))
    certificate = net.certify(x, method="uniform")
    assert (found.certified, found.points) == (int(certificate.certified.sum()), 50)
    assert (found.epsilon, found.guarantee, found.method) == (0.02, "standard", "uniform")
    best = net.frozen()(x).topk(2, dim=1).values
    assert found.gap == pytest.approx((best[:, 0] - best[:, 1]).median().item())
    assert found.relaxed == ("rt3", int(net.certify(x, guarantee="rt3", method="uniform").certified.sum()))


def test_it_says_what_to_do():
    net = plain_net(epsilon=50.0)
    told = str(net.diagnose(torch.randn(20, 6)))
    assert told.startswith("Nothing is certified at ε = 50: standard, joint, 20 points.")
    for words in ("median radius:", "costliest layer: '1' (ChannelAffine", "Fold batch norm", "safeset.train"):
        assert words in told
    assert net.diagnose(torch.randn(20, 6), eps=0.0).advice == ()


def test_a_certificate_of_nothing_points_to_it():
    net, x = plain_net(epsilon=50.0), torch.randn(3, 6)
    assert str(net.certify(x)).endswith("Nothing is certified: net.diagnose(x) says why.")
    assert "diagnose" not in str(net.certify(x, eps=0.0))


def test_a_relaxed_guarantee_that_helps_is_named():
    """Two classes tie nearly, the third is far below: standard certifies nothing, rt2 everything."""
    head = nn.Linear(2, 3)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[1.0, 0.0], [1.0, 0.01], [-1.0, 0.0]]))
        head.bias.zero_()
    net = CertifiedNet(nn.Sequential(head), input_shape=(2,), guarantee="standard", epsilon=0.5)
    found = net.diagnose(torch.tensor([[2.0, 0.001]] * 3))
    assert (found.certified, found.relaxed) == (0, ("rt2", 3))
    assert "rt2 certifies 100 % at this ε" in str(found)


def test_points_that_tie_are_named_as_such_and_none_is_refused():
    net = plain_net()
    with torch.no_grad():
        net.network[-1].weight.zero_()
        net.network[-1].bias.zero_()
    found = net.diagnose(torch.zeros(3, 6))
    assert found.median_radius == 0
    assert "they tie" in found.advice[0]
    with pytest.raises(ArgumentError, match="at least one point"):
        net.diagnose(torch.zeros(0, 6))


def test_tightening_does_what_it_is_said_to_do():
    net, tight = plain_net(), plain_net(tighten=None)
    for each in (net, tight):
        each.network[1].running_var.copy_(torch.linspace(0.01, 4.0, 32))
    assert tight.bounds().pairs.max() < net.bounds().pairs.max() / 1.2
    assert "tighten=True" in str(net.diagnose(torch.randn(20, 6), eps=50.0))
    assert "tighten" not in str(tight.diagnose(torch.randn(20, 6), eps=50.0))
    x = torch.randn(20, 6)
    torch.testing.assert_close(tight.measure(x).logits, net.measure(x).logits, rtol=1e-9, atol=1e-9)


def test_layers_of_a_residual_branch_count_too():
    net = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", eps=9.0)
    assert any("body" in layer.name for layer in net.diagnose(inputs()).layers)


def test_the_command_line_explains_on_standard_error(tmp_path):
    recipe = {"data": {"source": "blobs2d", "points": 200}, "epochs": 1, "epsilon": 0.1, "batch": 100}
    train(recipe, out=tmp_path / "run")
    np.savez(tmp_path / "p.npz", x=np.full((2, 2), 0.5))
    for command in (("certify", "run", "p.npz", "--json"), ("evaluate", "run", "--out", "e.json")):
        output, errors = safeset(*command, "--eps", "50", cwd=tmp_path)
        assert "Nothing is certified at ε = 50" in errors
        assert "half of the points are certified at ε <" in errors
        assert "Nothing is certified" not in output
        _, errors = safeset(*command, "--eps", "0", cwd=tmp_path)
        assert "certified at ε" not in errors
