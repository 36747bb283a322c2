"""Absolute values: of all entries, or of half of the channels."""

from torch import Tensor, cat, nn, stack

from safeset.errors import expected, nearest

HALVES = ("first", "even")


class Abs(nn.Module):
    """|x|, entry by entry."""

    def forward(self, x: Tensor) -> Tensor:
        """Absolute values."""
        return x.abs()


class HalfAbs(nn.Module):
    """|x| on half of the channels, the others as they are: MinMax up to a rotation, and as exact.

    (batch, n, …) → (batch, n, …), n even.

    Args:
        which: ``first``: channels 0 to n/2 − 1; ``even``: channels 0, 2, 4, ….

    >>> import torch
    >>> HalfAbs()(torch.tensor([[-1.0, -2.0, -3.0, 4.0]]))
    tensor([[ 1.,  2., -3.,  4.]])
    >>> HalfAbs("even")(torch.tensor([[-1.0, -2.0, -3.0, 4.0]]))
    tensor([[ 1., -2.,  3.,  4.]])
    """

    def __init__(self, which: str = "first") -> None:
        super().__init__()
        if which not in HALVES:
            raise expected(f"`which` to be one of {', '.join(HALVES)}", repr(which), nearest(which, HALVES))
        self.which = which

    def forward(self, x: Tensor) -> Tensor:
        """Absolute values of half of the channels."""
        channels = x.shape[1]
        if channels % 2:
            raise expected("an even number of channels for HalfAbs", channels)
        if self.which == "even":
            pairs = x.reshape(len(x), channels // 2, 2, *x.shape[2:])
            return stack([pairs[:, :, 0].abs(), pairs[:, :, 1]], dim=2).flatten(1, 2)
        first, second = x.chunk(2, dim=1)
        return cat([first.abs(), second], dim=1)

    def extra_repr(self) -> str:
        """Which half, for printing."""
        return self.which
