"""Integers in place of floats: Gram matrices without rounding, and what they prove of a norm.

Nothing here is shared with `safeset.lipschitz`, whose bounds it is to check: no γ, no LAPACK, no rounding upwards.
"""

import time
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations_with_replacement, product
from math import floor, frexp, inf, isqrt

import numpy as np
from numpy.typing import NDArray

BITS, SLICES, TERMS = 20, 4, 4096  # 2·BITS + log₂(TERMS) ≤ 53: products of slices are exact in float64
PLACES = BITS * SLICES

Floats = NDArray[np.float64]
Integers = NDArray[np.object_]  # of Python's integers
Incidence = tuple[int, int, int]  # an output, the tap, the pixel that it reads


class OutOfTimeError(Exception):
    """The time that was given is over."""


@dataclass(frozen=True)
class Deadline:
    """A moment of `time.perf_counter` after which work is to stop."""

    moment: float

    @property
    def left(self) -> float:
        """Seconds until then."""
        return self.moment - time.perf_counter()

    def check(self) -> None:
        """Raise if it is over."""
        if not time.perf_counter() < self.moment:
            raise OutOfTimeError


NEVER = Deadline(inf)


@dataclass(frozen=True, eq=False)
class Gram:
    """What is known of a matrix W = unit·(A + R), A integers.

    Attributes:
        products: (n, n) AAᵀ, exactly.
        unit: a power of two.
        remainder: an integer ≥ ‖R‖_F.
    """

    products: Integers
    unit: Fraction
    remainder: int

    @property
    def band(self) -> int:
        """The largest |i − j| of a product that is not 0."""
        rows, columns = np.nonzero(self.products)
        return int(np.abs(rows - columns).max(initial=0))

    @property
    def work(self) -> int:
        """About how many products of integers a proof takes."""
        side, band = len(self.products), self.band
        return side**3 // 6 if 2 * band > side else side * band**2

    def proves(self, bound: Fraction, deadline: Deadline) -> bool:
        """Whether bound ≥ ‖W‖₂ is proved: (bound / unit − remainder)²·I − AAᵀ is positive semidefinite."""
        inner = floor(bound / self.unit) - self.remainder
        if not np.any(self.products):
            return inner >= 0
        return inner > 0 and positive(inner**2, self.products, self.band, deadline)

    def proves_by_rows(self, bound: Fraction) -> bool:
        """The same for matrices whose rows are nearly orthogonal: no row of |AAᵀ| adds up to more than the square."""
        inner = floor(bound / self.unit) - self.remainder
        return inner >= 0 and inner**2 >= max(np.abs(self.products).sum(axis=1), default=0)

    def refutation(self, bound: Fraction) -> Fraction | None:
        """A number above the bound that ‖W‖₂ is proved to be at least; None if none is found.

        For a vector v of integers ‖Aᵀv‖² = vᵀAAᵀv, and ‖Wᵀv‖ / ‖v‖ ≥ unit·(‖Aᵀv‖ / ‖v‖ − ‖R‖). The vector comes
        from the eigenvectors in float64, of which nothing is assumed.
        """
        _, vectors = np.linalg.eigh(self.products.astype(np.float64))
        v = np.rint(vectors[:, -1] * 2.0**50).astype(np.int64).astype(object)
        length = int(v @ v)
        found = (isqrt(int(v @ (self.products @ v)) // length) - self.remainder) * self.unit
        return found if found > bound else None


def positive(square: int, products: Integers, band: int, deadline: Deadline) -> bool:
    """Whether square·I − G is proved positive semidefinite, G symmetric integers, 0 beyond the band.

    By a Cholesky factorisation in integers of M = (square − δ)·I − G: with S_ij = M_ij − Σ_k<j L_ik L_jk, exactly,
    L_jj = ⌊√S_jj⌋ and L_ij = ⌊S_ij / L_jj⌋. So M = LLᵀ + E, 0 ≤ E_jj ≤ 2·L_jj and 0 ≤ E_ij < L_jj for i > j, and no
    L_jj is above √square, or it gives up. With at most r other entries in a row ‖E‖₂ ≤ ‖E‖_∞ ≤ (2 + r)·⌊√square⌋ = δ:
    square·I − G = LLᵀ + E + δ·I has no eigenvalue below 0. (δ is about 2⁻⁷⁰ of the square: L has 80 bits and more.)
    """
    side = len(products)
    allowance = (2 + min(side - 1, 2 * band)) * isqrt(square)
    factor: Integers = np.zeros((side, side), dtype=object)
    for j in range(side):
        deadline.check()
        first, last = max(0, j - band), min(side, j + band + 1)
        column = -products[j:last, j]
        if first < j:
            column = column - factor[j:last, first:j].dot(factor[j, first:j])
        column[0] += square - allowance
        if not 0 < column[0] <= square:
            return False
        factor[j, j] = isqrt(column[0])
        factor[j + 1 : last, j] = column[1:] // factor[j, j]
    return True


def gram(matrix: Floats, deadline: Deadline) -> Gram:
    """The Gram matrix WWᵀ of a (p, q) matrix of finite numbers.

    A is W / unit without its fractions: 80 bits, in 4 slices of 20, each |slice| < 2²⁰. Sums of 4,096 products of two
    are integers below 2⁵³, and so are all partial sums: whatever the order, float64 computes them exactly.
    """
    exponent = frexp(float(np.abs(matrix).max(initial=0.0)))[1]  # all below 2^exponent
    total: Integers = np.zeros((len(matrix), len(matrix)), dtype=object)
    for start in range(0, matrix.shape[1], TERMS):
        deadline.check()
        slices = _slices(np.ldexp(matrix[:, start : start + TERMS], -exponent))
        levels = np.zeros((2 * SLICES - 1, *total.shape), dtype=np.int64)
        for s, t in combinations_with_replacement(range(SLICES), 2):
            block = (slices[s] @ slices[t].T).astype(np.int64)
            levels[s + t] += block if s == t else block + block.T
        part = levels[0].astype(object)
        for level in levels[1:]:
            part = (part << BITS) + level.astype(object)
        total += part
    return Gram(total, Fraction(2) ** (exponent - PLACES), isqrt(matrix.size) + 1 if matrix.any() else 0)


def _slices(numbers: Floats) -> list[Floats]:
    """Numbers below 1, cut after each 20 bits, as integers: exact, whatever is left after 80 bits dropped."""
    slices = []
    for _ in range(SLICES):
        numbers = numbers * 2.0**BITS
        slices.append(np.trunc(numbers))
        numbers = numbers - slices[-1]
    return slices


def incidences(pixels: int, outputs: int, taps: int, stride: int, dilation: int, before: int) -> list[Incidence]:
    """One axis of a sliding kernel: output o reads at tap t the pixel s·o + d·t − before, where there is one."""
    reads = ((o, t, stride * o + dilation * t - before) for o, t in product(range(outputs), range(taps)))
    return [(o, t, pixel) for o, t, pixel in reads if 0 <= pixel < pixels]


def convolution_gram(kernel: Floats, rows: list[Incidence], columns: list[Incidence], deadline: Deadline) -> Gram:
    """The Gram matrix of a convolution's smaller side, by definition; entry by entry it is that of the whole matrix.

    The operator has the block K_t (out × in) at output o and pixel p if o reads p at tap t. So AAᵀ is the sum, over
    pixels and pairs of outputs that read one, of K_t K_t'ᵀ; AᵀA is that over outputs and pairs of pixels that one
    reads, of K_tᵀ K_t'. All these blocks are in one Gram matrix of the kernel.

    Args:
        kernel: (out, in, height, width).
        rows: `incidences` of the first axis.
        columns: of the second.
        deadline: when to stop.
    """
    kernel = kernel.copy()
    for axis, reads in ((2, rows), (3, columns)):
        unseen = sorted(set(range(kernel.shape[axis])) - {t for _, t, _ in reads})
        kernel[(slice(None),) * axis + (unseen,)] = 0.0  # taps that only ever see the padding
    outputs, pixels = sides(kernel, rows, columns)
    if outputs > pixels:
        kernel = kernel.swapaxes(0, 1)
        rows, columns = ([(pixel, t, o) for o, t, pixel in reads] for reads in (rows, columns))
    channels, others, _, taps = kernel.shape
    small = gram(kernel.transpose(2, 3, 0, 1).reshape(-1, others), deadline)  # of (height · width · channels) rows
    width = _places(columns, 0)
    products: Integers = np.zeros((min(outputs, pixels),) * 2, dtype=object)
    for across in _grouped(rows):
        deadline.check()
        for along in _grouped(columns):
            both = list(product(across, along))
            at, of = (
                (np.array(places)[:, None] * channels + np.arange(channels)).reshape(-1)
                for places in (
                    [i * width + j for (i, _, _), (j, _, _) in both],
                    [s * taps + t for (_, s, _), (_, t, _) in both],
                )
            )
            products[np.ix_(at, at)] += small.products[np.ix_(of, of)]
    entries = len(rows) * len(columns) * channels * others
    return Gram(products, small.unit, isqrt(entries) + 1 if kernel.any() else 0)


def sides(kernel: Floats, rows: list[Incidence], columns: list[Incidence]) -> tuple[int, int]:
    """How many outputs and inputs a convolution has, up to the last that is read."""
    out, into, *_ = kernel.shape
    return out * _places(rows, 0) * _places(columns, 0), into * _places(rows, 2) * _places(columns, 2)


def _places(reads: list[Incidence], end: int) -> int:
    return 1 + max((read[end] for read in reads), default=0)


def _grouped(reads: list[Incidence]) -> list[list[Incidence]]:
    """Those that share their last place."""
    groups: dict[int, list[Incidence]] = {}
    for read in reads:
        groups.setdefault(read[2], []).append(read)
    return list(groups.values())
