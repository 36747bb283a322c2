"""Shortcuts: x + body(x)."""

import math

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count, as_number


class Residual(nn.Module):
    """x + body(x): its Lipschitz constant is at most 1 + that of the body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.body(x)  # type: ignore[no-any-return]


class LinearResidualConv2d(nn.Module):
    """x + s·conv(x) + b as one convolution: the identity is folded into the kernel, so there is one bound for both.

    (batch, n, h, w) → the same; zeros around the image, stride 1. s is ``scale`` times a learned number for each
    channel, which starts at 1.

    Args:
        channels: n.
        kernel_size: odd.
        scale: a fixed number; in a network of L such layers 1/√L.
        bias: whether there is a b.
    """

    def __init__(self, channels: int, kernel_size: int = 3, scale: float = 1.0, bias: bool = True) -> None:
        super().__init__()
        size, number = as_count(kernel_size), as_number(scale)
        if as_count(channels) is None or size is None or size % 2 == 0:
            raise expected("`channels` ≥ 1 and an odd `kernel_size`", f"{channels!r} and {kernel_size!r}")
        if number is None or not math.isfinite(number):
            raise expected("`scale` to be a finite number", repr(scale))
        self.scale = number
        self.kernel = nn.Parameter(torch.empty(channels, channels, size, size))
        nn.init.kaiming_uniform_(self.kernel, a=math.sqrt(5))  # as torch's convolutions start
        self.gain = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    @property
    def weight(self) -> Tensor:
        """(n, n, size, size): the kernel of all, with gradient."""
        channels, middle = len(self.kernel), self.kernel.shape[2] // 2
        one = torch.eye(channels, dtype=self.kernel.dtype, device=self.kernel.device)[:, :, None, None]
        identity = nn.functional.pad(one, (middle,) * 4)
        return identity + (self.scale * self.gain).view(-1, 1, 1, 1) * self.kernel

    def forward(self, x: Tensor) -> Tensor:
        """One convolution."""
        return nn.functional.conv2d(x, self.weight, self.bias, padding=self.kernel.shape[2] // 2)

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        channels, _, size, _ = self.kernel.shape
        return f"{channels}, {size}, scale={self.scale}, bias={self.bias is not None}"
