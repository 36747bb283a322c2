"""A layer of a shift net in two passes over memory: the product, then shift, biases and |·| at once.

Each for itself, these would go over the images five times. Images lie channels last: `safeset.training.gpu.kernels` and
its neighbour for shifts count so. What Triton computes is here in torch too, which is what runs without it.
"""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from safeset.layers import ChannelShift, HalfAbs, L2Pool, OrthogonalConv1x1, PositionBias
from safeset.layers.permutations import shifted_channels

KERNELS = "safeset.training.gpu.shift_kernels"
LARGEST = 2**31  # numbers in a tensor: kernels count in 32 bits


@dataclass(frozen=True)
class Rotation:
    """An orthogonal layer at every pixel alone, as the stem: one product."""

    layer: OrthogonalConv1x1

    def __call__(self, x: Tensor, half: bool) -> Tensor:
        """(batch, c, h, w) → (batch, c', h, w), channels last in memory; in bfloat16 if asked."""
        z, weight = _ready(x, half), self.layer.weight.to(torch.bfloat16 if half else x.dtype)
        out = z @ weight.T
        if self.layer.bias is not None:
            out = out + self.layer.bias.to(out.dtype)
        return out.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class ShiftBlock:
    """A rotation, a shift of channels, biases and |·| on half of the channels."""

    layer: OrthogonalConv1x1
    shift: ChannelShift
    positions: PositionBias
    half_abs: HalfAbs

    def __call__(self, x: Tensor, half: bool) -> Tensor:
        """(batch, c, h, w) → the same, channels last in memory; products in bfloat16 if asked."""
        z, weight = _ready(x, half), self.layer.weight.to(torch.bfloat16 if half else x.dtype)
        bias = self.positions.bias.expand(len(weight), *z.shape[1:3])  # (c, h, w)
        if self.layer.bias is not None:  # the same at every pixel, so that a shift does not move it
            bias = bias + self.layer.bias[:, None, None]
        bias = bias.permute(1, 2, 0).float().contiguous()  # (h, w, c)
        moving = shifted_channels(len(weight), self.shift.part)
        out: Tensor = _Layer.apply(z, weight, bias, moving, self.half_abs.which == "even")  # type: ignore[no-untyped-call]
        return out.permute(0, 3, 1, 2)


@dataclass(frozen=True)
class Whole:
    """A pooling, of float32 whatever comes in: sums of squares in bfloat16 would say little."""

    layer: L2Pool

    def __call__(self, x: Tensor, half: bool) -> Tensor:
        """As the layer, from float32."""
        found: Tensor = self.layer(x.float())
        return found


def shift_part(layers: list[nn.Module]) -> tuple[Rotation | ShiftBlock | Whole, int] | None:
    """What the first of some layers are together, and how many they are; None if they are nothing of this kind."""
    first = layers[0]
    if type(first) is L2Pool:
        return Whole(first), 1
    if type(first) is not OrthogonalConv1x1:
        return None
    if len(layers) >= 4:
        shift, positions, half_abs = layers[1:4]
        square = first.weight.shape[0] == first.weight.shape[1]
        if square and isinstance(shift, ChannelShift) and isinstance(half_abs, HalfAbs):
            return (ShiftBlock(first, shift, positions, half_abs), 4) if isinstance(positions, PositionBias) else None
    return Rotation(first), 1


class _Layer(torch.autograd.Function):
    """σ(S(zWᵀ) + bias) of z (batch, h, w, c), bias (h, w, c). It can be differentiated once."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, weight: Tensor, bias: Tensor, moving: int, even: bool) -> Tensor:
        found = z @ weight.T
        out = torch.empty_like(found)
        _passes(found).finish(found, bias, out, moving, even)
        ctx.save_for_backward(z, weight, bias, found)
        ctx.moving, ctx.even = moving, even
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        z, weight, bias, found = ctx.saved_tensors
        of_found = torch.empty_like(found)
        of_bias = _passes(found).unfinish(gradient.contiguous(), found, bias, of_found, ctx.moving, ctx.even)
        of_weight = of_found.flatten(0, 2).T @ z.flatten(0, 2)
        return of_found @ weight, of_weight, of_bias, None, None


def finish(found: Tensor, bias: Tensor, out: Tensor, moving: int, even: bool) -> None:
    """Shift, biases, and |·| on half of the channels.

    Args:
        found: (batch, h, w, c), the product.
        bias: (h, w, c), float32.
        out: (batch, h, w, c), to be written.
        moving: channels that move in each of four directions; the first of them down.
        even: whether |·| is of every other channel, else of the first half.
    """
    value = _shifted(found.float() if found.dtype == torch.bfloat16 else found, moving, 1) + bias
    out.copy_(torch.where(_absolute(found.shape[-1], even, found.device), value.abs(), value))


def unfinish(gradient: Tensor, found: Tensor, bias: Tensor, of_found: Tensor, moving: int, even: bool) -> Tensor:
    """From the gradient of ``out`` to that of ``found``, which is written; returns that of the bias, (h, w, c)."""
    wide = torch.float32 if found.dtype == torch.bfloat16 else found.dtype
    value = _shifted(found.to(wide), moving, 1) + bias
    turned = _absolute(found.shape[-1], even, found.device) & (value < 0)
    slope = torch.where(turned, -gradient.to(wide), gradient.to(wide))
    of_found.copy_(_shifted(slope, moving, -1))
    return slope.sum(dim=0)


def _shifted(z: Tensor, moving: int, step: int) -> Tensor:
    """As `ChannelShift`, channels last; back with a step of −1."""
    down, up, right, left, still = torch.split(z, [moving] * 4 + [z.shape[-1] - 4 * moving], dim=-1)
    return torch.cat([down.roll(step, 1), up.roll(-step, 1), right.roll(step, 2), left.roll(-step, 2), still], dim=-1)


def _absolute(channels: int, even: bool, device: torch.device) -> Tensor:
    """Which channels have |·|: (c,)."""
    places = torch.arange(channels, device=device)
    return places % 2 == 0 if even else places < channels // 2


def _passes(found: Tensor) -> ModuleType:
    """Who has `finish` and `unfinish` for such a tensor: Triton, or torch here."""
    return import_module(KERNELS if found.is_cuda and found.numel() < LARGEST else __name__)


def _ready(x: Tensor, half: bool) -> Tensor:
    """Images as they go into products: (batch, h, w, c)."""
    return (x.bfloat16() if half else x).permute(0, 2, 3, 1).contiguous()
