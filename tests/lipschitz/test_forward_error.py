"""The rounding of a network's forward pass, against exact rationals and at the edges of float64."""

import math
import warnings

import pytest
import torch
from torch import nn

from helpers.nets import image_network, inputs
from safeset import (
    CertifiedNet,
    RoundingWarning,
)
from safeset.numerics.directed import row_norms
from safeset.numerics.multiples import rational
from safeset.program.exact import evaluate


@pytest.mark.parametrize("bias", [0.0, 1.0, 2.0**40, -(2.0**70)])
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e100])
@pytest.mark.parametrize("place", [1, 10])
def test_computed_logits_are_as_close_to_the_exact_ones_as_is_said(bias, scale, place):
    """|(f̂_j − f̂_i) − (f_j − f_i)| ≤ e_ji(‖x‖), with the exact value from fractions."""
    torch.manual_seed(0)
    plain = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).frozen().network
    plain[1].weight.data.mul_(scale)
    plain[place].bias.data[2:] = bias
    frozen = CertifiedNet(plain, input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).frozen()
    frozen.certify(inputs())
    x = inputs(3).double() * 3
    with torch.no_grad():
        computed = frozen(x)
    errors, _ = frozen.proof().allowance(row_norms(x.flatten(1)))
    for point, logits, allowed in zip(x, computed, errors.offset, strict=True):
        exact = evaluate(frozen.network, rational(point))
        found, allowed = rational(logits), rational(allowed) / 2  # once at x, once at x'
        for j in range(5):
            for i in range(5):
                assert i == j or abs((found[j] - found[i]) - (exact[j] - exact[i])) <= allowed[j] + allowed[i]


def test_a_large_bias_takes_the_certificate_away():
    """2⁴⁰ in and out again: f̂ carries an error of 2⁻¹³, more than a gap of 2⁻²⁰."""
    network = nn.Sequential(nn.Linear(1, 2), nn.Linear(2, 2)).double()
    network[0].weight.data, network[0].bias.data = torch.ones(2, 1).double(), torch.tensor([2.0**40, 0.0]).double()
    network[1].weight.data = torch.tensor([[1.0, -1.0], [0.0, 0.0]]).double()
    network[1].bias.data = torch.tensor([-(2.0**40) + 2.0**-12, 0.0]).double()
    net = CertifiedNet(network, input_shape=(1,), guarantee="standard", epsilon=0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        assert not net.certify(torch.tensor([[0.3]])).certified.any()


def test_a_masked_class_does_not_spoil_the_others():
    """A bias of −1e30 on one class is a habit; the rounding of the other pairs is not that of 1e30."""
    network = nn.Linear(2, 3)
    network.weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]])
    network.bias.data = torch.tensor([0.0, 0.0, -1e30])
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.5)
    assert net.certify(torch.tensor([[1.0, 0.0]])).radius.item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("depth", [1, 2])
def test_underflow_is_accounted_for(depth):
    """Each of 1,000 products is 0.45·2⁻¹⁰⁷⁴ and vanishes: the gap, computed as 200·2⁻¹⁰⁷⁴, is −250·2⁻¹⁰⁷⁴."""
    network = nn.Sequential(nn.Linear(1000, 2), *([nn.Linear(2, 2)] * (depth - 1))).double()
    network[0].weight.data = torch.tensor([[-0.9 * 2.0**-537] * 1000, [0.0] * 1000], dtype=torch.float64)
    network[0].bias.data = torch.tensor([200 * 5e-324, 0.0], dtype=torch.float64)
    if depth == 2:
        network[1].weight.data, network[1].bias.data = torch.eye(2).double(), torch.zeros(2).double()
    net = CertifiedNet(network, input_shape=(1000,), guarantee="standard", epsilon=0.0)
    x = torch.full((1, 1000), 2.0**-538, dtype=torch.float64)
    assert (net.frozen()(x)[0, 0] - net.frozen()(x)[0, 1]).item() == 200 * 5e-324
    exact = evaluate(net.frozen().network, rational(x[0]))
    assert exact[0] < exact[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RoundingWarning)
        assert not net.certify(x).certified.any()


def test_radii_end_where_the_program_would_overflow():
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    network[0].weight.data.zero_()  # constant: no perturbation changes the logits, …
    network[1].bias.data = torch.tensor([1.0, 0.0])
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=1.0)
    radius = net.certify(torch.zeros(1, 2)).radius.item()
    assert 1e250 < radius <= 2.0**1000  # … but 0·∞ is NaN


def test_radii_end_where_an_inner_layer_would_overflow():
    """Up by 2⁹⁵⁰, down again by 2⁹⁰⁰: the logits are small, what lies between is not."""
    scales = [2.0**500, 2.0**450, 2.0**-450, 2.0**-450]
    layers = [nn.Linear(1, 1, bias=False).double() for _ in scales]
    for layer, scale in zip(layers, scales, strict=True):
        layer.weight.data.fill_(scale)
    head = nn.Linear(1, 2).double()
    head.weight.data.zero_()
    head.bias.data = torch.tensor([2.0**300, -(2.0**300)], dtype=torch.float64)
    net = CertifiedNet(nn.Sequential(*layers, head), input_shape=(1,), guarantee="standard", epsilon=1.0)
    radius = net.certify(torch.zeros(1, 1)).radius.item()
    assert 2.0**40 < radius <= 2.0**50
    assert net.frozen()(torch.full((1, 1), 2.0**200, dtype=torch.float64)).isnan().any()


def test_radii_end_where_the_head_would_overflow():
    head = nn.Linear(1, 2).double()
    head.weight.data.fill_(2.0**900)
    head.bias.data = torch.tensor([1e300, 0.0], dtype=torch.float64)
    net = CertifiedNet(head, input_shape=(1,), guarantee="standard", epsilon=1.0)
    assert net.certify(torch.zeros(1, 1)).radius.item() <= 2.0**100


def test_an_untrained_deep_network_says_why_nothing_is_certified():
    torch.manual_seed(0)
    layers = [layer for _ in range(40) for layer in (nn.Linear(16, 16), nn.ReLU())]
    for layer in layers[::2]:
        layer.weight.data.mul_(5)
    net = CertifiedNet(nn.Sequential(*layers, nn.Linear(16, 3)), input_shape=(16,), guarantee="standard", epsilon=0.1)
    x = torch.rand(4, 16)
    for bad in (None, math.nan):  # a bad point among them changes nothing
        x[0, 0] = x[0, 0] if bad is None else bad
        for ask in (net.certify, net.frozen().certify, net.predict_set):
            with pytest.warns(RoundingWarning, match="nothing can be certified.*Lipschitz bound is") as told:
                ask(x)
            assert told[0].filename == __file__


def test_ties_are_rejected_without_a_warning():
    network = nn.Linear(2, 3)
    network.weight.data.zero_()
    network.bias.data.zero_()
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.0)
    assert not net.certify(torch.zeros(1, 2)).certified.any()
