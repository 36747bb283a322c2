"""Factors between layers: the same logits bit for bit, smaller bounds, and never one that is too small."""

import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.nets import image_network, inputs
from helpers.programs import every_pattern, numbers, program_from, steepest_pair
from safeset.audit.second_proof import carry_rounding, product_of
from safeset.capture.capture import capture
from safeset.lipschitz.convolution import Axis
from safeset.program.balance import LinearMap
from safeset.program.circular import CircularConv2d
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.factors import ONE, Factors
from safeset.program.folding import fold
from safeset.program.joining import Join
from safeset.program.l2_pool import RootOfSquares
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.piecewise import PReLU
from safeset.program.pointwise import Absolute, LeakyReLU, MinMax, ReLU
from safeset.program.program import INPUT
from safeset.program.rebalancing import rebalance, rescaled
from safeset.program.reorder import ChannelShuffle, Flatten, Identity, Shuffle, Unshuffle
from safeset.program.select import Reshape, Select
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling
from safeset.program.sorting import Greatest, GroupSort, Least
from safeset.program.total import Sum
from safeset.proofs.prove import prove


def conv(out, into, size=3, *, groups=1, seed=0):
    padding = (size // 2, size // 2)
    weight = numbers(out, into // groups, size, size, seed=seed)
    return Conv2d((1, 1), padding, (1, 1), weight, numbers(out, seed=seed + 1), groups)


def dense(out, into, seed=0, bias=True):
    return Linear(numbers(out, into, seed=seed), numbers(out, seed=seed + 1) if bias else None)


def flat(into):
    return (Flatten(1, -1), dense(3, into))


PERMUTED = Select(torch.tensor([5, 0, 3, -1, 2, 0]))
AVERAGE, LARGEST = AveragePooling((1, 1), (1, 1), (1, 1), (2, 2)), MaxPooling((2, 2), (0, 0), (1, 1), (2, 2), False)
JOINED = (conv(2, 2), (conv(3, 2, seed=3), (INPUT,)), (Join(), (0, 1)), Reshape((5, 3, 3)))
PROGRAMS = {
    "dense": ((4,), dense(5, 4), ReLU(), dense(6, 5), LeakyReLU(-0.3), dense(3, 6)),
    "minmax": ((4,), dense(6, 4), MinMax(), dense(6, 6), Absolute(), dense(3, 6)),
    "images": ((2, 4, 4), conv(4, 2), ReLU(), AVERAGE, conv(6, 4, groups=2), LARGEST, *flat(24)),
    "batch norm": ((2, 4, 4), conv(4, 2), ReLU(), ChannelAffine(numbers(4), numbers(4)), ReLU(), conv(2, 4), *flat(32)),
    "entries": ((4,), dense(5, 4), Scale(numbers(5)), ReLU(), Shift(numbers(5)), Scale(numbers(1)), dense(3, 5)),
    "one shift for all": ((2, 3, 3), conv(4, 2), Shift(numbers(1, 1, 1)), ReLU(), *flat(36)),
    "residual": ((4,), dense(5, 4), ReLU(), dense(5, 5), ReLU(), (Sum((1, -1)), (1, 3)), dense(3, 5)),
    "unshuffled": ((1, 4, 4), conv(2, 1), Unshuffle(2), conv(8, 8), ReLU(), ChannelShuffle(2), Shuffle(2), *flat(32)),
    "selected": ((4,), dense(6, 4), PERMUTED, ReLU(), Identity(), dense(3, 6)),
    "reshaped": ((4,), dense(18, 4), Reshape((2, 3, 3)), ReLU(), conv(2, 2), *flat(18)),
    "joined": ((2, 3, 3), *JOINED, conv(2, 5), *flat(18)),
    "sorted": ((4,), dense(6, 4), Reshape((3, 2)), GroupSort(2), Flatten(1, -1), dense(3, 6)),
    "all sorted": ((4,), dense(6, 4), GroupSort(6, descending=True), dense(3, 6)),
    "greatest": ((4,), dense(6, 4), Reshape((3, 2)), Greatest(), dense(3, 3)),
    "least": ((4,), dense(6, 4), Reshape((3, 2)), Least(), dense(3, 3)),
    "roots": ((4,), dense(6, 4), Reshape((3, 2)), RootOfSquares(), dense(3, 3)),
    "roots of patches": ((2, 4, 4), conv(3, 2), RootOfSquares((2, 2)), conv(2, 3), *flat(8)),
    "circular": (
        (2, 4, 4),
        CircularConv2d((1, 1), (1, 1), (1, 1), numbers(3, 2, 3, 3), numbers(3), 1),
        ReLU(),
        *flat(48),
    ),
    "clamped": ((4,), dense(6, 4), Clamp(-1.0, 1.0), dense(5, 6), ReLU(), dense(3, 5)),
    "half-clamped": ((4,), dense(6, 4), Clamp(0.0, None), dense(5, 6), PReLU(numbers(5)), dense(3, 5)),
    "rows": ((2, 4), dense(5, 4), ReLU(), dense(3, 5), *flat(6)),
}


@settings(max_examples=8)
@given(st.integers(0, 10**6))
@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_the_factors_the_logits_are_the_same_bit_for_bit(name, seed):
    shape, *parts = PROGRAMS[name]
    program = program_from(shape, *parts)
    factors = Factors(program)
    powers = torch.randint(-9, 10, (factors.count,), generator=torch.Generator().manual_seed(seed)).double()
    powers[ONE] = 0.0
    after = rescaled(program, factors, powers)
    x = numbers(9, *shape, seed=seed)
    assert torch.equal(after.run(x), program.run(x))
    assert after.places == program.places


def test_channels_that_are_compared_or_added_share_a_factor():
    def tied(name):
        shape, *parts = PROGRAMS[name]
        return Factors(program_from(shape, *parts))

    assert tied("dense").count == 1 + 5 + 6
    minmax = tied("minmax")
    assert minmax.of[0].tolist() == [*minmax.of[0][:3]] * 2
    assert minmax.count == 1 + 3 + 6
    assert tied("residual").count == 1 + 5
    assert tied("images").count == 1 + 4 + 6
    assert tied("reshaped").count == 1 + 2 + 2
    assert tied("roots").count == 1 + 3
    assert tied("roots of patches").count == 1 + 3 + 2
    assert tied("clamped").count == 1 + 5
    assert tied("half-clamped").count == 1 + 6 + 5
    assert tied("rows").count == 1
    for name in PROGRAMS:
        found = tied(name)
        assert not found.of[INPUT].any()
        assert not found.of[len(PROGRAMS[name]) - 2].any()


def test_factors_that_differ_within_a_pair_would_prove_what_is_false():
    """W₁ = diag(1, 2), W₂ = [1, 0], T = diag(1, ¼): ‖W₂T⁻¹‖·‖TW₁‖ = 1, but max(x₁, 2x₂) has the constant 2."""
    first, second = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64)), torch.eye(2, dtype=torch.float64)
    second[1] = 0.0
    program = program_from((2,), Linear(first, None), MinMax(), Linear(second, None))
    t = torch.diag(torch.tensor([1.0, 0.25], dtype=torch.float64))
    false = torch.linalg.matrix_norm(second @ t.inverse(), 2) * torch.linalg.matrix_norm(t @ first, 2)
    truth = steepest_pair(program, torch.tensor([0.0, 1.0], dtype=torch.float64))
    assert false == 1
    assert truth == 2
    for powers_of_two in (True, False):
        assert prove(rebalance(program, powers_of_two=powers_of_two)).bounds.pairs.max() >= truth


def unbalanced(seed, width=12, spread=3.0):
    """Three dense layers whose hidden units were multiplied by factors and divided again."""
    generator = torch.Generator().manual_seed(seed)
    weights = [numbers(width, 6, seed=seed), numbers(width, width, seed=seed + 1), numbers(4, width, seed=seed + 2)]
    for before, after in itertools.pairwise(weights):
        factors = (torch.randn(width, dtype=torch.float64, generator=generator) * spread).exp()
        before *= factors[:, None]
        after /= factors
    parts = [part for each in weights for part in (Linear(each, None), ReLU())]
    return program_from((6,), *parts[:-1])


@pytest.mark.parametrize("seed", range(2))
def test_it_finds_what_was_hidden(seed):
    program, easy = unbalanced(seed), unbalanced(seed, spread=0.0)
    same, rounded = rebalance(program), rebalance(program, powers_of_two=False)
    bound, after, any_ = (float(prove(each).bounds.pairs.square().sum().sqrt()) for each in (program, same, rounded))
    least = float(prove(easy).bounds.pairs.square().sum().sqrt())
    assert after < bound / 50
    assert after < 1.2 * least
    assert any_ < 0.95 * least
    x = numbers(20, 6, seed=seed)
    assert torch.equal(same.run(x), program.run(x))
    assert torch.allclose(rounded.run(x), program.run(x), rtol=1e-12, atol=1e-12)


@settings(max_examples=6)
@given(st.integers(0, 10**6), st.booleans())
def test_never_below_the_largest_of_all_activation_patterns(seed, powers_of_two):
    weights = [numbers(4, 3, seed=seed) * 3, numbers(4, 4, seed=seed + 1) ** 3, numbers(2, 4, seed=seed + 2)]
    parts = [part for each in weights for part in (Linear(each, None), ReLU())]
    program = program_from((3,), *parts[:-1])
    after = rebalance(program, powers_of_two=powers_of_two)
    difference = weights[2][:1] - weights[2][1:]
    truth = every_pattern([*weights[:2], difference])
    assert float(prove(after).bounds.pairs.max()) >= truth * (1 - 1e-12)


def test_a_whole_network_and_it_is_always_the_same():
    torch.manual_seed(0)
    network = image_network()
    network[2].running_var.uniform_(0.05, 4.0)
    program = fold(capture(network.eval(), (2, 4, 4))[1])
    after = rebalance(program)
    x = inputs().double()
    assert torch.equal(after.run(x), program.run(x))
    assert after.equals(rebalance(program))
    loose = rebalance(program, powers_of_two=False)
    assert loose.equals(rebalance(program, powers_of_two=False))
    before, bound = prove(program).bounds, prove(loose).bounds
    assert bound.pairs.square().mean() < 0.95 * before.pairs.square().mean()
    assert bound.pairs.max() >= max(steepest_pair(program, point) for point in x)
    assert [line.name for line in bound.layers] == [line.name for line in before.layers]
    assert product_of(loose, bound.layers) <= Fraction(float(bound.head.scale))  # the auditor follows
    assert carry_rounding(loose, bound.layers).size.slope > 0


def test_a_network_that_learnt_gains():
    from sklearn.datasets import load_digits

    torch.manual_seed(0)
    data, labels = (torch.tensor(each) for each in load_digits(return_X_y=True))
    data = data.float() / 16
    network = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 10))
    optimizer = torch.optim.Adam(network.parameters(), 2e-3)
    for _ in range(60):
        nn.functional.cross_entropy(network(data), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
    program = capture(network, (64,))[1]
    bounds = [
        prove(each).bounds.pairs.square().sum().sqrt()
        for each in (program, rebalance(program), rebalance(program, powers_of_two=False))
    ]
    assert bounds[2] < 0.9 * bounds[0]
    assert bounds[2] < bounds[1] <= bounds[0]


def test_weights_that_would_lose_digits_stay_as_they_are():
    program = unbalanced(0)
    factors = Factors(program)
    powers = torch.full((factors.count,), -3.0, dtype=torch.float64)
    powers[ONE] = 0.0
    assert rescaled(program, factors, powers) is not None
    for factor in (1e-307, 5e-320, 1e308):
        weight = numbers(12, 6) / 4 * factor
        tiny = program_from((6,), Linear(weight, None), ReLU(), dense(3, 12))
        shifted = powers if factor < 1 else -powers
        assert rescaled(tiny, Factors(tiny), shifted[: Factors(tiny).count]) is None
        x = numbers(5, 6) * 1e-9
        assert torch.equal(rebalance(tiny).run(x), tiny.run(x))


def test_what_has_no_factors_stays_itself():
    program = program_from((2, 4), dense(5, 4), ReLU(), *flat(10))
    assert rebalance(program) is program
    assert rebalance(program_from((4,))).nodes == ()
    assert math.isfinite(prove(program).bounds.head.scale)


def test_vectors_that_a_layer_does_not_see_stay_numbers():
    """Their images are near the least float32: LAPACK's eigenvalues in float32 were NaN, and then an error."""
    for seed in range(20):
        weight = torch.randn(1, 32, 3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        axis, ones = Axis(1, 3, 2, 1, 1, 1), torch.zeros(32, dtype=torch.int64)
        layer = LinearMap(weight, 0, 1, (axis, axis), ones, ones[:1])
        looks = [layer.look(torch.zeros(1), 64.0) for _ in range(40)]
        assert math.isclose(math.exp(looks[-1].norm), float(weight[0, :, 1, 1].norm()), rel_tol=1e-5)
        assert bool(layer.vectors.isfinite().all())
