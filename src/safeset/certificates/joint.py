"""The method ``joint``: chains of inverted pairs, and how far from x the nearest point is that could invert them all.

If every k of a window is broken at x', there are ranks j₁ ≤ a < j₂ < i₁ < j₃ < i₂ < … ≤ b < i_t whose pairs are all
inverted there, f_{i_s}(x') ≥ f_{j_s}(x') (the chain lemma, docs/mathematics.md). For weights μ ≥ 0 the pairs of a chain
cannot all be inverted below the radius

    Σ μ_s t_s / ‖Σ μ_s n_s‖,   t_s = radius of the pair alone, n_s = (w_{j_s} − w_{i_s}) / ‖w_{j_s} − w_{i_s}‖.

The best μ for two pairs is known in closed form; it is only *chosen* by it, and the radius then proved for that choice,
the norm rounded up. The angle between two normals comes from distances between rows alone, by polarisation:
2(w_j − w_i)·(w_k − w_l) = ‖w_j − w_l‖² + ‖w_i − w_k‖² − ‖w_j − w_k‖² − ‖w_i − w_l‖².
"""

from functools import cache
from itertools import combinations
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.certificates.margins import beyond, corner, split
from safeset.numerics.directed import U

WIDEST = 5  # windows b − a ≤ 5 need chains of at most three pairs; wider ones take the best window inside
DEEPEST = (
    10  # windows with b ≤ 10; those of larger k are the single pairs of `floating`, or the number of chains explodes
)


class Rows(NamedTuple):
    """What chains need of the K best classes against every class.

    Attributes:
        radii: (batch, K, classes), t of each pair, rounded down.
        distances: (batch, K, classes) between rows of the head, within a factor of 1 ± slack.
        drift: (batch, K, classes), the share of error slopes in each pair's constant.
        slack: relative error of the distances.
        least: distances at or below this have lost their relative accuracy to underflow, here or times the scale.
        inside: (batch, classes), whether a class is among the K best.
    """

    radii: Tensor
    distances: Tensor
    drift: Tensor
    slack: float
    least: float
    inside: Tensor


def chain_windows(least: Tensor, rows: Rows, ranking: Tensor) -> Tensor:
    """What chains prove of each window: the least radius over its chains.

    Exact (to rounding) for windows b − a ≤ 3, which need chains of one and two pairs. A chain of three pairs counts
    with the largest radius of two of them.

    Args:
        least: (batch, K, K), the least radius over single pairs, `margins.window_least`.
        rows: radii and distances of the K best classes.
        ranking: (batch, K) classes.

    Returns:
        (batch, K, K); 0 for windows wider than `WIDEST`, or than 1 beyond `DEEPEST`.
    """
    k = ranking.shape[1]
    deep = min(k, DEEPEST)
    own = least.triu().tril(1)
    own[:, :deep, :deep] = least[:, :deep, :deep].triu().tril(WIDEST)
    inner = corner(rows.distances, ranking)  # (batch, K, K)
    largest = rows.distances.amax(dim=(1, 2), keepdim=True)
    size = largest / 2 / torch.frexp(largest).mantissa  # a power of two: what it scales is rounded the same for every K
    scaled, inner_scaled = rows.distances / size, inner / size
    squares, inner_squares = scaled.square(), inner_scaled.square()

    @cache
    def radius(j: int, i: int, second: int) -> Tensor:
        """Radius of the chains of the pair of ranks (j, i) and each pair (second, any class): (batch, classes)."""
        first = rows.radii[:, j].gather(1, ranking[:, i, None])  # (batch, 1)
        other = rows.radii[:, second]
        alone = torch.maximum(first, other)
        drift = rows.drift[:, j].gather(1, ranking[:, i, None]), rows.drift[:, second]
        across = squares[:, j] + inner_squares[:, i, second, None]
        along = squares[:, i] + inner_squares[:, j, second, None]
        product = 2 * inner_scaled[:, j, i, None] * scaled[:, second]
        both = pair_of_pairs(first / alone, other / alone, across, along, product, rows.slack, drift)
        # Only where nothing under- or overflowed: then the bounds on rounding hold.
        sure = (inner[:, j, i, None] > rows.least) & (rows.distances[:, second] > rows.least) & (product > 2.0**-900)
        sure &= (first > 0) & (other > 0)  # else a constant is +∞
        return torch.where(sure & (both * alone > alone), both * alone, alone)

    def lower(values: Tensor, first: int, second: int, last: int) -> None:
        """Let the windows first ≤ a < second, last ≤ b know of chains whose last pair ends at each class."""
        ends = beyond(split(values[:, None], ranking, rows.inside)[:, 0])  # (batch, K), over classes of rank > b
        for a in range(first, second):
            stop = min(deep, a + WIDEST + 1)
            own[:, a, last:stop] = torch.minimum(own[:, a, last:stop], ends[:, last:stop])

    for j1, j2, i1 in combinations(range(deep), 3):
        if i1 - j2 < WIDEST:
            lower(radius(j1, i1, j2), j1, j2, i1)
    for j1, j2, i1, j3, i2 in combinations(range(deep), 5):
        if i2 - j2 < WIDEST:
            known = radius(j1, i1, j2).gather(1, ranking[:, i2, None])
            values = torch.maximum(torch.maximum(radius(j1, i1, j3), radius(j2, i2, j3)), known)
            lower(values, j1, j2, i2)
    return own


def pair_of_pairs(
    first: Tensor,
    second: Tensor,
    across: Tensor,
    along: Tensor,
    product: Tensor,
    slack: float,
    drift: tuple[Tensor, Tensor],
) -> Tensor:
    """A radius below which two pairs cannot both be inverted, from μ chosen by the closed form and then proved.

    Args:
        first: radius of the first pair alone, and
        second: of the second pair, both at most 1 (scale them).
        across: ‖w_j − w_l‖² + ‖w_i − w_k‖² for the pairs (j, i) and (k, l).
        along: ‖w_j − w_k‖² + ‖w_i − w_l‖².
        product: 2‖w_j − w_i‖·‖w_k − w_l‖, so that the cosine of the normals is (across − along) / product.
        slack: relative error η of the distances.
        drift: for each pair, the share of its constant that is not ‖w_j − w_i‖·scale.

    Returns:
        A lower bound of the joint radius; NaN where there is none, so compare with >.
    """
    cosine = (across - along) / product
    uncertain = (cosine + 8 * slack * ((across + along) / product)).clamp(-1.0, 1.0)
    weight_1 = (first - second * cosine).clamp(min=0.0)
    weight_2 = (second - first * cosine).clamp(min=0.0)
    largest = torch.maximum(weight_1, weight_2)
    weight_1, weight_2 = weight_1 / largest, weight_2 / largest  # the larger one is 1: no underflow below
    squared = weight_1.square() + weight_2.square() + 2 * weight_1 * weight_2 * uncertain
    norm = (squared.clamp(min=0.0) + 64 * U).sqrt()
    lost = weight_1 * (3 * slack + (1 + 4 * U) * drift[0]) + weight_2 * (3 * slack + (1 + 4 * U) * drift[1])
    return (weight_1 * first + weight_2 * second) / (norm + 2 * lost) * (1 - 16 * U)
