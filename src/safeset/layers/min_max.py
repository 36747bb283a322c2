"""MinMax, with a gradient that is quick."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import expected


class MinMax(nn.Module):
    """Channels i and i + n/2 become their maximum and their minimum: 1-Lipschitz, and keeps the norm of gradients.

    (batch, n, …) → (batch, n, …), n even (Anil et al., 2019).

    >>> MinMax()(torch.tensor([[1.0, 2.0, 3.0, 0.0]]))
    tensor([[3., 2., 1., 0.]])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Maxima, then minima."""
        if x.shape[1] % 2:
            raise expected("an even number of channels for MinMax", x.shape[1])
        return _Sorted.apply(x) if torch.is_grad_enabled() else _sorted(x)  # type: ignore[no-untyped-call]


def _sorted(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=1)
    out = torch.empty_like(x)
    larger, smaller = out.chunk(2, dim=1)
    torch.maximum(first, second, out=larger)
    torch.minimum(first, second, out=smaller)
    return out


class _Sorted(torch.autograd.Function):
    """The same, with a gradient that remembers one bit for each pair; at ties it goes to where the value came from.

    torch's own gradients of maximum and minimum keep both inputs and take ten passes over them to share ties out.
    """

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return _sorted(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        first, second = inputs[0].chunk(2, dim=1)
        swapped = first < second
        ctx.save_for_backward(swapped)
        ctx.save_for_forward(swapped)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return _Swapped.apply(gradient, *ctx.saved_tensors)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        return _Sorted.backward(ctx, tangent)  # a permutation that is its own inverse

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int], x: Tensor) -> tuple[Tensor, int]:
        x = x.movedim(in_dims[0], 0)
        return _Sorted.apply(x.flatten(0, 1)).view_as(x), 0  # type: ignore[no-untyped-call]


class _Swapped(torch.autograd.Function):
    """The halves of the channels, exchanged where asked: a permutation, its own inverse and its own gradient."""

    @staticmethod
    def forward(x: Tensor, swapped: Tensor) -> Tensor:
        first, second = x.chunk(2, dim=1)
        out = torch.empty_like(x)
        one, two = out.chunk(2, dim=1)
        torch.where(swapped, second, first, out=one)
        torch.where(swapped, first, second, out=two)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _Swapped.apply(gradient, *ctx.saved_tensors), None  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _: None) -> Tensor:
        return _Swapped.apply(tangent, *ctx.saved_tensors)  # type: ignore[no-any-return, no-untyped-call]

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, int | None], x: Tensor, swapped: Tensor) -> tuple[Tensor, int]:
        both = in_front(info.batch_size, (x, swapped), in_dims)
        return _Swapped.apply(*(each.flatten(0, 1) for each in both)).view_as(both[0]), 0  # type: ignore[no-untyped-call]


def in_front(count: int, tensors: Sequence[Tensor], places: Sequence[int | None]) -> list[Tensor]:
    """Tensors with the dimension that `torch.func.vmap` batches in front; those that have none, repeated."""
    return [
        each.expand(count, *each.shape) if place is None else each.movedim(place, 0)
        for each, place in zip(tensors, places, strict=True)
    ]
