"""False certificates that were seen elsewhere, by name: safeset does not give them."""

import math

import pytest
import torch
from torch import nn

from safeset import Affinity, ArgumentError, CertifiedNet, HeadConstants, certify_logits
from safeset.layers import Normalize, Residual


def double(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def linear(rows, bias=None):
    layer = nn.Linear(len(rows[0]), len(rows), bias=bias is not None).double()
    layer.weight.data = double(rows)
    if bias is not None:
        layer.bias.data = double(bias)
    return layer


def not_certified_beyond(network, x, moved, *, guarantee="standard"):
    """The best class changes between the two points: no radius may reach from one to the other."""
    shape = tuple(x.shape)
    net = CertifiedNet(network, input_shape=shape, guarantee=guarantee, epsilon=0.1)
    before, after = net.frozen()(torch.stack([x, moved])).argmax(dim=1).tolist()
    assert before != after, "this is no counterexample"
    distance = (moved - x).norm().item()
    radius = net.certify(x[None]).radius.item()
    assert 0 < radius <= distance
    return radius / distance


def test_the_power_methods_lower_bound_as_the_constant():
    """The start of all ones is an eigenvector of norm 1; the norm is 3."""
    weights = [[2.0, -1.0], [-1.0, 2.0]]
    network = nn.Sequential(linear(weights), linear([[1.0, -1.0], [-1.0, 1.0]]))
    ratio = not_certified_beyond(network, double([0.5, 0.0]), double([0.25 - 1e-9, 0.25 + 1e-9]))
    assert ratio == pytest.approx(1, rel=1e-6)


def test_ten_steps_on_six_layers():
    torch.manual_seed(0)
    layers = [nn.Linear(64, 64, bias=False).double() for _ in range(6)]
    for layer in layers:  # singular values close together: slow for the power method
        u, _, v = torch.linalg.svd(layer.weight.data)
        layer.weight.data = u @ torch.diag(torch.linspace(2.0, 1.0, 64).double()) @ v
    net = CertifiedNet(
        nn.Sequential(*layers, nn.Linear(64, 3).double()), input_shape=(64,), guarantee="standard", epsilon=0.1
    )
    estimate, _ = net.estimate(None, net.start_vectors(), 10)
    assert estimate.scale.item() < 0.9 * 64
    assert net.bounds().head.scale == pytest.approx(64, rel=1e-9)


def test_overlapping_max_pooling_counted_as_one():
    """One pixel is in nine patches of a 3 × 3 pooling with stride 1."""
    head = linear([[1.0] * 9, [0.0] * 9], [0.0, 1.5])
    network = nn.Sequential(nn.MaxPool2d(3, stride=1, padding=1), nn.Flatten(), head)
    x, moved = torch.zeros(1, 3, 3).double(), torch.zeros(1, 3, 3).double()
    moved[0, 1, 1] = 1.5 / 9 + 1e-9
    ratio = not_certified_beyond(network, x, moved)
    assert ratio == pytest.approx(1, rel=1e-6)


def test_average_pooling_with_odd_sizes():
    """5 pixels in patches of 2: the last pixel is in none, and the norm is still √½ per axis."""
    network = nn.Sequential(nn.AvgPool2d((1, 2)), nn.Flatten(), linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 0.0]))
    x, moved = double([[[1.0, 1.0, 0.0, 0.0, 7.0]]]), double([[[-1e-9, -1e-9, 0.0, 0.0, 7.0]]])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


def test_a_skip_connection_counted_as_its_body():
    network = nn.Sequential(Residual(linear([[1.0, 0.0], [0.0, 1.0]])), linear([[1.0, 0.0], [-1.0, 0.0]], [0.0, 4.0]))
    x, moved = double([2.0, 0.0]), double([1.0 - 1e-9, 0.0])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


def test_a_residual_block_whose_constant_was_fixed_when_it_was_built():
    network = nn.Sequential(Residual(linear([[0.0]])), linear([[1.0], [-1.0]]))
    net = CertifiedNet(network, input_shape=(1,), guarantee="standard", epsilon=0.1)
    assert net.certify(double([[1.0]])).radius.item() == pytest.approx(1.0, rel=1e-9)
    network[0].body.weight.data.fill_(9.0)  # as training does
    assert net.bounds().head.scale == pytest.approx(10, rel=1e-9)


def test_a_nested_network_counted_as_one():
    inner = nn.Sequential(linear([[3.0, 0.0], [0.0, 3.0]]), nn.ReLU())
    network = nn.Sequential(nn.Sequential(inner), linear([[1.0, -1.0], [-1.0, 1.0]]))
    x, moved = double([2.0, 1.0]), double([1.5 - 1e-9, 1.5 + 1e-9])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


def test_batch_norm_scales_counted_as_one():
    norm = nn.BatchNorm1d(2, eps=0.0).double()
    norm.running_var.fill_(0.01)
    network = nn.Sequential(norm, linear([[1.0, 0.0], [-1.0, 0.0]]))
    x, moved = double([1.0, 0.0]), double([-1e-9, 0.0])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


def test_normalisation_of_the_input_left_out():
    network = nn.Sequential(Normalize([0.5], [0.1]).double(), nn.Flatten(), linear([[1.0], [-1.0]]))
    x, moved = double([[[0.9]]]), double([[[0.5 - 1e-9]]])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


def test_an_activation_inside_a_layer_counted_as_one():
    class Swollen(nn.Linear):
        def forward(self, x):
            return 5 * super().forward(x)

    swollen = Swollen(2, 2)
    network = nn.Sequential(swollen, nn.Linear(2, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1, tighten=False)
    norm = 5 * torch.linalg.matrix_norm(swollen.weight.detach().double(), 2)
    assert norm <= net.bounds().head.scale <= norm * (1 + 1e-6)


def test_a_circular_norm_taken_for_zero_padding():
    """Filter [1, 0, −1] on 6 pixels: 1.732 on a circle, 1.802 in truth."""
    layer = nn.Conv2d(1, 1, (1, 3), padding=(0, 1), bias=False).double()
    layer.weight.data = double([[[[1.0, 0.0, -1.0]]]])
    with torch.no_grad():
        matrix = torch.stack([layer(unit.view(1, 1, 1, 6)).flatten() for unit in torch.eye(6).double()], dim=1)
    u, s, v = torch.linalg.svd(matrix)
    head = linear([u[:, 0].tolist(), (-u[:, 0]).tolist()], [0.5, -0.5])
    direction = v[0].view(1, 1, 6)
    for convolutions in ("exact", "torus"):
        network = nn.Sequential(layer, nn.Flatten(), head)
        net = CertifiedNet(network, input_shape=(1, 1, 6), guarantee="standard", epsilon=0.1)
        truth = 0.5 / s[0].item()
        assert net.bounds(convolutions=convolutions).head.scale >= s[0].item() >= 1.8
        assert net.certify(torch.zeros(1, 1, 1, 6)).radius.item() <= truth
        moved = -direction * truth * (1 + 1e-9)
        assert net.frozen()(moved[None]).argmax().item() == 1


@pytest.mark.parametrize("rows", [[[1.0, 1e8], [1.0 + 1e-8, 1e8]], [[1e-170, 0.0], [0.0, 1e-170]]])
def test_head_rows_whose_distance_vanishes(rows):
    """By ‖a‖² + ‖b‖² − 2a·b, or by squares that underflow, the distance is 0 and the radius ∞."""
    difference = double(rows)[0] - double(rows)[1]
    gap = difference.norm().item() * 2 if difference.norm() > 1e-100 else 3e-170
    found = certify_logits(double([[gap, 0.0]]), HeadConstants(double(rows)), 0.1, "standard")
    length = math.hypot(*(value / 1e-170 for value in difference.tolist())) * 1e-170
    assert found.radius.item() <= gap / length * (1 + 1e-12)


def test_tiny_weights_round_to_a_constant_of_zero():
    network = nn.Sequential(linear([[1e-30, 0.0], [0.0, 1e-30]]), linear([[1.0, -1.0], [-1.0, 1.0]]))
    x, moved = double([2.0, 1.0]), double([1.5 - 1e-9, 1.5 + 1e-9])
    assert not_certified_beyond(network, x, moved) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("guarantee", ["standard", "top2", "rt2"])
def test_ties_are_not_certified(guarantee):
    net = CertifiedNet(linear([[1.0], [1.0], [1.0]]), input_shape=(1,), guarantee=guarantee, epsilon=0.0)
    assert net.certify(double([[1.0]])).radius.item() == 0


def test_a_tie_at_rank_k_is_not_certified():
    network = linear([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    net = CertifiedNet(network, input_shape=(2,), guarantee="top2", epsilon=0.0)
    x = double([[5.0, 0.0]])
    assert not net.certify(x).certified.any()
    assert net.certify(x, guarantee="standard").certified.all()


def test_all_classes_are_no_answer():
    net = CertifiedNet(linear([[1.0], [0.0], [0.5]]), input_shape=(1,), guarantee="standard", epsilon=0.1)
    for guarantee in ("top3", "rt3"):
        with pytest.raises(ArgumentError, match="classes − 1"):
            net.certify(double([[1.0]]), guarantee=guarantee)
    with pytest.raises(ArgumentError, match="leave out some class"):
        net.certify(double([[1.0]]), guarantee=Affinity([[0, 1, 2]]))


def test_a_negative_epsilon_is_refused():
    net = CertifiedNet(linear([[1.0], [0.0]]), input_shape=(1,), guarantee="standard", epsilon=0.1)
    with pytest.raises(ArgumentError, match="`epsilon`"):
        net.certify(double([[1.0]]), epsilon=-1)


def test_a_class_in_no_affinity_set_has_finite_gradients():
    net = CertifiedNet(nn.Linear(2, 4), input_shape=(2,), guarantee=Affinity([[0, 1]]), epsilon=0.1)
    constants, _ = net.estimate(None, net.start_vectors(), 1)
    net.instrument(net(torch.randn(20, 2)), constants).sum().backward()
    assert all(p.grad.isfinite().all() for p in net.parameters())


def test_the_largest_k_counts():
    """Five classes together, far above a sixth: all five are the answer, not four."""
    rows = [[1.0, 0.0]] * 5 + [[-1.0, 0.0]]
    net = CertifiedNet(
        linear(rows, [0.0, -1e-3, -2e-3, -3e-3, -4e-3, 0.0]), input_shape=(2,), guarantee="rt5", epsilon=0.1
    )
    assert net.certify(double([[1.0, 0.0]]), prefer="largest").core.sum().item() == 5
