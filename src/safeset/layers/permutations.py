"""Layers that only move entries: nothing is lost, nothing is stretched."""

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count


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


class ChannelShift(nn.Module):
    """One in ``part`` channels moves a pixel down, as many up, right and left, around the edges; the rest stay.

    (batch, n, h, w) → the same. Of n channels the first n // part move down, the next up, then right, then left. A
    permutation: this is how pixels learn of each other where everything else works on one pixel.

    >>> x = torch.arange(4.0).view(1, 1, 2, 2).repeat(1, 4, 1, 1)
    >>> ChannelShift(part=4)(x).flatten(2)
    tensor([[[2., 3., 0., 1.],
             [2., 3., 0., 1.],
             [1., 0., 3., 2.],
             [1., 0., 3., 2.]]])
    """

    def __init__(self, part: int = 8) -> None:
        super().__init__()
        count = as_count(part)
        if count is None or count < 4:
            raise expected("`part` to be an integer ≥ 4: each of four directions has its channels", repr(part))
        self.part = count

    def forward(self, x: Tensor) -> Tensor:
        """Four groups of channels moved."""
        moving = shifted_channels(x.shape[1], self.part)
        down, up, right, left, still = torch.split(x, [moving] * 4 + [x.shape[1] - 4 * moving], dim=1)
        moved = (down.roll(1, 2), up.roll(-1, 2), right.roll(1, 3), left.roll(-1, 3), still)
        return torch.cat(moved, dim=1)

    def extra_repr(self) -> str:
        """The part, for printing."""
        return f"part={self.part}"


def shifted_channels(channels: int, part: int) -> int:
    """How many of the channels move in each direction, at least one."""
    if channels < part:
        raise expected(f"at least {part} channels, of which one in {part} moves each way", channels)
    return channels // part
