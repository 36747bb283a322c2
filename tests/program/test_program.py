"""Programs as values: what they compute, what is proved of graphs, and how they are distinguished."""

import copy
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.nets import image_network, inputs
from safeset.audit.second_proof import carry_rounding, product_of
from safeset.capture.capture import capture
from safeset.layers import MinMax, Residual
from safeset.numerics.integers import NEVER
from safeset.program.exact import evaluate
from safeset.program.from_modules import program_of
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation
from safeset.program.pointwise import LeakyReLU, ReLU
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.total import Sum
from safeset.proofs.prove import prove


def dense(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(rows, 4, dtype=torch.float64, generator=generator)
    return Linear(weight, torch.randn(rows, dtype=torch.float64, generator=generator))


def graph(seed, *, linear=False):
    """Two branches that share a start, a sum of both, a second sum that reads the input again, and a head."""
    bent = LeakyReLU(1.0) if linear else LeakyReLU(-0.5)
    parts: list[tuple[Operation, tuple[int, ...]]] = [
        (dense(4, seed), (INPUT,)),
        (dense(4, seed + 1), (0,)),
        (bent if linear else ReLU(), (1,)),
        (dense(4, seed + 2), (0,)),
        (bent, (3,)),
        (Sum(), (2, 4)),
        (Sum(), (INPUT, 5)),
        (dense(3, seed + 3), (6,)),
    ]
    nodes = [
        Node(Place(str(number), type(each).__name__, reads, (4,), is_layer=not isinstance(each, Sum)), each)
        for number, (each, reads) in enumerate(parts)
    ]
    return Program((4,), tuple(nodes))


def by_hand(program, x):
    """The same without the interpreter."""
    one, two, three, head = (program.nodes[place].operation for place in (0, 1, 3, 7))
    start = x @ one.weight.mT + one.bias
    first, second = start @ two.weight.mT + two.bias, start @ three.weight.mT + three.bias
    first = program.nodes[2].operation.run(first)
    second = torch.where(second > 0, second, program.nodes[4].operation.slope * second)
    return (x + first + second) @ head.weight.mT + head.bias


@given(st.integers(0, 10**6))
def test_graphs_are_computed_node_by_node(seed):
    program, x = graph(seed), torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    found = program.run(x)
    torch.testing.assert_close(found, by_hand(program, x), rtol=1e-12, atol=1e-12)
    exact = [float(each) for each in evaluate(program, x[0], NEVER)]
    torch.testing.assert_close(found[0], torch.tensor(exact, dtype=torch.float64), rtol=1e-10, atol=1e-10)


@given(st.integers(0, 10**6))
def test_bounds_of_graphs_hold_and_count_every_branch(seed):
    program = graph(seed, linear=True)
    proof = prove(program)
    zero = torch.zeros(1, 4, dtype=torch.float64)
    features = Program((4,), program.nodes[:-1])
    columns = features.run(torch.eye(4, dtype=torch.float64)) - features.run(zero)  # linear: its matrix, transposed
    scale = float(proof.bounds.head.scale)
    assert float(torch.linalg.matrix_norm(columns, 2)) <= scale
    norms = [float(torch.linalg.matrix_norm(program.nodes[place].operation.weight, 2)) for place in (0, 1, 3)]
    assert scale == pytest.approx(1 + norms[0] * (norms[1] + norms[2]), rel=1e-9)
    assert [line.name for line in proof.bounds.layers] == ["0", "1", "2", "3", "4", "7"]
    assert Fraction(scale) >= product_of(program, proof.bounds.layers)


@given(st.integers(0, 10**6))
def test_rounding_of_graphs_is_allowed_for_twice(seed):
    program = graph(seed)
    proof, x = prove(program), torch.randn(1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    error, _ = proof.allowance(x.norm(dim=1))
    exact, computed = evaluate(program, x[0]), program.run(x)[0].tolist()
    for j in range(3):
        for i in range(3):
            off = abs((exact[j] - exact[i]) - (Fraction(computed[j]) - Fraction(computed[i])))
            assert off <= Fraction(float(error.offset[0, j])) + Fraction(float(error.offset[0, i]))
    again = carry_rounding(program, proof.bounds.layers)
    assert again.strays.slope > 0
    assert again.size.slope > 0


def changed_programs():
    """One program, and others that differ from it in one thing."""
    network = nn.Sequential(
        nn.Linear(4, 4), Residual(nn.Linear(4, 4)), nn.LeakyReLU(0.25), MinMax(), nn.Linear(4, 3, bias=False)
    ).double()
    program = program_of(network, (4,))

    def with_node(place, node):
        return replace(program, nodes=(*program.nodes[:place], node, *program.nodes[place + 1 :]))

    first, *_, bent, _, _ = program.nodes
    weight = first.operation.weight.clone()
    weight[0, 0] = torch.nextafter(weight[0, 0], torch.tensor(9.0, dtype=torch.float64))
    yield program
    yield with_node(0, replace(first, operation=replace(first.operation, weight=weight)))
    yield with_node(0, replace(first, operation=replace(first.operation, bias=None)))
    yield with_node(0, replace(first, operation=replace(first.operation, weight=first.operation.weight.float())))
    yield with_node(3, replace(bent, operation=LeakyReLU(0.5)))
    yield with_node(3, replace(bent, operation=ReLU()))
    yield with_node(3, replace(bent, operation=ChannelAffine(torch.ones(4).double(), torch.zeros(4).double())))
    yield with_node(3, replace(bent, place=replace(bent.place, name="another")))
    yield with_node(3, replace(bent, place=replace(bent.place, inputs=(0,))))
    yield replace(program, nodes=program.nodes[:-1])
    yield replace(program, input_shape=(2, 2))


def test_programs_are_told_apart_by_all_that_they_are():
    programs = list(changed_programs())
    first, *others = programs
    assert first.equals(copy.deepcopy(first))
    assert first.digest() == copy.deepcopy(first).digest()
    assert len({each.digest() for each in programs}) == len(programs)
    assert not any(first.equals(other) or other.equals(first) for other in others)


def test_a_captured_program_is_its_network_and_its_own():
    torch.manual_seed(0)
    network = image_network().eval()
    frozen, program, _ = capture(network, (2, 4, 4))
    x = inputs().double()
    before = program.run(x)
    torch.testing.assert_close(before, copy.deepcopy(network).double()(x), rtol=1e-10, atol=1e-10)
    assert torch.equal(before, frozen(x))
    with torch.no_grad():
        for tensor in network.parameters():
            tensor.mul_(2)
    assert torch.equal(program.run(x), before)
    other = copy.deepcopy(program)
    for node in other.nodes:
        for tensor in node.operation.constants().values():
            tensor.zero_()
    assert torch.equal(program.run(x), before)
