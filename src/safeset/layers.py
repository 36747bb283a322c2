"""Layers that Lipschitz networks are built of, beside torch's own."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_tensor


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


class Abs(nn.Module):
    """|x|, entry by entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Absolute values."""
        return x.abs()


class InvertibleDownsampling(nn.Module):
    """Each square of ``size`` × ``size`` pixels becomes one pixel of more channels: a permutation, nothing is lost.

    (batch, c, h, w) → (batch, c·size², h/size, w/size).
    """

    def __init__(self, size: int = 2) -> None:
        super().__init__()
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """The pixels of a square as channels."""
        return nn.functional.pixel_unshuffle(x, self.size)

    def extra_repr(self) -> str:
        """The size, for printing."""
        return f"{self.size}"


class ChannelAffine(nn.Module):
    """scale·x + shift, channel by channel: what normalisation and batch norm are in a frozen network.

    (batch, n, …) → (batch, n, …); scale and shift are (n,).
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        scale, shift = as_tensor(scale, "`scale`"), as_tensor(shift, "`shift`")
        if scale.ndim != 1 or scale.shape != shift.shape:
            raise expected("`scale` and `shift` to be numbers for each channel", f"{scale.shape} and {shift.shape}")
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", shift.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """scale·x + shift."""
        return x * per_channel(self.scale, x) + per_channel(self.shift, x)

    def extra_repr(self) -> str:
        """The number of channels, for printing."""
        return f"{len(self.scale)}"


class Normalize(nn.Module):
    """(x − mean) / std, channel by channel, or with one number for all.

    It counts in the Lipschitz constant, so ε stays in the input's own units.

    >>> Normalize(mean=[0.5], std=[0.25])(torch.ones(1, 1))
    tensor([[2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor | list[float], std: Tensor | list[float]) -> None:
        super().__init__()
        parts = [as_tensor(part, f"`{name}`") for part, name in ((mean, "mean"), (std, "std"))]
        if parts[0].ndim != 1 or parts[0].shape != parts[1].shape or not bool((parts[1] > 0).all()):
            raise expected("`mean` and `std` to be numbers for each channel, each std above 0", f"{mean} and {std}")
        for name, part in zip(("mean", "std"), parts, strict=True):
            self.register_buffer(name, part.detach().to(torch.get_default_dtype(), copy=True))

    def forward(self, x: Tensor) -> Tensor:
        """(x − mean) / std."""
        return (x - per_channel(self.mean, x)) / per_channel(self.std, x)

    def extra_repr(self) -> str:
        """Mean and standard deviation, for printing."""
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}"


class Residual(nn.Module):
    """x + body(x): its Lipschitz constant is at most 1 + that of the body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.body(x)  # type: ignore[no-any-return]


def per_channel(numbers: Tensor, x: Tensor) -> Tensor:
    """(n,) numbers in a shape that goes with (batch, n, …)."""
    return numbers.view(-1, *(1,) * (x.ndim - 2))
