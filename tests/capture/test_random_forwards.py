"""Random graphs of operations: what is captured computes the same, and no slope is above what is proved."""

import itertools

import pytest
import torch
from torch import nn

from helpers.random_forwards import CHANNELS, CLASSES, OPERATIONS, SIZE, RandomForward
from safeset import CertifiedNet
from safeset.capture.capture import capture
from safeset.proofs.prove import prove

SHAPE = (CHANNELS, SIZE, SIZE)
PAIRS = list(itertools.combinations(range(CLASSES), 2))


def steepest(program, x):
    """For each pair of classes the largest slope of the difference of their logits: at points, and between them.

    Gradients are those of the program, which gives the same logits there: a forward that works in place may have none.
    """
    x = x.requires_grad_(True)
    logits = program.run(x)
    found = []
    for one, two in PAIRS:
        difference = logits[:, one] - logits[:, two]
        (gradient,) = torch.autograd.grad(difference.sum(), x, retain_graph=True)
        apart = torch.cdist(x.detach().flatten(1), x.detach().flatten(1), compute_mode="donot_use_mm_for_euclid_dist")
        between = (difference[:, None] - difference).detach().abs() / apart.fill_diagonal_(1.0)
        found.append(max(float(gradient.flatten(1).norm(dim=1).max()), float(between.max())))
    return found


def check(network):
    program = capture(network, SHAPE).program
    network = network.double()
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(6, 1, *SHAPE, generator=generator, dtype=torch.float64)
    scales = torch.logspace(-5, 0.5, 8, dtype=torch.float64).view(-1, 1, 1, 1)
    x = (centres + scales * torch.randn(6, 8, *SHAPE, generator=generator, dtype=torch.float64)).flatten(0, 1)
    with torch.no_grad():
        original, found = network(x), program.run(x)
    assert float((found - original).abs().max()) <= 1e-9 * float(original.abs().max()), network.written
    pairs = prove(program).bounds.pairs
    slopes = steepest(program, x)
    for (one, two), slope in zip(PAIRS, slopes, strict=True):
        assert slope <= float(pairs[one, two]) * (1 + 1e-7), (network.written, network.end)  # slopes are rounded


@pytest.mark.parametrize("seeds", [range(8), range(8, 16)], ids=str)
def test_no_slope_of_a_random_forward_exceeds_what_is_proved(seeds):
    for seed in seeds:
        check(RandomForward(seed))


@pytest.mark.parametrize("name", ["part_clipped", "view_read", "in_place_shared", "changed_value"])
def test_layers_that_write_into_views_are_captured_as_they_are(name):
    """Once a layer's rule was asked about all of an image of which the layer clips a part."""
    network = RandomForward(0)
    network.steps = [("convolved", (0, 0)), (name, (1, 0))]
    check(network)


def test_tied_weights_are_captured():
    network = RandomForward(0)
    network.convolutions[3] = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
    network.convolutions[3].weight = network.convolutions[0].weight
    network.steps = [("convolved", (0, 0)), ("dilated", (1, 0))]
    check(network)


class WithPlainTensor(nn.Module):
    """A tensor that is neither parameter nor buffer, and one in a list."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.factors, self.more = torch.ones(4), [torch.ones(4)]

    def forward(self, x):
        return self.head(torch.relu(x * self.factors * self.more[0]))


def test_plain_tensors_of_a_module_are_followed():
    network = WithPlainTensor()
    net = CertifiedNet(network, input_shape=(4,), guarantee="standard", epsilon=0.1)
    assert float(net.bounds().head.scale) == pytest.approx(1.0)
    network.factors.mul_(10)
    assert float(net.bounds().head.scale) == pytest.approx(10.0)
    network.more[0].mul_(2)
    assert float(net.bounds().head.scale) == pytest.approx(20.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_no_slope_of_one_operation_exceeds_what_is_proved(name):
    for seed in range(3):
        network = RandomForward(seed)
        network.steps = [("convolved", (0, 0)), (name, (1, 0)), ("joined", (2, 1))]
        check(network)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(8))
def test_no_slope_of_hundreds_of_random_forwards_exceeds_what_is_proved(block):
    for seed in range(1000 + 100 * block, 1100 + 100 * block):
        check(RandomForward(seed, steps=3 + seed % 8))
