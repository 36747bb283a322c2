"""Roads to a false certificate that lie around the mathematics: other threads, patched code, modes, integers."""

import copy
import pickle
import subprocess
import sys
import threading
import time

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import safeset.nets.net
from helpers.commands import ENVIRONMENT
from safeset import CertifiedNet, ExactRule, UnsupportedLayerError, register_layer
from safeset.audit.second_proof import prove_again
from safeset.errors import ArgumentError
from safeset.layers import Abs, ChannelAffine, InvertibleDownsampling, MinMax, Normalize, Residual
from safeset.nets.sealed import Sealed
from safeset.numerics.directed import Up
from safeset.program import registry, rules
from safeset.program.exact import evaluate

X = torch.tensor([[100.0, 0.0]], dtype=torch.float64)


def plain(weight):
    head = nn.Linear(2, 2, bias=False)
    head.weight.data = torch.tensor(weight, dtype=torch.float32)
    return CertifiedNet(nn.Sequential(head), input_shape=(2,), guarantee="standard", epsilon=0.5)


FIRST, SECOND = [[1.01, 0.0], [0.0, 1.0]], [[1.0, 0.0], [1.01, 1.0]]  # class 0 at X, and class 1


# -- threads ----------------------------------------------------------------------------------------------------------


def test_weights_that_change_while_they_are_frozen_leave_no_stale_proof(monkeypatch):
    """The hot reload of another thread, at the worst moment: after the copy, before it is compared."""
    net, other = plain(FIRST), torch.tensor(SECOND)
    real = safeset.nets.net.Sealed.of
    changes = [0]

    def changed(network, *others):
        sealed = real(network, *others)
        if changes[0] == 0:
            changes[0] = 1
            network[0].weight.data.copy_(other)
        return sealed

    monkeypatch.setattr(safeset.nets.net.Sealed, "of", changed)
    found = net.certify(X)
    assert changes == [1]
    assert found.ranking[0, 0] == 1  # what the network is, not what it was
    assert net.certify(X).ranking[0, 0] == 1


def test_weights_that_never_rest_are_told(monkeypatch):
    net = plain(FIRST)
    real = safeset.nets.net.Sealed.of

    def changed(network, *others):
        sealed = real(network, *others)
        network[0].weight.data.add_(1e-3)
        return sealed

    monkeypatch.setattr(safeset.nets.net.Sealed, "of", changed)
    with pytest.raises(ArgumentError, match="weights that stay the same while they are copied"):
        net.certify(X)


def test_threads_that_race_get_certificates_of_weights_that_were_there():
    """One thread reloads weights, one asks for frozen nets, three certify: every answer is of one of the two networks.

    Whatever a certificate says, its logits tell which weights they came from, and its radius must be that of these.
    """
    net = plain(FIRST)
    weights = [torch.tensor(each, dtype=net.network[0].weight.dtype) for each in (FIRST, SECOND)]
    wanted = []
    for each in weights:
        alone = CertifiedNet(
            nn.Sequential(nn.Linear(2, 2, bias=False)), input_shape=(2,), guarantee="standard", eps=0.5
        )
        alone.network[0].weight.data = each
        wanted.append((int(alone.certify(X).ranking[0, 0]), float(alone.certify(X).radius)))
    end, wrong, answers = time.monotonic() + 2.0, [], []

    def reload():
        place = 0
        while time.monotonic() < end:
            place = 1 - place
            net.network[0].weight.data.copy_(weights[place])  # one number after another
            time.sleep(0.002 * (place + 1))

    def watch():
        while time.monotonic() < end:
            try:
                net.frozen()
            except ArgumentError:
                continue

    def ask():
        while time.monotonic() < end:
            try:
                found = net.certify(X)
            except ArgumentError:
                continue
            answer = int(found.ranking[0, 0]), float(found.radius)
            answers.append(answer)
            if answer not in wanted:
                wrong.append(answer)

    threads = [threading.Thread(target=each) for each in (reload, watch, ask, ask, ask)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(wanted) <= set(answers)  # both were seen
    # A copy may fall into the middle of a reload: a network that was there, for a moment. Most do not.
    assert len(wrong) <= 0.2 * len(answers)
    at_rest = net.certify(X)
    logits = evaluate(net.frozen().network, X[0])
    assert int(at_rest.ranking[0, 0]) == max(range(2), key=lambda each: logits[each])
    assert (int(at_rest.ranking[0, 0]), float(at_rest.radius)) in wanted


def test_a_net_with_a_lock_is_copied_and_pickled():
    net = plain(FIRST)
    wanted = net.certify(X).radius
    for other in (copy.deepcopy(net), pickle.loads(pickle.dumps(net)), copy.deepcopy(net.frozen())):
        assert torch.equal(other.certify(X).radius, wanted)
        assert other._lock is not net._lock


def test_a_frozen_net_that_is_changed_while_it_is_asked_answers_for_one_network(monkeypatch):
    """Between the proof and the forward pass nothing can come: what runs is what was proved."""
    frozen = plain(FIRST).frozen()
    frozen.certify(X)
    real = Sealed.logits

    def late(self, x):
        frozen.network[0].weight.data.copy_(torch.tensor(SECOND))
        return real(self, x)

    monkeypatch.setattr(Sealed, "logits", late)
    assert frozen.certify(X).ranking[0, 0] == 0  # whatever is done to what it handed out
    assert frozen.certify(X).ranking[0, 0] == 0


# -- patched code -----------------------------------------------------------------------------------------------------


def everything():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), MinMax())
    network = nn.Sequential(
        Normalize([0.5], [0.5]),
        nn.Conv2d(1, 4, 3, padding="same"),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        Residual(body),
        nn.ChannelShuffle(2),
        nn.AvgPool2d(2),
        nn.PixelShuffle(2),
        nn.PixelUnshuffle(2),
        Abs(),
        nn.MaxPool2d(2, 1),
        InvertibleDownsampling(1),
        nn.LeakyReLU(0.5),
        nn.Flatten(),
        nn.Dropout(),
        nn.Linear(36, 8),
        nn.Identity(),
        nn.Linear(8, 3),
    )
    return CertifiedNet(network.eval(), input_shape=(1, 8, 8), guarantee="rt2", epsilon=0.01)


def test_what_runs_is_what_the_layers_are():
    net = everything()
    x = torch.rand(5, 1, 8, 8, dtype=torch.float64)
    frozen = net.frozen()
    assert torch.allclose(net.measure(x).logits, frozen.network(x), rtol=1e-13, atol=0)
    assert torch.allclose(net.measure(x).logits, net.double()(x), rtol=1e-12, atol=1e-13)
    exact = torch.tensor([float(each) for each in evaluate(frozen.network, x[0])], dtype=torch.float64)
    assert torch.allclose(frozen.measure(x[:1]).logits[0], exact, rtol=1e-13, atol=1e-14)


def zeros(*given, **_):
    return torch.zeros_like(given[-1] if isinstance(given[-1], torch.Tensor) else given[0])


FUNCTIONS = ["relu", "linear", "conv2d", "avg_pool2d", "max_pool2d", "leaky_relu", "pixel_unshuffle", "pixel_shuffle"]


def test_patched_functions_change_nothing(monkeypatch):
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    wanted = everything().certify(x)
    for name in (*FUNCTIONS, "pad"):
        monkeypatch.setattr(nn.functional, name, zeros)
    found = everything().certify(x)
    assert torch.equal(found.windows, wanted.windows)
    assert torch.equal(found.ranking, wanted.ranking)


@pytest.mark.parametrize("kind", [nn.ReLU, nn.Linear, nn.Conv2d, nn.Flatten, MinMax, nn.Sequential])
def test_patched_layers_are_refused(monkeypatch, kind):
    net = everything()
    monkeypatch.setattr(kind, "forward", zeros)
    with pytest.raises(UnsupportedLayerError, match="forward"):
        net.certify(torch.rand(1, 1, 8, 8))


PATCHED_FIRST = """
import torch
from torch import nn
import safeset
nn.ReLU.forward = lambda self, x: 100 * x  # before safeset has seen a single layer
net = None
try:
    network = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 2, bias=False))
    net = safeset.CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    print(net.certify(torch.ones(1, 2)))
except safeset.UnsupportedLayerError as error:
    print("refused:", error)
"""


def test_a_layer_patched_before_its_first_use_is_refused():
    command = [sys.executable, "-c", PATCHED_FIRST]
    output = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=True).stdout
    assert output.startswith("refused: Expected the forward of ReLU")


class Louder(TorchFunctionMode):
    """A caller's mode that makes every sum, product and function a hundred times as large."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        return found * 100 if isinstance(found, torch.Tensor) and found.is_floating_point() else found


class Quieter(TorchDispatchMode):
    """The same below torch's functions."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        return found / 100 if isinstance(found, torch.Tensor) and found.is_floating_point() else found


@pytest.mark.parametrize("mode", [Louder, Quieter])
def test_a_caller_s_mode_changes_nothing(mode):
    x = torch.rand(3, 1, 8, 8, dtype=torch.float64)
    net = everything()
    wanted, bounds = net.certify(x), net.bounds().pairs
    fresh = everything()
    with mode():
        found, asked = net.certify(x), fresh.certify(x)
    assert torch.equal(found.windows, wanted.windows)
    assert torch.equal(asked.windows, wanted.windows)
    assert torch.equal(fresh.bounds().pairs, bounds)
    assert torch._C._len_torch_function_stack() == 0


def test_a_default_device_stays():
    torch.set_default_device("cpu")
    try:
        before = torch._C._len_torch_function_stack()
        everything().certify(torch.rand(1, 1, 8, 8))
        assert torch._C._len_torch_function_stack() == before
        assert torch.get_default_device() == torch.device("cpu")
    finally:
        torch.set_default_device(None)


class Three(nn.Module):
    """Three times x, in place, as a user may write it."""

    def forward(self, x):
        return x.mul_(3.0)


class Late(nn.Module):
    """The same, where it is not seen at once."""

    def forward(self, x):
        return x.mul_(3.0) if x.abs().max() > 1.5 else 3.0 * x


def test_layers_of_one_s_own_that_work_in_place_are_refused_or_leave_their_input_alone(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(registry, "RULES", rules.RULES)
    for kind in (Three, Late):
        register_layer(kind, ExactRule(lambda layer, shape: Up(3.0)))
    with pytest.raises(UnsupportedLayerError, match="to leave its input alone"):
        CertifiedNet(
            nn.Sequential(Residual(Three()), nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1
        )
    network = nn.Sequential(Residual(Late()), nn.Linear(2, 2)).double()
    network[1].weight.data, network[1].bias.data = torch.eye(2).double(), torch.zeros(2).double()
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    x = torch.tensor([[1.0, 0.0], [2.0, 0.5]], dtype=torch.float64)
    assert net.measure(x).logits.tolist() == [[4.0, 0.0], [8.0, 2.0]]
    assert x.tolist() == [[1.0, 0.0], [2.0, 0.5]]


class Same(nn.Module):
    """What it is given, in the same memory."""

    def forward(self, x):
        return x


def test_what_works_in_place_behind_a_layer_of_one_s_own_is_refused_too(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(registry, "RULES", rules.RULES)
    register_layer(Same, ExactRule())
    body = nn.Sequential(Same(), nn.ReLU(inplace=True))
    with pytest.raises(UnsupportedLayerError, match="which would change the shortcut too"):
        CertifiedNet(
            nn.Sequential(Residual(body), nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1
        )


class Shifted(torch.Tensor):
    """A tensor that is another one as soon as it is moved."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        found = super().__torch_function__(function, types, args, kwargs or {})
        return found + 1 if function is torch.Tensor.to else found


def test_inputs_that_are_no_plain_tensors_are_refused():
    with pytest.raises(ArgumentError, match="plain tensor, but got a Shifted"):
        plain(FIRST).certify(X.as_subclass(Shifted))


# -- integers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int64, torch.uint8])
def test_whole_numbers_are_converted_before_anything_else(dtype):
    least = torch.iinfo(dtype).min if dtype not in (torch.uint8, torch.int64) else 0
    numbers = torch.tensor([1, least or 1]).to(dtype)
    affine = ChannelAffine(numbers, torch.zeros(2).to(dtype))
    network = nn.Sequential(affine, nn.Linear(2, 2, bias=False))
    network[1].weight.data = torch.eye(2)
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    size = float(numbers.double().abs().max())
    assert size <= net.bounds().layers[0].bound <= size * (1 + 1e-9)
    assert [line.verdict for line in prove_again(net.frozen())] == ["proved"] * 4
    found = net.certify(torch.tensor([[1.0, 0.5 / size]]))
    assert found.radius.item() <= 0.5 / size * 2**0.5 * size  # the exact distance to the boundary is below


def test_whole_numbers_in_normalisation():
    layer = Normalize([1.0, 2.0], [2.0, 4.0])
    layer.mean, layer.std = layer.mean.to(torch.int8), layer.std.to(torch.int8)
    network = nn.Sequential(layer, nn.Linear(2, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    assert 0.5 <= net.bounds().layers[0].bound <= 0.5 + 1e-9
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    wanted = net.network[1].weight.double() @ torch.tensor([1.0, 0.5]).double() + net.network[1].bias.double()
    assert torch.allclose(net.measure(x).logits[0], wanted, rtol=1e-14)


# -- found by hunters -------------------------------------------------------------------------------------------------


def test_another_input_shape_between_the_check_and_the_proof_is_no_other_certificate(monkeypatch):
    network = nn.Sequential(nn.Conv2d(1, 1, (1, 5), padding=(0, 2)), nn.Flatten(), nn.Linear(64, 2))
    net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="standard", epsilon=0.1)
    x, proved = torch.rand(1, 1, 8, 8), CertifiedNet._proved

    def changed(self, *wish):
        self.input_shape = (1, 16, 4)
        return proved(self, *wish)

    monkeypatch.setattr(CertifiedNet, "_proved", changed)
    with pytest.raises(ArgumentError, match=r"inputs of shape \(1, 16, 4\)"):
        net.certify(x)


def test_what_is_written_into_the_input_meanwhile_changes_nothing(monkeypatch):
    net, x = plain(FIRST), X.double().numpy().copy()
    expected, real = net.certify(X).windows, Sealed.logits

    def late(self, given):
        x[:] = 1e9
        return real(self, given)

    monkeypatch.setattr(Sealed, "logits", late)
    assert torch.equal(net.certify(x).windows, expected)


@pytest.mark.parametrize("stride", [(1.99, 1.99), 1.5])
def test_a_stride_that_is_no_integer_is_refused(stride):
    pool = nn.AvgPool2d(2)
    pool.stride = stride
    with pytest.raises((ArgumentError, UnsupportedLayerError, TypeError)):
        CertifiedNet(
            nn.Sequential(pool, nn.Flatten(), nn.Linear(25, 2)),
            input_shape=(1, 6, 6),
            guarantee="standard",
            epsilon=0.1,
        )


class Flipping(TorchDispatchMode):
    """Turns the sign of matrices that are converted or copied."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        copies = (torch.ops.aten._to_copy.default, torch.ops.aten.clone.default)
        return -found if function in copies and found.ndim == 2 else found


@pytest.mark.parametrize("ask", [lambda net: net.bounds(), lambda net: net.frozen(), lambda net: net.witnesses()])
def test_modes_while_a_net_is_sealed_leave_nothing_behind(ask):
    net = plain(FIRST)
    expected = plain(FIRST).certify(X)
    with Flipping():
        ask(net)
    assert torch.equal(net.certify(X).windows, expected.windows)
    assert torch.equal(net.certify(X).ranking, expected.ranking)


class Nothing(TorchFunctionMode):
    """Makes everything 0 that is a conjunction or a number from nothing."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        return torch.zeros_like(found) if getattr(function, "__name__", "") in ("__and__", "arange") else found


def test_modes_while_constants_are_estimated_leave_nothing_behind():
    network = nn.Sequential(nn.AvgPool2d(3, 1), nn.Flatten(), nn.Linear(25, 2))
    nets = [CertifiedNet(network, input_shape=(1, 7, 7), guarantee="standard", epsilon=0.1) for _ in range(2)]
    with Nothing():
        nets[0].estimate(None, nets[0].start_vectors(), 1)
    assert nets[1].bounds().layers[0].bound > 0.3


def test_logits_are_certified_as_they_are_in_any_mode():
    logits, constants = torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(3, 3)
    asked = (
        lambda: safeset.certify_logits(logits, constants, 0.1, "standard").windows,
        lambda: safeset.membership_radii(logits, constants, 1),
        lambda: safeset.target_table(logits, constants),
        lambda: NET.bounds().pairs,
    )
    for ask in asked:
        expected = ask()
        with Louder():
            assert torch.equal(ask().as_subclass(torch.Tensor), expected)


NET = plain(FIRST)


def test_what_certificates_hand_out_is_not_what_is_proved_with():
    net = plain(FIRST)
    found = net.certify(X)
    before = found.windows.clone()
    for each in vars(found).values():
        if isinstance(each, torch.Tensor) and each.is_floating_point():
            each.mul_(100)
    net.bounds().head.rows.mul_(0.01)
    assert torch.equal(net.certify(X).windows, before)


@pytest.mark.parametrize(
    ("kind", "name", "made"),
    [
        (nn.LeakyReLU, "negative_slope", property(lambda self: -50.0, lambda self, value: None)),
        (nn.Linear, "weight", property(lambda self: torch.eye(2) * -1)),
        (Residual, "body", property(lambda self: nn.Identity())),
    ],
)
def test_properties_that_hide_what_a_layer_has_are_refused(kind, name, made, monkeypatch):
    body = nn.Sequential(nn.Linear(2, 2), nn.LeakyReLU(0.1))
    net = CertifiedNet(
        nn.Sequential(Residual(body), nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1
    )
    net.certify(torch.ones(1, 2))
    monkeypatch.setattr(kind, name, made, raising=False)
    with pytest.raises((UnsupportedLayerError, ArgumentError)):
        net.certify(torch.ones(1, 2))


class Odd(float):
    """A number whose absolute value is 0."""

    def __abs__(self):
        return 0.0


def test_a_slope_is_a_plain_number():
    layer = nn.LeakyReLU()
    layer.negative_slope = Odd(-50.0)
    net = CertifiedNet(nn.Sequential(layer, nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1)
    assert net.bounds().layers[0].bound == 50


def test_complex_weights_are_refused():
    with pytest.raises((ArgumentError, UnsupportedLayerError), match="complex"):
        CertifiedNet(
            nn.Sequential(nn.Linear(2, 2, dtype=torch.cfloat)), input_shape=(2,), guarantee="standard", epsilon=0.1
        )


def test_errors_of_pairs_are_those_of_both_orders():
    error = torch.zeros(1, 2, 2)
    error[0, 1, 0] = 9.0
    for each in (error, error.mT):
        found = safeset.certify_logits(torch.tensor([[2.0, 0.0]]), torch.ones(2, 2), 0.1, "standard", error=each)
        assert found.radius.item() == 0


def test_no_epsilon_is_shown_above_what_was_certified():
    found = safeset.certify_logits(torch.tensor([[1.0, 0.0]]), torch.full((2, 2), 2**0.5), 0.7071065, "standard")
    assert "epsilon=0.7071," in repr(found)


SHARED = torch.eye(2, dtype=torch.float64)


class Elsewhere(nn.Module):
    """A parametrisation that gives what is kept elsewhere."""

    def forward(self, weight):
        return SHARED


def test_weights_that_a_parametrisation_keeps_elsewhere_are_copied():
    layer = nn.Linear(2, 2, bias=False).double()
    nn.utils.parametrize.register_parametrization(layer, "weight", Elsewhere(), unsafe=True)
    network = nn.Sequential(layer, nn.Linear(2, 2).double())
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    frozen, x = net.frozen(), torch.ones(1, 2)
    before = frozen.certify(x)
    try:
        SHARED.mul_(100)
        assert torch.equal(frozen.certify(x).windows, before.windows)
        assert net.bounds().layers[0].bound == pytest.approx(100, rel=1e-6)
    finally:
        SHARED.div_(100)


class Scaled(nn.Module):
    """A layer of one's own: a factor in a list, and a rule that may be wrong."""

    def __init__(self, factor=1.0):
        super().__init__()
        self.factors = [factor]
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return x * self.factors[0]


def own_net(layer, rule, monkeypatch, kind=None):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(registry, "RULES", rules.RULES)
    register_layer(kind or type(layer), rule)
    return CertifiedNet(nn.Sequential(layer, nn.Linear(2, 2)), input_shape=(2,), guarantee="standard", epsilon=0.1)


def test_what_a_rule_freezes_to_is_copied(monkeypatch):
    held = nn.Linear(2, 2).double()
    net = own_net(Scaled(), ExactRule(frozen=lambda layer, shape: held), monkeypatch)
    frozen = net.frozen()
    before = frozen.certify(torch.ones(1, 2))
    with torch.no_grad():
        held.weight.mul_(100)
    assert torch.equal(frozen.certify(torch.ones(1, 2)).windows, before.windows)


def test_attributes_of_own_layers_that_are_handed_out_are_copies(monkeypatch):
    frozen = own_net(Scaled(), ExactRule(), monkeypatch).frozen()
    before = frozen.certify(torch.ones(1, 2)).windows
    frozen.program.nodes[0].operation.settings()["structure"][0][3]["factors"][0] = 100.0
    frozen.__getstate__()["_sealed"][0][1].weight.data.mul_(100)
    assert torch.equal(frozen.certify(torch.ones(1, 2)).windows, before)


def test_a_corrected_rule_of_a_parametrised_layer_is_noticed(monkeypatch):
    layer = Scaled(3.0)
    nn.utils.parametrize.register_parametrization(layer, "weight", nn.Identity())
    net = own_net(layer, ExactRule(), monkeypatch, Scaled)
    frozen = net.frozen()
    assert frozen.bounds().layers[0].bound == 1
    register_layer(Scaled, ExactRule(lambda layer, shape: Up(3.0)))
    for one in (net, frozen, net.frozen()):
        assert one.bounds().layers[0].bound == 3


def test_what_a_rule_computes_in_place_is_refused(monkeypatch):
    with pytest.raises(UnsupportedLayerError, match="works in place"):
        own_net(Scaled(), ExactRule(computes=lambda layer: lambda x: x.neg_()), monkeypatch)


class Uncopied(nn.ReLU):
    """A layer whose copy is itself."""

    def __deepcopy__(self, memo):
        return self


def test_networks_that_cannot_be_copied_are_refused(monkeypatch):
    with pytest.raises(UnsupportedLayerError):
        own_net(Uncopied(), ExactRule(), monkeypatch).certify(torch.ones(1, 2))
    net = plain(FIRST)
    net.network[0].weight.__deepcopy__ = lambda memo: net.network[0].weight
    with pytest.raises(UnsupportedLayerError, match="shares its memory"):
        net.certify(X)
