"""Verdicts: compared with exact truth on small networks, at borders, on planted violations, and on ACAS Xu."""

import math
import random
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import nn

from helpers.planted import KINDS
from helpers.query_truth import has_point, is_satisfiable, largest, pieces
from safeset import DataNotFoundError, SafesetError
from safeset.data.acasxu import nnet_file, read_nnet
from safeset.layers import MinMax
from safeset.program.exact import evaluate
from safeset.program.from_modules import program_of
from safeset.program.pointwise import ReLU
from safeset.verification.networks import nnet_program
from safeset.verification.verify import verify
from safeset.verification.vnnlib import parse_vnnlib
from safeset.verification.witness import witness_text


def dense(*sizes, draw, unit=4):
    """A network of weights that are small multiples of 1 / unit."""
    layers = []
    for into, out in pairwise(sizes):
        layer = nn.Linear(into, out, dtype=torch.float64)
        for tensor in (layer.weight, layer.bias):
            numbers = [draw.randint(-8, 8) / unit for _ in range(tensor.numel())]
            tensor.data = torch.tensor(numbers, dtype=torch.float64).view_as(tensor)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def text(inputs, outputs, *asserted):
    """A file of version 1.0."""
    names = [f"X_{i}" for i in range(inputs)] + [f"Y_{j}" for j in range(outputs)]
    return "\n".join([*(f"(declare-const {name} Real)" for name in names), *(f"(assert {each})" for each in asserted)])


def box(*ends):
    """Bounds of X_0, X_1, …"""
    return [f"(and (>= X_{i} {low}) (<= X_{i} {high}))" for i, (low, high) in enumerate(ends)]


def decide(network, query, shape=None, **options):
    """A verdict, whose witness is looked at again."""
    program = program_of(network, shape or (query.inputs.size,))
    verdict = verify(program, query, **{"seconds": 20, **options})
    assert (verdict.witness is not None) == (verdict.answer == "sat")
    if verdict.witness:
        flat = torch.tensor([float(each) for each in verdict.witness.inputs], dtype=torch.float64)
        if [Fraction(each) for each in flat.tolist()] == list(verdict.witness.inputs):
            outputs = list(evaluate(program, flat.view(shape or -1)).reshape(-1))
            assert outputs == list(verdict.witness.outputs)
        outputs = verdict.witness.outputs
        assert all(each.holds(verdict.witness.inputs, outputs) for each in query.common)
        assert any(all(each.holds(verdict.witness.inputs, outputs) for each in case) for case in query.cases)
    return verdict


# -- compared with the truth ------------------------------------------------------------------------------------------


def asked_at_random(draw, inputs, outputs):
    """Inequalities of all kinds, strict or not, over inputs and outputs."""

    def variable():
        return draw.choice([f"Y_{draw.randrange(outputs)}"] * 3 + [f"X_{draw.randrange(inputs)}"])

    def side():
        parts = [f"(* {draw.randint(-6, 6) / 4} {variable()})" for _ in range(draw.randint(1, 2))]
        return f"(+ {' '.join(parts)} {draw.randint(-16, 16) / 8})"

    def literal():
        found = f"({draw.choice(['<=', '>=', '<', '>'])} {side()} {draw.choice([variable(), '0.3', '-1', '2.5'])})"
        return f"(not {found})" if draw.random() < 0.2 else found

    def group(depth):
        if depth == 0 or draw.random() < 0.3:
            return literal()
        return f"({draw.choice(['and', 'or'])} {group(depth - 1)} {group(depth - 1)})"

    return group(2)


@pytest.mark.parametrize("first", [0, 100, 200])
def test_no_verdict_is_wrong(first):
    decided = {"sat": 0, "unsat": 0, "unknown": 0}
    for seed in range(first, first + 25):
        draw = random.Random(seed)
        inputs, outputs = draw.randint(1, 2), draw.randint(1, 3)
        network = dense(inputs, *[3] * draw.randint(0, 2), outputs, draw=draw)
        ends = [sorted(draw.choice([-1, -0.3, 0, 0.1, 0.5, 1]) for _ in range(2)) for _ in range(inputs)]
        asserted = [*box(*ends), *(asked_at_random(draw, inputs, outputs) for _ in range(draw.randint(1, 2)))]
        query = parse_vnnlib(text(inputs, outputs, *asserted))
        verdict = decide(network, query, seconds=2)
        decided[verdict.answer] += 1
        assert verdict.answer in ("unknown", "sat" if is_satisfiable(network, query) else "unsat"), (seed, asserted)
    assert decided["sat"] >= 4
    assert decided["unsat"] >= 4
    assert decided["unknown"] <= 5, decided


@pytest.mark.parametrize("seed", range(6))
def test_at_the_largest_value_of_an_output(seed):
    network = dense(2, 3, 3, 1, draw=random.Random(seed))
    ends = [(-1, 1), (-0.5, 0.75)]
    sides = [(((Fraction(s), Fraction(0)), Fraction(1), False)) for s in (-1, 1)]
    sides += [((Fraction(0), Fraction(-1)), Fraction(1, 2), False), ((Fraction(0), Fraction(1)), Fraction(3, 4), False)]
    found = [largest(rows + sides, made[0], 2) for rows, made in pieces(network, 2) if has_point(rows + sides, 2)]
    top = max(found)
    # Fractions of the file are decimals: a value that is none is rounded down, or up to the next of ten digits.
    below = Fraction(top.numerator * 10**10 // top.denominator, 10**10)
    answers = {}
    for name, sign, value in (
        ("reached", ">=", below),
        ("just above", ">", below + Fraction(1, 10**10)),
        ("far above", ">=", below + Fraction(1, 2)),
        ("below", ">", below - Fraction(1, 8)),
    ):
        asserted = f"({sign} Y_0 {value.numerator * (10**10 // value.denominator)}e-10)"
        query = parse_vnnlib(text(2, 1, *box(*ends), asserted))
        answers[name] = decide(network, query, seconds=1.5).answer
    assert answers["reached"] in ("sat", "unknown")
    assert answers["just above"] in ("unsat", "unknown")
    assert answers["far above"] == "unsat"
    assert answers["below"] == "sat"


def test_a_tie_is_decided_by_strictness():
    layer = nn.Linear(1, 1, dtype=torch.float64)
    layer.weight.data, layer.bias.data = torch.ones(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    network = nn.Sequential(layer)
    for sign, end, answer in ((">=", "<=", "sat"), (">", "<=", "unsat"), (">=", "<", "unsat"), ("==", "<=", "sat")):
        query = parse_vnnlib(text(1, 1, f"(and (>= X_0 0) ({end} X_0 1))", f"({sign} Y_0 1)"))
        verdict = decide(network, query, seconds=1)
        assert verdict.answer in ("unknown", answer)
        assert verdict.answer == answer or answer == "unsat"


# -- boxes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    return dense(2, 3, 2, draw=random.Random(3))


def test_a_point_that_no_float_has(small):
    point = [Fraction(1, 10), Fraction(-3, 10)]
    query = parse_vnnlib(text(2, 2, *box((0.1, 0.1), (-0.3, -0.3)), "(or (<= Y_0 Y_1) (> Y_0 Y_1))"))
    verdict = decide(small, query)
    assert verdict.answer == "sat"
    assert list(verdict.witness.inputs) == point
    assert "(X_0 0.1)\n (X_1 -0.3)" in witness_text(query, verdict.witness)


def test_an_empty_box_is_unsat(small):
    for bounds in ("(and (>= X_0 1) (<= X_0 0))", "(and (>= X_0 1) (< X_0 1))", "false", "(> 1 2)"):
        query = parse_vnnlib(text(2, 2, bounds, "(and (>= X_1 0) (<= X_1 1))"))
        assert decide(small, query).answer == "unsat"


def test_inputs_without_bounds_are_never_unsat_by_a_box(small):
    query = parse_vnnlib(text(2, 2, "(>= X_0 0)", "(and (>= Y_0 1000000000) (<= Y_0 -1))", "(<= X_1 1)"))
    assert decide(small, query).answer == "unsat"  # the sum of both says 0 ≤ −1000000001, wherever that is
    query = parse_vnnlib(text(2, 4, "(>= X_0 0)", "(<= (+ Y_0 1) Y_2)"))  # the larger is below the smaller: nowhere
    verdict = decide(nn.Sequential(nn.Linear(2, 4), MinMax()).double(), query, seconds=20)
    assert verdict.answer == "unknown"
    assert not verdict.timed_out


def test_each_case_has_its_box(small):
    inside = ["(and (>= X_0 0) (<= X_0 0.25) (>= Y_0 1e6))", "(and (>= X_0 0.5) (<= X_0 1) (<= Y_0 1e6))"]
    query = parse_vnnlib(text(2, 2, "(and (>= X_1 0) (<= X_1 1))", f"(or {' '.join(inside)})"))
    verdict = decide(small, query)
    assert verdict.answer == "sat"
    assert Fraction(1, 2) <= verdict.witness.inputs[0] <= 1
    query = parse_vnnlib(text(2, 2, "(and (>= X_1 0) (<= X_1 1))", inside[0]))
    assert decide(small, query).answer == "unsat"


def test_inequalities_of_several_inputs_exclude(small):
    query = parse_vnnlib(text(2, 2, *box((0, 1), (0, 1)), "(>= (+ X_0 X_1) 2.001)", "(<= Y_0 1e6)"))
    assert decide(small, query).answer == "unsat"
    query = parse_vnnlib(text(2, 2, *box((0, 1), (0, 1)), "(>= (+ X_0 X_1) 1.999)", "(<= Y_0 1e6)"))
    assert decide(small, query).answer == "sat"


def test_time_that_is_over_says_unknown(small):
    query = parse_vnnlib(text(2, 2, *box((-1, 1), (-1, 1)), "(>= Y_0 5)"))
    verdict = verify(program_of(small, (2,)), query, seconds=1e-9)
    assert verdict.answer == "unknown"
    assert verdict.timed_out


@pytest.mark.parametrize("seconds", [0, -1, float("nan"), "ten"])
def test_a_time_limit_is_a_number_above_0(small, seconds):
    query = parse_vnnlib(text(2, 2, *box((0, 1), (0, 1)), "(>= Y_0 5)"))
    with pytest.raises(SafesetError, match="above 0"):
        verify(program_of(small, (2,)), query, seconds=seconds)


def test_other_shapes_are_refused(small):
    for inputs, outputs in ((3, 2), (2, 3)):
        with pytest.raises(SafesetError, match="the network's shape"):
            verify(program_of(small, (2,)), parse_vnnlib(text(inputs, outputs, "(>= Y_0 5)")))
    declared = "(vnnlib-version <2.0>) (declare-network f (declare-input X {} {}) (declare-output Y real [1,2]))"
    with pytest.raises(SafesetError, match="about real arithmetic"):
        verify(program_of(small, (2,)), parse_vnnlib(declared.format("float32", "[1,2]")))
    image = nn.Sequential(nn.Flatten(), nn.Linear(6, 2))
    with pytest.raises(SafesetError, match="the network's shape"):
        verify(program_of(image, (2, 3)), parse_vnnlib(declared.format("real", "[1,3,2]")))


def test_float32_inputs_have_witnesses_of_float32(small):
    declared = (
        "(vnnlib-version <2.0>) (declare-network f (declare-input X float32 [1,2]) (declare-output Y float32 [2]))"
        "(assert (and (>= X[0,0] 0.1) (<= X[0,0] 0.2) (>= X[0,1] 0.1) (<= X[0,1] {})))"
    )
    verdict = decide(small, parse_vnnlib(declared.format("0.2")), as_real=True)
    assert verdict.answer == "sat"
    numbers = [float(each) for each in verdict.witness.inputs]
    assert torch.tensor(numbers).double().tolist() == numbers
    assert (
        decide(small, parse_vnnlib(declared.format("0.1")), as_real=True, seconds=0.5).answer == "unknown"
    )  # no float32 is there


def test_what_has_no_exact_form_is_confirmed_by_bounds(small, monkeypatch):
    def unknown(self, deadline, *x):
        raise self.unknown("exact arithmetic")

    monkeypatch.setattr(ReLU, "exact", unknown)
    program = program_of(small, (2,))
    found = {}
    for asserted in ("(<= Y_0 1e6)", "(>= Y_0 1e6)", "(>= (+ Y_0 X_0) -1e6)", "(> (* 2 Y_0) (* 2 Y_0))"):
        query = parse_vnnlib(text(2, 2, *box((0, 1), (0, 1)), asserted))
        found[asserted] = verify(program, query, seconds=5)
    assert [each.answer for each in found.values()] == ["sat", "unsat", "sat", "unsat"]
    monkeypatch.undo()
    witness = found["(<= Y_0 1e6)"].witness
    exact = evaluate(program, torch.tensor([float(each) for each in witness.inputs], dtype=torch.float64))
    assert max(abs(one - two) for one, two in zip(exact, witness.outputs, strict=True)) < 1e-9


def test_boxes_near_overflow_are_answered():
    """Bounds are infinite there, and of them nothing follows."""
    network = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)).double()
    query = parse_vnnlib(text(2, 2, *box(("1e305", "1.1e305"), ("1e305", "1.1e305")), "(or (>= Y_0 Y_1) (<= Y_0 Y_1))"))
    assert verify(program_of(network, (2,)), query, seconds=2).answer == "unknown"


def test_a_network_without_a_linear_head_gets_one():
    network = nn.Sequential(nn.Linear(2, 4), MinMax()).double()
    query = parse_vnnlib(text(2, 4, *box((0, 1), (0, 1)), "(< Y_0 Y_2)"))  # the larger is below the smaller
    assert decide(network, query, seconds=2).answer in ("unsat", "unknown")
    query = parse_vnnlib(text(2, 4, *box((0, 1), (0, 1)), "(<= (+ Y_0 0.001) Y_2)"))
    assert decide(network, query).answer in ("unsat", "unknown")
    query = parse_vnnlib(text(2, 4, *box((0, 1), (0, 1)), "(<= Y_2 Y_0)"))
    assert decide(network, query).answer == "sat"
    query = parse_vnnlib(text(2, 4, *box((0, 1), (0, 1)), "(<= 100 Y_2)"))
    assert decide(network, query).answer == "unsat"


# -- planted violations -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_planted_is_never_excluded(kind):
    """At a place that gradients find, outputs reach exactly what is asked for: a bound that is too small says unsat."""
    shape, layers = KINDS[kind]
    for seed in range(2):
        torch.manual_seed(seed)
        body = nn.Sequential(*layers(), nn.Flatten()).double().eval()
        features = body(torch.zeros(2, *shape, dtype=torch.float64)).shape[1]
        network = nn.Sequential(*body, nn.Linear(features, 3)).double().eval()
        size = math.prod(shape)
        middle = torch.randint(1024, (size,)).double() / 1024  # the box has ends that are decimals, exactly
        radius = 2**-4
        point = middle.clone()
        for _ in range(8):
            leaf = point.clone().requires_grad_()
            outputs = network(leaf.view(1, *shape))[0]
            (gradient,) = torch.autograd.grad(outputs[0] - outputs[1], leaf)
            point = torch.clamp(point + radius / 2 * gradient.sign(), middle - radius, middle + radius)
        program = program_of(network, shape)
        there = evaluate(program, point.view(shape))
        reached = (there[0] - there[1]) * 10**20 // 1  # rounded down, in units of 10⁻²⁰
        ends = box(*zip((middle - radius).tolist(), (middle + radius).tolist(), strict=True))
        for more, answers in ((0, ("sat", "unknown")), (10**22, ("unsat", "unknown"))):
            query = parse_vnnlib(text(size, 3, *ends, f"(>= (- Y_0 Y_1) {reached + more}e-20)"))
            inside = [Fraction(x) for x in point.tolist()]
            assert all(each.holds(inside, there) for each in query.common) == (more == 0)
            assert decide(network, query, shape, seconds=0.5).answer in answers


# -- ACAS Xu ----------------------------------------------------------------------------------------------------------


def test_a_published_network_with_a_known_answer():
    """Property 3 holds for network 5_9, and not for 1_7 (Katz et al., 2017)."""
    for name, answer in (("5_9", "unsat"), ("1_7", "sat")):
        try:
            network = read_nnet(nnet_file(name))
        except DataNotFoundError:
            pytest.skip("the networks are not here")
        query = parse_vnnlib(property_3(network))
        assert verify(nnet_program(network), query, seconds=60).answer == answer


def property_3(network):
    """An intruder straight ahead that comes nearer: clear of conflict, cost 0, is not the least."""
    scale = network.mean, network.spread
    ranges = [(1500, 1800), (-0.06, 0.06), (3.1, 3.141592), (980, 1200), (960, 1200)]
    scaled = [((torch.tensor(each) - m) / s).tolist() for each, m, s in zip(ranges, *scale, strict=True)]
    return text(5, 5, *box(*scaled), *(f"(<= Y_0 Y_{i})" for i in range(1, 5)))
