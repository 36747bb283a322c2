"""Any module by what torch.export sees of it: what is recognised, what is refused, and what stays true of the net."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional

from safeset import CertifiedNet, ExactRule, UnsupportedLayerError, register_layer
from safeset.capture import capture as capturing
from safeset.capture.capture import capture
from safeset.program import registry, rules
from safeset.proofs.prove import prove


class Forward(nn.Module):
    """A function as a network with a head."""

    def __init__(self, function, *layers, features=8):
        super().__init__()
        self.function, self.layers, self.head = function, nn.ModuleList(layers), nn.Linear(features, 3)

    def forward(self, x):
        return self.head(self.function(x, *self.layers).flatten(1))


def reach(function, *layers, shape=(8,), features=8):
    """The proved bound of all before the head."""
    torch.manual_seed(0)
    return float(prove(capture(Forward(function, *layers, features=features), shape).program).bounds.head.scale)


def min_max(x):
    first, second = x.chunk(2, dim=1)
    return torch.cat([torch.maximum(first, second), torch.minimum(second, first)], dim=1)


def halves(spelling):
    """What is made of the first and the second half of the channels, beside each other."""
    return lambda x: torch.cat(spelling(*x.chunk(2, dim=1)), dim=1)


def min_max_of_slices(x):
    """Of some pairs, from what was computed of all."""
    first, second = x.chunk(2, dim=1)
    bent = (first - second).relu()[:, 1:3]
    return torch.cat([second[:, 1:3] + bent, first[:, 1:3] - bent], dim=1)


def shift(x):
    """A circular shift of some channels, by splits and rolls."""
    one, two, rest = x.split([2, 2, 4], dim=1)
    return torch.cat([one.roll(1, 2), two.roll(-1, 2), rest.flip(2)], dim=1).permute(0, 2, 1)


ONE = {
    "min-max": (min_max, (8,)),
    "min-max by stacks": (lambda x: torch.stack([x[:, ::2].max(x[:, 1::2]), x[:, ::2].min(x[:, 1::2])], 2), (8,)),
    "min-max by negatives": (
        lambda x: torch.stack([x[:, ::2].max(x[:, 1::2]), -torch.max(-x[:, 1::2], -x[:, ::2])], 2),
        (8,),
    ),
    "min-max of negatives": (lambda x: min_max(-x).neg(), (8,)),
    "min-max by relu": (halves(lambda a, b: (b + (a - b).relu(), a - (a - b).relu())), (8,)),
    "min-max by relu, other way": (halves(lambda a, b: ((b - a).relu() + a, -((b - a).relu() - b))), (8, 2)),
    "min-max by abs": (halves(lambda a, b: ((a + b + (a - b).abs()) / 2, 0.5 * (a + b - (b - a).abs()))), (8,)),
    "min-max by halves": (
        halves(lambda a, b: (a / 2 + b / 2 + (a - b).abs() / 2, (a + b) / 2 - (a - b).abs() / 2)),
        (8,),
    ),
    "min-max by lerp": (halves(lambda a, b: (torch.lerp(a, b, 0.5) + (a / 2 - b / 2).abs(), a.minimum(b))), (8,)),
    "min-max, divided last": (
        lambda x: torch.stack([(s := x[:, ::2] + x[:, 1::2]) + (d := (x[:, ::2] - x[:, 1::2]).abs()), s - d], 2) / 2,
        (8,),
    ),
    "min-max by the rest": (halves(lambda a, b: (m := torch.maximum(a, b), a + b - m)), (8,)),
    "max-min by the rest": (halves(lambda a, b: (a - torch.minimum(a, b) + b, torch.minimum(b, a))), (8,)),
    "min-max by the distance": (halves(lambda a, b: (m := b + (a - b).relu(), m - (a - b).abs())), (8,)),
    "min-max of slices": (min_max_of_slices, (8,)),
    "min-max, negated": (halves(lambda a, b: (-torch.max(a, b), (-a - b + (a - b).abs()) / 2)), (8,)),
    "group sort by topk": (lambda x: x.view(-1, 2, 4).topk(4, dim=2).values, (8,)),
    "largest": (lambda x: x.view(-1, 2, 4).topk(2, dim=1, largest=False)[0][:, :, ::2].repeat(1, 1, 2) / 2**0.5, (8,)),
    "threshold": (lambda x: functional.threshold(x, 0, 0), (8,)),
    "columns": (lambda x: torch.column_stack([x[:, 4:], x[:, 0], x[:, 1:4]]), (8,)),
    "gathered": (lambda x: x.gather(1, torch.arange(8).flip(0).expand(x.shape[0], -1)), (8,)),
    "both halves": (lambda x: torch.cat([functional.relu(-x[:, :4]), x[:, :4].relu()], 1), (8,)),
    "both halves, mixed": (lambda x: torch.stack([x[:, 4:].clamp(min=0), (-x[:, 4:]).relu()], 2).flip(1), (8,)),
    "group sort": (lambda x: x.view(-1, 2, 4).sort(dim=2).values, (8,)),
    "larger half": (lambda x: torch.cat([x[:, :4].maximum(x[:, 4:]), x[:, :4] * 0], 1), (8,)),
    "shift": (shift, (8, 5)),
    "up and down": (lambda x: functional.interpolate(x, scale_factor=2.0)[:, :, ::2, 1::2], (2, 2, 2)),
    "l2 pooling": (lambda x: x.view(-1, 2, 4).square().sum(2).sqrt().repeat_interleave(4, 1) / 2, (8,)),
    "norm": (lambda x: functional.pad(x.norm(dim=1, keepdim=True), (0, 7)), (8,)),
    "norm of linalg": (lambda x: functional.pad(torch.linalg.norm(x, dim=1, keepdim=True), (0, 7)), (8,)),
    "relu6 and clamp": (lambda x: functional.relu6(x).clamp(0.5, 2.0), (8,)),
    "in place": (lambda x: functional.relu_(x + 1.0).abs_(), (8,)),
    "integers beside": (lambda x: torch.cat([x[:, :4], torch.ones(x.shape[0], 4, dtype=torch.int64)], dim=1), (8,)),
    "integers where": (lambda x: torch.where(torch.arange(8) < 3, x, torch.tensor(7)), (8,)),
    "filled": (lambda x: x.masked_fill(torch.arange(8) < 3, 2), (8,)),
    "constants beside": (lambda x: torch.cat([x[:, :4], torch.ones(x.shape[0], 4)], dim=1), (8,)),
    "einsum": (lambda x: torch.einsum("ij,bj->bi", torch.eye(8, dtype=x.dtype).flip(0), x), (8,)),
}


@pytest.mark.parametrize("name", ONE)
def test_what_is_one_lipschitz_counts_as_one_however_it_is_written(name):
    function, shape = ONE[name]
    features = math.prod(function(torch.zeros(2, *shape)).shape[1:])
    assert reach(function, shape=shape, features=features) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize(
    ("function", "constant"),
    [
        (lambda x: x * torch.sigmoid(x), 1.0998394),
        (lambda x: 0.5 * x * (1 + torch.erf(x / math.sqrt(2))), 1.1289042),
        (lambda x: x * 0.5 * (torch.erf(0.7 * x) + 1.0), 1.1289042),
        (lambda x: x * torch.sigmoid(1.702 * x), 1.0998394),
        (lambda x: (x / 2) * (2 * torch.sigmoid(-x)), 1.0998394),
        (lambda x: torch.tanh(functional.softplus(x)) * x, 1.0884982),
        (lambda x: x * functional.relu6(x + 3) / 6, 1.5),
        (lambda x: x * functional.hardsigmoid(x), 1.5),
        (lambda x: functional.gelu(x, approximate="tanh"), 1.1289931),
        (lambda x: x.expand(-1, 8), math.sqrt(8)),
        (lambda x: functional.pad(x[:, None], (1, 1), mode="circular")[:, 0], math.sqrt(2)),
        (lambda x: x + x.flip(1), 2.0),
        (lambda x: x + x.relu(), 2.0),
        (lambda x: x - 0.5 * (x - x.flip(1)).abs(), 2.0),
        (halves(lambda a, b: (a + b - (a + b).abs(), a * 0)), 4.0),  # 2·min(a + b, 0)
        (halves(lambda a, b: (2.0 * a.maximum(b), a + b - (a - b).abs())), 2.0),
        (halves(lambda a, b: (2.0 * a - (a - b).relu(), b * 0)), 4.0),  # no maximum
        (lambda x: torch.cat([x.relu(), (-2 * x).relu()], dim=1), math.sqrt(5)),
    ],
)
def test_constants(function, constant):
    shape = (1,) if constant == math.sqrt(8) else (8,)
    features = function(torch.zeros(2, *shape)).shape[1]
    assert reach(function, shape=shape, features=features) == pytest.approx(constant, rel=2e-7)


def test_an_extreme_is_not_read_into_factors_that_training_changes():
    """A gain of ½ makes a maximum of this; by the time of the next proof it may be another number."""

    class Gain(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain, self.head = nn.Parameter(torch.tensor(0.5)), nn.Linear(4, 3)

        def forward(self, x):
            a, b = x.chunk(2, dim=1)
            return self.head(self.gain * (a + b) + self.gain * (a - b).abs())

    net = CertifiedNet(Gain(), input_shape=(8,), guarantee="standard", epsilon=0.1)
    net.bounds()
    before, _ = net.estimate(None, net.start_vectors(), 1)
    with torch.no_grad():
        net.network.gain.fill_(2.0)
    after, _ = net.estimate(None, net.start_vectors(), 1)
    assert float(after.scale.detach()) == pytest.approx(4 * float(before.scale.detach()))
    assert float(net.bounds().head.scale) >= 4.0


REFUSED = {
    "layer norm": (
        lambda x: functional.layer_norm(x, (8,)),
        "layer norm has no global Lipschitz constant.*Use batch norm",
    ),
    "group norm": (lambda x: functional.group_norm(x, 2), "a norm over the data"),
    "norm by hand": (lambda x: (x - x.mean(1, keepdim=True)) / x.var(1, keepdim=True).sqrt(), "Use batch norm"),
    "norm of roots": (lambda x: x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + 1e-6), "Use batch norm"),
    "norm of a matrix": (
        lambda x: torch.linalg.norm(x[:, None], "fro", (1, 2))[:, None].expand(-1, 8),
        "norm of a matrix",
    ),
    "unsorted": (lambda x: x.topk(8, sorted=False).values, "whose order is not defined"),
    "jump": (lambda x: functional.threshold(x, 0.5, 0.0), "jumps"),
    "gathered by the input": (lambda x: x.gather(1, x.argsort(1)), "jumps"),
    "product of entries": (lambda x: x.prod(1, keepdim=True).expand(-1, 8), "a product of two values"),
    "one point without its batch": (lambda x: x[:, None].squeeze(), "runs on a batch of 1.*name the axes"),
    "spread": (lambda x: x / x.std(1, keepdim=True), "Use batch norm"),
    "softmax": (lambda x: torch.softmax(x, 1), "leave it out"),
    "attention": (
        lambda x: functional.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None])[:, 0],
        "attention",
    ),
    "product": (lambda x: x * x.flip(1), "a product of two values"),
    "gate": (lambda x: functional.glu(torch.cat([x, x], dim=1)), "a product of two values.*gates"),
    "recurrence": (
        lambda x: torch.rnn_tanh(
            x[:, None], torch.zeros(1, x.shape[0], 8), [torch.eye(8), torch.eye(8)], False, 1, 0.0, False, False, True
        )[0][:, 0],
        "use convolutions",
    ),
    "square": (lambda x: x * x, "a square"),
    "quotient": (functional.normalize, "a quotient"),
    "choice": (lambda x: torch.where(x > 0, x, -x), "jumps"),
    "branch": (lambda x: x if x.sum() > 0 else -x, "torch.export can capture.*must not depend on values"),
    "batch": (lambda x: x + x.mean(0, keepdim=True), "each must be computed alone"),
    "batches reversed": (lambda x: x.flip(0), "points of a batch are mixed"),
    "size of the batch": (lambda x: x / x.shape[0], "computes with its size"),
    "length of the batch": (lambda x: x / len(x), r"write x\.shape\[0\]"),
    "random": (lambda x: x + torch.randn(8), "random"),
    "dropout": (functional.dropout, "random"),
    "float32": (lambda x: x.float(), "a cast to torch.float32"),
    "input in place": (lambda x: x.relu_(), "changes its input"),
    "places": (lambda x: x.sort(1).indices.double(), "only values can be used"),
    "one norm": (lambda x: x.norm(p=1, dim=1, keepdim=True).expand(-1, 8), "order 1"),
    "infinite constant": (lambda x: x * math.inf, "infinite"),
    "no axis": (lambda x: x[:, 0].relu()[:, None].expand(-1, 8), "keepdim"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_constant_is_refused_with_its_line(name):
    function, reason = REFUSED[name]
    with pytest.raises(UnsupportedLayerError, match=f"(?s){reason}") as caught:
        capture(Forward(function), (8,))
    if "torch.export" not in str(caught.value) and "at `" in str(caught.value):
        assert "test_export.py, line" in str(caught.value)


class Block(nn.Module):
    """A residual block with a projection, as torchvision's, whose activation is used twice."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.shortcut = nn.BatchNorm2d(4), nn.Conv2d(2, 4, 1)
        self.relu, self.pool, self.head = nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Linear(4, 3)

    def forward(self, x):
        out = self.relu(self.norm(self.first(x)))
        out = self.second(out)
        out += self.shortcut(x)
        return self.head(self.pool(self.relu(out)).flatten(1))


@pytest.fixture
def block():
    torch.manual_seed(0)
    network = Block()
    network.norm.running_var.copy_(torch.linspace(0.2, 3.0, 4))
    network.norm.running_mean.normal_()
    return network.eval()


def made(network, **settings):
    return CertifiedNet(network, input_shape=(2, 4, 4), guarantee="standard", epsilon=0.05, **settings)


def test_a_network_with_a_forward_of_its_own_is_certified(block):
    x = torch.rand(20, 2, 4, 4)
    net = made(block)
    certificate = net.certify(x)
    assert bool(certificate.certified.any())
    torch.testing.assert_close(net.measure(x).logits, copy.deepcopy(block).double()(x.double()), rtol=1e-9, atol=1e-9)
    names = [line.name for line in net.bounds().layers]
    assert {"first", "second", "shortcut", "relu", "relu@2", "pool", "head"} <= set(names)
    assert "norm" not in names  # it has become part of the convolution before it


def test_no_attack_breaks_it_inside_its_radius(block):
    net = made(block)
    frozen, x = net.frozen(), torch.rand(10, 2, 4, 4, dtype=torch.float64)
    certificate = net.certify(x)
    labels, radius = certificate.ranking[:, 0], certificate.radius
    moved = x.clone().requires_grad_()
    for _ in range(30):
        logits = frozen(moved)
        others = logits.scatter(1, labels[:, None], -math.inf).amax(1) - logits.gather(1, labels[:, None])[:, 0]
        (gradient,) = torch.autograd.grad(others.sum(), moved)
        step = moved + 0.3 * radius.view(-1, 1, 1, 1) * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        away = step - x
        scale = (0.999 * radius / away.flatten(1).norm(dim=1).clamp(min=1e-30)).clamp(max=1.0)
        moved = (x + away * scale.view(-1, 1, 1, 1)).detach().requires_grad_()
    assert torch.equal(frozen(moved).argmax(1), labels)


def test_tightening_changes_bounds_and_not_logits(block):
    x = torch.rand(5, 2, 4, 4)
    plain, tight = made(block, tighten=False), made(block)
    assert float(tight.bounds().head.scale) < 0.8 * float(plain.bounds().head.scale)
    torch.testing.assert_close(tight.measure(x).logits, plain.measure(x).logits, rtol=1e-9, atol=1e-12)


def test_new_weights_are_noticed_without_another_export(block, monkeypatch):
    net, x = made(block), torch.rand(5, 2, 4, 4)
    before = net.certify(x)
    monkeypatch.setattr(capturing, "export", None)
    with torch.no_grad():
        block.second.weight.mul_(2.0)
    after = net.certify(x)
    assert not torch.equal(before.windows, after.windows)
    torch.testing.assert_close(net.measure(x).logits, copy.deepcopy(block).double()(x.double()), rtol=1e-9, atol=1e-9)


def test_a_changed_forward_is_exported_again(block):
    net, x = made(block), torch.rand(5, 2, 4, 4)
    net.certify(x)
    block.relu = nn.LeakyReLU(0.5)
    torch.testing.assert_close(net.measure(x).logits, copy.deepcopy(block).double()(x.double()), rtol=1e-9, atol=1e-9)


def test_hooks_are_refused(block):
    net = made(block)
    block.second.register_forward_hook(lambda module, inputs, output: 2 * output)
    with pytest.raises(UnsupportedLayerError, match="hooks"):
        net.certify(torch.rand(1, 2, 4, 4))
    with pytest.raises(UnsupportedLayerError, match="hooks"):
        made(block)


def test_it_trains(block):
    net = made(block, tighten=False)
    vectors = net.start_vectors()
    for _ in range(200):
        constants, vectors = net.estimate(None, vectors, 2)
    assert float(constants.scale.detach()) == pytest.approx(float(net.bounds().head.scale), rel=1e-3)
    constants.scale.backward()
    gradients = {name for name, each in block.named_parameters() if each.grad is not None and bool(each.grad.any())}
    assert {"first.weight", "second.weight", "shortcut.weight", "norm.weight"} <= gradients


def test_weights_outside_of_layers_cannot_be_estimated():
    net = CertifiedNet(
        Forward(lambda x: functional.linear(x, torch.eye(8, dtype=x.dtype))),
        input_shape=(8,),
        guarantee="standard",
        epsilon=0.1,
    )
    assert len(net.certify(torch.zeros(2, 8))) == 2
    with pytest.raises(UnsupportedLayerError, match="weights the forward takes from elsewhere"):
        net.estimate(None, net.start_vectors(), 1)


class Gains(nn.Module):
    """Factors that train, outside of layers; each is one of `factors`."""

    def __init__(self, *factors):
        super().__init__()
        self.factors = factors
        self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 6)
        self.gain, self.channels = nn.Parameter(torch.tensor(0.5)), nn.Parameter(torch.linspace(-3, 2, 6))
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        for layer, factor in zip((self.first, self.second), self.factors, strict=True):
            x = torch.relu(layer(x) * factor(self))
        return self.head(x)


def test_factors_outside_of_layers_are_in_the_estimate():
    torch.manual_seed(0)
    network = Gains(lambda net: net.gain, lambda net: -net.channels.view(1, 6))
    net = CertifiedNet(network, input_shape=(4,), guarantee="standard", epsilon=0.1, tighten=False)
    with torch.no_grad():  # after the net was made: the loss sees it
        network.gain.mul_(3)
        network.channels.mul_(2)
    vectors = net.start_vectors()
    for _ in range(100):
        constants, vectors = net.estimate(None, vectors, 2)
    assert float(constants.scale.detach()) == pytest.approx(float(net.bounds().head.scale), rel=1e-3)
    constants.scale.backward()
    assert float(network.gain.grad) == pytest.approx(float(constants.scale.detach()) / 1.5)
    assert network.channels.grad.nonzero().tolist() == [[0]]


@pytest.mark.parametrize(
    "turned",
    [
        lambda x, gain: -(x * gain),
        lambda x, gain: torch.maximum(x * gain, x.flip(1) * gain),
        lambda x, gain: torch.cat([torch.relu(x), torch.relu(x * gain)], dim=1)[:, 3:9],
    ],
    ids=["negated", "maximum", "halves"],
)
def test_a_factor_that_trains_is_no_sign_though_it_begins_at_minus_one(turned):
    """It was left out of the estimate: −(x·gain) was x, and max(x·gain, y·gain) was −min(x, y)."""

    class Turned(Gains):
        def forward(self, x):
            return self.head(turned(self.first(x), self.gain))

    torch.manual_seed(0)
    network = Turned()
    with torch.no_grad():
        network.gain.fill_(-1)
    net = CertifiedNet(network, input_shape=(4,), guarantee="standard", epsilon=0.1, tighten=False)
    with torch.no_grad():
        network.gain.fill_(-3)
    constants, _ = net.estimate(None, net.start_vectors(), 100)
    assert float(constants.scale.detach()) == pytest.approx(float(net.bounds().head.scale), rel=1e-3)


@pytest.mark.parametrize(
    "gate",
    [
        lambda x, gain: x * torch.sigmoid(gain * x),
        lambda x, gain: (gain * x) * (1 + torch.erf(x / 2**0.5)),  # GELU itself, while the gain is ½
    ],
    ids=["SiLU", "GELU"],
)
def test_a_gate_with_a_factor_that_trains_is_certified_but_not_estimated(gate):
    """SiLU of β·x is divided by β: in the estimate that was the β that was there first."""

    class Gate(Gains):
        def forward(self, x):
            return self.head(gate(self.first(x), self.gain))

    net = CertifiedNet(Gate(), input_shape=(4,), guarantee="standard", epsilon=0.1, tighten=False)
    assert len(net.certify(torch.zeros(2, 4))) == 2
    with pytest.raises(UnsupportedLayerError, match="multiply with the parameter itself"):
        net.estimate(None, net.start_vectors(), 1)


@pytest.mark.parametrize("factor", [lambda net: net.gain.exp(), lambda net: net.channels[:1], lambda net: 1 / net.gain])
def test_computed_factors_outside_of_layers_cannot_be_estimated(factor):
    net = CertifiedNet(Gains(lambda net: net.gain, factor), input_shape=(4,), guarantee="standard", epsilon=0.1)
    assert len(net.certify(torch.zeros(2, 4))) == 2
    with pytest.raises(UnsupportedLayerError, match="multiply with the parameter itself"):
        net.estimate(None, net.start_vectors(), 1)


def test_a_layer_of_one_s_own_is_asked_for_its_rule_inside_a_forward(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(registry, "RULES", rules.RULES)

    class Choice(nn.Module):
        """|x| by a choice that torch.export cannot see to be continuous."""

        def forward(self, x):
            return torch.where(x > 0, x, -x)

    with pytest.raises(UnsupportedLayerError, match="jumps"):
        reach(lambda x, choice: choice(x + 0.0), Choice())
    register_layer(Choice, ExactRule())
    assert reach(lambda x, choice: choice(x + 0.0), Choice()) == 1.0


def test_a_frozen_net_survives_pickling(block):
    x = torch.rand(3, 2, 4, 4)
    frozen = made(block).frozen()
    again = pickle.loads(pickle.dumps(frozen))
    assert torch.equal(again.certify(x).windows, frozen.certify(x).windows)


def test_logits_without_a_head_have_the_identity_as_one():
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Identity())

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside = network

        def forward(self, x):
            return self.inside(x)

    x = torch.rand(4, 2, 4, 4)
    net = made(Bare())
    torch.testing.assert_close(net.measure(x).logits, copy.deepcopy(network).double()(x.double()))
    assert net.bounds().layers[-1].name == "logits"


def test_attention_is_named_whatever_it_does_first():
    """A batch in front is moved by it: that is not the user's mistake."""
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    network = Forward(lambda x, layer: layer(x, x, x, need_weights=False)[0], attention, features=40).eval()
    with pytest.raises(UnsupportedLayerError, match="attention, a product of values"):
        capture(network, (5, 8))
