"""The power method in few kernels: a vector's norm and its direction in one pass, with gradient.

On a GPU each iteration of `safeset.lipschitz.power_method` is a chain of ten small kernels beside its two products.
Here it is one after each product, by `safeset.training.gpu.length_kernels`.
"""

from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from safeset.layers.min_max import in_front
from safeset.lipschitz.power_method import Product, iterate

KERNELS = "safeset.training.gpu.length_kernels"
MOST = 2**18  # numbers in a vector, that one program goes through


def few_kernels(apply: Product, transposed: Product, vector: Tensor, iterations: int) -> tuple[Tensor, Tensor]:
    """`safeset.lipschitz.power_method.iterate`, to rounding, that can be differentiated once."""
    if vector.dtype != torch.float32:
        return iterate(apply, transposed, vector, iterations)
    with torch.no_grad():
        vector = vector.detach()
        for _ in range(iterations - 1):
            image = apply(vector)
            vector = split(transposed(split(image, image)[1]), vector)[1]
    image = apply(vector)
    norm, direction = split(image, image)
    if iterations:
        with torch.no_grad():
            vector = split(transposed(direction), vector)[1]
    return norm, vector


def split(vector: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """A vector's norm, with gradient, and its direction, without; something else for the direction of 0."""
    norms, direction = _Split.apply(vector, otherwise, 1)  # type: ignore[no-untyped-call]
    return norms.squeeze(0), direction


class _Split(torch.autograd.Function):
    """Norms and directions of so many vectors, one after another in memory."""

    @staticmethod
    def forward(vectors: Tensor, otherwise: Tensor, count: int) -> tuple[Tensor, Tensor]:
        rows = vectors.contiguous().view(count, -1)
        other = rows if otherwise is vectors else otherwise.contiguous().view(count, -1)
        norms, directions = _who(rows).lengths(rows, other)
        return norms, directions.view(vectors.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
        ctx.count = inputs[2]
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
        (directions,) = ctx.saved_tensors
        return (directions.view(ctx.count, -1) * gradient[:, None]).view(directions.shape), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], vectors: Tensor, otherwise: Tensor, count: int
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        stacks = in_front(info.batch_size, (vectors, otherwise), in_dims[:2])
        flat = [each.flatten(0, 1) if count > 1 else each for each in stacks]
        norms, directions = _Split.apply(*flat, info.batch_size * count)  # type: ignore[no-untyped-call]
        return (norms.unflatten(0, (info.batch_size, count)), directions.view(stacks[0].shape)), (0, 0)


def lengths(vectors: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """Norms and directions of vectors, (count, n) each: → (count,) and (count, n). float64 has room for all squares."""
    norms = torch.linalg.vector_norm(vectors.double(), dim=1).to(vectors.dtype)
    known = (norms > 0) & norms.isfinite()
    return norms, torch.where(known[:, None], vectors / norms[:, None], otherwise)


def _who(rows: Tensor) -> ModuleType:
    """Who has `lengths` for such vectors: Triton, or torch here."""
    return import_module(KERNELS if rows.is_cuda and rows.shape[1] <= MOST else __name__)
