"""The power method: an estimate of a layer's spectral norm *from below*, for losses. It proves nothing."""

from collections.abc import Callable

import torch
from torch import Tensor


def power_method(
    apply: Callable[[Tensor], Tensor], transposed: Callable[[Tensor], Tensor], vector: Tensor, steps: int
) -> tuple[Tensor, Tensor]:
    """‖A v‖ after some steps v ← AᵀA v / ‖AᵀA v‖, and v: the gradient goes through the last product alone.

    Args:
        apply: x ↦ A x.
        transposed: y ↦ Aᵀ y.
        vector: v of the call before; not 0.
        steps: how many steps; 0 evaluates at ``vector``.

    Nothing here depends on the values, so that it can be captured, compiled and batched (`torch.func.vmap`).
    """
    with torch.no_grad():
        vector = vector.detach()
        for _ in range(steps):
            vector = unit(transposed(unit(apply(vector), 0.0)), vector)
    image = apply(vector)
    largest = image.detach().abs().amax()
    largest = torch.where(largest > 0, largest, 1.0)  # so that squares of tiny weights do not vanish
    return (image / largest).norm() * largest, vector


def unit(vector: Tensor, otherwise: Tensor | float) -> Tensor:
    """Vector / ‖vector‖, whatever its size; something else for 0."""
    largest = vector.abs().amax()
    scaled = vector / torch.where(largest > 0, largest, 1.0)
    return torch.where(largest > 0, scaled / scaled.norm().clamp(min=1.0), otherwise)
