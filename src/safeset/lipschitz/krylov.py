"""The largest eigenvalues of a symmetric operator and their vectors, by a block Krylov method. It proves nothing."""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.numerics.threads import one_thread

BLOCK = 4  # vectors at once: as many equal eigenvalues are found together
ITERATIONS = 600
TINY_PART = 1e-2  # of a vector: less than this cannot be orthogonal to the basis in float32 without another step
LARGEST_BASIS = 400  # vectors that are kept, and
MOST_NUMBERS = 2**27  # of all of them; 512 MB


class Ritz(NamedTuple):
    """What is known of the top of a spectrum.

    Attributes:
        values: (k,) falling.
        vectors: (k, size) orthonormal.
        lacks: (k, b): the operator maps vector i to value i times itself, and a vector of these coordinates beside.
    """

    values: Tensor
    vectors: Tensor
    lacks: Tensor


def top_eigenvectors(
    apply: Callable[[Tensor], Tensor], size: int, count: int, *, device: torch.device, gap: float, close: float = 1e-10
) -> Ritz:
    """The largest eigenvalues of a positive operator and their vectors, at most ``count``, in float32.

    They are as close as this needs: with all other eigenvalues below those by ``gap``, what the vectors lack moves the
    largest eigenvalue by less than ``close``, both relative to it. Or as close as the iterations allow.

    Args:
        apply: the operator, (b, size) → (b, size) in float32.
        size: its dimension.
        count: how many are wanted.
        device: where it computes.
        gap: between eigenvalues, relative.
        close: relative.
    """
    count = min(count, size)
    most = min(size, max(2 * count, min(LARGEST_BASIS, MOST_NUMBERS // size)))
    generator = torch.Generator().manual_seed(0)
    fresh = torch.randn(min(BLOCK, size), size, generator=generator, device="cpu").to(device)
    basis, projected = fresh.new_zeros(most, size), fresh.new_zeros(most, most)
    filled = 0
    for iteration in range(ITERATIONS):
        fresh = _factors(_orthogonal(fresh, basis[:filled]))[0][: most - filled]  # (block, size)
        known = slice(0, filled + len(fresh))
        basis[filled : known.stop] = fresh
        image = apply(fresh)
        along = basis[known] @ image.mT  # (known, block)
        projected[known, filled : known.stop], projected[filled : known.stop, known] = along, along.mT
        before, image = image.norm(dim=1), image - along.mT @ basis[known]
        if bool((image.norm(dim=1) < TINY_PART * before).any()):  # rounding is a large part of what is left
            image = _orthogonal(image, basis[known])
        filled = known.stop
        full = filled == most
        if not (full or iteration % 8 == 7 or iteration + 1 == ITERATIONS):
            fresh = image
            continue
        with one_thread():  # of a few hundred rows: many threads would mostly wait for each other
            values, weights = torch.linalg.eigh(projected[known, known].double())
        directions, remainder = _factors(image)
        lacks = (remainder.double() @ weights[-len(fresh) :]).mT  # (known, block)
        below = (values[-1] - values) / values[-1]
        allowed = gap * (below + close) / 8
        lacking = lacks.square().sum(dim=1) / values[-1].square() > allowed
        ended = filled == size or iteration + 1 == ITERATIONS
        if ended or (filled >= count and not bool(lacking[-count:].any())):
            break
        if full:  # go on with the best half
            kept = most // 2
            basis[:kept] = weights[:, -kept:].mT.float() @ basis[known]
            projected.zero_().diagonal()[:kept] = values[-kept:].float()
            filled = kept
        fresh = directions
    best = weights[:, -count:].flip(1)
    return Ritz(values[-count:].flip(0), best.mT.float() @ basis[:filled], lacks[-count:].flip(0))


def _orthogonal(vectors: Tensor, basis: Tensor) -> Tensor:
    return vectors - (basis @ vectors.mT).mT @ basis


def _factors(vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Orthonormal rows Q and the R of vectors = Rᵀ Q, by one thread: a few vectors are too little for more."""
    with one_thread():
        columns, remainder = torch.linalg.qr(vectors.mT)
    return columns.mT, remainder


def moved(ritz: Ritz, k: int, gap: float) -> float:
    """The largest eigenvalue, moved by what the first k vectors lack if all others lie below it by ``gap``."""
    pushed = torch.diag(ritz.values[:k]) + ritz.lacks[:k] @ ritz.lacks[:k].mT / gap
    return float(torch.linalg.eigvalsh(pushed)[-1]) if gap > 0 else math.inf
