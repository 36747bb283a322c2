"""The training side: estimates that prove nothing, and losses on them."""

import copy
import math

import pytest
import torch
from torch import nn

from helpers.nets import inputs
from safeset import (
    ArgumentError,
    CertifiedNet,
    HeadConstants,
    TrainingWarning,
    create_model,
)


def test_five_lines_of_training(net):
    torch.manual_seed(0)
    x, y = inputs(64), torch.randint(5, (64,))
    net.eval()  # batch norm with its running statistics, as it will be certified
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-2)
    vectors, losses = net.start_vectors(), []
    for _ in range(15):
        constants, vectors = net.estimate(dict(net.named_parameters()), vectors, 2)
        loss = nn.functional.cross_entropy(net.instrument(net(x), constants), y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_the_estimate_is_pure_and_can_be_batched():
    torch.manual_seed(0)
    net = CertifiedNet(
        create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=4),
        input_shape=(1, 8, 8),
        guarantee="standard",
        epsilon=0.1,
    )
    weights = [{name: torch.randn_like(p) * 0.1 for name, p in net.named_parameters()} for _ in range(3)]
    vectors = [net.start_vectors(seed) for seed in range(3)]

    def scale(weights, vectors):
        constants, vectors = net.estimate(weights, vectors, 2)
        return constants.scale, vectors

    stacked = {name: torch.stack([each[name] for each in weights]) for name in weights[0]}
    starts = {name: torch.stack([each[name] for each in vectors]) for name in vectors[0]}
    together, later = torch.func.vmap(scale)(stacked, starts)
    for place in range(3):
        alone, vector = scale(weights[place], vectors[place])
        torch.testing.assert_close(together[place], alone)
        torch.testing.assert_close({name: later[name][place] for name in later}, vector)
    gradients = torch.func.grad(lambda weights: scale(weights, vectors[0])[0])(weights[0])
    assert gradients["network.0.weight"].abs().sum() > 0


@pytest.mark.parametrize("size", [0.0, 1e-30, 1e30])
def test_estimates_of_extreme_weights_have_finite_gradients(size):
    network = nn.Sequential(nn.Linear(3, 4, bias=False), nn.ReLU(), nn.Linear(4, 2))
    network[0].weight.data.mul_(size)
    net = CertifiedNet(network, input_shape=(3,), guarantee="standard", epsilon=0.1)
    constants, _ = net.estimate(None, net.start_vectors(), 3)
    truth = torch.linalg.matrix_norm(network[0].weight.double(), 2).item()
    assert constants.scale.item() == pytest.approx(truth, rel=0.2, abs=0)
    constants.scale.backward()
    assert network[0].weight.grad.isfinite().all()


def test_an_estimate_leaves_a_spectral_norm_alone():
    network = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)), nn.ReLU(), nn.Linear(4, 2))
    net = CertifiedNet(network, input_shape=(3,), guarantee="standard", epsilon=0.1).train()
    state = copy.deepcopy(net.state_dict())
    for weights in (None, dict(net.named_parameters())):
        constants, _ = net.estimate(weights, net.start_vectors(), 20)
        assert constants.scale.item() == pytest.approx(1.0, rel=0.2)
    net.certify(torch.zeros(1, 3))
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


def test_mistakes_in_estimates_are_named(net):
    with pytest.raises(ArgumentError, match=r"'1.wieght'.*Did you mean '1.weight'"):
        net.estimate({"network.1.wieght": torch.zeros(1)}, net.start_vectors(), 1)
    with pytest.raises(ArgumentError, match=r"vector for the power method in layer '1'.*start_vectors"):
        net.estimate(None, {}, 1)


def test_batch_norm_in_training_is_warned_about(net):
    with pytest.warns(TrainingWarning, match=r"net\.eval\(\) before the loop"):
        net.train().estimate(None, net.start_vectors(), 1)


def test_other_layers_than_at_the_start_are_noticed(net):
    vectors = net.start_vectors()
    net.network.append(nn.Linear(5, 3))
    with pytest.raises(ArgumentError, match="Make a new CertifiedNet"):
        net.estimate(None, vectors, 1)
    assert net.certify(inputs()).classes == 3


@pytest.mark.parametrize(
    ("vectors", "steps", "message"), [(None, 1, "`vectors` by name"), ({}, -1, "`steps`"), ({}, 0.5, "`steps`")]
)
def test_other_mistakes_in_estimates_are_named(net, vectors, steps, message):
    with pytest.raises(ArgumentError, match=message):
        net.eval().estimate(None, vectors, steps)


def test_a_power_method_that_stalls_is_never_a_proof():
    """From a start without the best direction the estimate stays at 1; the bound, and the certificate, say 3."""
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    network[0].weight.data = torch.tensor([[1.0, 0.0], [0.0, 3.0]])
    network[1].weight.data = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.5)
    stalled, _ = net.estimate(None, {"0": torch.tensor([1.0, 0.0])}, 10)
    assert stalled.scale.item() == 1
    assert isinstance(stalled, HeadConstants)
    x = torch.tensor([[1.0, 0.0]])
    distance = 2 / (2 * math.hypot(1, 3))  # f_0 − f_1 = 2(x + 3y)
    assert net.certify(x).radius.item() <= distance
    assert not net.certify(x).certified.any()
