"""Networks as newcomers hand them over: what trains beside layers, and what is around a network."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from safeset import CertifiedNet, SafesetError, UnsupportedLayerError


class Between(nn.Module):
    """A layer, a function of what it gives, and a head."""

    def __init__(self, first, function, features=8):
        super().__init__()
        self.first, self.function, self.head = first, function, nn.Linear(features, 3)

    def forward(self, x):
        return self.head(self.function(self.first(x)))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.mean((2, 3)),
        lambda x: x.sum((2, 3)),
        lambda x: functional.avg_pool2d(x, 3, 3, ceil_mode=True, count_include_pad=False).flatten(1)[:, :2],
    ],
    ids=["mean", "sum", "pooling"],
)
def test_matrices_that_nothing_trains_are_in_the_estimate_as_proved(function):
    torch.manual_seed(0)
    network = Between(nn.Conv2d(1, 2, 1), function, features=2)
    net = CertifiedNet(network, input_shape=(1, 4, 4), guarantee="standard", epsilon=0.1, tighten=False)
    constants, _ = net.estimate({}, net.start_vectors(), 50)
    assert constants.scale.item() == pytest.approx(float(net.bounds().head.scale), rel=1e-5)


UNUSUAL = {
    "reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), (2, 5, 5)),
    "replicated": (lambda: nn.Conv2d(2, 4, 3, 2, padding=1, padding_mode="replicate", groups=2), (2, 5, 5)),
    "reflected row": (lambda: nn.Conv1d(2, 3, 3, padding=2, padding_mode="reflect"), (2, 7)),
    "uneven average": (lambda: nn.AvgPool2d(2, ceil_mode=True), (2, 5, 5)),
    "average of what is there": (lambda: nn.AvgPool2d(3, 2, 1, count_include_pad=False), (2, 5, 5)),
    "uneven average of a row": (lambda: nn.AvgPool1d(2, ceil_mode=True), (2, 5)),
    "overlapping roots": (lambda: nn.LPPool2d(2, 2, 1), (2, 4, 4)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_a_layer_with_settings_of_no_rule_is_read_in_a_plain_sequence_as_elsewhere(name):
    torch.manual_seed(0)
    make, shape = UNUSUAL[name]
    layer = make()
    layers = nn.Sequential(nn.Tanh(), layer, nn.Flatten(), nn.Linear(layer(torch.zeros(1, *shape)).numel(), 3))
    settings = {"input_shape": shape, "guarantee": "standard", "epsilon": 0.1, "tighten": False}
    plain = CertifiedNet(layers, **settings)
    other = CertifiedNet(Between(layers[0], layers[1:3], layers[3].in_features), **settings)
    other.network.head.load_state_dict(layers[3].state_dict())
    assert float(plain.bounds().head.scale) == float(other.bounds().head.scale)
    x = torch.rand(4, *shape)
    assert torch.equal(plain.certify(x).radius, other.certify(x).radius)
    torch.testing.assert_close(plain.frozen()(x).float(), layers(x))
    constants, _ = plain.estimate({}, plain.start_vectors(), 500)
    scale = float(torch.as_tensor(constants.scale).detach())
    assert scale == pytest.approx(float(plain.bounds().head.scale), rel=1e-3)


class PaddedRow(nn.Module):
    """A convolution of rows with a padding that is no layer."""

    def __init__(self, mode):
        super().__init__()
        self.mode, self.conv = mode, nn.Conv1d(2, 3, 3)

    def forward(self, x):
        return self.conv(functional.pad(x, (1, 2), mode=self.mode)).flatten(1)


@pytest.mark.parametrize("mode", ["constant", "circular", "reflect"])
def test_a_captured_convolution_of_rows_is_in_the_estimate_as_proved(mode):
    torch.manual_seed(0)
    network = Between(PaddedRow(mode), torch.relu, features=21)
    net = CertifiedNet(network, input_shape=(2, 6), guarantee="standard", epsilon=0.1, tighten=False)
    constants, vectors = net.estimate({}, net.start_vectors(), 500)
    assert constants.scale.item() == pytest.approx(float(net.bounds().head.scale), rel=1e-3)
    constants.scale.backward()
    assert net.network.first.conv.weight.grad.norm() > 0
    assert vectors


class OwnHead(nn.Module):
    """A head whose weights belong to no layer."""

    def __init__(self):
        super().__init__()
        self.first, self.rows = nn.Linear(8, 8), nn.Parameter(torch.randn(3, 8))

    def forward(self, x):
        return functional.linear(torch.relu(self.first(x)), self.rows)


def test_a_head_without_a_layer_is_certified_and_not_estimated():
    net = CertifiedNet(OwnHead(), input_shape=(8,), guarantee="standard", epsilon=0.1)
    assert len(net.certify(torch.rand(2, 8))) == 2
    with pytest.raises(UnsupportedLayerError, match="can only be certified"):
        net.estimate({}, net.start_vectors(), 1)


class Several(Between):
    """A network that gives its logits in something else."""

    def __init__(self, around):
        super().__init__(nn.Linear(8, 8), torch.relu)
        self.around = around

    def forward(self, x):
        return self.around(super().forward(x))


PLAIN = nn.Sequential(nn.Linear(8, 3))
NO_NETWORKS = {
    "script": (lambda: torch.jit.script(PLAIN), "TorchScript"),
    "compiled": (lambda: torch.compile(PLAIN), r"inside, its \._orig_mod"),
    "parallel": (lambda: nn.DataParallel(PLAIN), r"inside, its \.module"),
    "net": (
        lambda: CertifiedNet(PLAIN, input_shape=(8,), guarantee="standard", epsilon=0.1),
        r"a CertifiedNet\. Give its \.network",
    ),
    "lazy": (lambda: Between(nn.LazyLinear(8), torch.relu), "'first' .* LazyLinear"),
    "tuple": (lambda: Several(lambda logits: (logits, 2 * logits)), "2 values.*returns its logits alone"),
    "dict": (lambda: Several(lambda logits: {"logits": logits}), "a dict.*returns its logits alone"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name", NO_NETWORKS)
def test_what_is_around_a_network_is_named_with_what_to_give_instead(name):
    make, message = NO_NETWORKS[name]
    with pytest.raises(SafesetError, match=message):
        CertifiedNet(make(), input_shape=(8,), guarantee="standard", epsilon=0.1)
