"""The largest eigenvalue of a symmetric operator, by the Lanczos method. It proves nothing."""

from collections.abc import Callable

import torch
from torch import Tensor

from safeset.numerics.threads import one_thread

ITERATIONS = 500


def lanczos_top(apply: Callable[[Tensor], Tensor], size: int, device: torch.device) -> float:
    """The largest eigenvalue of a positive operator, an estimate from below, with full orthogonalisation.

    Args:
        apply: the operator, (size,) → (size,) in float64.
        size: its dimension.
        device: where it computes.

    >>> round(lanczos_top(lambda vector: vector * torch.tensor([1.0, 3.0]), 2, torch.device("cpu")), 12)
    3.0
    """
    most = min(ITERATIONS, size)
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(size, generator=generator, dtype=torch.float64, device="cpu").to(device)
    basis = vector.new_zeros(most, size)
    tridiagonal = torch.zeros(most + 1, most + 1, dtype=torch.float64, device="cpu")
    top = 0.0
    for n in range(most):
        basis[n] = vector / vector.norm()
        vector = apply(basis[n])
        tridiagonal[n, n] = float(vector @ basis[n])
        for _ in range(2):  # twice is enough
            vector = vector - basis[: n + 1].mT @ (basis[: n + 1] @ vector)
        tridiagonal[n + 1, n] = tridiagonal[n, n + 1] = norm = float(vector.norm())
        exhausted = norm <= 1e-14 * top or n + 1 == most
        if exhausted or n < 3 or n % 10 == 0:
            with one_thread():  # a small matrix
                before, top = top, float(torch.linalg.eigvalsh(tridiagonal[: n + 1, : n + 1])[-1])
            if exhausted or (n > 3 and top - before <= 1e-14 * top):
                break
    return top
