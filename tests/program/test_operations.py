"""The contract of every kind of operation that no layer stands for: definition, bound, rounding, second form.

Each line has the operation, the shape of one point, what it is by definition (one point, numpy), and its constant.
"""

import copy
import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from safeset.audit.second_proof import carry_rounding, product_of
from safeset.errors import ArgumentError
from safeset.lipschitz.forward_error import Affine, Rounding
from safeset.lipschitz.forward_error_exact import Carried, Line
from safeset.numerics.directed import Up, row_norms
from safeset.numerics.integers import NEVER
from safeset.numerics.multiples import Multiples, rational, squared_norm
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.exact import evaluate
from safeset.program.joining import Join
from safeset.program.linear import Linear
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.select import Reshape, Select
from safeset.program.sorting import Greatest, GroupSort, Least
from safeset.program.total import Sum
from safeset.proofs.prove import prove


def numbers(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def places(*rows):
    return torch.tensor(rows, dtype=torch.int64)


SCALE, SHIFT = numbers(3, 1, 2), numbers(1, 4, 1)
OPERATIONS = {
    "scale": (lambda: Scale(SCALE), (3, 4, 2), lambda x: x * SCALE.numpy(), float(SCALE.abs().max())),
    "scale by one number": (
        lambda: Scale(-numbers(1).abs() / 8),
        (5,),
        lambda x: x * -abs(float(numbers(1))) / 8,
        None,
    ),
    "shift": (lambda: Shift(SHIFT), (3, 4, 2), lambda x: x + SHIFT.numpy(), 1.0),
    "clamp": (lambda: Clamp(-0.7, 0.3), (6,), lambda x: np.clip(x, -0.7, 0.3), 1.0),
    "clamp above 0": (lambda: Clamp(0.25, None), (6,), lambda x: np.maximum(x, 0.25), 1.0),
    "clamp below 0": (lambda: Clamp(None, -0.5), (2, 3), lambda x: np.minimum(x, -0.5), 1.0),
    "clamp at nothing": (lambda: Clamp(None, None), (3,), lambda x: x, 1.0),
    "clamp of nothing": (lambda: Clamp(1.0, -1.0), (3,), lambda x: 0 * x - 1.0, 1.0),
    "permutation": (lambda: Select(places(2, 0, 1)), (3,), lambda x: x[[2, 0, 1]], 1.0),
    "part": (lambda: Select(places([5, 0], [3, 1])), (2, 3), lambda x: x.reshape(-1)[[[5, 0], [3, 1]]], 1.0),
    "padding": (lambda: Select(places(-1, 0, 1, -1)), (2,), lambda x: np.array([0, x[0], x[1], 0]), 1.0),
    "copies": (
        lambda: Select(places(0, 0, 1, -1, 0)),
        (2,),
        lambda x: np.array([x[0], x[0], x[1], 0, x[0]]),
        math.sqrt(3),
    ),
    "zeros": (lambda: Select(places(-1, -1)), (2,), lambda x: np.zeros(2), 0.0),
    "shape": (lambda: Reshape((3, 2)), (2, 3), lambda x: x.reshape(3, 2), 1.0),
    "sorted groups": (lambda: GroupSort(3), (2, 3), lambda x: np.sort(x, axis=-1), 1.0),
    "sorted downwards": (lambda: GroupSort(4, descending=True), (4,), lambda x: np.sort(x)[::-1], 1.0),
    "greatest": (lambda: Greatest(), (3, 4), lambda x: x.max(axis=-1), 1.0),
    "least": (lambda: Least(), (3, 4), lambda x: x.min(axis=-1), 1.0),
}


@pytest.fixture(params=OPERATIONS)
def case(request):
    make, shape, definition, known = OPERATIONS[request.param]
    return make(), shape, definition, known


def bound_of(operation, shape):
    return operation.prove(shape, "auto", None)[0]


def test_it_computes_what_it_is(case):
    operation, shape, definition, _ = case
    x = numbers(4, *shape, seed=1)
    found = operation.run(x)
    for point, image in zip(x, found, strict=True):
        wanted = definition(point.numpy())
        assert tuple(image.shape) == wanted.shape
        np.testing.assert_allclose(image.numpy(), wanted, rtol=1e-15, atol=1e-15)
        exact = operation.exact(NEVER, Multiples.of(point)).fractions()
        assert exact.shape == wanted.shape
        np.testing.assert_allclose(exact.astype(float), wanted, rtol=1e-15, atol=1e-15)
    assert torch.equal(copy.deepcopy(operation).run(x), found)


def test_the_bound_holds_and_is_the_least(case):
    operation, shape, _, known = case
    bound = bound_of(operation, shape)
    if known is not None:
        assert known <= bound <= known * (1 + 1e-15)
    best = 0.0
    for seed in range(20):  # far apart, near, and along the direction that is stretched most
        x = numbers(1, *shape, seed=seed)
        slopes = torch.autograd.functional.jacobian(operation.run, x).reshape(-1, x.numel())
        _, size, directions = torch.linalg.svd(slopes)
        top = directions[0].view_as(x)
        best = max(best, float(size[0]))
        for y in (numbers(1, *shape, seed=seed + 99), x + 1e-3 * numbers(1, *shape, seed=seed), x + 1e-6 * top, -x):
            moved, apart = (operation.run(x) - operation.run(y)).norm(), (x - y).norm()
            assert moved <= float(bound) * apart * (1 + 1e-12) + 1e-14
    constant = operation.second_bound(shape)
    assert Fraction(bound) ** 2 >= constant.square
    assert best == pytest.approx(constant.constant, rel=1e-12)


@pytest.mark.parametrize("size", [1.0, 2.0**40, 1e-160, 1e-322])
def test_the_rounding_is_accounted_for_twice(case, size):
    """From x̂ near x: ‖run(x̂) − exact(x)‖ ≤ E, ‖exact(x)‖ ≤ r; and the second form allows for the same."""
    operation, shape, _, _ = case
    bound = bound_of(operation, shape)
    before = Rounding(Affine(Up(1e-3 * size), Up(1e-9)), Affine(Up(0.0), Up(1.0)), Affine(Up(0.0), Up(1.0)))
    after = operation.rounding(shape, bound, before)
    strays = Line(Fraction(before.error.offset), Fraction(before.error.slope))
    again = operation.second_rounding(shape, Fraction(bound), Carried(strays, Line(Fraction(0), Fraction(1)), ()))
    for seed in range(3):
        x, off = size * numbers(*shape, seed=seed), numbers(*shape, seed=seed + 50)
        near = x + off / off.norm() * (1e-3 * size * 0.999)
        computed = rational(operation.run(near[None])[0])
        exact = operation.exact(NEVER, Multiples.of(x)).fractions()
        norm = Fraction(row_norms(x.flatten()).item())
        for error, norms in (
            (at(after.error, norm), at(after.size, norm)),
            (again.strays.at(norm), again.size.at(norm)),
        ):
            assert squared_norm(computed - exact) <= error**2
            assert squared_norm(exact) <= norms**2
    for line, affine in ((again.strays, after.error), (again.size, after.size)):
        assert (float(line.constant), float(line.slope)) == pytest.approx((affine.offset, affine.slope), rel=1e-9)


def at(affine, norm):
    return Fraction(affine.offset) + Fraction(affine.slope) * norm


# -- several inputs ---------------------------------------------------------------------------------------------------


def branches(operation, outputs, count, seed=0):
    """Dense branches of the input, joined by an operation, and a head."""
    parts = [Linear(numbers(outputs, 4, seed=seed + at), numbers(outputs, seed=seed + 9 + at)) for at in range(count)]
    features = operation.run(*(part.run(torch.zeros(1, 4, dtype=torch.float64)) for part in parts)).shape[1]
    head = Linear(numbers(3, features, seed=seed), None)
    nodes = [
        *(Node(Place(str(at), "Linear", (INPUT,), (4,), is_layer=True), part) for at, part in enumerate(parts)),
        Node(Place("joined", operation.kind, tuple(range(count)), (outputs,), is_layer=False), operation),
        Node(Place("head", "Linear", (count,), (features,), is_layer=True), head),
    ]
    return Program((4,), tuple(nodes))


JOINS = {
    "sum": (Sum((1, 1, 1)), 3, lambda a, b, c: a + b + c),
    "difference": (Sum((1, -1)), 2, lambda a, b: a - b),
    "negative": (Sum((-1, 1, -1)), 3, lambda a, b, c: b - a - c),
    "join": (Join(), 2, lambda a, b: np.concatenate([a, b])),
    "join of three": (Join(), 3, lambda *parts: np.concatenate(parts)),
}


@pytest.mark.parametrize("name", JOINS)
def test_nodes_that_join_others(name):
    operation, count, definition = JOINS[name]
    program = branches(operation, 5, count)
    proof, features = prove(program), Program((4,), program.nodes[:-1])
    *parts, _, _ = (node.operation for node in program.nodes)
    x = numbers(3, 4, seed=3) * 3
    for point, image in zip(x, features.run(x), strict=True):
        wanted = definition(*(part.weight.numpy() @ point.numpy() + part.bias.numpy() for part in parts))
        np.testing.assert_allclose(image.numpy(), wanted, rtol=1e-12, atol=1e-12)
    norms = [float(torch.linalg.matrix_norm(part.weight, 2)) for part in parts]
    constant = math.hypot(*norms) if isinstance(operation, Join) else sum(norms)
    scale = float(proof.bounds.head.scale)
    assert scale == pytest.approx(constant, rel=1e-8)
    assert Fraction(scale) >= product_of(program, proof.bounds.layers) >= Fraction(constant) * (1 - Fraction(1, 10**9))
    linear = features.run(torch.eye(4, dtype=torch.float64)) - features.run(torch.zeros(1, 4, dtype=torch.float64))
    assert torch.linalg.matrix_norm(linear, 2) <= scale


@pytest.mark.parametrize("name", JOINS)
def test_the_rounding_of_joins_is_accounted_for_twice(name):
    operation, count, _ = JOINS[name]
    program = branches(operation, 5, count)
    proof, features = prove(program), Program((4,), program.nodes[:-1])
    again = carry_rounding(program, proof.bounds.layers)
    known = {INPUT: Rounding.start()}
    bounds = iter(proof.bounds.layers)
    for number, node in enumerate(features.nodes):
        bound = Up(next(bounds).bound) if node.place.is_layer else Up(1.0)
        known[number] = node.operation.rounding(node.shape, bound, *(known[read] for read in node.inputs))
    for seed in range(3):
        x = numbers(4, seed=seed)
        exact, computed = evaluate(features, x), rational(features.run(x[None])[0])
        norm = Fraction(row_norms(x).item())
        assert 0 < squared_norm(computed - exact) <= min(at(known[count].error, norm), again.strays.at(norm)) ** 2
        assert squared_norm(exact) <= min(at(known[count].size, norm), again.size.at(norm)) ** 2


def test_a_sum_of_many_rounds_each_time():
    """1 + 2⁻⁵³ + 2⁻⁵³ + 2⁻⁵³ loses each of the small ones: more than one rounding."""
    parts = [1.0, 2.0**-53, 2.0**-53, 2.0**-53]
    one = Affine(Up(0.0), Up(0.0))
    before = [Rounding(one, Affine(Up(part), Up(0.0)), one) for part in parts]
    total = Sum((1,) * 4)
    computed = total.run(*(torch.full((1, 1), part, dtype=torch.float64) for part in parts))
    lost = sum(map(Fraction, parts)) - Fraction(computed.item())
    assert lost == Fraction(3, 2**53)
    assert Fraction(total.rounding((1,), Up(1.0), *before).error.offset) >= lost


def test_roots_of_squares_neither_overflow_nor_vanish():
    for size in (1.0, 1e300, 1e-300, 5e-324):
        joined = Join().reach(Up(1.0), Up(3 * size), Up(4 * size))
        assert 25 * Fraction(size) ** 2 <= Fraction(joined) ** 2 <= 26 * Fraction(size) ** 2
    assert Join().reach(Up(1.0), Up(0.0), Up(0.0)) == 0
    assert Join().reach(Up(1.0), Up(1.0), Up(math.inf)) == math.inf


MISTAKES = {
    "a scale that repeats entries": (
        lambda: Scale(torch.ones(3).double()).run(torch.ones(2, 1).double()),
        "fit points",
    ),
    "a shift that repeats entries": (
        lambda: Shift(torch.ones(2, 3).double()).run(torch.ones(1, 3).double()),
        "fit points",
    ),
    "an endless clamp": (lambda: Clamp(-math.inf, 1.0), "finite, or None"),
    "a clamp at NaN": (lambda: Clamp(0.0, math.nan), "finite, or None"),
    "a place below −1": (lambda: Select(places(0, -2)), "places ≥ 0"),
    "places that are no integers": (lambda: Select(torch.zeros(2)), "int64"),
    "a place that is not there": (lambda: bound_of(Select(places(0, 7)), (2, 3)), "places below 6"),
    "other groups": (lambda: GroupSort(3).run(torch.ones(1, 2, 4)), "groups of 3"),
    "a sum that repeats entries": (lambda: Sum().run(torch.ones(1, 3, 1), torch.ones(1, 3, 4)), "of one shape"),
    "a sum of too many": (lambda: Sum().run(*[torch.ones(1, 3)] * 3), "2 parts"),
    "a factor in a sum": (lambda: Sum((1, 2)), "each 1 or −1"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_refused(name):
    make, message = MISTAKES[name]
    with pytest.raises(ArgumentError, match=message):
        make()
