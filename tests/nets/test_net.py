"""CertifiedNet: what it certifies, what it leaves alone, what it is given."""

import copy
import math

import pytest
import torch
from torch import nn

from helpers.nets import inputs
from safeset import (
    Affinity,
    ArgumentError,
    CertifiedNet,
    RelaxedTopK,
    certify_logits,
)
from safeset.layers import MinMax, Residual


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
    assert methods == {"torus", "dense"}  # a kernel of one pixel is a matrix
    assert exact.head.scale < torus.head.scale
    assert net.bounds().head.scale == torus.head.scale  # as proved before
    with pytest.raises(ArgumentError, match="'exact'"):
        net.bounds(convolutions="exat")


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
    x = torch.tensor([[1.0, 0.0]])
    assert net.certify(x, prefer="largest").records()[0]["core"] == ["cat", "dog"]
    assert net.certify(x, epsilon=0.0).records()[0]["core"] == ["cat"]
    assert net.predict_set(x, prefer="largest")[1].tolist() == [[True, True, False]]
    assert net.predict_set(x, epsilon=0.0)[1].tolist() == [[True, False, False]]


def test_a_layer_that_comes_twice_counts_twice():
    shared = nn.Linear(2, 2, bias=False)
    shared.weight.data = torch.tensor([[3.0, 0.0], [0.0, 3.0]])
    network = nn.Sequential(shared, shared, nn.Linear(2, 2))
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.1)
    assert net.bounds().head.scale == pytest.approx(9.0, rel=1e-12)
    constants, _ = net.estimate(None, net.start_vectors(), 3)
    assert constants.scale.item() == pytest.approx(9.0, rel=1e-6)
