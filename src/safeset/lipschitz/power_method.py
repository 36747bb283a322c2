"""The power method: an estimate of a layer's spectral norm *from below*, for losses. It proves nothing."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
Method = Callable[[Product, Product, Tensor, int], tuple[Tensor, Tensor]]


def power_method(apply: Product, transposed: Product, vector: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """`iterate`, or what is used instead of it."""
    return _METHOD.get()(apply, transposed, vector, iterations)


@contextmanager
def iterated_by(method: Method) -> Iterator[None]:
    """While active, the power method is another that computes the same: a GPU likes fewer kernels."""
    token = _METHOD.set(method)
    try:
        yield
    finally:
        _METHOD.reset(token)


def iterate(apply: Product, transposed: Product, vector: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """‖A v‖ in the last of some iterations v ← AᵀA v / ‖AᵀA v‖, and the v after it, for the next call.

    The gradient goes through the last product A v alone. Each iteration costs one product with A and one with Aᵀ.

    Args:
        apply: x ↦ A x.
        transposed: y ↦ Aᵀ y.
        vector: v of the call before; not 0.
        iterations: how many; 0 evaluates at ``vector``.

    Nothing here depends on the values, so that it can be captured, compiled and batched (`torch.func.vmap`).
    """
    with torch.no_grad():
        vector = vector.detach()
        for _ in range(iterations - 1):
            image = apply(vector)
            vector = unit(transposed(image / size(image)), vector)
    image = apply(vector)
    largest = size(image.detach())
    scaled = image / largest
    if iterations:
        with torch.no_grad():
            vector = unit(transposed(scaled.detach()), vector)
    return scaled.norm() * largest, vector


_METHOD: ContextVar[Method] = ContextVar("how the power method iterates", default=iterate)


def unit(vector: Tensor, otherwise: Tensor) -> Tensor:
    """Vector / ‖vector‖, whatever its size; something else for 0."""
    scaled = vector / size(vector)
    norm = scaled.norm()
    return torch.where(norm > 0, scaled / norm, otherwise)


def size(vector: Tensor) -> Tensor:
    """The largest |entry|, but no zero: divided by it, squares of tiny numbers do not vanish."""
    largest: Tensor = torch.linalg.vector_norm(vector, torch.inf)
    return largest.clamp(min=torch.finfo(vector.dtype).tiny)
