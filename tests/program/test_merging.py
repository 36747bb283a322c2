"""Linear parts as one layer: the operator on the image as it is, with its exact norm."""

import pytest
import torch

import safeset.program.merging as merging
from helpers.programs import jacobian_norm, numbers, program_from, steepest_pair
from safeset.program.entries import Scale, Shift
from safeset.program.joining import Join
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.merging import linear_parts, merge
from safeset.program.pointwise import ReLU
from safeset.program.program import INPUT
from safeset.program.reorder import Flatten, Unshuffle
from safeset.program.select import Select
from safeset.program.sliding import AveragePooling, Conv2d
from safeset.program.total import Sum
from safeset.proofs.prove import prove


def conv(out, into, size=3, *, stride=1, seed=0):
    padding = (size // 2, size // 2)
    weight = numbers(out, into, size, size, seed=seed)
    return Conv2d((stride, stride), padding, (1, 1), weight, numbers(out, seed=seed + 1), 1)


def row(*taps):
    return Conv2d((1, 1), (0, 1), (1, 1), torch.tensor(taps, dtype=torch.float64).view(1, 1, 1, 3), None, 1)


HEAD = (ReLU(), Flatten(1, -1))
PARTS = {
    "conv of conv": ((2, 4, 4), conv(3, 2), conv(2, 3, seed=5), *HEAD, Linear(numbers(3, 32), None)),
    "side by side": (
        (2, 4, 4),
        conv(3, 2),
        (conv(3, 2, 1, seed=5), (INPUT,)),
        (Sum((1, -1)), (0, 1)),
        *HEAD,
        Linear(numbers(3, 48), None),
    ),
    "around two": ((2, 4, 4), conv(3, 2), conv(2, 3, seed=5), (Sum(), (INPUT, 1)), *HEAD, Linear(numbers(3, 32), None)),
    "strided shortcut": (
        (2, 4, 4),
        conv(3, 2, stride=2),
        (conv(3, 2, 1, stride=2, seed=5), (INPUT,)),
        (Sum(), (0, 1)),
        *HEAD,
        Linear(numbers(3, 12), None),
    ),
    "many kinds": (
        (1, 4, 4),
        Unshuffle(2),
        ChannelAffine(numbers(4), numbers(4)),
        conv(4, 4),
        Shift(numbers(4, 2, 2)),
        AveragePooling((1, 1), (0, 0), (1, 1), (2, 2)),
        Flatten(1, -1),
        Scale(numbers(4)),
        (Join(), (6, 4)),
        Select(torch.tensor([3, 0, 7, -1, 3])),
        ReLU(),
        Linear(numbers(3, 5), None),
    ),
}


@pytest.mark.parametrize("name", PARTS)
def test_a_linear_part_becomes_one_layer_with_its_exact_norm(name):
    shape, *parts = PARTS[name]
    program = program_from(shape, *parts)
    merged = merge(program)
    x = numbers(9, *shape, seed=7)
    assert torch.allclose(merged.run(x), program.run(x), rtol=1e-12, atol=1e-11)
    (linear,) = [node for node in merged.nodes[:-1] if isinstance(node.operation, Linear)]
    until = next(number for number, node in enumerate(program.nodes) if isinstance(node.operation, ReLU))
    truth = jacobian_norm(type(program)(shape, program.nodes[:until]), torch.zeros(shape, dtype=torch.float64))
    before, after = prove(program).bounds, prove(merged).bounds
    bound = next(line.bound for line in after.layers if line.name == linear.name)
    assert truth * (1 - 1e-12) <= bound <= truth * (1 + 1e-8)
    assert linear.name == program.nodes[until - 1].name
    assert float(after.head.scale) < 0.99 * float(before.head.scale)
    assert float(after.pairs.max()) >= max(steepest_pair(program, point) for point in x)
    assert len({node.name for node in merged.nodes}) == len(merged.nodes)


def test_two_kernels_are_never_composed():
    """[2, 2, 1], then [−1, 2, −2], with padding, on 3 pixels: 5.606; the composed kernel would give 3.83, or 5.000."""
    program = program_from((1, 1, 3), row(2.0, 2.0, 1.0), row(-1.0, 2.0, -2.0), *HEAD, Linear(numbers(2, 3), None))
    found = prove(merge(program)).bounds
    assert float(found.head.scale) == pytest.approx(5.605551275463989, rel=1e-9)
    assert float(prove(program).bounds.head.scale) > 8


def test_linear_layers_before_the_logits_become_the_head():
    program = program_from(
        (6,), Linear(numbers(8, 6), numbers(8)), ReLU(), Linear(numbers(5, 8), numbers(5)), Linear(numbers(3, 5), None)
    )
    merged = merge(program)
    assert [type(node.operation) for node in merged.nodes] == [Linear, ReLU, Linear]
    expected = program.nodes[3].operation.weight @ program.nodes[2].operation.weight
    assert torch.allclose(merged.head.weight, expected, rtol=1e-12, atol=1e-12)
    assert prove(merged).bounds.pairs.max() < 0.9 * prove(program).bounds.pairs.max()
    assert torch.allclose(merged.run(numbers(5, 6)), program.run(numbers(5, 6)), rtol=1e-12, atol=1e-12)


def test_parts_start_where_something_else_ends():
    program = program_from(
        (4,),
        Linear(numbers(4, 4), None),
        ReLU(),
        Scale(numbers(4)),
        (Sum(), (0, 2)),
        Scale(numbers(4)),
        ReLU(),
        Linear(numbers(3, 4), None),
    )
    found = [(part.start, part.numbers) for part in linear_parts(program)]
    assert found == [(INPUT, (0,)), (1, (2,)), (3, (4,)), (5, (6,))]
    assert merge(program) is program  # a sum of two origins is one of its own, and nothing else has two layers


def test_what_is_large_or_gains_nothing_stays(monkeypatch):
    turned = Linear(torch.linalg.qr(numbers(4, 4)).Q, None)
    program = program_from((4,), turned, turned, ReLU(), Linear(numbers(3, 4), None))
    assert merge(program) is program
    shape, *parts = PARTS["conv of conv"]
    large = program_from(shape, *parts)
    assert merge(large) is not large
    monkeypatch.setattr(merging, "MOST_ENTRIES", 32 * 32 - 1)
    assert merge(large) is large
    monkeypatch.undo()
    monkeypatch.setattr(merging, "MOST_SIDE", 31)
    assert merge(large) is large


def test_a_matrix_that_is_smaller_than_what_it_replaces_needs_no_comparison(monkeypatch):
    """Nine copies of each entry, and a layer that reads them: a ninth of its weights remain."""
    monkeypatch.setattr(merging, "MOST_ENTRIES", 1)
    monkeypatch.setattr(merging, "_composed", None)
    copies = Select(torch.arange(4).repeat_interleave(9))
    program = program_from((4,), copies, Linear(numbers(5, 36), numbers(5)), ReLU(), Linear(numbers(3, 5), None))
    merged = merge(program)
    assert [tuple(node.operation.weight.shape) for node in merged.nodes if isinstance(node.operation, Linear)] == [
        (5, 4),
        (3, 5),
    ]
    x = numbers(7, 4, seed=9)
    torch.testing.assert_close(merged.run(x), program.run(x))
    assert prove(merged).bounds.head.scale <= prove(program).bounds.head.scale * (1 + 1e-9)
