"""Bounds by a torus, with singular vectors and without: never below the norm, whatever they are proved with."""

import math
from dataclasses import astuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.convolutions import convolutions
from helpers.exact_norm import at_least_norm
from helpers.matrices import GEOMETRY, KINDS
from safeset.lipschitz.block_cholesky import BlockGram, search_block_proof
from safeset.lipschitz.convolution import Axis, Convolution
from safeset.lipschitz.convolution_proof import _by_torus, convolution_proof
from safeset.lipschitz.krylov import top_eigenvectors
from safeset.lipschitz.torus import Torus
from safeset.numerics.directed import Up

SIDES = st.booleans()  # from the outputs, or from the inputs


def singular_vectors(matrix, torus, count):
    """The largest of the torus's side, by LAPACK."""
    left, _, right = np.linalg.svd(matrix)
    vectors = left.T if torus.outputs else right
    return torch.tensor(vectors[:count]).view(-1, *torus.shape)


@given(
    st.integers(0, 2**32),
    st.tuples(GEOMETRY, GEOMETRY),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.sampled_from(KINDS),
    SIDES,
    st.floats(0.1, 1.5),
    st.tuples(st.integers(0, 3), st.sampled_from([0.0, 1e-9, 1e-3, 1.0]), st.integers(-3, 20)),
)
def test_whatever_it_is_proved_with_no_bound_is_below_the_norm(seed, axes, channels, kind, outputs, part, forged):
    convolution, matrix = convolutions(seed, *axes, *channels, kind)
    scaled, exponent = convolution.unit_scaled()
    if not bool((scaled.kernel != 0).any()):
        return
    torus, (count, noise, gap) = Torus(scaled, outputs), forged
    top = float(np.linalg.norm(matrix, 2)) * 2.0**-exponent
    waves = torus.waves(part * top**2)
    if waves is None:
        return
    vectors = singular_vectors(matrix, torus, count) if count else None
    if vectors is not None:
        vectors = vectors + noise * torch.randn(vectors.shape, generator=torch.Generator().manual_seed(seed % 2**31))
    for bound in (waves.bound(vectors, gap), waves.bound(None, 0)):
        assert bound == math.inf or at_least_norm(matrix, bound.root().shifted(exponent))


@given(st.integers(0, 2**32), st.tuples(GEOMETRY, GEOMETRY), st.integers(1, 3), SIDES, st.integers(1, 3))
def test_waves_without_any_vectors_are_bounded_by_their_definition(seed, axes, channels, outputs, count):
    """rest + ‖T w‖² over unit vectors w orthogonal to V, for vectors V that have nothing to do with the operator."""
    convolution, _ = convolutions(seed, *axes, channels, 2, "random")
    torus = Torus(convolution.unit_scaled()[0], outputs)
    waves = torus.waves(0.0)
    size = math.prod(torus.shape)
    if waves is None or not len(waves.vectors) or size <= count:
        return
    drawn = torch.randn(size, count, dtype=torch.float64, generator=torch.Generator().manual_seed(seed % 2**31))
    basis = torch.linalg.qr(drawn).Q
    rows = torch.cat([part for _, part in waves.rows()], dim=1).flatten(1)  # T
    others = rows - (rows @ basis) @ basis.mT
    truth = float(waves.rest) + float(torch.linalg.matrix_norm(others, 2)) ** 2
    found = waves.bound_without(waves.overlaps(basis), Up(count).root() * (1 + 1e-12), Up(1e-12))
    assert truth * (1 - 1e-11) <= found <= truth * (1 + 1e-3) + 1e-9


@pytest.mark.parametrize("outputs", [True, False])
def test_vectors_that_are_only_near_the_singular_ones_do_not_hide_a_part_of_the_norm(outputs):
    """What they span is stretched less than the norm: only what they lack, the residual, makes up for it."""
    axis = Axis(6, 3, 1, 1, 1, 1)
    convolution, matrix = convolutions(5, astuple(axis), astuple(axis), 1, 1, most=36)
    scaled, exponent = convolution.unit_scaled()
    torus, top = Torus(scaled, outputs), float(np.linalg.norm(matrix, 2))
    waves = torus.waves((0.8 * top * 2.0**-exponent) ** 2)
    exact = singular_vectors(matrix, torus, 12)
    noise = torch.randn(exact.shape, generator=torch.Generator().manual_seed(0), dtype=exact.dtype)
    near = exact + 1e-3 * noise
    basis = np.linalg.qr(near.flatten(1).numpy().T)[0]
    within = float(np.linalg.norm((matrix.T if outputs else matrix) @ basis, 2))
    assert within < top * (1 - 1e-7)
    for gap in (2, 5, 8):
        bound = waves.bound(near, gap)
        assert at_least_norm(matrix, bound.root().shifted(exponent))
    assert float(waves.bound(exact, 8).root().shifted(exponent)) < 1.01 * top  # waves beside them play no part


@pytest.mark.parametrize("outputs", [True, False])
@pytest.mark.parametrize(
    ("rows", "columns"),
    [
        ((12, 3, 1, 1, 1, 1), (12, 3, 1, 1, 1, 1)),
        ((13, 3, 2, 1, 1, 0), (12, 4, 2, 1, 1, 1)),
        ((12, 2, 1, 3, 2, 3), (11, 3, 1, 2, 2, 2)),
        ((16, 1, 3, 1, 0, 0), (9, 3, 1, 1, 4, 4)),  # pixels that nothing reads, outputs that read nothing
    ],
)
def test_with_singular_vectors_it_is_exact(rows, columns, outputs):
    make = torch.Generator().manual_seed(1)
    kernel = torch.randn(5, 4, rows[1], columns[1], generator=make, dtype=torch.float64)
    scaled, _ = Convolution(kernel, Axis(*rows), Axis(*columns)).unit_scaled()
    squared, _ = search_block_proof(BlockGram.cheapest(scaled))
    found, witness = _by_torus(Torus(scaled, outputs), 24)
    assert witness.vectors is not None
    assert abs(float(found) / float(squared) - 1) < 1e-9
    alone, witness = _by_torus(Torus(scaled, outputs), 0)
    assert witness.vectors is None
    assert squared * (1 - 1e-9) <= alone <= squared * 1.2


def test_it_is_as_exact_with_many_channels():
    """Where rounding is large: sums of hundreds of terms, and vectors that are known in float32."""
    make, axis = torch.Generator().manual_seed(3), Axis(8, 3, 1, 1, 1, 1)
    kernel = torch.randn(64, 64, 3, 3, generator=make, dtype=torch.float64)
    scaled, _ = Convolution(kernel, axis, axis).unit_scaled()
    squared, _ = search_block_proof(BlockGram.cheapest(scaled))
    found, witness = _by_torus(Torus.smaller(scaled), 48)
    assert witness.vectors is not None
    assert abs(float(found) / float(squared) - 1) < 1e-9


def test_a_torus_is_never_worse_than_its_waves():
    """Overlaps inside the image count: the bound is at most that of the torus itself, the largest wave."""
    make = torch.Generator().manual_seed(0)
    axis = Axis(10, 3, 1, 1, 1, 1)
    scaled, _ = Convolution(torch.randn(3, 3, 3, 3, generator=make, dtype=torch.float64), axis, axis).unit_scaled()
    torus = Torus.smaller(scaled)
    largest = max(float(torch.linalg.matrix_norm(wide, 2).amax()) ** 2 for _, wide in torus.matrices())
    bounds = [float(torus.waves(largest * part).bound(None, 0)) for part in (0.8, 0.9, 1 + 1e-9)]
    assert bounds[0] < bounds[1] < bounds[2]
    assert bounds[2] == pytest.approx(largest, rel=1e-8)


def test_frequencies_are_all_of_them_once():
    for rows, columns in ((6, 5), (4, 4), (1, 7), (2, 1)):
        axes = [Axis(n, 1, 1, 1, 0, 0) for n in (rows, columns)]
        torus = Torus(Convolution(torch.ones(1, 1, 1, 1, dtype=torch.float64), *axes), True)
        every = []
        for a, b, count in torus.frequencies.tolist():
            every += list({(a, b), (-a % rows, -b % columns)})
            assert len({(a, b), (-a % rows, -b % columns)}) == count
        assert sorted(every) == [(a, b) for a in range(rows) for b in range(columns)]


@settings(max_examples=20)
@given(st.integers(0, 1000), st.integers(1, 40), st.integers(1, 6))
def test_the_top_of_a_spectrum_is_found_with_its_multiplicities(seed, size, count):
    make = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(size, size, generator=make, dtype=torch.float64)).Q
    values = torch.linspace(0, 1, size, dtype=torch.float64)
    values[-3:] = 1.0
    matrix = (basis * values) @ basis.mT
    found = top_eigenvectors(lambda block: block @ matrix.float(), size, count, device=torch.device("cpu"), gap=0.01)
    wanted = values.sort(descending=True).values[:count]
    torch.testing.assert_close(found.values, wanted, atol=1e-5, rtol=0)
    identity = torch.eye(min(count, size))
    torch.testing.assert_close(found.vectors @ found.vectors.mT, identity, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kernel", [torch.eye(2)[:, :, None, None], -torch.eye(3).flip(0)[:, :, None, None]])
def test_a_kernel_that_only_moves_channels_has_norm_one(kernel):
    """The search for vectors has found all there is after its first step: what is left is rounding."""
    padded = torch.nn.functional.pad(kernel.double(), (1, 1, 1, 1))
    axis = Axis(12, 3, 1, 1, 1, 1)
    bound, _ = convolution_proof(Convolution(padded, axis, axis), "torus")
    assert 1 <= bound < 1 + 1e-6
