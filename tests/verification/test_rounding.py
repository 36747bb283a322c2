"""Each step of the bounds alone, where numbers cancel and nothing but its own allowance covers its rounding."""

from fractions import Fraction

import pytest
import torch

from safeset.numerics.multiples import rational
from safeset.verification.balls import least_products, products_up
from safeset.verification.formula import Inequality
from safeset.verification.regions import Boxes, Interval, box_of, inner_box, least_float32, least_float64
from safeset.verification.rows import Matrix, Rows, is_contradiction
from safeset.verification.slopes import Layer, Line


def close_pairs(count, seed):
    """Pairs (p, q), (p', q') with pq ≈ p'q': their difference is mostly rounding."""
    generator = torch.Generator().manual_seed(seed)
    p, q, r = (torch.rand(count, generator=generator, dtype=torch.float64) + 0.5 for _ in range(3))
    return p, q, r, p * q / r


def exact(*tensors):
    return [rational(tensor).reshape(-1) for tensor in tensors]


def dot(one, two):
    return sum((a * b for a, b in zip(one, two, strict=True)), Fraction(0))


@pytest.mark.parametrize("seed", range(3))
def test_a_dense_layer_of_a_line(seed):
    unsafe = 0
    for p, q, r, s in zip(*close_pairs(40, seed), strict=True):
        layer = Layer(torch.stack([q, -s])[:, None], torch.stack([-q, s]) * 3)
        line = Line(torch.stack([p, r])[None, None], torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
        made = line.before(layer, torch.tensor([[2.0]]).double())
        for v in (Fraction(2), Fraction(-2), Fraction(1)):
            z = [w * v + b for w, b in zip(*exact(layer.weight, layer.bias), strict=True)]
            true = dot(exact(line.coefficients)[0], z)
            found = Fraction(made.coefficients.item()) * v + Fraction(made.constant.item())
            assert found - Fraction(made.error.item()) <= true
            unsafe += found > true
    assert unsafe > 20  # without the allowance


@pytest.mark.parametrize("seed", range(3))
def test_a_relu_of_a_line(seed):
    generator = torch.Generator().manual_seed(seed)
    low, high, a = (torch.randn(200, generator=generator, dtype=torch.float64) for _ in range(3))
    low, high = torch.minimum(low, high), torch.maximum(low, high)
    none = torch.zeros(200, 1, dtype=torch.float64)
    made = Line(a[:, None, None], none, none).through_relu(low[:, None], high[:, None])
    unsafe = 0
    for n in range(200):
        for z in (low[n].item(), high[n].item(), 0.0):
            if low[n] <= z <= high[n]:
                true = Fraction(a[n].item()) * max(Fraction(z), 0)
                found = Fraction(made.coefficients[n].item()) * Fraction(z) + Fraction(made.constant[n].item())
                assert found - Fraction(made.error[n].item()) <= true
                unsafe += found > true
    assert unsafe > 20


@pytest.mark.parametrize("seed", range(3))
def test_the_least_value_of_a_line_and_of_a_row(seed):
    unsafe = 0
    for p, q, r, s in zip(*close_pairs(40, seed), strict=True):
        point = torch.stack([q, -s])[None]
        line = Line(torch.stack([p, r])[None, None], torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
        true = dot(*exact(line.coefficients, point))
        assert Fraction(line.least(Boxes(point, point)).item()) <= true
        least, off = least_products(Matrix(line.coefficients[0], None), Boxes(point, point))
        assert abs(Fraction(least.item()) - true) <= Fraction(off.item())
        unsafe += Fraction(least.item()) > true
    assert unsafe > 5


def test_products_of_magnitudes_are_rounded_up():
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.rand(*shape, generator=generator, dtype=torch.float64) for shape in ((6, 30), (30, 5)))
    for scale in (1.0, 2.0**-540):
        left, right = one * scale, two * scale
        found = products_up(left, right)
        for i in range(6):
            for j in range(5):
                assert Fraction(found[i, j].item()) >= dot(*exact(left[i], right[:, j]))


def test_coefficients_are_off_by_what_is_said():
    rows = [Inequality((), ((0, Fraction(1, 3)), (2, Fraction(-(10**400)))), Fraction(1, 3), False)]
    matrix = Matrix.of(rows, lambda row: row.y, 3)
    assert 0 < abs(Fraction(matrix.near[0, 0].item()) - Fraction(1, 3)) <= Fraction(matrix.off[0, 0].item())
    assert matrix.off[0, 2] > 10.0**300 or not matrix.near[0, 2].isfinite()


def test_an_inequality_is_broken_above_its_bound_or_at_it_if_it_is_strict():
    case = tuple(Inequality((), ((j, Fraction(1)),), Fraction(1), j == 1) for j in range(2))
    rows = Rows.of([case[:1], case[1:]], 1, 2)
    above = torch.tensor([[1.0, 1.0], [1.0000000000000002, 0.9], [torch.nan, torch.nan]], dtype=torch.float64)
    assert rows.excludes(above).tolist() == [[False, True], [True, False], [False, False]]
    assert Rows.of([case[:1]], 1, 2).bounds.tolist() == [1.0]
    assert Fraction(Rows.of([(Inequality((), case[0].y, Fraction(1, 10), False),)], 1, 2).bounds.item()) >= Fraction(
        1, 10
    )
    opposite = Inequality((), ((0, Fraction(-1)),), Fraction(-1), False)
    assert not is_contradiction((case[0], opposite))
    assert is_contradiction((case[0], Inequality((), opposite.y, Fraction(-1), True)))


def test_boxes_hold_the_exact_ones_and_inner_ones_are_inside():
    for low, high in (
        (Fraction(1, 10), Fraction(3, 10)),
        (Fraction(-1, 3), Fraction(-1, 3)),
        (Fraction(0), Fraction(1)),
    ):
        box = (Interval(low, high),)
        around = Boxes.around(box)
        assert Fraction(around.low.item()) <= low <= high <= Fraction(around.high.item())
        for least in (least_float32, least_float64):
            inner_low, inner_high = inner_box(box, least)
            assert Fraction(inner_low.item()) >= low
            assert Fraction(inner_high.item()) <= high
            inner_low, inner_high = inner_box((Interval(low, high, True, True),), least)
            assert Fraction(inner_low.item()) > low
            assert Fraction(inner_high.item()) < high


def test_bounds_of_one_input():
    def bound(c, b, strict):
        return Inequality(((0, Fraction(c)),), (), Fraction(b), strict)

    (found,) = box_of(1, [bound(1, 1, False), bound(2, 2, True), bound(1, 1, False), bound(-4, 4, False)])
    assert found == Interval(Fraction(-1), Fraction(1), False, True)
    (found,) = box_of(1, [bound(-1, 0, True), bound(-1, 0, False), bound(1, 0, False)])
    assert found == Interval(Fraction(0), Fraction(0), True, False)
    assert found.is_empty
    (found,) = box_of(1, [bound(-1, 0, False), bound(-1, 0, True)])
    assert found == Interval(Fraction(0), None, True, False)


def test_halves_are_the_whole():
    boxes = Boxes(torch.tensor([[0.0, 1.0], [0.0, 1.0]]).double(), torch.tensor([[1.0, 1.0], [3.0, 2.0]]).double())
    halves, can = boxes.divided(torch.tensor([1, 0]))
    assert can.tolist() == [False, True]  # the first has no width there
    assert halves.low.tolist() == [[0.0, 1.0], [1.5, 1.0]]
    assert halves.high.tolist() == [[1.5, 2.0], [3.0, 2.0]]
