"""Bounds of rows in boxes: never above the exact value at any point, and near it in small boxes."""

import random
from fractions import Fraction
from itertools import pairwise

import pytest
import torch
from torch import nn

from helpers.planted import KINDS
from safeset.numerics.multiples import rational
from safeset.program.exact import evaluate
from safeset.program.from_modules import program_of
from safeset.proofs.prove import prove
from safeset.verification.balls import Balls
from safeset.verification.formula import Inequality
from safeset.verification.regions import Boxes
from safeset.verification.rows import Rows
from safeset.verification.slopes import Slopes
from safeset.verification.verify import with_head


def rows_at_random(draw, inputs, outputs):
    """Inequalities with coefficients that float64 does not have, large and small."""

    def some(places):
        picked = draw.sample(range(places), draw.randint(1, min(3, places)))
        scale = Fraction(10) ** draw.choice([0, 0, 0, -200, 30])
        return tuple((place, Fraction(draw.randint(-30, 30) or 1, draw.choice([1, 3, 7])) * scale) for place in picked)

    cases = [
        (Inequality(some(inputs) if draw.random() < 0.3 else (), some(outputs), Fraction(draw.randint(-9, 9)), False),)
        for _ in range(6)
    ]
    return cases, Rows.of(cases, inputs, outputs)


def exact_values(cases, x, y):
    return [sum((c * x[i] for i, c in row.x), sum((c * y[j] for j, c in row.y), Fraction(0))) for (row,) in cases]


def dense(sizes, scale):
    layers = []
    for into, out in pairwise(sizes):
        layers += [nn.Linear(into, out), nn.ReLU()]
    network = nn.Sequential(*layers[:-1]).double()
    for parameter in network.parameters():
        parameter.data *= scale
    return network


@pytest.mark.parametrize("seed", range(12))
def test_bounds_of_dense_networks_hold_and_are_near(seed):
    torch.manual_seed(seed)
    draw = random.Random(seed)
    sizes = [draw.randint(1, 4), *(draw.randint(1, 6) for _ in range(draw.randint(0, 3))), draw.randint(1, 4)]
    program = program_of(dense(sizes, draw.choice([1.0, 1e-3, 30.0])), (sizes[0],))
    cases, rows = rows_at_random(draw, sizes[0], sizes[-1])
    slopes = Slopes.of(program, rows)
    for bound in (Balls.of(program, prove(program), rows), slopes):
        for width in (2.0, 1e-2, 1e-9, 0.0):
            low = torch.randn(5, sizes[0], dtype=torch.float64)
            boxes = Boxes(low, low + width * torch.rand_like(low))
            found, counts = bound.lower(boxes)
            assert counts.shape == low.shape
            for number in range(len(low)):
                corner = torch.where(torch.rand(sizes[0]) < 0.5, boxes.low[number], boxes.high[number])
                inside = low[number] + torch.rand(sizes[0]) * (boxes.high[number] - low[number])
                for point in (boxes.low[number], boxes.high[number], corner, inside.clamp(max=boxes.high[number])):
                    exact = exact_values(cases, rational(point), evaluate(program, point))
                    for value, least in zip(exact, found[number].tolist(), strict=True):
                        assert Fraction(least) <= value
                        if width == 0.0:
                            assert value - Fraction(least) <= abs(value) * Fraction(1, 10**6) + Fraction(
                                1, 10**3
                            ) * max(abs(c) for (row,) in cases for _, c in row.y)


@pytest.mark.parametrize("kind", KINDS)
def test_balls_of_every_kind_of_layer_hold(kind):
    shape, layers = KINDS[kind]
    torch.manual_seed(1)
    network = nn.Sequential(*layers(), nn.Flatten()).double().eval()
    program = with_head(program_of(network, shape))
    size = torch.Size(shape).numel()
    cases, rows = rows_at_random(random.Random(2), size, program.classes)
    balls = Balls.of(program, prove(program), rows)
    low = torch.rand(2, size, dtype=torch.float64)
    for width in (0.0, 0.05):
        boxes = Boxes(low, low + width)
        found, _ = balls.lower(boxes)
        for number in range(2):
            for point in (boxes.low[number], boxes.high[number]):
                exact = exact_values(cases, rational(point), evaluate(program, point.view(shape)))
                assert all(Fraction(a) <= b for a, b in zip(found[number].tolist(), exact, strict=True))
                if not width:
                    upper = balls.upper_at(point[None])[0].tolist()
                    assert all(Fraction(a) >= b for a, b in zip(upper, exact, strict=True))


def test_what_overflows_or_has_no_end_is_never_excluded():
    program = program_of(dense([2, 3, 2], 1.0), (2,))
    cases = [(Inequality((), ((0, Fraction(1)),), Fraction(-(10**300)), False),)]
    rows = Rows.of(cases, 2, 2)
    ends = torch.tensor([[-torch.inf, 0.0], [-1e308, -1e308], [1e307, 0.0]], dtype=torch.float64)
    boxes = Boxes(ends, torch.tensor([[0.0, 1.0], [1e308, 1e308], [1e308, torch.inf]], dtype=torch.float64))
    for bound in (Balls.of(program, prove(program), rows), Slopes.of(program, rows)):
        low, _ = bound.lower(boxes)
        assert not bool(rows.excludes(low).any()), low


def test_only_chains_of_dense_layers_and_relu_have_slopes():
    rows = Rows.of([(Inequality((), ((0, Fraction(1)),), Fraction(0), False),)], 8, 2)
    dense_net = nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.ReLU(), nn.Dropout(), nn.Linear(4, 2))
    assert Slopes.of(program_of(dense_net, (2, 4)), rows) is not None
    for network in (
        nn.Sequential(nn.Linear(8, 4), nn.LeakyReLU(), nn.Linear(4, 2)),
        nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 2)),
        nn.Sequential(nn.ReLU(), nn.Linear(8, 2)),
        nn.Sequential(nn.Linear(8, 2), nn.ReLU()),
    ):
        assert Slopes.of(program_of(network, (8,)), rows) is None
