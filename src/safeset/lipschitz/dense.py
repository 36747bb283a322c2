"""The spectral norm of a matrix, from above, as a proof.

Nothing of LAPACK is trusted: whatever the factorisation returns is multiplied out again, and the residual counts. Only
matrix products are assumed to be sums of products in some order, which holds for BLAS in float64 on CPU and GPU.
"""

import math

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.inputs import all_finite
from safeset.lipschitz.lanczos import lanczos_top
from safeset.numerics.directed import SUBNORMAL, U, Up, gamma

NEARLY = 2.0**-30  # of a matrix that counts as orthonormal: how far its norm may be above 1
LARGE = 1024  # rows of a matrix of which one eigenvalue is found faster than all
STRIP = 512  # rows of a symmetric product that are computed together
LONGEST = 4096  # terms that are summed at once in an entry of a Gram matrix


def spectral_bound(matrices: Tensor) -> Up:
    """An upper bound of the largest spectral norm among real matrices, (…, p, q) → a number.

    σ² ≤ c(1 + 2u) + ‖Â − LLᵀ‖ + γ_T·min(‖W‖_F², ‖W‖₁‖W‖_∞), with Â = fl(cI − fl(WWᵀ)), c just above its largest
    eigenvalue, and L any matrix: here a Cholesky factor (docs/proofs.md). W is scaled by a power of two.

    Raises:
        ArgumentError: for numbers that are not finite.

    >>> spectral_bound(torch.tensor([[3.0, 0.0], [0.0, 4.0]])) - 4 < 1e-12
    True
    """
    proved = spectral_proof(matrices)
    assert proved is not None  # without a shift it is looked for until there is one
    return proved[0]


def spectral_proof(matrices: Tensor, shift: float | None = None) -> tuple[Up, float] | None:
    """The bound of `spectral_bound`, and its c; or, by a given c, the bound that it proves, None if it proves none."""
    scaled, exponent = unit_scaled(matrices)
    if not scaled.numel() or not bool((scaled != 0).any()):
        return Up(0.0), 0.0
    wide = scaled.reshape(-1, *scaled.shape[-2:])
    if wide.shape[1] > wide.shape[2]:
        wide = wide.mT
    gram, terms = gram_matrix(wide)
    top = _top(gram) if shift is None else 0.0
    excess = 4 * gram.shape[-1] * 2.0**-53
    while (proved := shifted_bound(gram, c := top * (1 + excess) if shift is None else shift)) is None:
        if shift is not None:
            return None
        excess *= 4
        if not math.isfinite(excess):
            raise ArithmeticError("a scaled Gram matrix cannot overflow")
    return (proved + gamma(terms) * product_norm(wide)).root().shifted(exponent), c


def _top(gram: Tensor) -> float:
    """The largest eigenvalue of Gram matrices, about: what is proved with it holds whatever it is."""
    if len(gram) == 1 and gram.shape[-1] > LARGE:
        return lanczos_top(lambda vector: gram[0] @ vector, gram.shape[-1], gram.device)
    return float(torch.linalg.eigvalsh(gram).amax())


def isometry_bound(matrix: Tensor) -> Up | None:
    """An upper bound of the norm of one matrix, (p, q), whose rows or columns are nearly orthonormal; else None.

    σ² ≤ 1 + ‖Ĝ − I‖_∞ + γ_T·min(‖W‖_F², ‖W‖₁‖W‖_∞), Ĝ = fl(WWᵀ) on the smaller side (docs/proofs.md): one product of
    matrices, nothing is factored. It is rounded up to 1 + 2⁻ᵏ, so that any order of sums finds the same.

    >>> isometry_bound(torch.eye(3, dtype=torch.float64)) - 1 < 1e-14, isometry_bound(2 * torch.eye(3))
    (True, None)
    """
    matrix = matrix.detach().double()
    wide = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT)[None]
    if not bool(((wide.square().sum(dim=-1) - 1).abs() < NEARLY).all()):  # most matrices are none: that is cheap to see
        return None
    gram, terms = gram_matrix(wide)
    gram.diagonal(dim1=1, dim2=2).sub_(1.0)  # exact: a result that passes below came from a number in ½..2
    underflow = wide.shape[2] * gram.shape[1] * SUBNORMAL
    square = row_sum(gram) + 1 + gamma(terms) * product_norm(wide) + underflow
    bound = square.root()
    if not bound <= 1 + NEARLY:
        return None
    return Up(1 + 2.0 ** math.frexp(max(float(bound) - 1, U))[1])


def gram_matrix(wide: Tensor) -> tuple[Tensor, int]:
    """W Wᵀ, mirrored, and T: each entry is within γ_T of its exact value, relative to that of |W||Wᵀ|.

    A long sum is the sum of shorter ones, which rounds less.
    """
    first, *others = torch.split(wide, LONGEST, dim=-1)
    gram = wide.new_zeros(*wide.shape[:2], wide.shape[1])
    for rows in strips(wide.shape[1]):  # the rest is their mirror image
        known = slice(0, rows.stop)
        strip = first[:, rows] @ first[:, known].mT
        for part in others:
            strip += part[:, rows] @ part[:, known].mT  # each part is summed before it is added, as T counts
        gram[:, rows, known] = strip
    return mirrored(gram), first.shape[-1] + len(others)


def strips(side: int) -> list[slice]:
    """The rows of a matrix, some hundreds at a time, so that of large symmetric ones half is computed."""
    return [slice(start, min(start + STRIP, side)) for start in range(0, side, STRIP)]


def shifted_bound(symmetric: Tensor, c: float) -> Up | None:
    """An upper bound of the largest eigenvalue of symmetric matrices just above c; None if c is too small."""
    side = symmetric.shape[-1]
    shifted = -symmetric
    diagonal = shifted.diagonal(dim1=1, dim2=2).add_(c)
    if not bool((diagonal > 0).all()):
        return None
    factor, info = torch.linalg.cholesky_ex(shifted)
    if bool((info != 0).any()) or not bool(factor.isfinite().all()):
        return None
    factor.tril_()  # it is so already, unless LAPACK left something above the diagonal
    rounding = gamma(side + 1) * (row_sum(shifted) + product_norm(factor))
    largest = max(c, float(diagonal.amax()))
    for rows in strips(side):  # what is left over, in place: on and below the diagonal, where the factor is not 0
        known = slice(0, rows.stop)
        shifted[:, rows, known].baddbmm_(factor[:, rows, known], factor[:, known, known].mT, alpha=-1.0)
    return Up(c) + Up(largest) * (2 * 2.0**-53) + row_sum(mirrored(shifted)) + rounding


def unit_scaled(weights: Tensor) -> tuple[Tensor, int]:
    """Weights / 2^exponent in float64, the largest in [1, 2): exact, but for what falls 2⁻¹⁰²² below the largest."""
    weights = weights.detach().double()
    if not all_finite(weights):
        raise expected("finite weights", "NaN or infinite weights", "Has the training diverged?")
    largest = float(torch.linalg.vector_norm(weights, math.inf)) if weights.numel() else 0.0
    exponent = math.frexp(largest)[1] - 1 if largest > 0 else 0
    if abs(exponent) < 1000:
        return weights * 2.0**-exponent, exponent
    half = -exponent // 2  # the factor alone may be too large or too small a number
    return weights * 2.0**half * 2.0 ** (-exponent - half), exponent


def mirrored(square: Tensor) -> Tensor:
    """The lower triangle, and its mirror image above."""
    return square.tril() + square.tril(-1).mT


def row_sum(matrices: Tensor) -> Up:
    """‖W‖_∞ from above, the largest of all matrices: for a symmetric one at least its spectral norm."""
    return Up(float(torch.linalg.vector_norm(matrices, 1, dim=-1).amax())) * (1 + gamma(matrices.shape[-1]))


def absolute_norm(matrices: Tensor) -> Up:
    """√(‖W‖₁‖W‖_∞) from above, the largest of each: at least ‖ |W| ‖₂."""
    return row_sum(matrices).root() * row_sum(matrices.mT).root()


def frobenius(numbers: Tensor) -> Up:
    """‖·‖_F of all numbers together, from above."""
    return Up(float(torch.linalg.vector_norm(numbers))) * (1 + gamma(numbers.numel() + 2))


def product_norm(matrices: Tensor) -> Up:
    """The norm of |W||Wᵀ| from above, the largest of (n, p, q) matrices: min(‖W‖_F², ‖W‖₁‖W‖_∞)."""
    if not matrices.numel():
        return Up(0.0)
    norm = Up(float(torch.linalg.vector_norm(matrices, dim=(1, 2)).amax())) * (1 + gamma(matrices[0].numel() + 2))
    return min(norm * norm, row_sum(matrices) * row_sum(matrices.mT))
