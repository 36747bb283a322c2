"""Which of the sorted scores is the threshold: exact order statistics, in integers and fractions alone.

`numpy.quantile` interpolates between points, and has no n + 1; in floating point (n + 1)·(1 − α) may come out just
above an integer. Each of these mistakes moves the threshold by a point.
"""

import math
import re
from decimal import MAX_EMAX, MIN_EMIN, ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.inputs import as_number

EXACT_POINTS = 20_000  # up to which the binomial distribution is summed
DIGITS = 150  # of sums that are rounded up and down: integers of so many points have a million, and take a minute
LONGEST = 40  # digits of a level's denominator
WRITTEN = re.compile(r"\d{1,40}/\d{1,40}|\d{0,40}\.?\d{0,40}([eE][+-]?\d{1,2})?")  # large exponents take all memory


def as_level(value: Any, name: str, example: str = "0.1") -> Fraction:
    """A probability between 0 and 1 as it is written: 0.1 is 1/10, not the float64 or float32 next to it.

    Args:
        value: a number, a fraction, or a text such as ``"1/10"``.
        name: of the argument.
        example: for the error.

    >>> as_level(0.1, "`alpha`"), as_level("1/3", "`alpha`")
    (Fraction(1, 10), Fraction(1, 3))
    """
    try:
        if isinstance(value, str | Fraction | Decimal):
            level = Fraction(value) if WRITTEN.fullmatch(str(value).strip()) else None
        else:
            number = as_number(value)
            level = Fraction(_written(value, number)) if number is not None and math.isfinite(number) else None
    except (ValueError, ZeroDivisionError, OverflowError):
        level = None
    if level is None or not 0 < level < 1:
        raise expected(f"{name} to be a number between 0 and 1, such as {example}", repr(value)[:80])
    if level.denominator >= 10**LONGEST:
        raise expected(f"{name} to be a fraction of at most {LONGEST} digits, such as {example}", repr(value)[:80])
    return level


def _written(value: Any, number: float) -> str:
    """The shortest text of a number: of one in float32, which has a float64 of its own, that of float32."""
    if isinstance(value, Tensor) and value.dtype in (torch.float16, torch.float32):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind == "f":
        return str(value.reshape(-1)[0])
    return repr(number)


@lru_cache(1024)  # clients of a server choose levels
def rank(points: int, alpha: Fraction, confidence: Fraction | None = None, poisoned: int = 0) -> int:
    """m, so that the m-th largest score of the calibration points is the threshold; beyond all points it is −∞.

    m = ⌈(n + 1)(1 − α)⌉ gives coverage ≥ 1 − α on average over calibration sets. With a confidence it is the least m
    for which *one* set of independent points gives coverage ≥ 1 − α with that probability: P(B ≥ m) ≤ 1 − confidence, B
    binomial with n and 1 − α. After p poisoned points, m + p.

    Args:
        points: n.
        alpha: the level.
        confidence: that of one calibration set; None for the average over them.
        poisoned: p, how many calibration points may have been replaced, added or removed by an attacker.

    >>> rank(9, Fraction(1, 10)), rank(300, Fraction(1, 10)), rank(300, Fraction(1, 10), Fraction(19, 20))
    (9, 271, 279)
    """
    least = math.ceil((points + 1) * (1 - alpha)) if confidence is None else _confident(points, alpha, 1 - confidence)
    return least + poisoned


def fewest(alpha: Fraction, confidence: Fraction | None = None, poisoned: int = 0) -> int:
    """The least n for which the threshold is one of the scores: fewer points give all classes.

    >>> fewest(Fraction(1, 10)), fewest(Fraction(1, 20)), fewest(Fraction(1, 10), Fraction(19, 20))
    (9, 19, 29)
    """
    low, high = 0, 1
    while rank(high, alpha, confidence, poisoned) > high:
        low, high = high, min(2 * high, EXACT_POINTS) if high < EXACT_POINTS else 2 * high
    while high - low > 1:  # n − m never falls as n grows, on either side of where sums are exact
        middle = (low + high) // 2
        low, high = (low, middle) if rank(middle, alpha, confidence, poisoned) <= middle else (middle, high)
    return high


def _confident(points: int, alpha: Fraction, risk: Fraction) -> int:
    """The least m with P(B ≥ m) ≤ risk, B binomial with n points and probability 1 − α; n + 1 if there is no other."""
    if points > EXACT_POINTS:
        # Hoeffding: P(B ≥ m) ≤ exp(−2(m − n(1 − α))²/n); 1.0001 is for the rounding of log and root.
        more = math.isqrt(math.ceil(points * math.log(1 / risk) * 1.0001 / 2)) + 1
        return min(points + 1, math.ceil(points * (1 - alpha)) + more)
    least, most = (_rounded(points, alpha, risk, rounding) for rounding in (ROUND_FLOOR, ROUND_CEILING))
    return least if least == most else _exact(points, alpha, risk)


def _rounded(points: int, alpha: Fraction, risk: Fraction, rounding: str) -> int:
    """`_exact` with sums that are rounded: no less than it if they are rounded up, no more if down."""
    context = Context(prec=DIGITS, rounding=rounding, Emax=MAX_EMAX, Emin=MIN_EMIN)
    inside, outside = Decimal(alpha.denominator - alpha.numerator), Decimal(alpha.numerator)
    term, power, left = Decimal(1), context.divide(inside, Decimal(alpha.denominator)), points
    while left:  # (1 − α)^n; `Decimal.__pow__` rounds as it likes
        term = context.multiply(term, power) if left & 1 else term
        power, left = context.multiply(power, power), left >> 1
    total, count = Decimal(0), points
    above, below = Decimal(risk.numerator), Decimal(risk.denominator)
    while count >= 0:
        total = context.add(total, term)
        if context.multiply(total, below) > above:
            break
        term = context.multiply(context.multiply(term, Decimal(count)), outside)
        term = context.divide(context.divide(term, Decimal(points - count + 1)), inside)
        count -= 1
    return count + 1


def _exact(points: int, alpha: Fraction, risk: Fraction) -> int:
    """The same in integers, where rounding leaves it open: P(B ≥ m) is the risk itself, or almost."""
    inside, outside = alpha.denominator - alpha.numerator, alpha.numerator  # of 1 − α and α
    allowed = risk * alpha.denominator**points
    term = inside**points  # C(n, k)·inside^k·outside^(n − k), for k = n
    total, count = 0, points
    while count >= 0 and total + term <= allowed:
        total += term
        term = term * count * outside // ((points - count + 1) * inside)  # divides without remainder
        count -= 1
    return count + 1
