"""Folding: the same function but for rounding, bounds that are smaller and still true."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.nets import image_network, inputs
from helpers.programs import jacobian_norm, numbers, program_from
from safeset.capture.capture import capture
from safeset.layers import Residual
from safeset.program.circular import CircularConv2d
from safeset.program.entries import Scale, Shift
from safeset.program.folding import fold
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.one_row import OneRow
from safeset.program.pointwise import ReLU
from safeset.program.program import INPUT
from safeset.program.sliding import AveragePooling, Conv2d
from safeset.program.total import Sum
from safeset.proofs.prove import prove


def conv(out, into, size=3, *, stride=1, padding=1, dilation=1, groups=1, bias=True, seed=0):
    weight = numbers(out, into // groups, size, size, seed=seed)
    given_bias = numbers(out, seed=seed + 1) if bias else None
    return Conv2d((stride, stride), (padding, padding), (dilation, dilation), weight, given_bias, groups)


def affine(channels, seed=5):
    return ChannelAffine(numbers(channels, seed=seed), numbers(channels, seed=seed + 1))


def kinds(program):
    return [type(node.operation).__name__ for node in program.nodes]


def same(program, seed=3):
    """Fold a program, and see that it computes the same, padded borders included."""
    folded = fold(program)
    x = numbers(7, *program.input_shape, seed=seed)
    before, after = program.run(x), folded.run(x)
    assert torch.allclose(after, before, rtol=1e-12, atol=1e-12 * float(before.abs().max()))
    for number, node in enumerate(folded.nodes):
        assert all(read < number for read in node.inputs)
    return folded


def constant(program):
    """The proved bound of a program's last node, which need not be a head."""
    values = {INPUT: 1.0}
    for number, node in enumerate(program.nodes):
        bound = node.operation.prove(node.shape, "exact", None)[0]
        values[number] = node.operation.reach(bound, *(values[read] for read in node.inputs))
    return values[len(program.nodes) - 1]


def linear_truth(program):
    return jacobian_norm(program, torch.zeros(program.input_shape, dtype=torch.float64))


BACKWARDS = {
    "conv": ((4, 5, 5), conv(6, 4), affine(6)),
    "conv without a bias": ((4, 5, 5), conv(6, 4, bias=False), affine(6)),
    "groups": ((4, 5, 5), conv(6, 4, groups=2, stride=2), affine(6)),
    "dense": ((4,), Linear(numbers(6, 4), None), affine(6)),
    "scale": ((4, 5, 5), conv(6, 4), Scale(numbers(6, 1, 1))),
    "one scale": ((4, 5, 5), conv(6, 4), Scale(numbers(1, 1, 1))),
    "shift": ((4, 5, 5), conv(6, 4), Shift(numbers(6, 1, 1))),
    "last axis": ((3, 4), Linear(numbers(6, 4), numbers(6)), Scale(numbers(1, 6))),
    "affine": ((6, 2, 2), affine(6, seed=1), affine(6)),
    "signals": ((4, 5), OneRow(Conv2d((1, 1), (0, 1), (1, 1), numbers(6, 4, 1, 3), numbers(6), 1)), affine(6)),
    "circular": ((4, 5, 5), CircularConv2d((1, 1), (1, 1), (1, 1), numbers(6, 4, 3, 3), numbers(6), 1), affine(6)),
    "three": ((4, 5, 5), conv(6, 4), affine(6), Scale(numbers(6, 1, 1)), Shift(numbers(6, 1, 1))),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_scale_and_shift_go_into_the_layer_before(name):
    shape, *parts = BACKWARDS[name]
    program = program_from(shape, *parts)
    folded = same(program)
    assert [(node.name, node.place.type) for node in folded.nodes] == [("n0", type(parts[0]).__name__)]
    assert linear_truth(program) * (1 - 1e-12) <= constant(folded) <= constant(program) * (1 + 1e-8)


ALONE = {
    "along other axes": ((3, 4), Linear(numbers(3, 4), None), affine(3)),
    "entry by entry": ((4, 5, 5), conv(6, 4), Shift(numbers(6, 5, 5))),
    "rows": ((4, 5, 5), conv(6, 4), Scale(numbers(1, 5, 1))),
    "an activation between": ((4,), Linear(numbers(6, 4), None), ReLU(), affine(6)),
    "a second reader": ((4,), Linear(numbers(4, 4), None), affine(4), (Sum(), (0, 1))),
    "too large": ((4,), Linear(numbers(4, 4) * 1e300, None), Scale(torch.full((4,), 1e10, dtype=torch.float64))),
}


@pytest.mark.parametrize("name", ALONE)
def test_what_does_not_fit_stays(name):
    shape, *parts = ALONE[name]
    program = program_from(shape, *parts)
    assert kinds(fold(program)) == kinds(program)


def test_only_the_scale_goes_forwards_because_padding_comes_after_the_shift():
    program = program_from((4, 5, 5), affine(4), conv(6, 4))
    folded = same(program)
    assert kinds(folded) == ["Shift", "Conv2d"]
    assert [node.name for node in folded.nodes] == ["n0", "n1"]
    assert linear_truth(program) * (1 - 1e-12) <= constant(folded) < 0.99 * constant(program)


BOTH = (affine(4), conv(6, 4), (conv(6, 4, 1, padding=0), (0,)), (Sum((1, -1)), (1, 2)))
NOTHING = torch.tensor([2.0, 0.0], dtype=torch.float64)
TINY = torch.tensor([2.0, 1e-300], dtype=torch.float64)
FORWARDS = {
    "without a shift": ((4, 5, 5), ["Conv2d"], Scale(numbers(4, 1, 1)), conv(6, 4, groups=2)),
    "two readers": ((4, 5, 5), ["Shift", "Conv2d", "Conv2d", "Sum"], *BOTH),
    "dense": ((4,), ["Shift", "Linear"], affine(4), Linear(numbers(3, 4), None)),
    "one reader of another kind": ((4, 5, 5), None, affine(4), conv(4, 4), (ReLU(), (0,)), (Sum(), (1, 2))),
    "equal sizes": ((2, 5, 5), None, ChannelAffine(torch.tensor([2.0, -2.0]).double(), numbers(2)), conv(6, 2)),
    "a scale of 0 with a shift": ((2, 5, 5), None, ChannelAffine(NOTHING, numbers(2)), conv(6, 2)),
    "a scale of 0 without": ((2, 5, 5), ["Conv2d"], Scale(NOTHING.view(2, 1, 1)), conv(6, 2)),
    "a shift that overflows": ((2,), None, ChannelAffine(TINY, numbers(2) * 1e20), Linear(numbers(3, 2), None)),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_what_goes_forwards(name):
    shape, after, *parts = FORWARDS[name]
    program = program_from(shape, *parts)
    assert kinds(same(program)) == (after or kinds(program))


SHORTCUTS = {
    "conv": ((4, 5, 5), conv(4, 4), (Sum(), (INPUT, 0))),
    "the other way round": ((4, 5, 5), conv(4, 4), (Sum(), (0, INPUT))),
    "x - conv": ((4, 5, 5), conv(4, 4), (Sum((1, -1)), (INPUT, 0))),
    "conv - x": ((4, 5, 5), conv(4, 4), (Sum((1, -1)), (0, INPUT))),
    "groups": ((4, 5, 5), conv(4, 4, groups=2), (Sum(), (INPUT, 0))),
    "depthwise": ((4, 5, 5), conv(4, 4, groups=4), (Sum(), (INPUT, 0))),
    "dilated": ((4, 9, 9), conv(4, 4, 5, padding=4, dilation=2), (Sum(), (INPUT, 0))),
    "one tap": ((4, 5, 5), conv(4, 4, 1, padding=0, bias=False), (Sum(), (INPUT, 0))),
    "circular": ((4, 5, 5), CircularConv2d((1, 1), (1, 1), (1, 1), numbers(4, 4, 3, 3), None, 1), (Sum(), (INPUT, 0))),
    "dense": ((4,), Linear(numbers(4, 4), numbers(4)), (Sum(), (INPUT, 0))),
    "batch norm": ((4, 5, 5), conv(4, 4), affine(4), (Sum(), (INPUT, 1)), affine(4, seed=9)),
}


@pytest.mark.parametrize("name", SHORTCUTS)
def test_a_shortcut_around_a_linear_layer_is_part_of_it(name):
    shape, *parts = SHORTCUTS[name]
    program = program_from(shape, *parts)
    folded = same(program)
    assert [node.name for node in folded.nodes] == ["n0"]
    assert linear_truth(program) * (1 - 1e-12) <= constant(folded) < constant(program)


OTHER_SUMS = {
    "even": ((4, 5, 5), conv(4, 4, 1, padding=0), conv(4, 4, 1, padding=0), (Sum(), (INPUT, 1))),
    "not in the middle": ((1, 7, 7), Conv2d((1, 1), "same", (1, 1), numbers(1, 1, 4, 4), None, 1), (Sum(), (INPUT, 0))),
    "another reader": ((4, 5, 5), conv(4, 4), (Sum(), (INPUT, 0)), (Sum(), (0, 1))),
    "twice": ((4, 5, 5), conv(4, 4), (Sum(), (0, 0))),
    "three": ((4, 5, 5), conv(4, 4), (Sum((1, 1, 1)), (INPUT, 0, INPUT))),
}


@pytest.mark.parametrize("name", OTHER_SUMS)
def test_other_sums_stay(name):
    shape, *parts = OTHER_SUMS[name]
    program = program_from(shape, *parts)
    assert kinds(same(program)) == kinds(program)


@settings(max_examples=12)
@given(st.integers(0, 10**6), st.sampled_from([1, 2, 4]), st.sampled_from([1, 3]), st.sampled_from([1, 2]))
def test_random_chains_of_linear_layers(seed, groups, size, stride):
    first = conv(4, 4, size, padding=size // 2, groups=groups, seed=seed)
    last = conv(4, 4, size, stride=stride, padding=1, groups=groups, seed=seed + 9)
    pool = AveragePooling((1, 1), (0, 0), (1, 1), (2, 2))
    program = program_from(
        (4, 4, 4),
        affine(4, seed),
        first,
        affine(4, seed + 3),
        (Sum(), (0, 2)),
        affine(4, seed + 5),
        pool,
        last,
        affine(4),
    )
    folded = same(program)
    assert len(folded.nodes) < len(program.nodes)
    assert constant(folded) >= linear_truth(program) * (1 - 1e-12)
    assert constant(folded) <= constant(program) * (1 + 1e-8)


def trained_like(network, seed=0):
    """Batch norms as training leaves them: statistics and factors that differ from channel to channel."""
    generator = torch.Generator().manual_seed(seed)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(generator=generator)
            layer.running_var.uniform_(0.05, 4.0, generator=generator)
            layer.weight.data.uniform_(0.2, 2.0, generator=generator)
            layer.bias.data.normal_(generator=generator)
    return network.eval()


def test_a_network_with_batch_norm():
    torch.manual_seed(0)
    network = trained_like(image_network())
    program = capture(network, (2, 4, 4))[1]
    folded = fold(program)
    x = inputs().double()
    assert torch.allclose(folded.run(x), program.run(x), rtol=1e-12, atol=1e-13)
    assert kinds(folded)[:3] == ["Shift", "Conv2d", "MinMax"]
    assert len(folded.nodes) == len(program.nodes) - 1
    before, after = prove(program).bounds, prove(folded).bounds
    assert after.pairs.max() < 0.9 * before.pairs.max()
    assert [line.name for line in after.layers] == [node.name for node in folded.layers]
    steepest = max(jacobian_norm(program, point) for point in x)
    assert steepest <= float(after.head.scale) * float(torch.linalg.matrix_norm(program.head.weight, 2))


def test_what_folding_gains_grows_with_depth():
    """Every batch norm gives away the ratio of its largest factor to those that the layer's top vector meets."""
    torch.manual_seed(0)

    def block(width):
        return (nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU())

    body = [nn.Conv2d(3, 8, 3, padding=1), *(layer for _ in range(3) for layer in block(8))]
    network = nn.Sequential(*body, Residual(nn.Conv2d(8, 8, 3, padding=1)), nn.Flatten(), nn.Linear(8 * 36, 4))
    program = capture(trained_like(network), (3, 6, 6))[1]
    folded = fold(program)
    assert kinds(folded) == ["Conv2d", *["Conv2d", "ReLU"] * 3, "Conv2d", "Flatten", "Linear"]
    assert prove(program).bounds.head.scale > 3 * prove(folded).bounds.head.scale
