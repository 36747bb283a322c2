"""Radii that are proofs: pairs, windows, membership and targets, in float64 and rounded down.

Every radius here is at most the exact value of its formula, so that ε below it is a proof; the inequalities behind each
rounding are in docs/mathematics.md. Nothing here is NaN, whatever the logits are.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.certificates.constants import HeadConstants, MatrixConstants
from safeset.certificates.joint import Rows, chain_windows
from safeset.certificates.margins import METHODS, among, split, window_least
from safeset.numerics.directed import U, up
from safeset.numerics.strict import uncompiled

ELEMENTS_AT_ONCE = 2**20  # of a (points, K, classes) table; 8 MB


class AffineError(NamedTuple):
    """Rounding error of a logit difference at radius ε: e_ji(ε) = offset + slope·ε, for every pair.

    Each is 0 or a (batch, classes, classes) tensor, which may be a view of fewer numbers.
    """

    offset: float | Tensor = 0.0
    slope: float | Tensor = 0.0

    def of(self, points: slice, picked: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """Offset and slope of the pairs (j, any class): n points, (n, m) classes j → numbers, or (n, m, classes)."""
        each = torch.arange(len(picked), device=picked.device)[:, None]
        offset, slope = (part[points][each, picked] if isinstance(part, Tensor) else part for part in self)
        return offset, slope


class ClassError(NamedTuple):
    """The same as a sum over the two classes of a pair: e_ji(ε) = a_j + a_i + (b_j + b_i)·ε.

    ``offset`` is a, (batch, classes); ``slope`` is b, (classes,). Both float64 and ≥ 0.
    """

    offset: Tensor
    slope: Tensor

    def of(self, points: slice, picked: Tensor) -> tuple[Tensor, Tensor]:
        """Offset and slope of the pairs (j, any class): n points, (n, m) classes j → (n, m, classes)."""
        offset = self.offset[points]
        return (
            up(offset.gather(1, picked)[:, :, None] + offset[:, None, :]),
            up(self.slope[picked][:, :, None] + self.slope),
        )


PairError = AffineError | ClassError
EXACT = AffineError()


def gap(first: Tensor, second: Tensor, offset: Tensor | float) -> Tensor:
    """f_j − f_i − e₀ from below: what this line rounds is at most 4u(|f_j| + |f_i|)."""
    lowered = first - second - offset - 4 * U * (first.abs() + second.abs())
    return torch.where(lowered.isnan(), 0.0, lowered)  # ∞ − ∞, from logits near the largest number: not strict


def widened(upper: Tensor, slope: Tensor | float) -> Tensor:
    """Constant + slope, rounded up: how fast a pair can close its gap, rounding error included."""
    return up(upper + slope) if isinstance(slope, Tensor) else upper


def quotient(gaps: Tensor, constants: Tensor) -> Tensor:
    """Gap / constant, rounded down; ±∞ by the sign of the gap where the constant is 0, −∞ where it is +∞."""
    rounded = torch.nextafter(gaps / constants, gaps.new_tensor(-math.inf))
    rounded = torch.where((constants < math.inf) & ~rounded.isnan(), rounded, -math.inf)
    return torch.where(constants == 0, torch.where(gaps > 0, math.inf, -math.inf), rounded)


@uncompiled
def window_radii(
    logits: Tensor,
    ranking: Tensor,
    eligible: Tensor,
    constants: HeadConstants | MatrixConstants,
    method: str,
    *,
    error: PairError = EXACT,
    chunk: int | None = None,
) -> Tensor:
    """R[a, b], the radius below which the window of the k from a to b is proved; 0 where it is not admissible.

    A window holds at x if at every x' in the ball some k of it has F^k(x') = F^k(x). It is admissible if each of its k
    is eligible and strict at x: every logit of F^k exceeds every other one by more than the rounding error of the pair.
    ``uniform`` proves windows [k, k] pair by pair, ``floating`` also [k − 1, k], ``joint`` all of them by chains; a
    window proves those around it.

    Args:
        logits: (batch, classes) float64, finite.
        ranking: (batch, K), the K best classes.
        eligible: (batch, K) booleans from the guarantee.
        constants: checked constants; `HeadConstants` for ``joint``.
        method: ``uniform``, ``floating`` or ``joint``.
        error: rounding error of the pairs.
        chunk: points at a time; the result does not depend on it.

    Returns:
        (batch, K, K) float64, ≥ 0; rises with b and falls with a among admissible windows.
    """
    k = ranking.shape[1]
    step = chunk or max(1, ELEMENTS_AT_ONCE // (k * logits.shape[1]))
    tables = [logits.new_zeros(0, k, k)]
    for points in (slice(start, start + step) for start in range(0, len(logits), step)):
        own, gaps = _own_radii(logits, ranking, constants, method, error, points)
        strict = window_least(gaps).diagonal(dim1=1, dim2=2) > 0  # (points, K)
        tables.append(_propagate(own, strict & eligible[points]))
    return torch.cat(tables)


@uncompiled
def target_radii(
    logits: Tensor,
    constants: HeadConstants | MatrixConstants,
    *,
    error: PairError = EXACT,
) -> Iterator[Tensor]:
    """For each class j in turn, the radii below which class i cannot overtake it: (batch, classes), ∞ for i = j.

    Arguments as for `window_radii`. All of them together are the directed table (batch, classes, classes).
    """
    for j in range(logits.shape[1]):
        picked = torch.full((len(logits), 1), j, device=logits.device)
        offset, slope = (part[:, 0] if isinstance(part, Tensor) else part for part in error.of(slice(None), picked))
        upper = constants.upper(picked[:1, 0])  # (1, classes)
        radii = quotient(gap(logits[:, j, None], logits, offset), widened(upper, slope)).clamp(min=0.0)
        radii[:, j] = math.inf
        yield radii


def _own_radii(
    logits: Tensor,
    ranking: Tensor,
    constants: HeadConstants | MatrixConstants,
    method: str,
    error: PairError,
    points: slice,
) -> tuple[Tensor, Tensor]:
    """What each window is proved to by its own pairs or chains, (points, K, K), and the gaps as a pair table."""
    logits, ranking = logits[points], ranking[points]
    inside = among(ranking, logits.shape[1])
    offset, slope = error.of(points, ranking)
    gaps = gap(logits.gather(1, ranking)[:, :, None], logits[:, None, :], offset)  # (points, K, classes)
    present, place = torch.unique(ranking, return_inverse=True)
    if isinstance(constants, HeadConstants):
        distances = constants.distances(present)  # (present, classes)
        upper = constants.upper_from(distances)
    else:
        upper = constants.upper(present)
    constant = widened(upper[place], slope)
    radii = quotient(gaps, constant)
    least = window_least(split(radii, ranking, inside))
    if method == "joint" and isinstance(constants, HeadConstants):
        drift = slope / constant if isinstance(slope, Tensor) else constant.new_zeros(()).expand_as(constant)
        rows = Rows(radii, distances[place], drift, constants.slack, constants.least_distance, inside)
        own = chain_windows(least, rows, ranking)
    else:
        own = least.triu().tril(METHODS.index(method))  # [k, k], and [k − 1, k] if floating
    return own, split(gaps, ranking, inside)


def _propagate(own: Tensor, sound: Tensor) -> Tensor:
    """The best radius of any window inside each admissible window: a window proves those around it.

    Args:
        own: (batch, K, K), what each window is proved to by itself.
        sound: (batch, K), whether each k is eligible and strict.
    """
    failed = (~sound).long().cumsum(dim=1)  # (batch, K)
    before = failed - (~sound).long()
    admissible = (failed[:, None, :] == before[:, :, None]).triu()  # no k from a to b failed
    proved = torch.where(admissible, own.clamp(min=0.0), 0.0)
    best = proved.cummax(dim=2).values.flip(1).cummax(dim=1).values.flip(1)
    return torch.where(admissible, best, 0.0)
