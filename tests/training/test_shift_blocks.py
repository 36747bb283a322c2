"""Layers of shift nets in two passes: in torch, what the kernels are compared with on a GPU."""

import pytest
import torch
from torch import nn

from safeset import CertifiedNet, create_model
from safeset.layers import ChannelShift, HalfAbs, OrthogonalConv1x1, PositionBias
from safeset.recipes.sections import Loss
from safeset.training.gpu.blocks import InBlocks, blocks_of
from safeset.training.gpu.shifts import Rotation, ShiftBlock, Whole
from safeset.training.step import objective


@pytest.mark.parametrize("which", ["first", "even"])
@pytest.mark.parametrize("channels", [1, 20])
@pytest.mark.parametrize("bias", [True, False])
def test_a_block_is_its_layers_and_so_are_its_gradients(which, channels, bias):
    torch.manual_seed(0)
    layers = nn.Sequential(
        OrthogonalConv1x1(20, 20, bias=bias), ChannelShift(6), PositionBias(5, 3, channels), HalfAbs(which)
    ).double()
    with torch.no_grad():
        for each in layers.parameters():
            each.add_(torch.randn_like(each))
    x = torch.randn(4, 20, 5, 3, dtype=torch.float64, requires_grad=True)
    (block,) = blocks_of(layers, shifts=True)
    assert isinstance(block, ShiftBlock)
    found, plain = block(x, False), layers(x)
    slope, inputs = torch.randn_like(plain), [x, *layers.parameters()]
    torch.testing.assert_close(found, plain, rtol=1e-6, atol=1e-6)  # biases are float32 in between
    gradients = (torch.autograd.grad(each, inputs, slope) for each in (found, plain))
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_a_whole_shift_net_in_blocks():
    torch.manual_seed(0)
    network = create_model("shift-net", input_shape=(3, 16, 16), classes=10, depth=3, width=16)
    kinds = [type(part) for part in blocks_of(network, shifts=True)]
    assert kinds.count(ShiftBlock) == 3
    assert kinds.count(Rotation) == kinds.count(Whole) == 1
    x = torch.rand(5, 3, 16, 16)
    torch.testing.assert_close(InBlocks(network, shifts=True)(x), network(x), rtol=1e-4, atol=1e-5)
    assert not any(isinstance(part, ShiftBlock) for part in blocks_of(network))
    net = CertifiedNet(network, input_shape=(3, 16, 16), guarantee="rt3", epsilon=0.1)
    y, parameters = torch.tensor([0, 1, 2, 3, 4]), dict(net.named_parameters())
    both = []
    for fused in (False, True):
        loss, _ = objective(net, Loss("emma"), fused=fused)(parameters, {}, x, y, 1.0)
        both.append([loss, *torch.autograd.grad(loss, list(parameters.values()))])
    for one, other in zip(*both, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
