"""Signed radii: how far a class is inside or outside of the k best, rounded down or up as asked.

r_yj = (f_y − f_j)/K_yj is 1-Lipschitz in the input, and so is the k-th smallest of {r_yj : j ≠ y}: it can be the score
of a conformal prediction set. A score must be one function at calibration and at prediction, so what is computed here
are two ends between which its exact value lies; the radii that are proofs (`radii.py`) are only right where they are
positive. Rounding is directed at each step; the inequalities are in docs/coverage.md.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.certificates.certify_logits import Error, check_error, check_logits
from safeset.certificates.constants import HeadConstants, Lipschitz, MatrixConstants, as_constants
from safeset.certificates.radii import EXACT, PairError
from safeset.errors import expected, nearest
from safeset.guarantees.guarantee import TopK
from safeset.inputs import Numbers, check_subnormals
from safeset.numerics.directed import up
from safeset.numerics.strict import plainly
from safeset.numerics.threads import few_logits, one_thread

ROUNDINGS = ("down", "up")
ELEMENTS_AT_ONCE = 2**20  # of a (points, classes, classes) table; 8 MB


class EnclosedConstants(NamedTuple):
    """Two ends between which each exact K_yj lies, (classes, classes) float64; both are 0 only where K_yj = 0.

    Attributes:
        low: at most K.
        high: at least K.
        ties: (classes, classes), r_yj = ±∞ of classes with equal rows, by their biases; NaN for other pairs.
    """

    low: Tensor
    high: Tensor
    ties: Tensor | None = None

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.low)

    @classmethod
    def of(cls, constants: HeadConstants | MatrixConstants, biases: Tensor | None = None) -> "EnclosedConstants":
        """Those of checked constants: a matrix is exact, distances of a head's rows are enclosed.

        Args:
            constants: checked.
            biases: (classes,) of the head: they decide, without rounding, pairs of classes that have equal rows.
        """
        rows = constants.matrix if isinstance(constants, MatrixConstants) else constants.rows
        every = torch.arange(constants.classes, device=rows.device)
        if isinstance(constants, MatrixConstants):
            exact = constants.upper(every)
            return cls(exact, exact)
        distances, scale = constants.distances(every), float(constants.scale)
        high = constants.upper_from(distances)
        lowered = down(down(distances * math.nextafter(1.0 - constants.slack, 0.0)) * scale)
        # A distance that under- or overflowed has lost its relative accuracy: nothing is said of it from below.
        accurate = (distances > constants.least_distance) & (distances < math.inf)
        low = torch.where(accurate, lowered.clamp(min=0.0), 0.0)
        if scale == math.inf:
            low = high = torch.full_like(high, math.inf)
        if biases is None:
            return cls(low, high)
        decided = torch.where(biases[:, None] >= biases, math.inf, -math.inf)
        return cls(low, high, torch.where((distances == 0) & (high == 0), decided, math.nan))


@plainly
def signed_radii(
    logits: Numbers,
    lipschitz: Lipschitz,
    k: int,
    *,
    round: str = "down",
    error: Error = None,
) -> Tensor:
    """For each class y, the k-th smallest of r_yj = (f_y − f_j)/K_yj over the other classes j, with its sign.

    It is ≥ 0 where y is among the k best classes. It changes by at most ‖x' − x‖ from x to x': below it y stays among
    the k best, and below its negative y stays out. Where K_yj = 0, r_yj is +∞ if f_y ≥ f_j and −∞ otherwise; where
    K_yj = ∞ it is 0. A row with a logit that is NaN or ±∞ says nothing: it is −∞ rounded down and +∞ rounded up.

    Args:
        logits: (batch, classes) f(x), taken as exact unless ``error`` says otherwise.
        lipschitz: as for `certify_logits`.
        k: fewer than the classes.
        round: ``"down"`` for calibration, ``"up"`` for prediction: the exact value lies between both.
        error: rounding error of each computed f_y − f_j: a number or a tensor (batch,), or one that broadcasts to
            (batch, classes, classes).

    Returns:
        (batch, classes) float64, never NaN.

    >>> signed_radii(torch.tensor([[2.0, 1.0, 0.0]]), torch.full((3, 3), 0.5), 1).round(decimals=9)
    tensor([[ 2., -2., -4.]], dtype=torch.float64)
    """
    if round not in ROUNDINGS:
        raise expected(f"`round` to be one of {', '.join(ROUNDINGS)}", repr(round), nearest(round, ROUNDINGS))
    raw = check_logits(logits)
    k = TopK(k).largest_k(raw.shape[1])
    constants = as_constants(lipschitz, raw.shape[1]).checked(raw.shape[1], raw.device)
    checked = check_error(error, raw)
    if isinstance(checked.slope, Tensor):
        raise expected("an `error` without slope: a signed radius is about one point", "a pair (offset, slope)")
    return smallest(raw, EnclosedConstants.of(constants), k, rounded=round, error=checked)


def smallest(logits: Tensor, constants: EnclosedConstants, k: int, *, rounded: str, error: PairError = EXACT) -> Tensor:
    """`signed_radii` of checked logits, constants and errors: (batch, classes)."""
    tables = [logits.new_zeros(logits.shape)[:0]]
    with one_thread(few_logits(logits)):
        check_subnormals(logits.device)
        for points in chunks(logits):
            pairs = signed_pairs(logits, constants, points, rounded=rounded, error=error)
            tables.append(pairs.kthvalue(k, dim=2).values)
    return torch.cat(tables)


def signed_pairs(
    logits: Tensor, constants: EnclosedConstants, points: slice, *, rounded: str, error: PairError = EXACT
) -> Tensor:
    """r_yj at some points, rounded down or up: (points, classes, classes); +∞ for j = y.

    Args:
        logits: (batch, classes) float64.
        constants: of all pairs.
        points: which of the batch.
        rounded: ``down`` or ``up``.
        error: of the pairs; its slope is not used.
    """
    some = logits[points]
    finite = some.isfinite().all(dim=1)[:, None, None]
    some = some.nan_to_num(0.0, 0.0, 0.0)
    every = torch.arange(constants.classes, device=logits.device).expand(len(some), -1)
    offset, _ = error.of(points, every)
    sign = 1.0 if rounded == "down" else -1.0  # r_yj from above is −r_jy from below
    difference = sign * (some[:, :, None] - some[:, None, :])
    gaps = torch.where(difference == 0, difference, down(difference))  # equal logits differ by exactly 0
    if isinstance(offset, Tensor):
        lowered = down(gaps - offset)
        gaps = torch.where(offset == 0, gaps, torch.where(lowered.isnan(), -math.inf, lowered))
    radii = sign * _quotient(gaps, constants)
    still = constants.high == 0
    above = (gaps >= 0) if rounded == "down" else (gaps <= 0)
    radii = torch.where(still, torch.where(above, math.inf, -math.inf), radii)
    if constants.ties is not None:
        radii = torch.where(constants.ties.isnan(), radii, constants.ties)
    radii = torch.where(finite, radii, -sign * math.inf)
    radii.diagonal(dim1=1, dim2=2).fill_(math.inf)
    return radii


def chunks(logits: Tensor) -> list[slice]:
    """The points of a batch, so many at a time that a table of their pairs is small."""
    step = max(1, ELEMENTS_AT_ONCE // logits.shape[1] ** 2)
    return [slice(start, start + step) for start in range(0, len(logits), step)]


def down(value: Tensor) -> Tensor:
    """The next float64 below."""
    return -up(-value)


def _quotient(gaps: Tensor, constants: EnclosedConstants) -> Tensor:
    """Gap / constant from below, for whatever sign: a negative one is divided by the lower end. Not where K = 0."""
    divisor = torch.where(gaps < 0, constants.low, constants.high)
    rounded = down(gaps / divisor)
    return torch.where((gaps == 0) | (divisor == math.inf), 0.0, rounded)
