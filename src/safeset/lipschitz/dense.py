"""The spectral norm of a matrix, from above, as a proof.

Nothing of LAPACK is trusted: whatever the factorisation returns is multiplied out again, and the residual counts. Only
matrix products are assumed to be sums of products in some order, which holds for BLAS in float64 on CPU and GPU.
"""

import math

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.upward import Up, gamma


def spectral_bound(matrices: Tensor) -> Up:
    """An upper bound of the largest spectral norm among real matrices, (…, p, q) → a number.

    σ² ≤ c(1 + 2u) + ‖Â − LLᵀ‖ + γ_M·min(‖W‖_F², ‖W‖₁‖W‖_∞), with Â = fl(cI − fl(WWᵀ)), c just above its largest
    eigenvalue, and L any matrix: here a Cholesky factor (docs/proofs.md). W is scaled by a power of two.

    Raises:
        ArgumentError: for numbers that are not finite.

    >>> spectral_bound(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) - 4 < 1e-12
    True
    """
    scaled, exponent = unit_scaled(matrices)
    if not scaled.numel() or not bool((scaled != 0).any()):
        return Up(0.0)
    wide = scaled.reshape(-1, *scaled.shape[-2:])
    if wide.shape[1] > wide.shape[2]:
        wide = wide.mT
    _, side, inner = wide.shape
    gram = mirrored(wide @ wide.mT)
    top = float(torch.linalg.eigvalsh(gram).amax())
    excess = 4 * side * 2.0**-53
    while (proved := _shifted_bound(gram, top * (1 + excess))) is None:
        excess *= 4
    return (proved + gamma(inner) * product_norm(wide)).root().shifted(exponent)


def _shifted_bound(gram: Tensor, c: float) -> Up | None:
    """An upper bound of the largest eigenvalue of symmetric matrices just above c; None if c is too small."""
    if not math.isfinite(c):
        raise ArithmeticError("a scaled Gram matrix cannot overflow")
    side = gram.shape[-1]
    shifted = -gram
    shifted.diagonal(dim1=1, dim2=2).add_(c)
    if not bool((shifted.diagonal(dim1=1, dim2=2) > 0).all()):
        return None
    factor, info = torch.linalg.cholesky_ex(shifted)
    if bool((info != 0).any()) or not bool(factor.isfinite().all()):
        return None
    residual = torch.baddbmm(shifted, factor, factor.mT, alpha=-1.0)
    rounding = gamma(side + 1) * (row_sum(shifted) + product_norm(factor))
    return Up(c) * (1 + 2 * 2.0**-53) + row_sum(mirrored(residual)) + rounding


def unit_scaled(weights: Tensor) -> tuple[Tensor, int]:
    """Weights / 2^exponent in float64, the largest in [1, 2): exact, but for what falls 2⁻¹⁰²² below the largest."""
    weights = weights.detach().double()
    if not bool(weights.isfinite().all()):
        raise expected("finite weights", "NaN or infinite weights", "Has the training diverged?")
    largest = float(weights.abs().amax()) if weights.numel() else 0.0
    exponent = math.frexp(largest)[1] - 1 if largest > 0 else 0
    half = -exponent // 2
    return weights * 2.0**half * 2.0 ** (-exponent - half), exponent


def mirrored(square: Tensor) -> Tensor:
    """The lower triangle, and its mirror image above."""
    return square.tril() + square.tril(-1).mT


def row_sum(matrices: Tensor) -> Up:
    """‖W‖_∞ from above, the largest of all matrices: for a symmetric one at least its spectral norm."""
    return Up(float(matrices.abs().sum(dim=-1).amax())) * (1 + gamma(matrices.shape[-1]))


def absolute_norm(matrices: Tensor) -> Up:
    """√(‖W‖₁‖W‖_∞) from above, the largest of each: at least ‖ |W| ‖₂."""
    return row_sum(matrices).root() * row_sum(matrices.mT).root()


def product_norm(matrices: Tensor) -> Up:
    """The norm of |W||Wᵀ| from above, the largest of (n, p, q) matrices: min(‖W‖_F², ‖W‖₁‖W‖_∞)."""
    squares = Up(float(matrices.square().sum(dim=(1, 2)).amax())) * (1 + gamma(matrices[0].numel()))
    return min(squares, row_sum(matrices) * row_sum(matrices.mT))
