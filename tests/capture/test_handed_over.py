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
