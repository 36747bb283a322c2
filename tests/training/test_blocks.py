"""Blocks of training compute what their layers do, with the same gradients; tests/gpu_checks.py has the kernels."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from safeset import ArgumentError, CertifiedNet, Recipe, create_model, list_models
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.layers import InvertibleDownsampling, MinMax
from safeset.runs.load import build_net
from safeset.training.engine import Engine
from safeset.training.gpu.blocks import Block, InBlocks, blocks_of
from safeset.training.gpu.convolutions import halves, one_by_one
from safeset.training.state import State

torch.manual_seed(0)
SHAPE = (3, 16, 16)
NETWORKS = {
    "2c2f": create_model("cnn-2c2f", input_shape=SHAPE, classes=5),
    "8c2f": create_model("cnn-8c2f", input_shape=SHAPE, classes=5),
    "liresnet": create_model("liresnet", input_shape=SHAPE, classes=5, depth=2, width=4, features=8),
    "geometry": nn.Sequential(
        nn.Conv2d(3, 6, (3, 2), stride=(1, 2), padding=(1, 0)),
        MinMax(),
        InvertibleDownsampling(4),
        nn.Conv2d(96, 8, 3, padding=2, dilation=2, groups=4),
        MinMax(),
        InvertibleDownsampling(2),
        nn.Conv2d(32, 8, 1),  # with nothing behind
        nn.ReLU(),
        nn.Conv2d(8, 6, 1, bias=False),
        MinMax(),
        nn.Flatten(),
        nn.Linear(12, 5),
    ),
}


def relative(got, wanted):
    return max(((one - other).abs().max() / other.abs().max()).item() for one, other in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_have_the_logits_and_gradients_of_their_layers(name):
    network = NETWORKS[name]
    blocks = InBlocks(network)
    count = {"2c2f": 2, "8c2f": 8, "liresnet": 3, "geometry": 2}[name]
    assert sum(isinstance(part, Block) for part in blocks.parts) == count
    assert [key.removeprefix("network.") for key, _ in blocks.named_parameters()] == [
        key for key, _ in network.named_parameters()
    ]
    torch.manual_seed(1)  # whatever ran before: numbers of a MinMax that are nearly equal may change places
    x = torch.rand(7, *SHAPE)
    both = []
    for each in (network, blocks):
        given = x.clone().requires_grad_()
        logits = each(given)
        both.append([logits.detach(), *torch.autograd.grad(logits.square().sum(), [given, *network.parameters()])])
    assert relative(both[1], both[0]) < 1e-5


@pytest.mark.parametrize("name", NETWORKS)
def test_blocks_of_several_networks_at_once(name):
    network = NETWORKS[name]
    weights = {
        key: torch.stack([value.detach() * factor for factor in (1.0, 0.7, -1.3)]).requires_grad_()
        for key, value in InBlocks(network).named_parameters()
    }
    torch.manual_seed(1)
    x = torch.rand(3, 4, *SHAPE)
    both = []
    net = CertifiedNet(network, input_shape=SHAPE, guarantee="standard", epsilon=0.1)
    for each in (net, InBlocks(network)):
        with one_by_one():
            logits = vmap(lambda own, x, each=each: functional_call(each, own, (x,)))(weights, x)
        both.append([logits.detach(), *torch.autograd.grad(logits.square().sum(), list(weights.values()))])
    assert relative(both[1], both[0]) < 1e-5


def test_gradients_of_one_layer_used_twice_of_frozen_weights_and_in_bfloat16():
    layer = nn.Conv2d(4, 4, 3, padding=1)
    network = nn.Sequential(layer, MinMax(), layer, MinMax(), nn.Flatten(), nn.Linear(64, 3))
    layer.bias = nn.Parameter(torch.randn(4, 2)[:, 0])  # does not lie in one piece
    x = torch.rand(5, 4, 4, 4).contiguous(memory_format=torch.channels_last)
    for frozen in (False, True):
        layer.weight.requires_grad_(not frozen)
        wanted = [each for each in network.parameters() if each.requires_grad]
        found = [
            torch.autograd.grad(each(x).square().sum(), wanted)
            for each in (network, InBlocks(network), InBlocks(network, half=True))
        ]
        assert relative(found[1], found[0]) < 1e-5
        assert 1e-5 < relative(found[2], found[0]) < 0.1


def test_pixels_that_make_no_squares_are_told():
    with pytest.raises(ArgumentError, match="multiples of 2, but got 5 × 7 pixels"):
        InBlocks(nn.Sequential(nn.Conv2d(1, 2, 1), MinMax(), InvertibleDownsampling(2)))(torch.rand(1, 1, 5, 7))


def test_products_in_bfloat16():
    network, x = NETWORKS["2c2f"], torch.rand(7, *SHAPE)
    with halves():
        wanted = network(x)
        got = InBlocks(network, half=True)(x)
    assert got.dtype == torch.float32
    assert 0 < relative([got], [network(x)]) < 0.05
    assert relative([got], [wanted]) < 0.05


@pytest.mark.parametrize("name", [name for name in list_models() if "mlp" not in name and name[-1] not in "ml"])
def test_every_network_for_images_has_products_in_bfloat16(name):
    network = create_model(name, input_shape=(3, 16, 16), classes=5)
    x = torch.rand(7, 3, 16, 16)
    with halves():
        found = [network(x), InBlocks(network, half=True, shifts=True)(x)]
    assert all(each.dtype == torch.float32 for each in found)
    assert all(relative([each], [network(x)]) < 0.05 for each in found)


def test_what_is_not_plain_stays_as_it_is():
    def count(network):
        return sum(isinstance(part, Block) for part in blocks_of(network))

    def row(**settings):
        return nn.Sequential(nn.Conv2d(3, 4, 3, **settings), MinMax(), nn.Flatten())

    assert count(row()) == 1
    assert count(row(bias=False)) == count(row(padding="same")) == count(row(padding=1, padding_mode="circular")) == 0
    assert count(row(dtype=torch.float64)) == 0
    assert count(nn.Sequential(nn.Conv2d(3, 4, 3))) == count(nn.Sequential(row())) == 0
    for place in (0, 1, None):
        for hook in ("forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"):
            watched = row()
            getattr(watched if place is None else watched[place], f"register_{hook}")(lambda *_: None)
            assert count(watched) == 0
    other = row()
    other[1].forward = torch.abs
    assert count(other) == 0
    normed = row()
    nn.utils.parametrizations.spectral_norm(normed[0])
    assert count(normed) == 0
    odd = blocks_of(nn.Sequential(nn.Conv2d(3, 4, 3), MinMax(), InvertibleDownsampling(3)))
    assert isinstance(odd[0], Block)
    assert isinstance(odd[1], InvertibleDownsampling)
    assert blocks_of(watched[1]) == [watched[1]]


@pytest.mark.parametrize("seeds", [[3], [3, 4, 7]])
def test_steps_in_blocks_have_the_same_losses(seeds, monkeypatch):
    data = digits()
    three = Split(data.train.x.expand(-1, 3, -1, -1).contiguous(), data.train.y)
    table = {"guarantee": "rt3", "epsilon": 0.3, "batch": 50, "epochs": 4, "seed": 3, "data": {"source": "digits"}}
    recipe = Recipe.from_table({**table, "model": "cnn-2c2f"}).fit(replace(data, train=three, test=three))

    def losses():
        nets = [build_net(replace(recipe, seed=seed)) for seed in seeds]
        engine = Engine(nets[0], recipe, three, State.start(nets, recipe, seeds), seeds, captured=False)
        engine.start(0)
        taken = []
        for _ in range(3):
            engine.step()
            taken.append(engine.last.clone())
        return torch.stack(taken)

    before, called = losses(), []
    monkeypatch.setattr("safeset.training.engine.can_fuse", lambda device: True)
    plain = InBlocks.forward
    monkeypatch.setattr(InBlocks, "forward", lambda self, x: called.append(x) or plain(self, x))
    torch.testing.assert_close(losses(), before, rtol=1e-4, atol=1e-6)
    assert len(called) == 3
