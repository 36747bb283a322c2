"""Convolutions that are too large for integers: factors in float64, and what they leave over without error.

G, the Gram matrix of the convolution, is known in integers (`integers.py`). c·I − G is factored in blocks of image
rows by float64, of which nothing is assumed; each factor L is then split into H, integers of 25 bits, and the rest
T. Products of H are integers below 2⁵³, which float64 computes exactly; those of T are 2⁻²⁶ as large, and so is
their rounding. Nothing is shared with `safeset.lipschitz`; docs/proofs.md has the theorem.
"""

import time
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import floor, isqrt

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.numerics.integers import Deadline, Floats, Incidence, Integers, OutOfTimeError, gram

GRID = 25  # bits of H
U = 2.0**-53
ROOM = 1e-12  # of c: what the factors may leave over, at first
SPEED = {"cpu": 2e10, "cuda": 5e12}  # products a second, to be sure that there is time; then it is measured

Taps = tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Banded:
    """G = AAᵀ of a convolution's matrix A, in blocks of image rows.

    Attributes:
        kernel: (channels, others, height, width) of the side that G is about.
        rows: (place, tap, other place) along the axis of the blocks.
        columns: the same inside a block.
    """

    kernel: Floats
    rows: list[Incidence]
    columns: list[Incidence]

    @cached_property
    def meetings(self) -> dict[tuple[int, int], Taps]:
        """The pairs of taps through which two rows meet, the first one not before the second."""
        return {pair: taps for pair, taps in _meetings(self.rows).items() if pair[0] >= pair[1]}

    @property
    def blocks(self) -> int:
        """How many block rows there are."""
        return 1 + max(place for place, _, _ in self.rows)

    @property
    def band(self) -> int:
        """Blocks further than this from the diagonal are 0."""
        return max(i - j for i, j in self.meetings)

    @property
    def side(self) -> int:
        """Of a block."""
        return len(self.kernel) * (1 + max(place for place, _, _ in self.columns))

    @property
    def work(self) -> float:
        """Products that a proof takes, about."""
        return self.blocks * (1 + 1.5 * (self.band + 1) * (self.band + 2)) * float(self.side) ** 3


def banded(kernel: Floats, rows: list[Incidence], columns: list[Incidence]) -> Banded | None:
    """The cheapest way to put a convolution in blocks: of outputs or inputs, by rows or columns; None if all is 0."""
    kernel = kernel.copy()
    for axis, reads in ((2, rows), (3, columns)):
        unseen = sorted(set(range(kernel.shape[axis])) - {t for _, t, _ in reads})
        kernel[(slice(None),) * axis + (unseen,)] = 0.0  # taps that only ever see the padding
    if not kernel.any():
        return None
    turned = kernel.swapaxes(0, 1)
    across, along = ([(pixel, t, o) for o, t, pixel in reads] for reads in (rows, columns))
    ways = [
        Banded(kernel, rows, columns),
        Banded(kernel.swapaxes(2, 3), columns, rows),
        Banded(turned, across, along),
        Banded(turned.swapaxes(2, 3), along, across),
    ]
    return min(ways, key=lambda way: way.work)


def is_proved(matrix: Banded, bound: Fraction, deadline: Deadline, device: torch.device) -> bool:
    """Whether a bound of the convolution's norm is proved.

    Raises:
        OutOfTimeError: if there is no time for it.
    """
    if matrix.work / SPEED.get(device.type, SPEED["cpu"]) > deadline.left:
        raise OutOfTimeError
    _check_products(device)
    channels, others, *_ = matrix.kernel.shape
    small = gram(matrix.kernel.transpose(2, 3, 0, 1).reshape(-1, others), deadline)
    entries = len(matrix.rows) * len(matrix.columns) * channels * others
    inner = floor(bound / small.unit) - isqrt(entries) - 1
    if inner <= 0:
        return False
    room = ROOM
    for _ in range(2):
        left = _Factors(matrix, small.products, inner**2, room, deadline, device).left_over()
        if left is None:
            return False
        if left <= room:
            return True
        room = 1.25 * left
    return False


class _Factors:
    """L with (c − room·c)·I − G = 4^e·(LLᵀ + E), block by block, and how large E is at most.

    Args:
        matrix: what G is about.
        products: the Gram matrix of its kernel.
        c: the square of a bound, in integers.
        room: a share of c.
        deadline: when to stop.
        device: where to compute.
    """

    def __init__(
        self, matrix: Banded, products: Integers, c: int, room: float, deadline: Deadline, device: torch.device
    ) -> None:
        self.matrix, self.products, self.deadline, self.device = matrix, products, deadline, device
        self.scale = (c.bit_length() + 1) // 2 * 2  # bits: all is divided by 2^scale ≥ c
        self.shifted = c - int(c * Fraction(room))
        self.unit = c / 2**self.scale  # what left_over is measured in
        self.columns = _meetings(matrix.columns)
        for x in range(matrix.side // len(matrix.kernel)):
            self.columns.setdefault((x, x), ())  # what is never read is on the diagonal too
        self.known: dict[tuple[Taps, bool], tuple[Tensor, Tensor]] = {}

    def left_over(self) -> float | None:
        """A bound of ‖E‖ as a share of c; None if there are no factors."""
        n, side, band = self.matrix.blocks, self.matrix.side, self.matrix.band
        found: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}  # L and H of the last block columns
        zeros = torch.zeros(8, n, side, dtype=torch.float64, device=self.device)
        over, sums, lows, squares, long_l, long_t, deep_l, deep_t = zeros.unbind()
        started = time.perf_counter()
        for j in range(n):
            if j > band and (time.perf_counter() - started) / j * (n - j) > self.deadline.left:
                raise OutOfTimeError
            for i in range(j, min(j + band, n - 1) + 1):
                self.deadline.check()
                high, low = self.block(i, j)
                exact, rest = high.clone(), low.clone()
                for k in range(max(0, i - band), j):
                    _subtract(exact, rest, found[i, k], found[j, k])
                factor = _factor(exact + rest, found[j, j][0] if i > j else None)
                if factor is None:
                    return None
                found[i, j] = (factor, torch.round(factor * 2.0**GRID) / 2.0**GRID)
                _subtract(exact, rest, found[i, j], found[j, j])
                _add(over, exact + rest, i, j)
                _add(sums, exact.abs() + rest.abs(), i, j)
                _add(lows, low, i, j)
                own, coarse = found[i, j]
                squares[i] += coarse.square().sum(dim=1)
                for across, down, part in ((long_l, deep_l, own), (long_t, deep_t, own - coarse)):
                    across[i] += part.abs().sum(dim=1)
                    down[j] += part.abs().sum(dim=0)
            for i in range(j, j + band + 1):
                found.pop((i, j - band), None)
        if not bool(zeros.isfinite().all()) or not float(squares.amax()) < 1.9:
            return None  # then products of H might not be below 2⁵³
        terms = 4 * (band + 1) * side + 8
        lost = terms * U / (1 - terms * U)
        most, whole, low_sum, l_row, t_row, l_column, t_column = (
            float(each.amax()) * (1 + lost) for each in (over, sums, lows, long_l, long_t, deep_l, deep_t)
        )
        h_row = l_row + t_row
        left = most + 2 * U * whole + lost * (low_sum + h_row * t_column + t_row * l_column) + terms * 2.0**-100
        return float(left * (1 + 64 * U) / self.unit)

    def block(self, i: int, j: int) -> tuple[Tensor, Tensor]:
        """Block (i, j) of (c − room·c)·I − G over 2^scale: multiples of 2⁻⁵⁰, and the rest to the last bit."""
        taps = self.matrix.meetings.get((i, j), ())
        key = taps, i == j
        if key not in self.known:
            side, channels = self.matrix.side, len(self.matrix.kernel)
            parts = [torch.zeros(side, side, dtype=torch.float64) for _ in range(2)]
            kept: dict[tuple[Taps, bool], tuple[Tensor, Tensor]] = {}
            for (x, other), across in self.columns.items():
                own = i == j and x == other
                if (across, own) not in kept:
                    self.deadline.check()
                    kept[across, own] = self._entries(taps, across, own)
                for part, entries in zip(parts, kept[across, own], strict=True):
                    part[x * channels : (x + 1) * channels, other * channels : (other + 1) * channels] = entries
            self.known[key] = (parts[0].to(self.device), parts[1].to(self.device))
        return self.known[key]

    def _entries(self, taps: Taps, across: Taps, diagonal: bool) -> tuple[Tensor, Tensor]:
        """(channels, channels) entries that meet through these taps of rows and of columns."""
        channels, _, _, width = self.matrix.kernel.shape
        total: Integers = np.zeros((channels, channels), dtype=object)
        for (s, other_s), (t, other_t) in product(taps, across):
            one, two = (s * width + t) * channels, (other_s * width + other_t) * channels
            total = total - self.products[one : one + channels, two : two + channels]
        if diagonal:
            total[np.diag_indices(channels)] += self.shifted
        doubled = total << (2 * GRID)
        high = doubled >> self.scale
        rest = doubled - (high << self.scale)  # ≥ 0
        whole = 2 ** (self.scale + 2 * GRID)
        low = np.array([value / whole for value in rest.flat]).reshape(rest.shape)
        return torch.from_numpy(high.astype(np.float64) * 2.0 ** (-2 * GRID)), torch.from_numpy(low)


def _check_products(device: torch.device) -> None:
    """Refuse a device that computes products of float64 in another precision: integers tell."""
    whole = torch.randint(-(2**GRID), 2**GRID, (64, 4), generator=torch.Generator().manual_seed(0))
    found = whole.double().to(device) @ whole.double().to(device).mT
    if not torch.equal(found.cpu().long(), whole @ whole.mT):
        raise expected("a device whose float64 products are exact for integers", str(device), "Use --device cpu.")


def _factor(block: Tensor, corner: Tensor | None) -> Tensor | None:
    """The block of L with ``block`` = L·cornerᵀ, or L·Lᵀ where there is no corner, as float64 finds it."""
    factor: Tensor
    if corner is not None:
        factor = torch.linalg.solve_triangular(corner, block.mT, upper=False).mT.contiguous()
        return factor
    factor, info = torch.linalg.cholesky_ex(block)
    return None if bool(info != 0) else factor.tril()


def _subtract(exact: Tensor, rest: Tensor, one: tuple[Tensor, Tensor], two: tuple[Tensor, Tensor]) -> None:
    """Take L₁L₂ᵀ = H₁H₂ᵀ + H₁T₂ᵀ + T₁L₂ᵀ away, the first part without error."""
    exact.addmm_(one[1], two[1].mT, alpha=-1.0)
    rest.addmm_(one[1], (two[0] - two[1]).mT, alpha=-1.0)
    rest.addmm_(one[0] - one[1], two[0].mT, alpha=-1.0)


def _meetings(reads: list[Incidence]) -> dict[tuple[int, int], Taps]:
    """For two places of one axis the pairs of taps through which both meet a place of the other side."""
    there: dict[int, list[tuple[int, int]]] = {}
    for place, tap, other in reads:
        there.setdefault(other, []).append((place, tap))
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for each in there.values():
        for (one, tap), (two, another) in product(each, each):
            found.setdefault((one, two), []).append((tap, another))
    return {pair: tuple(sorted(taps)) for pair, taps in found.items()}


def _add(sums: Tensor, block: Tensor, i: int, j: int) -> None:
    """Add absolute row sums of a block on or below the diagonal, and of its mirror image above."""
    sizes = block.abs()
    sums[i] += sizes.sum(dim=1)
    if i != j:
        sums[j] += sizes.sum(dim=0)
