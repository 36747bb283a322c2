"""CertifiedNet: what it certifies, what it leaves alone, and what it notices."""

import copy
import io
import math
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

from exact_network import evaluate, rational
from safeset import (
    Affinity,
    ArgumentError,
    CertifiedNet,
    ExactRule,
    HeadConstants,
    RelaxedTopK,
    RoundingWarning,
    Standard,
    TrainingWarning,
    UnsupportedLayerError,
    certify_logits,
    create_model,
    list_models,
    register_layer,
)
from safeset.layers import InvertibleDownsampling, MinMax, Normalize, Residual
from safeset.lipschitz.upward import Up, row_norms


def image_network():
    return nn.Sequential(
        Normalize([0.5, 0.4], [0.5, 0.25]),
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        MinMax(),
        InvertibleDownsampling(2),
        Residual(nn.Sequential(nn.Conv2d(24, 24, 1), nn.ReLU())),
        nn.AvgPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Sequential(nn.Linear(24, 8), nn.LeakyReLU(0.1)),
        nn.Linear(8, 5),
    )


@pytest.fixture
def net():
    torch.manual_seed(0)
    return CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01)


def inputs(count=8, seed=1):
    return torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def test_a_certificate_is_that_of_the_frozen_network(net):
    x = inputs()
    frozen = net.frozen()
    logits = frozen(x)
    assert logits.dtype == torch.float64
    torch.testing.assert_close(logits.float(), net.eval()(x), rtol=1e-4, atol=1e-5)
    for method in ("uniform", "floating", "joint"):
        found = net.certify(x, method=method)
        plain = certify_logits(logits, net.bounds().head, net.epsilon, net.guarantee, method=method)
        assert (found.windows <= plain.windows).all()
        torch.testing.assert_close(found.windows, plain.windows, rtol=1e-9, atol=1e-9)
        assert found.method == method
    assert net.certify(x).method == "joint"
    assert "float64 program" in net.certify(x).covers
    assert [line.name for line in net.certify(x).layers] == [line.name for line in net.bounds().layers]


def test_other_radii_and_guarantees_are_asked_for_by_name(net):
    x = inputs()
    found = net.certify(x, epsilon=0.003, guarantee=Affinity([[0, 1, 2]]))
    assert (found.epsilon, str(found.guarantee)) == (0.003, str(Affinity([[0, 1, 2]])))
    assert (net.epsilon, net.guarantee) == (0.01, RelaxedTopK(2))
    with pytest.raises(ArgumentError, match="`epsilon`"):
        net.certify(x, epsilon=-1)


def test_predict_set_gives_labels_and_sets(net):
    x = inputs(50)
    labels, sets = net.predict_set(x)
    assert torch.equal(net.predict_set(x, epsilon=0.0)[1], net.certify(x, epsilon=0.0).at(0.0).core)
    found = net.certify(x)
    assert torch.equal(labels, net.frozen()(x).argmax(dim=1))
    assert torch.equal(sets, found.core | found.optional)
    assert not sets[~found.certified].any()
    assert sets.dtype == torch.bool
    assert sets.shape == (50, 5)


def test_nothing_of_the_net_or_its_surroundings_changes(net):
    x = inputs()
    kept, state = x.clone(), copy.deepcopy(net.state_dict())
    net.train()
    numbers = torch.get_rng_state()
    flags = (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32, torch.is_grad_enabled())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = net.certify(x)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(inside.windows, net.certify(x).windows)
    assert net.training
    assert next(net.parameters()).dtype == torch.float32
    assert all(p.requires_grad for p in net.parameters())
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), numbers)
    assert (torch.backends.cudnn.enabled, torch.backends.cudnn.allow_tf32, torch.is_grad_enabled()) == flags
    assert all(torch.equal(state[name], tensor) for name, tensor in net.state_dict().items())


def test_bounds_have_pairs_head_and_layers(net):
    bounds = net.bounds()
    assert bounds.pairs.shape == (5, 5)
    assert bounds.pairs.dtype == torch.float64
    assert not bounds.pairs.diagonal().any()
    assert torch.equal(bounds.pairs, bounds.pairs.T)
    rows = bounds.head.rows
    torch.testing.assert_close(bounds.pairs, torch.cdist(rows, rows) * bounds.head.scale, rtol=1e-12, atol=1e-12)
    names = [line.name for line in bounds.layers]
    assert names == ["0", "1", "2", "3", "4", "5.body.0", "5.body.1", "6", "7", "8", "9.0", "9.1", "10"]
    product = math.prod(line.bound for line in bounds.layers if not line.name.startswith(("5", "10")))
    product *= 1 + bounds.layers[5].bound * bounds.layers[6].bound
    assert bounds.head.scale == pytest.approx(product, rel=1e-12)
    assert all(line.seconds >= 0 and line.method and line.type for line in bounds.layers)


def test_the_method_for_convolutions_can_be_chosen(net):
    exact, torus = net.bounds(convolutions="exact"), net.bounds(convolutions="torus")
    methods = {line.method for line in torus.layers if line.type == "Conv2d"}
    assert methods == {"torus"}
    assert exact.head.scale < torus.head.scale
    assert net.bounds().head.scale == torus.head.scale  # as proved before
    with pytest.raises(ArgumentError, match="'exact'"):
        net.bounds(convolutions="exat")


# -- what is noticed --------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("change", [doubled, through_numpy, negated, swapped, replaced, padded])
def test_a_frozen_net_notices_too(net, change):
    x = inputs()
    frozen = net.frozen()
    frozen.certify(x)
    change(frozen)
    fresh = CertifiedNet(frozen.network, input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).certify(x)
    assert torch.equal(frozen.certify(x).windows, fresh.windows)
    assert torch.equal(frozen(x), frozen.network(x.double()))


def appended(net):
    net.network.append(nn.Linear(5, 5, bias=False).double())
    net.network[-1].weight.data = 100 * torch.eye(5).double()


def divided(net):
    net.network[6].divisor_override = 1


def circular(net):
    net.network[1].padding_mode = "circular"


def single(net):
    net.float()


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("change", [doubled, appended, single, replaced])
def test_a_frozen_net_changed_before_or_after_its_first_proof_is_frozen_anew(net, change, early):
    x = inputs()
    frozen = net.frozen()
    if not early:
        frozen.certify(x)
    change(frozen)
    found = frozen.certify(x)
    fresh = CertifiedNet(frozen.network, input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01).certify(x)
    assert torch.equal(found.windows, fresh.windows)
    assert all(tensor.dtype == torch.float64 for tensor in frozen.state_dict().values())
    assert frozen.bounds().layers[-1].name == ("11" if change is appended else "10")


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("change", [divided, circular])
def test_a_frozen_net_made_unprovable_is_refused(net, change, early):
    frozen = net.frozen()
    if not early:
        frozen.certify(inputs())
    change(frozen)
    with pytest.raises(UnsupportedLayerError, match=r"divisor_override=1|circular"):
        frozen.certify(inputs())


def test_another_input_shape_is_another_proof():
    """One pixel of a 3×3 kernel, then all of it."""
    network = nn.Sequential(nn.Conv2d(1, 1, 3, stride=3, padding=1, bias=False), nn.Flatten(), nn.Linear(1, 2))
    network[0].weight.data = torch.ones(1, 1, 3, 3)
    net = CertifiedNet(network, input_shape=(1, 1, 1), guarantee="standard", epsilon=0.1)
    frozen = net.frozen()
    assert frozen.bounds().head.scale == pytest.approx(1, rel=1e-9)
    frozen.input_shape = (1, 2, 2)
    assert frozen.bounds().head.scale == pytest.approx(2, rel=1e-9)


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
    negated(frozen)
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


def test_hooks_on_a_frozen_net_are_refused(net):
    frozen = net.frozen()
    frozen.certify(inputs())
    frozen.network[9].register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(UnsupportedLayerError, match="forward hooks"):
        frozen.certify(inputs())


def test_a_frozen_net_stays_in_evaluation_and_float64(net):
    frozen = net.frozen()
    frozen.train()
    assert not any(module.training for module in frozen.modules())
    assert frozen.frozen() is frozen
    assert not any(p.requires_grad for p in frozen.parameters())
    before = frozen.certify(inputs())
    assert torch.equal(frozen.double().certify(inputs()).windows, before.windows)
    frozen.float()  # other weights: proved again
    assert frozen.certify(inputs()).windows.dtype == torch.float64


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
    plain = owner.forward
    monkeypatch.setattr(owner, "forward", lambda self, x: 2 * plain(self, x))
    for one in (net, frozen):
        with pytest.raises(UnsupportedLayerError, match="torch's own forward"):
            one.certify(inputs())


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


# -- inputs -----------------------------------------------------------------------------------------------------------


def test_points_that_are_not_finite_are_rejected(net):
    x = inputs(4)
    x[0, 0, 0, 0], x[1, 0, 0, 0], x[2, 1, 2, 3] = math.nan, math.inf, -math.inf
    found = net.certify(x, epsilon=0.0)
    assert found.radius[:3].tolist() == [0, 0, 0]
    torch.testing.assert_close(found.windows[3], net.certify(x[3:]).windows[0])


def test_numpy_arrays_and_empty_batches_are_welcome(net):
    x = inputs()
    assert torch.equal(net.certify(x.numpy()).windows, net.certify(x).windows)
    assert len(net.certify(x[:0])) == 0
    assert torch.equal(net.certify(x.double()).windows, net.certify(x).windows)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(2, 4, 4), r"shape \(batch, 2, 4, 4\), but got shape \(2, 4, 4\).* x\[None\]"),
        (torch.zeros(1, 2, 4, 5), r"\(1, 2, 4, 5\)"),
        (torch.zeros(1, 2, 4, 4, dtype=torch.uint8), r"floating-point inputs.*x\.float\(\) / 255"),
        ("a picture", "`x` to"),
    ],
)
def test_other_inputs_are_named(net, x, message):
    with pytest.raises(ArgumentError, match=message):
        net.certify(x)


BAD = {
    "no module": (lambda: "a network", {}, "torch.nn.Module"),
    "shape": (lambda: nn.Linear(2, 2), {"input_shape": (2, 0)}, "`input_shape`"),
    "wrong shape": (lambda: nn.Sequential(nn.Linear(3, 2)), {"input_shape": (4,)}, "layer '0'.*input_shape"),
    "no head": (lambda: nn.Sequential(nn.Linear(2, 2), nn.ReLU()), {}, "last layer.*but got ReLU"),
    "empty": (lambda: nn.Sequential(), {}, "last layer"),
    "residual last": (lambda: nn.Sequential(Residual(nn.Linear(2, 2))), {}, "last layer"),
    "images into the head": (lambda: nn.Linear(2, 2), {"input_shape": (3, 2)}, "flat features"),
    "one class": (lambda: nn.Linear(2, 1), {}, "at least 2 classes"),
    "too few classes": (lambda: nn.Linear(2, 3), {"guarantee": "rt3"}, "`k`"),
    "epsilon": (lambda: nn.Linear(2, 3), {"epsilon": math.nan}, "`epsilon`"),
    "batch into points": (lambda: nn.Sequential(nn.Flatten(0), nn.Linear(4, 2)), {}, "batch of points"),
    "names": (lambda: nn.Linear(2, 3), {"class_names": ["a", "b"]}, "a name for each"),
    "residual shape": (lambda: nn.Sequential(Residual(nn.Linear(2, 3)), nn.Linear(2, 3)), {}, "keep the shape"),
    "odd": (lambda: nn.Sequential(MinMax(), nn.Linear(3, 2)), {"input_shape": (3,)}, "even number of channels"),
}


@pytest.mark.parametrize("name", BAD)
def test_mistakes_are_named(name):
    make, changes, message = BAD[name]
    arguments = {"input_shape": (2,), "guarantee": "standard", "epsilon": 0.1, **changes}
    with pytest.raises(ArgumentError, match=f"(?s)Expected.*{message}"):
        CertifiedNet(make(), **arguments)


def test_weights_that_are_not_finite_are_named():
    network = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    network[0].weight.data[0, 0] = math.nan
    with pytest.raises(ArgumentError, match=r"NaN or infinite ones in '0\.weight'"):
        net.certify(torch.zeros(1, 2))


def test_names_come_along():
    network = nn.Linear(2, 3)
    network.weight.data = torch.tensor([[1.0, 0.0], [0.9, 0.0], [-1.0, 0.0]])
    network.bias.data.zero_()
    pairs = Affinity([["cat", "dog"]])
    arguments = {"input_shape": (2,), "epsilon": 0.1, "class_names": ["cat", "dog", "cow"]}
    net = CertifiedNet(network, guarantee=pairs, **arguments)
    assert net.certify(torch.zeros(1, 2)).class_names == ("cat", "dog", "cow")
    assert net.certify(torch.tensor([[1.0, 0.0]])).records()[0]["core"] == ["cat", "dog"]


def test_a_layer_that_comes_twice_counts_twice():
    shared = nn.Linear(2, 2, bias=False)
    shared.weight.data = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    network = nn.Sequential(shared, shared, nn.Linear(2, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    assert net.bounds().head.scale == pytest.approx(9.0, rel=1e-12)
    constants, _ = net.estimate(None, net.start_vectors(), 3)
    assert constants.scale.item() == pytest.approx(9.0, rel=1e-6)


# -- rounding ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bias", [0.0, 1.0, 2.0**40, -(2.0**70)])
@pytest.mark.parametrize("scale", [1.0, 1e-150, 1e100])
@pytest.mark.parametrize("place", [1, 10])
def test_computed_logits_are_as_close_to_the_exact_ones_as_is_said(bias, scale, place):
    """|(f̂_j − f̂_i) − (f_j − f_i)| ≤ e_ji(‖x‖), with the exact value from fractions."""
    torch.manual_seed(0)
    net = CertifiedNet(image_network(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.01)
    frozen = net.frozen()
    frozen.network[1].weight.data.mul_(scale)
    frozen.network[place].bias.data[2:] = bias
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


# -- training ---------------------------------------------------------------------------------------------------------


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


# -- models -----------------------------------------------------------------------------------------------------------

SHAPES = {
    "cnn-2c2f": ((3, 32, 32), 100, 4_360_740),
    "cnn-8c2f": ((3, 64, 64), 200, None),
    "mlp-3x1000": ((5,), 5, None),
    "cnn-1c1f": ((1, 8, 8), 10, None),
    "mlp-2x32": ((2,), 4, None),
}


@pytest.mark.parametrize("name", list_models())
def test_every_model_is_certifiable(name):
    shape, classes, parameters = SHAPES[name]
    torch.manual_seed(0)
    model = create_model(name, input_shape=shape, classes=classes)
    if parameters:
        assert sum(p.numel() for p in model.parameters()) == parameters
    net = CertifiedNet(model, input_shape=shape, guarantee="standard", epsilon=0.1)
    assert net(torch.rand(2, *shape)).shape == (2, classes)
    assert net.classes == classes
    constants, _ = net.estimate(None, net.start_vectors(), 1)
    assert constants.scale.item() > 0


def test_models_are_asked_for_by_name():
    with pytest.raises(ArgumentError, match=r"cnn-2c2f.*but got 'cnn-2c2'.*Did you mean 'cnn-2c2f'"):
        create_model("cnn-2c2", input_shape=(3, 32, 32), classes=10)
    with pytest.raises(ArgumentError, match="multiples of 4"):
        create_model("cnn-2c2f", input_shape=(3, 30, 30), classes=10)
    with pytest.raises(ArgumentError, match="`classes`"):
        create_model("mlp-2x32", input_shape=(2,), classes=1)
    assert isinstance(create_model("mlp-2x32", input_shape=(1, 2, 2), classes=3)[0], nn.Flatten)


def test_a_net_shows_what_it_is(net):
    assert "guarantee=RelaxedTopK(2), epsilon=0.01" in repr(net)
    assert isinstance(net.guarantee, RelaxedTopK)
    assert Standard() != net.guarantee
    assert np.asarray(net.input_shape).tolist() == [2, 4, 4]
