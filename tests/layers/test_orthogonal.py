"""Orthogonal layers: their bound against 60 digits, and steps of training that stay on the manifold."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.exact_norm import at_least_norm, within
from helpers.matrices import KINDS, matrix_of_a_kind
from safeset import ArgumentError, CertifiedNet
from safeset.layers import OrthogonalConv1x1, OrthogonalLinear
from safeset.layers.orthogonal import polish, retract, riemannian
from safeset.lipschitz.dense import isometry_bound

SHAPES = [(5, 5), (7, 4), (3, 6), (1, 5), (6, 1)]


def skew(matrix):
    """‖QᵀQ − I‖ on the smaller side."""
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    return torch.linalg.matrix_norm(wide @ wide.mT - torch.eye(len(wide), dtype=wide.dtype), 2).item()


@given(st.integers(0, 2**32 - 1), st.sampled_from(KINDS), st.integers(1, 9), st.integers(1, 9))
def test_the_bound_of_an_isometry_is_above_its_norm(seed, kind, rows, columns):
    matrix = matrix_of_a_kind(np.random.default_rng(seed), kind, rows, columns)
    bound = isometry_bound(torch.from_numpy(matrix))
    if kind == "orthogonal" and rows == columns:
        assert bound is not None
    if bound is not None:
        assert at_least_norm(matrix, float(bound))
        assert within(matrix, float(bound), 1e-8)


def test_a_bound_below_the_norm_would_be_seen():
    """One entry that is 10⁻⁹ too large counts, at the smaller side and at the larger one."""
    for shape in SHAPES:
        matrix = polish(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
        larger = matrix * (1 + 1e-10)
        assert isometry_bound(larger) >= 1 + 1e-10 - 1e-15
        assert isometry_bound(matrix) < 1 + 1e-12
        assert isometry_bound(matrix * (1 + 1e-8)) is None  # a proof of its own is closer
    assert isometry_bound(torch.full((2, 2), torch.nan)) is None


@pytest.mark.parametrize("shape", SHAPES)
def test_the_gradient_stays_on_the_manifold(shape):
    generator = torch.Generator().manual_seed(1)
    x = polish(torch.randn(shape, generator=generator))
    g = torch.randn(shape, generator=generator, dtype=torch.float64)
    along = riemannian(x, g)
    small, way = (x, along) if shape[0] <= shape[1] else (x.mT, along.mT)
    turning = small @ way.mT
    torch.testing.assert_close(turning, -turning.mT)  # tangent: X·wayᵀ + way·Xᵀ = 0
    torch.testing.assert_close(riemannian(x, along), along)  # a projection
    assert (g * along).sum() >= along.square().sum() * (1 - 1e-12)  # and a descent
    if shape[0] == shape[1]:
        torch.testing.assert_close(along, x @ (x.mT @ g - g.mT @ x) / 2)
    stacked = riemannian(torch.stack([x, x]), torch.stack([g, 2 * g]))
    torch.testing.assert_close(stacked[1], 2 * along)


@pytest.mark.parametrize("shape", SHAPES)
def test_retracting_squares_the_distance(shape):
    generator = torch.Generator().manual_seed(2)
    x = polish(torch.randn(shape, generator=generator))
    assert skew(x) < 5e-15
    away = x + 0.05 * torch.randn(shape, generator=generator, dtype=torch.float64)
    first, second, third = (skew(retract(away, steps)) for steps in (0, 1, 2))
    assert first > 1e-3
    assert second <= first**2
    assert third <= max(second**2, 5e-15)
    torch.testing.assert_close(retract(away, 6), polish(away), atol=1e-12, rtol=0)  # to the nearest one


@pytest.mark.parametrize("make", [lambda: OrthogonalLinear(6, 4), lambda: OrthogonalConv1x1(6, 6)])
def test_a_loop_keeps_the_norm(make):
    torch.manual_seed(0)
    layer = make()
    shape = (6,) if isinstance(layer, OrthogonalLinear) else (6, 2, 2)
    x, wanted = torch.randn(32, *shape), torch.randn(4 if len(shape) == 1 else 6)
    optimiser, losses = torch.optim.Adam(layer.parameters(), lr=0.02), []
    start = layer.weight.detach().clone()
    for _ in range(20):
        loss = (layer(x).movedim(1, -1) - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()
        losses.append(loss.item())
        layer.weight.grad = layer.riemannian(layer.weight.grad)
        optimiser.step()
        layer.retract_()
        assert skew(layer.weight.detach()) < 0.02
    assert losses[-1] < losses[0]
    assert not torch.allclose(start, layer.weight)
    layer.polish_()
    assert skew(layer.weight.detach()) < 2e-6
    layer.double().polish_()
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(layer(x.double())[0].numel(), 3))
    bound = CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1).bounds().layers[0]
    assert bound.method == "orthogonal"
    assert 1 <= bound.bound <= 1 + 1e-13


def test_too_long_a_step_is_refused():
    layer = OrthogonalLinear(4, 4)
    layer.weight.data *= 1.7
    layer.retract_()  # back, from everywhere below √3
    layer.weight.data = 1.8 * torch.eye(4)
    with pytest.raises(ArgumentError, match=r"norm a step leaves below 1\.73, but got 1\.8.*smaller rate"):
        layer.retract_()
    layer.weight.data[0, 0] = torch.nan
    with pytest.raises(ArgumentError, match="but got nan"):
        layer.retract_()
    large = torch.eye(40) * 1.7
    assert torch.linalg.matrix_norm(large @ large.mT - torch.eye(40)) > 2  # by this alone it would be refused
    wide = OrthogonalLinear(40, 40)
    wide.weight.data = large
    wide.retract_()


@pytest.mark.parametrize("sizes", [(0, 3), (3, 2.5), (True, 2)])
def test_sizes_are_integers(sizes):
    with pytest.raises(ArgumentError, match="integers ≥ 1"):
        OrthogonalLinear(*sizes)
