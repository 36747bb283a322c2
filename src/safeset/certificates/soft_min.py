"""The soft minimum of signed pair radii: a score with a tangent, rounded down or up.

s_τ = −τ ln Σ_j exp(−r_j/τ) rises with every r_j, so that bounds of the r_j are pushed through it; what its own
arithmetic rounds is added to the result. It is the least value, over all weights p ≥ 0 with Σ p_j = 1, of

    Σ p_j r_j + τ Σ p_j ln p_j,

so **any** such p gives an upper bound of it, at every point. With r_j = (f_y − f_j)/(‖w_y − w_j‖·s), the sum Σ p_j r_j
changes from x' to x by ⟨Σ p_j n_j, h(x) − h(x')⟩/s ≤ ‖Σ p_j n_j‖·‖x − x'‖, n_j = (w_y − w_j)/‖w_y − w_j‖, where s is a
Lipschitz constant of the features h: within ε the score is at most the value above plus ε·‖Σ p_j n_j‖, whatever p is.
That p was computed with rounding does not matter, but that its sum is not quite 1 does: docs/coverage.md has the rest.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.certificates.constants import HeadConstants
from safeset.certificates.signed_radii import down
from safeset.numerics.directed import U, row_norms, up

# What is believed of the library, in words that go on after "assuming that"; 4 units are a relative error of 8u.
ASSUMPTION = "exp and log of float64 are right to 4 units in the last place"
ANCHORS = (1.0, 2.0, 4.0, 8.0)  # times τ: where tangents are taken, besides x' itself


def soft_min(radii: Tensor, tau: float, *, rounded: str) -> Tensor:
    """−τ ln Σ_j exp(−r_j/τ) over the last axis, rounded down or up: (…, classes) → (…).

    Args:
        radii: bounds of r_j from the same side, never NaN; +∞ where a class does not count.
        tau: τ > 0.
        rounded: ``down`` or ``up``.
    """
    least, powers = _powers(radii, tau)
    logs = powers.sum(dim=-1).log()
    found = least - tau * logs
    # Each power errs by 0.75u for its rounded exponent, since t·exp(−t) ≤ 1/e, and by 8u of itself; their sum, which is
    # at least 1, by γ of itself; the log by 8u; the factors count twice, for what this line itself rounds.
    slack = U * (tau * (4 * radii.shape[-1] + 64 + 32 * logs) + 4 * found.abs())
    rounding = up(found + slack) if rounded == "up" else down(found - slack)
    return torch.where(least.isfinite(), rounding, least)


class Directions(NamedTuple):
    """What the tangent needs of the head.

    Attributes:
        rows: (classes, features) weights, less their mean: only differences count.
        sizes: (classes,) upper bounds of their norms.
        inverse: (classes, classes) 1/‖w_y − w_j‖, about; 0 for equal rows, which no weight falls on.
        slack: error of each n_yj in length, by that of the distances.
    """

    rows: Tensor
    sizes: Tensor
    inverse: Tensor
    slack: float

    @classmethod
    def of(cls, head: HeadConstants) -> "Directions":
        """Those of a head with rows in float64."""
        rows = head.rows - head.rows.mean(dim=0)
        distances = head.distances(torch.arange(head.classes, device=rows.device))
        sure = (distances > head.least_distance) & (distances < math.inf)
        unsure = torch.where(distances == 0, 0.0, math.inf)  # a tiny distance is not accurate: no tangent there
        return cls(rows, row_norms(rows), torch.where(sure, 1 / distances, unsure), head.slack)

    @classmethod
    def by_one(cls, rows: Tensor, error: float, constant: float, scale: float) -> "Directions":
        """Those of r_yj = (g_y − g_j)/constant for all pairs: n_yj = (v_y − v_j)·scale/constant, at most 1 long.

        Args:
            rows: (classes, features) v as computed.
            error: how far any of them may be from the exact one.
            constant: of the differences of g, in the input.
            scale: of the features.
        """
        rows, unit = rows - rows.mean(dim=0), scale / constant
        inverse = torch.full((len(rows), len(rows)), unit, dtype=rows.dtype, device=rows.device).fill_diagonal_(0.0)
        return cls(rows, row_norms(rows), inverse, 4 * U + 2 * up(error * up(unit)))


def tangent(radii: Tensor, tau: float, directions: Directions, epsilon: float) -> Tensor:
    """An upper bound of the score of each class everywhere within ε: (points, classes, classes) → (points, classes).

    The least of several tangents, at x' and at places up to 8τ away, where the score rises: which they are does not
    depend on ε, so that the bound rises with ε.

    Args:
        radii: r_yj rounded up, +∞ for j = y.
        tau: τ > 0.
        directions: of the head's rows.
        epsilon: rounded up.
    """
    found = up(soft_min(radii, tau, rounded="up") + epsilon)
    if epsilon == 0:
        return found
    least, powers = _powers(radii, tau)
    weights = powers / powers.sum(dim=-1, keepdim=True)
    for away in (*ANCHORS, None):
        sums = _sums(weights, directions)
        value = _value(radii, least, tau, weights, directions, sums, epsilon)
        found = torch.where(value < found, value, found)  # NaN, and whatever is of no use, leaves what there is
        if away is not None:
            weights = _moved(radii, tau, weights, directions, sums, away * tau)
    return found


def _value(
    radii: Tensor, least: Tensor, tau: float, weights: Tensor, directions: Directions, sums: Tensor, epsilon: float
) -> Tensor:
    """Σ p_j r_j + τ Σ p_j ln p_j + ε‖Σ p_j n_j‖ rounded up, for weights p whose sum is 1 to rounding."""
    classes = len(directions.rows)
    excess = torch.where(weights > 0, weights * (radii - least[..., None]), 0.0).sum(dim=-1)
    entropy: Tensor = -torch.special.xlogy(weights, weights).sum(dim=-1)
    steep = epsilon * _steepness(weights, directions, sums)
    value = least + (excess - tau * entropy + steep)
    # Sums of C terms, two roundings in each, logs to 8u, Σ p within 1 ± (C + 8)u of 1 by division and in −τ ln Σ p.
    slack = U * ((8 * classes + 128) * (excess + tau * (entropy + 1) + steep) + 4 * (least.abs() + value.abs()))
    return up(value + slack)


def _sums(weights: Tensor, directions: Directions) -> Tensor:
    """Σ_j p_j n_yj as computed: (points, classes, features)."""
    shares = weights * directions.inverse  # (points, classes, classes): p_j/‖w_y − w_j‖
    return shares.sum(dim=-1)[..., None] * directions.rows - shares @ directions.rows


def _steepness(weights: Tensor, directions: Directions, sums: Tensor) -> Tensor:
    """‖Σ_j p_j n_yj‖ rounded up: (points, classes)."""
    rows, sizes, inverse, relative = directions
    classes, features = rows.shape
    shares = weights * inverse
    # Against the exact sum: the distances by η; shares, total, products and the subtracted mean by (C + 8)u of what is
    # added; the norm by (F + 8)u.
    added = shares.sum(dim=-1) * sizes + shares @ sizes
    norms: Tensor = row_norms(sums) + 2 * relative + 2 * (classes + 16) * U * added
    return norms * (1 + 2 * (features + 8) * U)


def _moved(radii: Tensor, tau: float, weights: Tensor, directions: Directions, sums: Tensor, distance: float) -> Tensor:
    """Weights of the tangent so far away, uphill; any weights will do, so nothing is rounded in a direction."""
    norms = sums.square().sum(dim=-1, keepdim=True).sqrt()
    uphill = torch.where(norms > 0, sums / norms, 0.0)
    along = uphill @ directions.rows.T  # (points, classes, classes): ⟨v_y, w_j⟩
    own = along.diagonal(dim1=1, dim2=2)[..., None]
    _, powers = _powers(radii + distance * (own - along) * directions.inverse, tau)
    there = powers / powers.sum(dim=-1, keepdim=True)
    mixed = (weights + there) / 2
    return torch.where(mixed.isfinite().all(dim=-1, keepdim=True), mixed, weights)


def _powers(radii: Tensor, tau: float) -> tuple[Tensor, Tensor]:
    """The least radius, (…), and exp(−(r_j − least)/τ), (…, classes); the largest is 1."""
    least = radii.amin(dim=-1)
    base = torch.where(least.isfinite(), least, 0.0)
    return least, torch.exp(-(radii - base[..., None]) / tau)
