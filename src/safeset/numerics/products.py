"""Products of matrices of integers of any size: by products of floats, chosen so that these round nothing."""

import numpy as np
from numpy.typing import NDArray

from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Array

BITS = 16  # of a limb: two have a product below 2³², and 2²⁰ such products add up to at most 2⁵²
TERMS = 2**20
MOST = 2**30  # products of limbs in a sum, which int64 holds
FEW, SHORT = 16, 4  # rows or columns, and terms for each limb, for which Python's integers are as fast
PRODUCTS_AT_ONCE, LIMBS_AT_ONCE = 2**22, 2**23  # between two looks at the clock: about a second

Limbs = NDArray[np.uint16]
Floats = NDArray[np.float64]


def dot(matrix: Array, columns: Array, deadline: Deadline) -> Array:
    """The product of integers (n, m) · (m, p), exactly.

    >>> from safeset.numerics.integers import NEVER
    >>> large = np.full((3, 1), 3**90, dtype=object)
    >>> bool((dot(large, -large.T, NEVER) == -(3**180)).all())
    True
    """
    (rows, terms), many = matrix.shape, columns.shape[1]
    first, second = _count(matrix), _count(columns)
    if min(rows, many) < FEW or terms < SHORT * (first + second) or terms * first >= MOST:
        some = max(1, PRODUCTS_AT_ONCE // max(1, columns.size * first * second // 64))
        parts = [_slowly(matrix[start : start + some], columns, deadline) for start in range(0, rows or 1, some)]
        return np.concatenate(parts)
    left, signs = _limbs(matrix)
    some = max(1, LIMBS_AT_ONCE // max(terms * second, rows * (first + second)))
    across = [columns[:, start : start + some] for start in range(0, many, some)]
    return np.concatenate([_product(left, signs, *_limbs(part), deadline) for part in across], axis=1)


def _slowly(matrix: Array, columns: Array, deadline: Deadline) -> Array:
    """By Python's integers."""
    deadline.check()
    return np.asarray(matrix.dot(columns), dtype=object)


def _product(left: Limbs, signs: Floats, right: Limbs, others: Floats, deadline: Deadline) -> Array:
    """Level by level, what has the same power of two: sums of integers below 2⁵³, which float64 computes exactly."""
    (rows, terms, first), (_, columns, second) = left.shape, right.shape
    levels = np.zeros((first + second - 1, rows, columns), dtype=np.int64)
    for start in range(0, terms, TERMS):
        some = slice(start, start + TERMS)
        wide = (right[some] * others[some, :, None]).transpose(0, 2, 1).reshape(-1, second * columns)
        for place in range(first):
            deadline.check()
            found = (left[:, some, place] * signs[:, some]) @ wide
            levels[place : place + second] += found.astype(np.int64).reshape(rows, second, columns).swapaxes(0, 1)
    return _integers(levels)


def _limbs(numbers: Array) -> tuple[Limbs, Floats]:
    """Magnitudes in limbs, the lowest first, along a new last axis; and signs."""
    flat, width = numbers.ravel().tolist(), _count(numbers) * BITS // 8
    raw = b"".join(abs(number).to_bytes(width, "little") for number in flat)
    signs = np.array([-1.0 if number < 0 else 1.0 for number in flat]).reshape(numbers.shape)
    return np.frombuffer(raw, dtype="<u2").reshape(*numbers.shape, -1), signs


def _count(numbers: Array) -> int:
    """How many limbs the largest of some integers has."""
    most = max(int(numbers.max(initial=0)), -int(numbers.min(initial=0)))
    return max(1, -(-most.bit_length() // BITS))


def _integers(levels: NDArray[np.int64]) -> Array:
    """The sums of levels · 2^(16·place), along the first axis; what is carried is below 2⁴⁷."""
    digits, carried = np.empty(levels.shape, dtype="<u2"), np.zeros(levels.shape[1:], dtype=np.int64)
    for level, digit in zip(levels, digits, strict=True):
        total = level + carried
        digit[...] = total & (2**BITS - 1)
        carried = total >> BITS
    raw, width = np.moveaxis(digits, 0, -1).tobytes(), len(levels) * BITS // 8
    starts = range(0, len(raw), width)
    found = np.empty(carried.size, dtype=object)
    found[:] = [
        int.from_bytes(raw[start : start + width], "little") + (above << 8 * width)
        for start, above in zip(starts, carried.ravel().tolist(), strict=True)
    ]
    return found.reshape(carried.shape)
