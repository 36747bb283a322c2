"""A trained network: its certificates against independent attacks, its bounds against the power method."""

import foolbox
import pytest
import torch

from helpers.digits_net import EPSILON, digits, trained
from helpers.exact_norm import within
from safeset.certificates.margins import METHODS
from safeset.evaluation import rejection_rate, vra
from safeset.lipschitz.dense import spectral_bound

ATTACKS = {
    "projected gradient": lambda: foolbox.attacks.L2ProjectedGradientDescentAttack(steps=40),
    "basic iterative": lambda: foolbox.attacks.L2BasicIterativeAttack(steps=20),
    "fast gradient": lambda: foolbox.attacks.L2FastGradientAttack(),
    "deep fool": lambda: foolbox.attacks.L2DeepFoolAttack(steps=30),
}


def test_training_makes_points_certifiable():
    net, _ = trained()
    _, (x, y) = digits()
    found = net.certify(x)
    assert vra(found, y) > 0.6
    assert rejection_rate(found) < 0.4
    relaxed = [net.certify(x, guarantee="rt3", method=method).certified for method in METHODS]
    assert (relaxed[0] <= relaxed[1]).all()
    assert (relaxed[1] <= relaxed[2]).all()


def test_trained_weights_are_bounded_from_above_and_closely():
    net, constants = trained()
    bounds = net.bounds()
    assert constants.scale.item() <= bounds.head.scale * (1 + 1e-5)
    assert constants.scale.item() >= bounds.head.scale * (1 - 1e-3)
    dense = net.frozen().network[4].weight
    line = next(line for line in bounds.layers if line.name == "4")
    assert within(dense[:30].numpy(), float(spectral_bound(dense[:30])), 1e-8)
    assert line.bound >= torch.linalg.matrix_norm(dense, 2).item() * (1 - 1e-14)


@pytest.mark.parametrize("name", ATTACKS)
def test_independent_attacks_break_no_certificate(name):
    net, _ = trained()
    _, (x, _) = digits()
    frozen = net.frozen()
    model = foolbox.PyTorchModel(frozen, bounds=(-10, 10), device="cpu")
    x = x[:150].double()
    found = frozen.certify(x)
    labels = frozen(x).argmax(dim=1)
    torch.manual_seed(0)
    with torch.random.fork_rng():
        _, inside, _ = ATTACKS[name]()(model, x, labels, epsilons=EPSILON)
        _, _, beyond = ATTACKS[name]()(model, x, labels, epsilons=10 * EPSILON)
    distance = (inside - x).flatten(1).norm(dim=1)
    close = distance <= EPSILON
    flipped = frozen(inside).argmax(dim=1) != labels
    assert close.sum() > 100
    assert not (flipped & close & found.certified).any()
    assert not (flipped & (distance < found.radius)).any()
    assert beyond.float().mean() > 0.5  # the attack can find something
