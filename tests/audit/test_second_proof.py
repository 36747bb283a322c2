"""Bounds proved again: the library's own hold, and no lie passes."""

import math
import time
from dataclasses import replace
from fractions import Fraction
from itertools import permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given, reject, settings
from hypothesis import strategies as st
from torch import nn

from helpers.digits_net import trained
from helpers.exact_norm import convolution_matrix
from helpers.matrices import GEOMETRY, KINDS, SCALES, matrix_of_a_kind
from safeset import CertifiedNet, create_model
from safeset.audit import second_proof as reproofs
from safeset.audit.second_proof import power_method, prove_again
from safeset.layers import ChannelAffine, MinMax, Residual
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import exact_bound, torus_bound
from safeset.lipschitz.dense import spectral_bound
from safeset.nets.frozen import FrozenNet
from safeset.numerics import splitting
from safeset.numerics.integers import (
    NEVER,
    Deadline,
    Gram,
    OutOfTimeError,
    convolution_gram,
    gram,
    incidences,
    positive,
)
from safeset.program.from_modules import program_of
from safeset.proofs.prove import Bounds
from safeset.training.manifold import polish_weights


def fractions(matrix):
    return np.array([[Fraction(value) for value in row] for row in matrix.tolist()], dtype=object)


def frozen(*layers, shape):
    torch.manual_seed(0)
    layers = [layer.double() for layer in layers]
    features = nn.Sequential(*layers).eval()(torch.zeros(1, *shape).double()).numel()
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(features, 3))
    return CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1).frozen()


def lying(monkeypatch, net, factor, at=0):
    """The net, whose bound of one layer is wrong."""
    told = net.bounds()
    lines = list(told.layers)
    lines[at] = replace(lines[at], bound=lines[at].bound * factor)
    monkeypatch.setattr(FrozenNet, "bounds", lambda self: replace(told, layers=tuple(lines)))
    return net


# -- integers ---------------------------------------------------------------------------------------------------------


def is_positive(matrix):
    """Whether a symmetric matrix of integers is positive semidefinite, by elimination in fractions."""
    left = [[Fraction(value) for value in row] for row in matrix]
    for k, row in enumerate(left):
        if row[k] < 0 or (row[k] == 0 and any(row[k:])):
            return False
        for other in left[k + 1 :] if row[k] else []:
            factor = other[k] / row[k]
            other[:] = [a - factor * b for a, b in zip(other, row, strict=True)]
    return True


@settings(max_examples=1000)
@given(st.integers(2, 5), st.integers(0, 2**32), st.integers(3, 30), st.booleans())
def test_what_the_cholesky_factorisation_proves_is_true(side, seed, size, banded):
    """Of small integers, where what is cut off is large, and just where the matrix ceases to be positive."""
    rng = np.random.default_rng(seed)
    half = rng.integers(-size, size + 1, (side, side))
    products = half @ half.T
    if banded:
        products = np.triu(np.tril(products, 1), -1)
    top = math.ceil(np.linalg.eigvalsh(products)[-1])
    for square in range(max(0, top - 30), top + 5):
        if positive(square, products.astype(object), 1 if banded else side, NEVER):
            assert is_positive(square * np.eye(side, dtype=int) - products)


def test_what_is_cut_off_is_counted():
    """[[9, 8], [8, 5]] is not positive, but its pivots are: 9, and 5 − ⌊8/3⌋² = 1."""
    assert not is_positive([[9, 8], [8, 5]])
    assert not positive(9, np.array([[0, -8], [-8, 4]], dtype=object), 1, NEVER)
    for exponent in (10, 40, 80):
        unit = 2**exponent  # three rows that differ by what is cut off
        close = np.array([[unit, unit - 1, 1], [unit - 1, unit, 1], [1, 1, unit]], dtype=object)
        for square in range(2 * unit - 4, 2 * unit):
            whole = square * np.eye(3, dtype=object) - close
            assert is_positive(whole.tolist()) or not positive(square, close, 2, NEVER)


def test_the_remainder_is_counted():
    known = Gram(np.array([[10**40]], dtype=object), Fraction(1, 2), 10**15)  # ‖A‖ = 10²⁰
    assert known.proves(Fraction(10**20 + 10**15 + 3, 2), NEVER)
    assert not known.proves(Fraction(10**20 + 10**15 - 1, 2), NEVER)
    assert known.refutation(Fraction(10**20 - 10**15 - 1, 2)) == Fraction(10**20 - 10**15, 2)
    assert known.refutation(Fraction(10**20 - 10**15, 2)) is None


def test_the_factorisation_is_not_timid():
    products = np.array([[5, 3], [3, 5]], dtype=object) * 10**40  # the largest eigenvalue is 8
    assert positive(8 * 10**40 + 10**22, products, 1, NEVER)
    assert not positive(8 * 10**40 - 1, products, 1, NEVER)


@settings(max_examples=1000)
@given(st.integers(1, 5), st.integers(0, 2**32), st.integers(0, 9), st.sampled_from([0, 1, 3]))
def test_what_the_sums_of_rows_prove_is_true(side, seed, size, remainder):
    half = np.random.default_rng(seed).integers(-size, size + 1, (side, 3)) + 10 * np.eye(side, 3, dtype=int)
    products = (half @ half.T).astype(object)
    known, top = Gram(products, Fraction(1, 4), remainder), math.isqrt(sum(np.diagonal(products)))
    for inner in range(-2, top + 9):
        if known.proves_by_rows(Fraction(inner, 4)):
            assert inner >= remainder
            assert is_positive((inner - remainder) ** 2 * np.eye(side, dtype=int) - products)


def test_the_sums_of_rows_are_not_timid():
    known = Gram(np.array([[100, -3, 1], [-3, 90, 0], [1, 0, 100]], dtype=object), Fraction(1, 2), 2)
    assert known.proves_by_rows(Fraction(11 + 2, 2))  # 11² ≥ 100 + 3 + 1
    assert not known.proves_by_rows(Fraction(10 + 2, 2))
    assert not known.proves_by_rows(Fraction(-11 - 2, 2))


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 6), st.integers(1, 9), st.sampled_from(SCALES))
def test_gram_matrices_are_exact_but_for_the_remainder(seed, kind, rows, columns, scale):
    matrix = matrix_of_a_kind(np.random.default_rng(seed), kind, rows, columns) * scale
    found = gram(matrix, NEVER)
    cut = np.array([[math.trunc(value / found.unit) for value in row] for row in fractions(matrix)], dtype=object)
    assert found.products.tolist() == (cut @ cut.T).tolist()
    rest = fractions(matrix) / found.unit - cut
    assert sum(value**2 for value in rest.flat) <= found.remainder**2


def test_many_terms_do_not_round():
    matrix = np.random.default_rng(0).uniform(0.5, 1, size=(2, 50000))
    found = gram(matrix, NEVER)
    whole = np.array([[int(Fraction(value) / found.unit) for value in row] for row in matrix.tolist()], dtype=object)
    assert found.products.tolist() == whole.dot(whole.T).tolist()


# -- dense layers -----------------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 12), st.floats(-320, 305))
@example(0, "random", 1, 1, 0.0)
@example(0, "random", 1, 12, -322.0)
@example(0, "orthogonal", 9, 9, 305.0)
def test_dense_bounds_are_proved_and_lies_are_refuted(seed, kind, rows, columns, exponent):
    matrix = matrix_of_a_kind(np.random.default_rng(seed), kind, rows, columns)
    matrix = matrix * 10.0 ** (exponent / 2) * 10.0 ** (exponent / 2)
    found = gram(matrix if rows <= columns else matrix.T, NEVER)
    bound = float(spectral_bound(torch.tensor(matrix)))
    assert math.isinf(bound) or found.proves(Fraction(bound), NEVER)
    if matrix.any():
        power = Fraction(2) ** math.frexp(np.abs(matrix).max())[1]
        truth = Fraction(np.linalg.norm((fractions(matrix) / power).astype(float), 2)) * power
        below, above = truth * (1 - Fraction(1, 10**6)), truth * (1 + Fraction(1, 10**12))
        assert not found.proves(below, NEVER)
        assert found.refutation(below) > below
        assert found.proves(above, NEVER)
        assert found.refutation(above) is None
    else:
        assert found.proves(Fraction(0), NEVER)
        assert found.refutation(Fraction(0)) is None


# -- convolutions -----------------------------------------------------------------------------------------------------


def axis_of(size, kernel, stride, dilation, before, after):
    room = size + before + after - dilation * (kernel - 1) - 1
    if room < 0:
        reject()
    return incidences(size, room // stride + 1, kernel, stride, dilation, before)


@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KINDS))
def test_convolutions_are_their_matrices(seed, rows, columns, out, into, kind):
    """The Gram matrix, up to the order of pixels and channels; the library's bounds; and bounds below the norm."""
    flat = matrix_of_a_kind(np.random.default_rng(seed), kind, out, into * rows[1] * columns[1])
    kernel = flat.reshape(out, into, rows[1], columns[1])
    axes = [axis_of(*axis) for axis in (rows, columns)]
    found = convolution_gram(kernel, *axes, NEVER)
    transposed = list(zip(rows, columns, strict=True))
    matrix = convolution_matrix(kernel, transposed[0], *transposed[2:])
    convolution = Convolution(torch.tensor(kernel), Axis(*rows), Axis(*columns))
    for bound in (exact_bound(convolution), torus_bound(convolution)):
        assert found.proves(Fraction(float(bound)), NEVER)
    truth = Fraction(np.linalg.norm(matrix, 2))
    if truth:
        assert not found.proves(truth * (1 - Fraction(1, 10**6)), NEVER)
        assert found.refutation(truth * (1 - Fraction(1, 10**6)))
    eigenvalues = np.linalg.eigvalsh((found.products * found.unit**2).astype(float))[::-1]
    values = np.linalg.svd(matrix, compute_uv=False) ** 2
    count = min(len(values), len(eigenvalues))
    np.testing.assert_allclose(eigenvalues[:count], values[:count], atol=1e-12 * max(1e-300, values[0]))


def test_taps_that_only_see_the_padding_do_not_count():
    kernel = np.full((1, 1, 3, 3), 1e30)
    kernel[0, 0, 1, 1] = 1.0
    found = convolution_gram(kernel, axis_of(1, 3, 1, 1, 1, 1), axis_of(1, 3, 1, 1, 1, 1), NEVER)
    assert found.proves(Fraction(1 + 2.0**-52), NEVER)
    assert not found.proves(Fraction(1 - 2.0**-53), NEVER)


# -- networks ---------------------------------------------------------------------------------------------------------


def test_every_line_of_a_network_is_proved(net):
    found = prove_again(net.frozen())
    assert [line.name for line in found[:-2]] == [line.name for line in net.bounds().layers]
    assert [line.name for line in found[-2:]] == ["features", "pairs"]
    assert {line.verdict for line in found} == {"proved"}
    assert all(line.lower is None or line.lower <= line.bound * (1 + 1e-12) for line in found)
    assert all(line.bound <= line.lower * (1 + 1e-6) for line in found[:-2])


def test_a_trained_network_is_proved():
    assert {line.verdict for line in prove_again(trained()[0].frozen())} == {"proved"}


LAYERS = {
    "dense": (lambda: nn.Linear(6, 4), (6,)),
    "dense, tall, on places": (lambda: nn.Linear(3, 7), (2, 3)),
    "convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (2, 5, 4)),
    "convolution, groups": (lambda: nn.Conv2d(4, 4, 3, stride=2, groups=2), (4, 6, 5)),
    "average pooling": (lambda: nn.AvgPool2d(3, stride=1, padding=1), (2, 4, 5)),
    "max-pooling": (lambda: nn.MaxPool2d(3, stride=2, padding=1), (1, 6, 6)),
    "max-pooling, all windows": (lambda: nn.MaxPool2d(3, stride=2, ceil_mode=True), (1, 6, 6)),
    "relu": (lambda: nn.ReLU(), (4,)),
    "leaky relu": (lambda: nn.LeakyReLU(-3.0), (4,)),
    "min-max": (lambda: MinMax(), (4,)),
    "order": (lambda: nn.PixelUnshuffle(2), (1, 4, 4)),
    "channel affine": (lambda: ChannelAffine(torch.tensor([1.0, -1e200], dtype=torch.float64), torch.ones(2)), (2, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("factor", [1.0, 1 - 1e-6, 0.5, -1.0, math.nan, math.inf])
def test_lies_about_layers_are_refuted(name, factor, monkeypatch):
    make, shape = LAYERS[name]
    net = frozen(make(), shape=shape)
    monkeypatch.setattr(reproofs, "POWER_STEPS", 0)  # the refutation is not the power method's
    line = prove_again(lying(monkeypatch, net, factor))[0]
    assert line.verdict == ("proved" if factor >= 1 else "refuted"), line
    if abs(factor) < 1:
        assert line.lower > line.bound


def test_the_last_group_counts_too(monkeypatch):
    """The bound of the first group alone."""
    layer = nn.Conv2d(2, 2, 1, groups=2, bias=False)
    layer.weight.data = torch.tensor([1.0, 2.0]).view(2, 1, 1, 1)
    net = frozen(layer, shape=(2, 2, 2))
    monkeypatch.setattr(reproofs, "POWER_STEPS", 0)
    assert prove_again(lying(monkeypatch, net, 0.75))[0].verdict == "refuted"


def test_the_product_counts_shortcuts(monkeypatch):
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), Residual(nn.Linear(4, 4)))
    net = frozen(nn.Linear(4, 4), Residual(body), shape=(4,))
    assert {line.verdict for line in prove_again(net)} == {"proved"}
    told = net.bounds()
    low = replace(told, head=replace(told.head, scale=told.head.scale * (1 - 1e-12)))
    monkeypatch.setattr(FrozenNet, "bounds", lambda self: low)
    assert {line.name: line.verdict for line in prove_again(net)}["features"] == "refuted"


def test_the_constants_of_pairs_are_those_of_the_head(monkeypatch):
    net = frozen(nn.Linear(4, 4), shape=(4,))
    told = net.bounds().pairs
    for j, i in permutations(range(3), 2):
        low = told.clone()
        low[j, i] *= 1 - 1e-12
        monkeypatch.setattr(Bounds, "pairs", low)
        assert {line.name: line.verdict for line in prove_again(net)}["pairs"] == "refuted"


def test_orthogonal_layers_are_proved_by_sums_of_rows():
    torch.manual_seed(0)
    network = create_model("shift-net", input_shape=(3, 8, 8), classes=4, depth=2, width=24, patch=2)
    polish_weights(network)
    lines = prove_again(CertifiedNet(network, input_shape=(3, 8, 8), guarantee="standard", epsilon=0.1).frozen())
    assert {line.verdict for line in lines} == {"proved"}
    sums = [line for line in lines if line.method.startswith("sums of rows in integers")]
    assert len(sums) == 5
    assert all(1 < line.bound < 1 + 1e-9 and line.lower < line.bound for line in sums)


def test_what_there_is_no_time_for_is_not_covered(net):
    found = prove_again(net.frozen(), seconds=0.0)
    assert {line.verdict for line in found} == {"not covered"}
    assert found[1].method == "no time was left"
    assert "not all factors are proved" in found[-2].method  # a product of what is not proved is not proved


def test_large_convolutions_are_proved_by_a_residual_without_error(monkeypatch):
    net = frozen(nn.Conv2d(16, 16, 3, padding=1), shape=(16, 17, 17))
    told = net.bounds().layers[0].bound
    (line, *_) = prove_again(net)
    assert (line.verdict, line.method) == ("proved", "a residual without error of 4624 rows")
    assert told * (1 - 1e-6) < line.lower <= told
    assert prove_again(lying(monkeypatch, net, 0.999))[0].verdict == "refuted"


def test_integers_have_the_norm_of_their_numbers():
    """abs(int8 −128) is −128."""
    layer = ChannelAffine(torch.ones(2), torch.zeros(2))
    layer.scale = torch.tensor([1, -128], dtype=torch.int8)
    (node,) = program_of(layer, (2, 3)).nodes
    assert node.operation.second_bound((2, 3))[:2] == (128**2, 128.0)
    assert reproofs._layer(node, 1.0, NEVER)[0] == "refuted"


# -- residuals without error ------------------------------------------------------------------------------------------


@given(st.integers(0, 2**32), GEOMETRY, GEOMETRY, st.integers(1, 3), st.integers(1, 3), st.sampled_from(KINDS))
def test_residuals_without_error_prove_what_whole_numbers_prove(seed, rows, columns, out, into, kind):
    flat = matrix_of_a_kind(np.random.default_rng(seed), kind, out, into * rows[1] * columns[1])
    kernel = flat.reshape(out, into, rows[1], columns[1])
    axes = [axis_of(*axis) for axis in (rows, columns)]
    matrix, whole = splitting.banded(kernel, *axes), convolution_gram(kernel, *axes, NEVER)
    if matrix is None:
        assert whole.proves(Fraction(0), NEVER)
        return
    transposed = list(zip(rows, columns, strict=True))
    truth = Fraction(np.linalg.norm(convolution_matrix(kernel, transposed[0], *transposed[2:]), 2))
    cpu = torch.device("cpu")
    assert splitting.is_proved(matrix, truth * (1 + Fraction(1, 10**11)), NEVER, cpu)
    for below in (Fraction(1, 10**11), Fraction(1, 1000)):
        assert not splitting.is_proved(matrix, truth * (1 - below), NEVER, cpu)


@pytest.mark.parametrize("mistake", [lambda each: (1 + 1e-9) * each, lambda each: torch.round(each * 2**25) / 2**25])
def test_what_the_factors_leave_over_is_counted(mistake, monkeypatch):
    """Nothing is assumed of the factors: those that are a little off prove less, and nothing that is false."""
    kernel = np.random.default_rng(0).normal(size=(4, 5, 3, 3))
    matrix = splitting.banded(kernel, *[axis_of(8, 3, 1, 1, 1, 1)] * 2)
    truth = Fraction(np.linalg.norm(convolution_matrix(kernel, (8, 8), (1, 1), (1, 1), (1, 1), (1, 1)), 2))
    whole, cpu = splitting._factor, torch.device("cpu")

    def wrong(*given):
        found = whole(*given)
        return None if found is None else mistake(found)

    assert splitting.is_proved(matrix, truth * (1 + Fraction(1, 10**10)), NEVER, cpu)
    monkeypatch.setattr(splitting, "_factor", wrong)
    assert not splitting.is_proved(matrix, truth * (1 + Fraction(1, 10**10)), NEVER, cpu)
    assert splitting.is_proved(matrix, truth * (1 + Fraction(1, 100)), NEVER, cpu)


def test_there_is_no_time_for_what_is_too_large():
    matrix = splitting.banded(np.ones((64, 64, 3, 3)), *[axis_of(64, 3, 1, 1, 1, 1)] * 2)
    with pytest.raises(OutOfTimeError):
        splitting.is_proved(matrix, Fraction(10**6), Deadline(time.perf_counter() + 60), torch.device("cpu"))


def test_the_power_method_comes_from_below_at_any_scale():
    for scale in SCALES:
        layer = nn.Linear(5, 3).double()
        layer.weight.data.copy_(torch.diag(torch.tensor([3.0, 2.0, 1.0, 1.0, 1.0]).double())[:3] * scale)
        layer.bias.data.fill_(1e30)
        lower, vector = power_method(program_of(layer, (5,)).nodes[0].operation, (5,), NEVER)
        assert lower == pytest.approx(3 * scale, rel=1e-6)
        assert vector.shape == (5,)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "columns"), [(256, 16384), (1000, 1000)])
def test_dense_layers_of_the_papers_size(rows, columns):
    matrix = np.random.default_rng(0).normal(size=(rows, columns))
    found, bound = gram(matrix, NEVER), float(spectral_bound(torch.tensor(matrix)))
    assert found.proves(Fraction(bound), NEVER)
    assert not found.proves(Fraction(bound) * (1 - Fraction(1, 10**6)), NEVER)
    assert found.refutation(Fraction(bound) * (1 - Fraction(1, 10**6)))


@pytest.mark.slow
def test_the_papers_first_convolution():
    torch.manual_seed(0)
    line, *_ = prove_again(frozen(nn.Conv2d(3, 32, 3, padding=1), shape=(3, 32, 32)))
    assert line.verdict == "proved"


@pytest.mark.slow
def test_the_papers_second_convolution():
    torch.manual_seed(0)
    line, *_ = prove_again(frozen(nn.Conv2d(128, 64, 3, padding=1), shape=(128, 16, 16)))
    assert line.verdict == "proved"
