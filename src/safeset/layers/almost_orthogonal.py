"""AOL layers: weights that are rescaled so that their norm is at most 1 (Prach and Lampert, 2022)."""

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count
from safeset.layers.overlaps import overlaps


def rescaled(kernel: Tensor) -> Tensor:
    """The kernel, each row or column divided by the root of its overlaps with all: of norm 1 at most, up to rounding.

    The smaller side is rescaled, of equal ones what comes in. (out, in, …) → the same.
    """
    if len(kernel) >= kernel.shape[1]:
        return _rows_rescaled(kernel.transpose(0, 1)).transpose(0, 1)
    return _rows_rescaled(kernel)


def _rows_rescaled(kernel: Tensor) -> Tensor:
    sums = overlaps(kernel).sum(dim=1).clamp(min=torch.finfo(kernel.dtype).tiny)
    return kernel * sums.rsqrt().view(-1, *(1,) * (kernel.ndim - 1))


class AOLLinear(nn.Module):
    """Wx + b with a weight that is rescaled to a norm of at most 1: (batch, …, into) → (batch, …, out).

    It starts orthogonal. Close to that nothing is lost; elsewhere the norm is below 1, and estimated.
    """

    def __init__(self, into: int, out: int, bias: bool = True) -> None:
        super().__init__()
        if as_count(into) is None or as_count(out) is None:
            raise expected("sizes of a layer to be integers ≥ 1", f"{into!r} and {out!r}")
        self.kernel = nn.Parameter(torch.empty(out, into))
        nn.init.orthogonal_(self.kernel)
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    @property
    def weight(self) -> Tensor:
        """(out, into), rescaled, with gradient."""
        return rescaled(self.kernel)

    def forward(self, x: Tensor) -> Tensor:
        """Wx + b."""
        return nn.functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        out, into = self.kernel.shape
        return f"{into}, {out}, bias={self.bias is not None}"


class AOLConv2d(nn.Module):
    """A convolution, zeros around the image, whose kernel is rescaled to a norm of at most 1.

    (batch, into, h, w) → (batch, out, h', w'). It starts as an orthogonal matrix in the middle tap.

    Args:
        into: channels that enter.
        out: channels that leave.
        kernel_size: odd.
        stride: any.
        bias: whether there is a b.
    """

    def __init__(self, into: int, out: int, kernel_size: int = 3, stride: int = 1, bias: bool = True) -> None:
        super().__init__()
        if any(as_count(each) is None for each in (into, out, kernel_size, stride)) or kernel_size % 2 == 0:
            got = f"{into!r}, {out!r}, {kernel_size!r} and {stride!r}"
            raise expected("channels and `stride` to be integers ≥ 1, and `kernel_size` to be odd", got)
        self.stride = stride
        self.kernel = nn.Parameter(torch.zeros(out, into, kernel_size, kernel_size))
        middle = kernel_size // 2
        self.kernel.data[:, :, middle, middle] = nn.init.orthogonal_(torch.empty(out, into))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    @property
    def weight(self) -> Tensor:
        """(out, into, size, size), rescaled, with gradient."""
        return rescaled(self.kernel)

    @property
    def padding(self) -> int:
        """Zeros on each side: without a stride the image keeps its size."""
        return self.kernel.shape[2] // 2

    def forward(self, x: Tensor) -> Tensor:
        """The convolution."""
        return nn.functional.conv2d(x, self.weight, self.bias, self.stride, self.padding)

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        out, into, size, _ = self.kernel.shape
        return f"{into}, {out}, {size}, stride={self.stride}, bias={self.bias is not None}"
