"""net.explain(): what stands beside each bound is true, and what is printed fits on a terminal."""

import pytest
import torch
from torch import nn

from helpers.nets import image_network, inputs, plain_net
from helpers.programs import every_pattern, steepest_pair
from safeset import ArgumentError, CertifiedNet
from safeset.evaluation import vra


def small_net(seed=0, epsilon=0.05):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 5), nn.ReLU(), nn.Linear(5, 3))
    return CertifiedNet(network, input_shape=(3,), guarantee="standard", epsilon=epsilon)


def test_each_layer_stands_beside_its_bound():
    torch.manual_seed(0)
    net = CertifiedNet(image_network().eval(), input_shape=(2, 4, 4), guarantee="standard", epsilon=0.1)
    found, bounds = net.explain(), net.bounds()
    assert [(each.name, each.type, each.bound) for each in found.layers] == [
        (each.name, each.type, each.bound) for each in bounds.layers
    ]
    for each in found.layers:
        assert 0 <= each.lower <= each.bound * (1 + 1e-12)
        assert each.gives_away < 1.01  # every kind of layer here has an exact proof
    assert found.lipschitz == float(bounds.pairs.max()) == found.layers[-1].so_far
    assert found.layers[-2].so_far == pytest.approx(float(bounds.head.scale))
    known = {each.name: each for each in found.layers}
    residual = known["4"].so_far * (1 + known["5.body.0"].bound)
    assert known["6"].so_far == pytest.approx(known["6"].bound * residual)
    assert found.certified is None


def test_a_bound_that_gives_something_away_is_seen():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Flatten(), nn.Linear(48, 3))
    net = CertifiedNet(network, input_shape=(1, 4, 4), guarantee="standard", epsilon=0.1)
    net.bounds(convolutions="torus")
    loose = net.explain().layers[0]
    net.bounds(convolutions="exact")
    tight = net.explain().layers[0]
    assert loose.lower == tight.lower
    assert tight.gives_away < 1.0001 < loose.gives_away == loose.bound / loose.lower


@pytest.mark.parametrize("seed", range(3))
def test_the_truth_lies_between_what_is_found_and_what_is_proved(seed):
    net = small_net(seed)
    found = net.explain()
    first, second, head = (net.network[place].weight.detach().double() for place in (0, 2, 4))
    differences = [head[j : j + 1] - head[i : i + 1] for j in range(3) for i in range(j)]
    most = max(every_pattern([first, second, each]) for each in differences)
    assert found.lower <= most * (1 + 1e-9)
    assert most <= found.lipschitz
    program = net.frozen().program
    somewhere = max(steepest_pair(program, point) for point in torch.rand(50, 3, dtype=torch.float64))
    assert found.lower >= somewhere  # a search does better than fifty points
    assert found.lower <= found.by_layers <= found.lipschitz


def test_a_linear_network_gives_nothing_away():
    torch.manual_seed(0)
    net = CertifiedNet(nn.Linear(4, 3), input_shape=(4,), guarantee="standard", epsilon=0.1)
    found = net.explain()
    assert found.lower == pytest.approx(found.lipschitz, rel=1e-9)
    assert found.by_layers == pytest.approx(found.lipschitz, rel=1e-9)
    assert len(found.layers) == 1


def test_what_it_costs_at_points():
    net = small_net()
    x = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
    y = net(x).argmax(dim=1)
    certificate = net.certify(x)
    epsilon = float(certificate.radius.median()) * 1.2
    found = net.explain(x, y, epsilon=epsilon)
    cost = found.certified
    assert cost.proved == vra(net.certify(x, epsilon=epsilon), y)
    assert (cost.points, cost.epsilon, cost.has_labels) == (60, epsilon, True)
    assert cost.proved == cost.by_layers  # dense bounds are exact
    assert cost.by_network > cost.proved
    assert net.explain(x, (y + 1) % 3, epsilon=epsilon).certified.proved < cost.proved
    alone = net.explain(x, epsilon=epsilon).certified
    assert not alone.has_labels
    assert alone.proved == float(net.certify(x, epsilon=epsilon).certified.double().mean())


def test_it_prints_a_table_that_fits():
    net = plain_net()
    torch.manual_seed(1)
    x = torch.randn(20, 6)
    lines = str(net.explain(x, torch.zeros(20, dtype=torch.long))).splitlines()
    assert lines[0].split() == ["layer", "type", "bound", "at", "least", "gives", "away", "so", "far"]
    assert lines[2].split()[:3] == ["1", "ChannelAffine", "9.995"]
    assert all(len(line) <= 80 for line in lines)
    text = " ".join(lines)
    assert "VRA at ε = 0.5, of 20 points:" in text
    assert "(proved), at least" in text
    deep = nn.Sequential()
    deep.add_module("a_module_with_a_name_that_is_long_for_a_table", nn.Sequential(net.network))
    wide = CertifiedNet(deep, input_shape=(6,), guarantee="standard", epsilon=0.5)
    assert all(len(line) <= 80 for line in str(wide.explain()).splitlines())


def test_it_is_always_the_same_and_leaves_the_net_alone():
    net, x = small_net(), torch.rand(5, 3)
    before, gradients = net(x), [each.grad for each in net.parameters()]
    assert net.explain(x) == net.explain(x)
    assert net.frozen().explain(x) == net.explain(x)
    assert torch.equal(net(x), before)
    assert [each.grad for each in net.parameters()] == gradients


def test_bad_input_is_answered():
    net = small_net()
    for x, y in ((torch.rand(2, 4), None), (torch.rand(0, 3), None), (torch.rand(2, 3), [0, 9]), (None, [0])):
        with pytest.raises(ArgumentError):
            net.explain(x, y)
    endless = torch.tensor([[float("nan"), 0.0, 0.0], [float("inf"), 0.0, 0.0]])
    assert 0 < net.explain(endless).lower < float("inf")


def test_images():
    torch.manual_seed(0)
    net = CertifiedNet(image_network().eval(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01)
    found = net.explain(inputs(), torch.zeros(8, dtype=torch.long))
    assert 0 < found.lower <= found.by_layers
    assert found.certified.points == 8
