"""Steps down a convex potential: x − Bᵀ·relu(Bx + c), 1-Lipschitz as long as ‖B‖² ≤ 2.

In all of them B is made from a kernel by a factor for each row, and c from b by the same: relu(t·y) = t·relu(y) for
t ≥ 0, so x − Wᵀ·D·relu(Wx + b) is the same with B = D^½·W and c = D^½·b.
"""

import math

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count
from safeset.layers.overlaps import norm, overlaps


class Potential(nn.Module):
    """x − Bᵀ·relu(Bx + c), with B = weight and c = bias: its constant is max(1, ‖B‖² − 1).

    (hidden, n) weights are for (batch, …, n), (hidden, n, size, size) ones for (batch, n, h, w), zeros around the
    image. As it stands its weights are free; layers that keep ‖B‖² at 2 or below are made from it.
    """

    weight: Tensor
    bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """The step."""
        weight, bias = self.weight, self.bias
        if weight.ndim == 2:
            return x - nn.functional.linear(nn.functional.linear(x, weight, bias).relu(), weight.mT)
        padding = weight.shape[2] // 2
        hidden = nn.functional.conv2d(x, weight, bias, padding=padding).relu()
        return x - nn.functional.conv_transpose2d(hidden, weight, padding=padding)


class PotentialLinear(Potential):
    """A step down a convex potential on features, with free weights: (batch, …, n) → the same."""

    def __init__(self, features: int, hidden: int) -> None:
        super().__init__()
        _check(features, hidden)
        self.weight = nn.Parameter(_orthogonal(hidden, features))
        self.bias = nn.Parameter(torch.zeros(hidden))


class PotentialConv2d(Potential):
    """A step down a convex potential on images, with free weights: (batch, n, h, w) → the same."""

    def __init__(self, channels: int, hidden: int, kernel_size: int = 3) -> None:
        super().__init__()
        _check(channels, hidden, kernel_size)
        self.weight = nn.Parameter(_in_the_middle(hidden, channels, kernel_size))
        self.bias = nn.Parameter(torch.zeros(hidden))


class _Made(Potential):
    """A step whose B is its kernel, each row times a factor that it computes from the kernel."""

    kernel: nn.Parameter
    shift: nn.Parameter

    def __init__(self, kernel: Tensor) -> None:
        super().__init__()
        self.kernel = nn.Parameter(kernel)
        self.shift = nn.Parameter(torch.zeros(len(kernel)))

    def factors(self) -> Tensor:
        """(hidden,), or one number for all rows."""
        raise NotImplementedError

    @property
    def weight(self) -> Tensor:  # type: ignore[override]
        """B, with gradient."""
        return self.kernel * self.factors().view(-1, *(1,) * (self.kernel.ndim - 1))

    @property
    def bias(self) -> Tensor:  # type: ignore[override]
        """c, with gradient."""
        return self.shift * self.factors()

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        hidden, channels, *size = self.kernel.shape
        return ", ".join(map(str, (channels, hidden, *size[:1])))


class _SLL(_Made):
    """Rows divided by the root of half their weighted overlaps with all."""

    def __init__(self, kernel: Tensor) -> None:
        super().__init__(kernel)
        self.logits = nn.Parameter(torch.zeros(len(kernel)))  # q = exp(logits): any q > 0 will do

    def factors(self) -> Tensor:
        """√(2 / T_i), T_i = Σ_j |WWᵀ|_ij q_j / q_i."""
        ratios = (self.logits[None, :] - self.logits[:, None]).exp()
        sums = (overlaps(self.kernel) * ratios).sum(dim=1).clamp(min=torch.finfo(self.kernel.dtype).tiny)
        return (2 / sums).sqrt()


class SLLLinear(_SLL):
    """x − 2·Wᵀ·T⁻¹·relu(Wx + b), T_ii = Σ_j |WWᵀ|_ij q_j/q_i: 1-Lipschitz for all W and q > 0 (Araujo et al., 2023).

    (batch, …, n) → the same.
    """

    def __init__(self, features: int, hidden: int | None = None) -> None:
        hidden = features if hidden is None else hidden
        _check(features, hidden)
        super().__init__(_orthogonal(hidden, features))


class SLLConv2d(_SLL):
    """The same with a convolution for W, zeros around the image; all shifts overlap: (batch, n, h, w) → the same."""

    def __init__(self, channels: int, hidden: int | None = None, kernel_size: int = 3) -> None:
        hidden = channels if hidden is None else hidden
        _check(channels, hidden, kernel_size)
        super().__init__(_in_the_middle(hidden, channels, kernel_size))


class _CPL(_Made):
    """All rows divided by the norm."""

    def factors(self) -> Tensor:
        """√2 / ‖W‖, with slightly more than ‖W‖."""
        return math.sqrt(2) / norm(self.kernel)


class CPLLinear(_CPL):
    """x − (2/‖W‖²)·Wᵀ·relu(Wx + b): 1-Lipschitz for all W (Meunier et al., 2022). (batch, …, n) → the same.

    ‖W‖ is computed in every forward, slightly too large, by squaring WWᵀ: nothing is kept from step to step.
    """

    def __init__(self, features: int, hidden: int | None = None) -> None:
        hidden = features if hidden is None else hidden
        _check(features, hidden)
        super().__init__(_orthogonal(hidden, features))


class CPLConv2d(_CPL):
    """The same with a convolution for W, zeros around the image: (batch, n, h, w) → the same."""

    def __init__(self, channels: int, hidden: int | None = None, kernel_size: int = 3) -> None:
        hidden = channels if hidden is None else hidden
        _check(channels, hidden, kernel_size)
        super().__init__(_in_the_middle(hidden, channels, kernel_size))


def _check(channels: int, hidden: int, kernel_size: int = 1) -> None:
    if any(as_count(each) is None for each in (channels, hidden, kernel_size)) or kernel_size % 2 == 0:
        got = f"{channels!r}, {hidden!r} and {kernel_size!r}"
        raise expected("sizes to be integers ≥ 1, and `kernel_size` to be odd", got)


def _orthogonal(hidden: int, features: int) -> Tensor:
    return nn.init.orthogonal_(torch.empty(hidden, features))


def _in_the_middle(hidden: int, channels: int, size: int) -> Tensor:
    """An orthogonal matrix in the middle tap, and a little noise: at 0 no overlap has a slope."""
    kernel = torch.randn(hidden, channels, size, size) * (0.1 / size / math.sqrt(channels))
    kernel[:, :, size // 2, size // 2] += _orthogonal(hidden, channels)
    return kernel
