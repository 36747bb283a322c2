"""A zero-padded convolution as a linear operator, and its spectral norm from above by tori.

y[o] = Σ_t w[t]·x[s·o + d·t − p] per axis, x = 0 outside the image. The operator is a corner of a circular convolution
on any torus large enough, which the Fourier transform takes apart into small matrices, one for each frequency.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.grad import conv2d_input

from safeset.errors import expected
from safeset.lipschitz.dense import absolute_norm, spectral_bound, unit_scaled
from safeset.lipschitz.upward import Up, gamma

TORI = 4  # how many sizes of torus are tried
ELEMENTS_AT_ONCE = 2**23  # of the frequencies' matrices; 64 MB

Pair = tuple[int, int]

FIXED = 200  # bits behind the point
PI = 0x3243F6A8885A308D313198A2E03707344A4093822299F31D008  # ⌊π·2²⁰⁰⌋


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
    def seen(self) -> Tensor:
        """(kernel,) booleans: the taps that read a pixel of the image for some output."""
        first = self.stride * torch.arange(self.outputs, device="cpu")[:, None] - self.before
        pixels = first + self.dilation * torch.arange(self.kernel, device="cpu")  # (outputs, kernel)
        return ((pixels >= 0) & (pixels < self.size)).any(dim=0)

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
        rows, columns = (axis.seen.to(self.kernel.device) for axis in (self.rows, self.columns))
        if self.kernel.shape[2:] != (self.rows.kernel, self.columns.kernel):
            taps = (self.rows.kernel, self.columns.kernel)
            raise expected(f"a kernel of {taps} taps", f"shape {tuple(self.kernel.shape)}")
        kernel = self.kernel.where(rows[:, None] & columns | ~self.kernel.isfinite(), 0.0)
        kernel, exponent = unit_scaled(kernel)
        return replace(self, kernel=kernel), exponent


def convolve(x: Tensor, kernel: Tensor, rows: Axis, columns: Axis, groups: int = 1) -> Tensor:
    """The zero-padded convolution, (in, height, width) → (out, height', width')."""
    x = functional.pad(x, (columns.before, columns.after, rows.before, rows.after))
    stride, dilation = (rows.stride, columns.stride), (rows.dilation, columns.dilation)
    return functional.conv2d(x, kernel, stride=stride, dilation=dilation, groups=groups)


def convolve_transposed(y: Tensor, kernel: Tensor, rows: Axis, columns: Axis, groups: int = 1) -> Tensor:
    """Its transpose, (out, height', width') → (in, height, width)."""
    stride, dilation = (rows.stride, columns.stride), (rows.dilation, columns.dilation)
    height, width = (axis.before + axis.size + axis.after for axis in (rows, columns))
    whole = (1, kernel.shape[1] * groups, height, width)
    # As the gradient of its input: on a CPU twice as fast as conv_transpose2d.
    padded: Tensor = conv2d_input(whole, kernel, y[None], stride, 0, dilation, groups)[0]  # type: ignore[no-untyped-call]
    return padded[..., rows.before : rows.before + rows.size, columns.before : columns.before + columns.size]


def torus_bound(convolution: Convolution) -> Up:
    """An upper bound of the spectral norm: the least over a few tori of the largest norm of a frequency.

    On a torus of N'₁ × N'₂ cells of s₁ × s₂ pixels, frequency φ has the matrix B(φ), out × in·s₁s₂:
    B(φ)[o, (i, r)] = Σ over taps with d·t = s·m + r of w[o, i, t]·exp(2πi Σ φ·m/N'). As computed, from phases of
    correctly rounded parts, it errs by at most √2·γ_{T+1}·‖Σ|w|‖₂ for T taps (docs/proofs.md).
    """
    convolution, exponent = convolution.unit_scaled()
    if not bool((convolution.kernel != 0).any()):
        return Up(0.0)
    rows, columns = convolution.rows, convolution.columns
    taps = _taps(convolution)
    magnitude = torch.cat([convolution.kernel[:, :, th, tw].abs().sum(dim=2) for _, th, tw in taps], dim=1)
    most = max(len(th) for _, th, _ in taps)
    error = Up(2.0).root() * gamma(most + 1) * absolute_norm(magnitude) * (1 + gamma(most))
    best = Up(math.inf)
    for extra in range(TORI):
        norm = Up(0.0)
        for blocks in _frequencies(convolution, taps, (rows.least_torus + extra, columns.least_torus + extra)):
            norm = max(norm, spectral_bound(blocks))
            if norm >= best:
                break  # another torus was better
        best = min(best, norm)
    return (best + error).shifted(exponent)


def _taps(convolution: Convolution) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Taps by the pixel of a cell that they read: (shifts in cells (taps, 2), row taps, column taps) for each pixel."""
    groups: dict[Pair, list[tuple[int, int, int, int]]] = {}
    rows, columns = convolution.rows, convolution.columns
    for th in range(rows.kernel):
        for tw in range(columns.kernel):
            (mh, rh), (mw, rw) = divmod(rows.dilation * th, rows.stride), divmod(columns.dilation * tw, columns.stride)
            groups.setdefault((rh, rw), []).append((mh, mw, th, tw))
    tables = (torch.tensor(group, device=convolution.kernel.device) for group in groups.values())
    return [(table[:, :2], table[:, 2], table[:, 3]) for table in tables]


def _frequencies(convolution: Convolution, taps: list[tuple[Tensor, Tensor, Tensor]], cells: Pair) -> Iterator[Tensor]:
    """The matrices B(φ) as real ones of twice the size, some frequencies at a time; one of φ and −φ is enough."""
    kernel, device = convolution.kernel, convolution.kernel.device
    period = math.lcm(*cells)
    cosines, sines = (part.to(device) for part in _circle(period))
    places = torch.cartesian_prod(*(torch.arange(n, device=device) for n in (cells[0] // 2 + 1, cells[1])))
    places = places * torch.tensor([period // n for n in cells], device=device)
    out, per_pixel = kernel.shape[:2]
    step = max(1, ELEMENTS_AT_ONCE // (4 * out * per_pixel * len(taps)))
    for some in torch.split(places, step):
        real, imaginary = [], []
        for shifts, th, tw in taps:
            angles = (some[:, None] * shifts).sum(dim=2) % period  # (frequencies, taps)
            weights = kernel[:, :, th, tw].reshape(-1, len(th)).mT  # (taps, out·in)
            real.append((cosines[angles] @ weights).view(-1, out, per_pixel))
            imaginary.append((sines[angles] @ weights).view(-1, out, per_pixel))
        re, im = torch.cat(real, dim=2), torch.cat(imaginary, dim=2)
        yield torch.cat([torch.cat([re, -im], dim=2), torch.cat([im, re], dim=2)], dim=1)


def _circle(period: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of 2πq/period, q = 0, …, each within u of the true value.

    In integers, in units of 2⁻²⁰⁰: e^(2πi/period) by its power series, which ends where terms vanish, and its powers
    one after another. Each operation errs by a few units, so that all of them together stay far below 2⁻⁶⁴.
    """
    angle = 2 * PI // period
    turn, term, place = [0, 0], 1 << FIXED, 0  # real and imaginary part of one step
    while term:
        turn[place % 2] += -term if place % 4 > 1 else term
        place += 1
        term = (term * angle >> FIXED) // place
    points = [(1 << FIXED, 0)]
    for _ in range(1, period):
        x, y = points[-1]
        points.append((x * turn[0] - y * turn[1] >> FIXED, x * turn[1] + y * turn[0] >> FIXED))
    table = [[part / (1 << FIXED) for part in point] for point in points]
    cosines, sines = torch.tensor(table, dtype=torch.float64, device="cpu").unbind(1)
    return cosines, sines
