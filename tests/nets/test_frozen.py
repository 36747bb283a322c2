"""Nets that change, and frozen ones: what is noticed, what is refused, what is kept."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

from helpers.nets import image_network, inputs
from safeset import (
    ArgumentError,
    CertifiedNet,
    ExactRule,
    RelaxedTopK,
    UnsupportedLayerError,
    register_layer,
)
from safeset.layers import Residual
from safeset.numerics.directed import Up


def doubled(net):
    net.network[1].weight.data.mul_(2)


def through_numpy(net):
    net.network[1].weight.data.numpy()[:] *= 2


def running_variance(net):
    net.network[2].running_var.mul_(0.25)


def negated(net):
    net.network[1].weight.data.neg_()


def swapped(net):
    weight = net.network[10].weight.data
    weight[[0, 1]] = weight[[1, 0]].clone()


def replaced(net):
    torch.manual_seed(5)
    net.network[10] = nn.Linear(8, 5)


def padded(net):
    net.network[1].padding_mode = "zeros"
    net.network[9][1].negative_slope = 0.9


@pytest.mark.parametrize("change", [doubled, through_numpy, running_variance, negated, swapped, replaced, padded])
def test_changed_weights_are_noticed_by_content(net, change):
    x = inputs()
    before = net.certify(x)
    assert net.bounds().layers is net.bounds().layers  # proved once
    versions = [p._version for p in net.parameters()]
    change(net)
    if change in (doubled, through_numpy, negated):
        assert versions == [p._version for p in net.parameters()]  # no version counter saw it
    fresh = CertifiedNet(net.network, input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).certify(x)
    after = net.certify(x)
    assert torch.equal(after.windows, fresh.windows)
    assert not torch.equal(after.windows, before.windows)


def appended(net):
    net.network.append(nn.Linear(5, 5, bias=False).double())
    net.network[-1].weight.data = 100 * torch.eye(5).double()


def divided(net):
    net.network[6].divisor_override = 1


def circular(net):
    net.network[1].padding_mode = "circular"


def single(net):
    net.float()


@pytest.mark.parametrize(
    "change", [doubled, through_numpy, negated, swapped, replaced, padded, appended, divided, circular, single]
)
def test_nothing_that_a_frozen_net_hands_out_reaches_it(net, change):
    x = inputs()
    frozen = net.frozen()
    before, logits = frozen.certify(x), frozen(x)
    change(frozen)
    frozen.network[9].register_forward_hook(lambda module, inputs, output: 2 * output)
    frozen.program.nodes[1].operation.weight.mul_(3)
    frozen.proof().bounds.head.rows.mul_(0.01)
    for one in (frozen, net):
        assert torch.equal(one.certify(x).windows, before.windows)
        assert torch.equal(one.certify(x, epsilon=0.02).ranking, before.ranking)
    assert torch.equal(frozen(x), logits)
    assert torch.equal(frozen(x), frozen.network(x.double()))
    assert frozen.bounds().layers[-1].name == "10"
    assert all(tensor.dtype == torch.float64 for tensor in frozen.state_dict().values())


def test_another_input_shape_is_another_proof():
    """One pixel of a 3×3 kernel, then all of it."""
    network = nn.Sequential(nn.Conv2d(1, 1, 3, stride=3, padding=1, bias=False), nn.Flatten(), nn.Linear(1, 2))
    network[0].weight.data = torch.ones(1, 1, 3, 3)
    net = CertifiedNet(network, input_shape=(1, 1, 1), guarantee="standard", epsilon=0.1)
    frozen = net.frozen()
    assert net.bounds().head.scale == pytest.approx(1, rel=1e-9)
    net.input_shape = (1, 2, 2)
    assert net.bounds().head.scale == pytest.approx(2, rel=1e-9)
    with pytest.raises(AttributeError):
        frozen.input_shape = (1, 2, 2)


def test_a_frozen_net_is_on_one_device(net):
    frozen = net.frozen()
    assert frozen.device == next(frozen.parameters()).device == torch.device("cpu")
    assert frozen.to("cpu") is frozen
    with pytest.raises(ArgumentError, match=r"net\.to\(device\)\.frozen\(\)"):
        frozen.to("meta")


def test_the_wish_for_a_method_is_kept(net):
    for one in (net, net.frozen()):
        one.bounds(convolutions="torus")
        doubled(one)
        assert one.bounds().layers[1].method == "torus"


def test_other_settings_need_no_other_proof(net):
    proved = net.bounds()
    net.epsilon, net.guarantee = 0.02, RelaxedTopK(3)
    assert net.bounds().layers is proved.layers
    assert net.frozen().bounds().layers is proved.layers
    assert (net.certify(inputs()).epsilon, net.certify(inputs()).guarantee) == (0.02, RelaxedTopK(3))


def test_a_frozen_net_is_a_copy(net):
    x = inputs()
    frozen = net.frozen()
    before = frozen.certify(x).windows
    doubled(net)
    net.certify(x)
    assert torch.equal(frozen.certify(x).windows, before)
    halved = net.certify(x).windows
    assert torch.equal(halved, net.frozen().certify(x).windows)
    assert not torch.equal(frozen.certify(x).windows, halved)


def test_a_parametrisation_cache_is_not_used():
    network = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 4)), nn.ReLU(), nn.Linear(4, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    with nn.utils.parametrize.cached():
        net.certify(torch.zeros(1, 2))
        assert net(torch.zeros(1, 2)).dtype == torch.float32


def test_threads_leave_the_flags_as_they_were(net):
    from concurrent.futures import ThreadPoolExecutor

    frozen, x = net.frozen(), inputs()
    expected = frozen.certify(x).windows
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: frozen.certify(x).windows, range(40)))
    assert all(torch.equal(each, expected) for each in found)
    assert torch.backends.cudnn.enabled


def test_a_net_frozen_in_inference_mode_can_be_attacked(net):
    with torch.inference_mode():
        frozen = net.frozen()
        frozen.certify(inputs())
    x = inputs().double().requires_grad_()
    frozen(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_a_frozen_net_stays_in_evaluation_and_float64(net):
    frozen = net.frozen()
    frozen.train()
    assert not any(module.training for module in frozen.modules())
    assert frozen.frozen() is frozen
    assert not any(p.requires_grad for p in frozen.parameters())
    before = frozen.certify(inputs())
    assert torch.equal(frozen.double().certify(inputs()).windows, before.windows)
    assert torch.equal(frozen.float().certify(inputs()).windows, before.windows)


def test_other_forwards_of_the_net_itself_are_refused(net):
    class Doubled(CertifiedNet):
        def forward(self, x):
            return 2 * super().forward(x)

    with pytest.raises(UnsupportedLayerError, match="CertifiedNet"):
        Doubled(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).certify(inputs())
    net.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(UnsupportedLayerError, match="forward hooks"):
        net.certify(inputs())


def test_hooks_and_forwards_of_the_frozen_net_itself_are_refused(net):
    for spoil in (
        lambda frozen: frozen.register_forward_pre_hook(lambda module, inputs: (inputs[0] * 100,)),
        lambda frozen: setattr(frozen, "forward", lambda x: -x),
    ):
        frozen = net.frozen()
        frozen.certify(inputs())
        spoil(frozen)
        with pytest.raises(UnsupportedLayerError, match="forward"):
            frozen.certify(inputs())

    class Called(CertifiedNet):
        def __call__(self, x):
            return -super().__call__(x)

    with pytest.raises(UnsupportedLayerError, match="forward of CertifiedNet"):
        Called(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).certify(inputs())


@pytest.mark.parametrize("owner", [nn.Sequential, Residual])
def test_patched_containers_are_noticed_after_a_proof(net, owner, monkeypatch):
    net.certify(inputs())
    frozen = net.frozen()
    plain, before = owner.forward, frozen.certify(inputs())
    monkeypatch.setattr(owner, "forward", lambda self, x: 2 * plain(self, x))
    with pytest.raises(UnsupportedLayerError, match="torch's own forward"):
        net.certify(inputs())
    assert torch.equal(frozen.certify(inputs()).windows, before.windows)  # no module is asked


def test_a_corrected_rule_makes_another_proof():
    class Triple(nn.Module):
        def forward(self, x):
            return 3 * x

    register_layer(Triple, ExactRule())  # a mistake
    head = nn.Linear(2, 2)
    head.weight.data, head.bias.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([1.0, -1.0])
    net = CertifiedNet(nn.Sequential(Triple(), head), input_shape=(2,), guarantee="standard", epsilon=0.1)
    frozen = net.frozen()
    assert frozen.certify(torch.zeros(1, 2)).radius.item() > 0.9
    register_layer(Triple, ExactRule(lambda layer, shape: Up(3.0)))
    for one in (net, frozen):
        assert one.certify(torch.zeros(1, 2)).radius.item() <= 1 / 3


def test_nothing_is_proved_while_subnormals_are_flushed():
    first, second = nn.Linear(2, 2, bias=False).double(), nn.Linear(2, 2, bias=False).double()
    first.weight.data, second.weight.data = torch.eye(2).double() * 2.0**-540, torch.eye(2).double() * 2.0**-490
    net = CertifiedNet(
        nn.Sequential(first, second, nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1
    )
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        with pytest.raises(ArgumentError, match="subnormal"):
            net.bounds()
    finally:
        torch.set_flush_denormal(False)
    assert net.bounds().head.scale >= 2.0**-1030


def test_points_that_were_seen_before_are_not_certified_while_subnormals_are_flushed():
    """The constants of pairs below 2⁻¹⁰²² are computed late; as 0 they would make every radius ∞."""
    head = nn.Linear(2, 3).double()
    head.weight.data = torch.tensor([[1e-310, 0.0], [0.0, 0.0], [0.0, 0.0]], dtype=torch.float64)
    head.bias.data = torch.tensor([3e-300, 2e-300, 1e-300], dtype=torch.float64)
    net = CertifiedNet(nn.Sequential(head), input_shape=(2,), guarantee="standard", epsilon=0.1)
    points, bounds = net.measure(torch.zeros(1, 2)), net.bounds()
    late = [points.certificate, lambda: points.membership_radii(1), points.target_table, lambda: bounds.pairs]
    late.append(lambda: points.membership_table(1))
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        for prove in late:
            with pytest.raises(ArgumentError, match="subnormal"):
                prove()
    finally:
        torch.set_flush_denormal(False)
    assert points.certificate().radius.item() < 1.1e10
    assert bounds.pairs[0, 1].item() >= 1e-310


def test_what_is_handed_out_is_not_what_is_proved_with(net):
    x = inputs()
    before = net.certify(x).windows
    bounds = net.bounds()
    bounds.head.rows.mul_(0.1)
    bounds.pairs.mul_(0.1)
    assert torch.equal(net.certify(x).windows, before)
    assert not torch.equal(net.bounds().pairs, bounds.pairs)


def test_cudnn_is_off_while_bounds_are_proved(net):
    class Watched(nn.Module):
        def forward(self, x):
            return x

    seen = []
    register_layer(Watched, ExactRule(lambda layer, shape: seen.append(torch.backends.cudnn.enabled) or Up(1.0)))
    net.network.insert(0, Watched())
    net.bounds()
    assert seen
    assert not any(seen)
    assert torch.backends.cudnn.enabled


def test_the_allowance_is_that_of_both_points(net):
    """e_ji(‖x‖) at x, e_ji(‖x‖ + ε) at x': twice the offset, and one slope."""
    proof = net.frozen().proof()
    error, room = proof.allowance(torch.tensor([0.0, 3.0], dtype=torch.float64))
    once = proof.offsets + torch.tensor([[0.0], [3.0]], dtype=torch.float64) * proof.slopes
    torch.testing.assert_close(error.offset, 2 * once, rtol=1e-12, atol=0)
    assert (error.offset >= 2 * once).all()
    assert torch.equal(error.slope, proof.slopes)
    assert (proof.slopes > 0).all()
    assert (room > 1e290).all()


def test_copies_and_files_certify_the_same(net):
    x = inputs()
    expected = net.certify(x).windows
    assert torch.equal(copy.deepcopy(net).certify(x).windows, expected)
    assert torch.equal(pickle.loads(pickle.dumps(net)).certify(x).windows, expected)
    buffer = io.BytesIO()
    torch.save(net.state_dict(), buffer)
    buffer.seek(0)
    torch.manual_seed(3)
    other = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01)
    assert not torch.equal(other.certify(x).windows, expected)
    other.load_state_dict(torch.load(buffer))
    assert torch.equal(other.certify(x).windows, expected)
    assert all(name.startswith("network.") for name in net.state_dict())
