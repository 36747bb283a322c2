"""The spectral norm of a zero-padded convolution, from above and to a relative 1e-9: block-banded Cholesky.

Ordered by image rows, the Gram matrix of the operator is banded in blocks, one block for each pair of nearby rows; away
from the edges all blocks of a diagonal are equal. c·I minus it is factored block by block, with the last few block
columns in memory, and what the factors leave over is measured and counted, as in `dense`.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from safeset.lipschitz.convolution import Convolution, kernel_norm
from safeset.lipschitz.dense import mirrored, strips
from safeset.lipschitz.lanczos import lanczos_top
from safeset.numerics.directed import Up, gamma


def search_block_proof(gram: "BlockGram") -> tuple[Up, float]:
    """An upper bound of ‖A‖², to a relative 1e-9, and the c it was proved with."""
    top = largest_eigenvalue(gram.convolution)
    failed, excess = 0.0, 1e-11
    while (proved := block_bound(gram, top * (1 + excess))) is None:
        failed, excess = excess, 10 * excess
    while excess - failed > 1e-9:  # the Lanczos method has not converged: look between
        middle = (failed * excess) ** 0.5
        if (closer := block_bound(gram, top * (1 + middle))) is None:
            failed = middle
        else:
            excess, proved = middle, closer
    return proved, top * (1 + excess)


def block_bound(gram: "BlockGram", c: float) -> Up | None:
    """An upper bound of ‖A‖²: c(1 + 2u) + ‖Â − LLᵀ‖ + γ_M·‖A‖₁‖A‖_∞ (docs/proofs.md); None if c is too small."""
    proved = shifted_bound(gram, c)
    absolute = kernel_norm(gram.convolution.kernel)
    return None if proved is None else proved + gamma(gram.terms) * absolute * absolute


@dataclass(frozen=True, eq=False)
class BlockGram:
    """A Aᵀ (of outputs) or Aᵀ A (of inputs) in blocks of image rows: n × n blocks, few of them not 0."""

    convolution: Convolution
    outputs: bool

    @staticmethod
    def cheapest(convolution: Convolution) -> "BlockGram":
        """Of outputs or inputs, by rows or columns: the one that is factored fastest."""
        ways = [BlockGram(way, side) for way in (convolution, convolution.turned()) for side in (True, False)]
        return min(ways, key=lambda gram: gram.cost)

    @property
    def blocks(self) -> int:
        """Number of block rows."""
        return self.convolution.rows.outputs if self.outputs else self.convolution.rows.size

    @property
    def side(self) -> int:
        """Side of a block."""
        channels, _, columns = self.convolution.outputs if self.outputs else self.convolution.inputs
        return channels * columns

    @property
    def band(self) -> int:
        """Blocks further than this from the diagonal are 0."""
        rows = self.convolution.rows
        return min((rows.extent - 1) // rows.stride if self.outputs else rows.extent - 1, self.blocks - 1)

    @property
    def terms(self) -> int:
        """Products in an entry, at most."""
        out, into, height, width = self.convolution.kernel.shape
        return (into if self.outputs else out) * height * width

    @property
    def cost(self) -> float:
        """Floating-point operations of the factorisation and its check, about; or what takes as long."""
        return self.blocks * (self.band**2 + 4 * self.band + 3) * (float(self.side) ** 3 + 1e7)

    def block(self, i: int, j: int) -> Tensor:
        """Block (i, j), j ≤ i, each entry within γ_terms of its exact value, relative to that of |A||Aᵀ|."""
        pairs = self._pairs(i, j)
        if pairs not in self._sums:
            total = self.convolution.kernel.new_zeros(self.side, self.side)
            for pair in pairs:
                total += self._product(*pair)
            self._sums[pairs] = mirrored(total) if i == j else total
        return self._sums[pairs]

    def _pairs(self, i: int, j: int) -> tuple[tuple[int, int], ...]:
        """The taps (t, t') through which rows i and j meet in a row of the other side."""
        rows = self.convolution.rows
        s, d, p, taps = rows.stride, rows.dilation, rows.before, range(rows.kernel)
        pairs = []
        for t in taps:
            if self.outputs:  # both read image row x
                x, left = s * i + d * t - p, 0
                inside, reach = 0 <= x < rows.size, x + p - s * j
            else:  # both are read by row y
                y, left = divmod(i + p - d * t, s)
                inside, reach = 0 <= y < rows.outputs, j + p - s * y
            other, between = divmod(reach, d)
            if inside and not left and not between and other in taps:
                pairs.append((t, other))
        return tuple(pairs)

    @cached_property
    def _sums(self) -> dict[tuple[tuple[int, int], ...], Tensor]:
        return {}

    @cached_property
    def _products(self) -> dict[tuple[int, int], Tensor]:
        return {}

    def _product(self, t: int, other: int) -> Tensor:
        if (t, other) not in self._products:
            self._products[t, other] = self._tap_matrices[t] @ self._tap_matrices[other].mT
        return self._products[t, other]

    @cached_property
    def _tap_matrices(self) -> list[Tensor]:
        """What tap t of the rows does to a row of the image: (columns'·out, columns·in) each, or its transpose."""
        kernel, columns = self.convolution.kernel, self.convolution.columns
        out, into, height, width = kernel.shape
        matrices = kernel.new_zeros(height, columns.outputs, out, columns.size, into)
        places = torch.arange(columns.outputs, device=kernel.device)
        for t in range(width):
            pixels = columns.stride * places + columns.dilation * t - columns.before
            inside = (pixels >= 0) & (pixels < columns.size)
            matrices[:, places[inside], :, pixels[inside], :] = kernel[:, :, :, t].permute(2, 0, 1)
        flat = matrices.view(height, columns.outputs * out, columns.size * into)
        return list(flat if self.outputs else flat.mT)


def shifted_bound(gram: BlockGram, c: float) -> Up | None:
    """An upper bound of the largest eigenvalue of a block Gram matrix just above c; None if c is too small."""
    n, side, band = gram.blocks, gram.side, gram.band
    columns: dict[int, dict[int, Tensor]] = {}  # the last block columns of L: column → row → block
    # Absolute row sums of the residual and of Â, row and column sums of L.
    residuals, entries, across, down = gram.convolution.kernel.new_zeros(4, n, side).unbind()
    for j in range(n):
        column: dict[int, Tensor] = {}
        for i in range(j, min(j + band, n - 1) + 1):
            shifted = -gram.block(i, j)
            if i == j:
                shifted.diagonal().add_(c)
                if not bool((shifted.diagonal() > 0).all()):
                    return None
            _add_sums(entries, shifted, i, j)
            for k in range(max(0, i - band), j):
                _subtract(shifted, columns[k][i], columns[k][j], lower=i == j)
            if i == j:
                column[i], info = torch.linalg.cholesky_ex(shifted)
                if bool(info != 0):
                    return None
                column[i].tril_()  # it is so already, unless LAPACK left something above the diagonal
            else:
                column[i] = torch.linalg.solve_triangular(column[j], shifted.mT, upper=False).mT
            for some in strips(side):  # what is left over; column[j] is 0 above its diagonal
                known, below = slice(0, some.stop), slice(some.start if i == j else 0, side)
                shifted[below, some].addmm_(column[i][below, known], column[j][some, known].mT, alpha=-1.0)
            _add_sums(residuals, mirrored(shifted) if i == j else shifted, i, j)
            across[i] += column[i].abs().sum(dim=1)
            down[j] += column[i].abs().sum(dim=0)
        columns[j] = column
        columns.pop(j - band, None)
    if not bool((residuals + entries + across + down).isfinite().all()):
        return None
    slack = 1 + gamma((2 * band + 1) * side)  # of sums of so many terms
    left, all_entries, spread = (Up(float(sums.amax())) * slack for sums in (residuals, entries, across))
    spread = spread * (Up(float(down.amax())) * slack)
    return Up(c) * (1 + 2 * 2.0**-53) + left + gamma((band + 1) * side + 1) * (all_entries + spread)


def _subtract(block: Tensor, left: Tensor, right: Tensor, *, lower: bool) -> None:
    """Subtract left · rightᵀ from a block in place; of one on the diagonal its lower triangle is all that is read."""
    for rows in strips(len(block)) if lower else [slice(0, len(block))]:
        known = slice(0, rows.stop if lower else len(block))
        block[rows, known].addmm_(left[rows], right[known].mT, alpha=-1.0)


def _add_sums(sums: Tensor, block: Tensor, i: int, j: int) -> None:
    """Add the absolute row sums of a block below the diagonal, and of its mirror image above."""
    magnitude = block.abs()
    sums[i] += magnitude.sum(dim=1)
    if i != j:
        sums[j] += magnitude.sum(dim=0)


def largest_eigenvalue(convolution: Convolution) -> float:
    """The largest eigenvalue of Aᵀ A, an estimate from below."""
    small = min(convolution.inputs, convolution.outputs, key=math.prod)

    def apply(vector: Tensor) -> Tensor:
        shaped = vector.view(small)
        if small == convolution.inputs:
            return convolution.transposed(convolution.apply(shaped)).reshape(-1)
        return convolution.apply(convolution.transposed(shaped)).reshape(-1)

    return lanczos_top(apply, math.prod(small), convolution.kernel.device)
