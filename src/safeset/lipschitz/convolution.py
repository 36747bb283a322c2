"""A zero-padded convolution as a linear operator: y[o] = Σ_t w[t]·x[s·o + d·t − p] per axis, x = 0 off the image."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, constant_pad_nd, conv2d
from torch.nn.grad import conv2d_input

from safeset.errors import expected
from safeset.lipschitz.dense import unit_scaled
from safeset.numerics.directed import Up, gamma


@dataclass(frozen=True)
class Axis:
    """One axis of a convolution: image size n, kernel size k, stride s, dilation d, padding before and after."""

    size: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def extent(self) -> int:
        """Pixels from the first tap to the last."""
        return self.dilation * (self.kernel - 1) + 1

    @property
    def outputs(self) -> int:
        """Number of outputs."""
        return (self.size + self.before + self.after - self.extent) // self.stride + 1

    @property
    def reads(self) -> Tensor:
        """(outputs, kernel) booleans: whether an output reads a pixel of the image at a tap."""
        first = self.stride * torch.arange(self.outputs, device="cpu")[:, None] - self.before
        pixels = first + self.dilation * torch.arange(self.kernel, device="cpu")
        return (pixels >= 0) & (pixels < self.size)

    @property
    def least_torus(self) -> int:
        """Coarse cells N' with s·N' ≥ n + min(p, extent − 1): no tap that leaves the image comes back into it."""
        beyond = min(max(self.before, self.after), self.extent - 1)
        return -(-(self.size + beyond) // self.stride)


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution without groups: kernel (out, in, height, width) float64, and its two axes."""

    kernel: Tensor
    rows: Axis
    columns: Axis

    @property
    def inputs(self) -> tuple[int, int, int]:
        """Shape of what goes in."""
        return (self.kernel.shape[1], self.rows.size, self.columns.size)

    @property
    def outputs(self) -> tuple[int, int, int]:
        """Shape of what comes out."""
        return (self.kernel.shape[0], self.rows.outputs, self.columns.outputs)

    def apply(self, x: Tensor) -> Tensor:
        """A x."""
        return convolve(x, self.kernel, self.rows, self.columns)

    def transposed(self, y: Tensor) -> Tensor:
        """Aᵀ y."""
        return convolve_transposed(y, self.kernel, self.rows, self.columns)

    def turned(self) -> "Convolution":
        """The same with rows and columns exchanged."""
        return Convolution(self.kernel.mT, self.columns, self.rows)

    def unit_scaled(self) -> tuple["Convolution", int]:
        """The same with its largest weight in [1, 2), and the exponent of the power of two that was taken out.

        Taps that only ever see the padding are set to 0: they change nothing, and the norm is then at least 1.
        """
        rows, columns = (axis.reads.any(dim=0).to(self.kernel.device) for axis in (self.rows, self.columns))
        if self.kernel.shape[2:] != (self.rows.kernel, self.columns.kernel):
            taps = (self.rows.kernel, self.columns.kernel)
            raise expected(f"a kernel of {taps} taps", f"shape {tuple(self.kernel.shape)}")
        kernel = self.kernel.where(rows[:, None] & columns | ~self.kernel.isfinite(), 0.0)
        kernel, exponent = unit_scaled(kernel)
        return replace(self, kernel=kernel), exponent


def convolve(x: Tensor, kernel: Tensor, rows: Axis, columns: Axis, groups: int = 1) -> Tensor:
    """The zero-padded convolution, (…, in, height, width) → (…, out, height', width')."""
    x = constant_pad_nd(x, (columns.before, columns.after, rows.before, rows.after))
    stride, dilation = (rows.stride, columns.stride), (rows.dilation, columns.dilation)
    return conv2d(x, kernel, stride=stride, dilation=dilation, groups=groups)


def convolve_transposed(y: Tensor, kernel: Tensor, rows: Axis, columns: Axis, groups: int = 1) -> Tensor:
    """Its transpose, (…, out, height', width') → (…, in, height, width)."""
    stride, dilation = (rows.stride, columns.stride), (rows.dilation, columns.dilation)
    height, width = (axis.before + axis.size + axis.after for axis in (rows, columns))
    whole = (*y.shape[:-3], kernel.shape[1] * groups, height, width)
    many = y.reshape(-1, *y.shape[-3:])
    # As the gradient of its input: on a CPU twice as fast as conv_transpose2d.
    padded = conv2d_input((len(many), *whole[-3:]), kernel, many, stride, 0, dilation, groups)  # type: ignore[no-untyped-call]
    down, right = (slice(axis.before, axis.before + axis.size) for axis in (rows, columns))
    image: Tensor = padded.reshape(whole)[..., down, right]
    return image


def kernel_norm(kernel: Tensor) -> Up:
    """√(‖A‖₁‖A‖_∞) from above for convolutions with this kernel (out, in, height, width), any stride and padding."""
    sums = [Up(float(kernel.abs().sum(dim=dims).amax())) for dims in ((0, 2, 3), (1, 2, 3))]
    return sums[0].root() * sums[1].root() * (1 + gamma(kernel.numel()))
