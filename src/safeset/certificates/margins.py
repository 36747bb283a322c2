"""Margins and window radii: pure, batched functions of logits, constants and eligible k.

Ranks are places in the ranking of a point, best first. A table of *pairs* is (batch, K, K + 1): row j is the class of
rank j + 1, column i the class of rank i + 1, and the last column the least over all classes outside the K best. A table
of *windows* is (batch, K, K): entry [a, b] is about the window of the k from a + 1 to b + 1 (docs/mathematics.md).
"""

import math
from typing import Protocol

import torch
from torch import Tensor

from safeset.certificates.constants import Constants, MatrixConstants
from safeset.errors import expected

METHODS = ("uniform", "floating", "joint")
ELEMENTS_AT_ONCE = 2**22  # of a (batch, ranks, classes) tensor: more ranks at a time are faster, but cost memory


class Eligible(Protocol):
    """What margins ask of a guarantee: see `safeset.guarantees.guarantee.Guarantee`."""

    def largest_k(self, classes: int) -> int:
        """The largest k that can be eligible."""

    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """(batch, K) ranking → (batch, K) booleans."""


# -- rankings and tables ----------------------------------------------------------------------------------------------


def best_classes(logits: Tensor, k: int) -> Tensor:
    """The k best classes of each point, best first, equal logits by index: (batch, classes) → (batch, k).

    >>> best_classes(torch.tensor([[1.0, 3.0, 3.0, 1.0]]), 3)
    tensor([[1, 2, 0]])
    """
    classes = logits.shape[1]
    threshold = logits.topk(k, dim=1).values[:, -1:]
    # `topk` breaks ties as it likes. Distinct keys: above the threshold first, then at it, each by index.
    by_index = torch.arange(classes, 0, -1, device=logits.device)
    keys = (logits >= threshold) * by_index + (logits > threshold) * classes
    chosen = keys.topk(k, dim=1).indices  # (batch, k)
    order = logits.gather(1, chosen).sort(dim=1, descending=True, stable=True).indices
    return chosen.gather(1, order)


def among(ranking: Tensor, classes: int) -> Tensor:
    """Whether each class is among the K best: (batch, K) → (batch, classes)."""
    nobody = torch.zeros(len(ranking), classes, dtype=torch.bool, device=ranking.device)
    return nobody.scatter(1, ranking, True)


def corner(values: Tensor, ranking: Tensor) -> Tensor:
    """The values of the K best classes, best first: (batch, n, classes) → (batch, n, K)."""
    return values.gather(2, ranking[:, None, :].expand(-1, values.shape[1], -1))


def split(values: Tensor, ranking: Tensor, inside: Tensor) -> Tensor:
    """Rows of a pair table from values for all classes: those of the K best, then the least of the others.

    Args:
        values: (batch, n, classes), n rows.
        ranking: (batch, K) classes, best first.
        inside: (batch, classes), whether a class is among the K best.

    Returns:
        (batch, n, K + 1).
    """
    others = values.masked_fill(inside[:, None, :], math.inf).amin(dim=2, keepdim=True)
    return torch.cat([corner(values, ranking), others], dim=2)


def beyond(pairs: Tensor) -> Tensor:
    """The least over all classes of a rank above b, for each b: (…, K + 1) → (…, K)."""
    return pairs[..., 1:].flip(-1).cummin(dim=-1).values.flip(-1)


def window_least(pairs: Tensor) -> Tensor:
    """The least over the pairs that break a whole window at once: W[a, b] = min over j ≤ a, i > b of pairs[j, i].

    Args:
        pairs: (batch, K, K + 1), NaN nowhere.

    Returns:
        (batch, K, K); entries below the diagonal mean nothing.
    """
    return beyond(pairs).cummin(dim=1).values


# -- losses -----------------------------------------------------------------------------------------------------------


def margin(
    logits: Tensor,
    constants: Constants | Tensor,
    epsilon: float | Tensor,
    guarantee: Eligible,
    *,
    method: str = "uniform",
) -> Tensor:
    """The margin m(x) of the guarantee, for losses: positive where it holds, as far as the constants are right.

    ``uniform`` (the paper, Section 4): m = max over eligible k of min over j in F^k, i not in F^k of D_ji, where
    D_ji = f_j − f_i − ε·K_ji. ``floating``: for eligible neighbours k − 1 and k the least is over j in F^{k−1} and i
    not in F^k. Plain arithmetic, ties count as they are: a loss, not a proof.

    Shapes do not depend on the data and nothing waits for the device: it can be captured as a CUDA graph. The pair that
    decides is found without gradient and then evaluated with it, so the gradient is that of one pair for each point.

    Args:
        logits: (batch, classes).
        constants: `HeadConstants`, or a (classes, classes) matrix; finite, gradients welcome.
        epsilon: radius, a number or a 0-d tensor.
        guarantee: which k are eligible.
        method: ``uniform`` or ``floating``.

    Returns:
        (batch,) margins with gradient to the logits and the constants.

    >>> from safeset import HeadConstants, RelaxedTopK
    >>> head = HeadConstants(torch.eye(3, dtype=torch.float64))
    >>> margin(torch.tensor([[3.0, 2.9, 0.0]], dtype=torch.float64), head, 1.0, RelaxedTopK(2))  # 2.9 − √2
    tensor([1.4858], dtype=torch.float64)
    """
    if method not in METHODS[:2]:
        raise expected(f"the `method` of a loss to be {' or '.join(METHODS[:2])}", repr(method))
    if isinstance(guarantee, str):
        raise expected("a guarantee", repr(guarantee), "safeset.guarantees.parse reads a text.")
    if isinstance(epsilon, int | float) and not epsilon >= 0:
        raise expected("`epsilon` to be ≥ 0", epsilon)
    if isinstance(constants, Tensor):
        constants = MatrixConstants(constants)
    classes = logits.shape[1]
    if constants.classes != classes:
        raise expected(f"constants for the {classes} classes of the logits", f"those of {constants.classes}")
    k = guarantee.largest_k(classes)
    with torch.no_grad():
        ranking = logits.topk(k, dim=1).indices
        pairs, outsiders = _slacks(logits, ranking, constants, epsilon)
        eligible = guarantee.eligible(ranking, classes)
        least = window_least(pairs)  # (batch, K, K)
        windows = least.diagonal(dim1=1, dim2=2)  # (batch, K): the window that ends at k
        starts = torch.arange(k, device=logits.device).expand_as(ranking)
        if method == "floating" and k > 1:
            wide = eligible[:, 1:] & eligible[:, :-1]
            windows = torch.cat(
                [windows[:, :1], torch.where(wide, least.diagonal(1, dim1=1, dim2=2), windows[:, 1:])], dim=1
            )
            starts = torch.cat([starts[:, :1], starts[:, 1:] - wide.long()], dim=1)
        last = windows.masked_fill(~eligible, -math.inf).argmax(dim=1, keepdim=True)  # (batch, 1)
        first = starts.gather(1, last)
        rows = torch.arange(k, device=logits.device)
        columns = torch.arange(k + 1, device=logits.device)
        breaks = (rows <= first)[:, :, None] & (columns > last)[:, None, :]  # (batch, K, K + 1)
        finite = pairs.clamp(max=torch.finfo(pairs.dtype).max)  # so that none ties with what is masked
        decisive = finite.masked_fill(~breaks, math.inf).flatten(1).argmin(dim=1, keepdim=True)
        row, column = decisive // (k + 1), decisive % (k + 1)
        j = ranking.gather(1, row)
        i = torch.cat([ranking.gather(1, column.clamp(max=k - 1)), outsiders.gather(1, row)], dim=1)
        i = i.gather(1, (column == k).long())
    both = logits.gather(1, torch.cat([j, i], dim=1))
    return both[:, 0] - both[:, 1] - epsilon * constants.pair(j[:, 0], i[:, 0])


def bottom(
    logits: Tensor,
    constants: Constants | Tensor,
    epsilon: float | Tensor,
    guarantee: Eligible,
    *,
    method: str = "uniform",
) -> Tensor:
    """The ⊥ logit g_⊥(x) = max_i f_i(x) − m(x) of the paper's Equation 1; arguments as for `margin`.

    For losses only: whether a point is rejected is decided by `certify_logits`, never by the argmax of g.

    Returns:
        (batch,) values.
    """
    return logits.amax(dim=1) - margin(logits, constants, epsilon, guarantee, method=method)


def instrument(
    logits: Tensor,
    constants: Constants | Tensor,
    epsilon: float | Tensor,
    guarantee: Eligible,
    *,
    method: str = "uniform",
) -> Tensor:
    """The instrumented logits g = (f, g_⊥): (batch, classes) → (batch, classes + 1); arguments as for `margin`."""
    below = bottom(logits, constants, epsilon, guarantee, method=method)
    return torch.cat([logits, below[:, None]], dim=1)


def _slacks(logits: Tensor, ranking: Tensor, constants: Constants, epsilon: float | Tensor) -> tuple[Tensor, Tensor]:
    """D_ji for the pairs of a pair table, and the (batch, K) classes of its last column, some ranks at a time."""
    batch, classes = logits.shape
    inside = among(ranking, classes)
    anyone = inside.long().argmin(dim=1, keepdim=True)  # (batch, 1): some class outside
    best = logits.gather(1, ranking)  # (batch, K)
    moves = constants.quick(epsilon)
    tables, outsiders = [], []
    step = max(1, ELEMENTS_AT_ONCE // max(1, batch * classes))
    for ranks in (slice(start, start + step) for start in range(0, ranking.shape[1], step)):
        reach = moves(ranking[:, ranks]).add_(logits[:, None, :])  # (batch, ranks, classes): f_i + ε·K_ji
        inner = corner(reach, ranking)
        worst, outsider = reach.masked_fill_(inside[:, None, :], -math.inf).max(dim=2)
        tables.append(best[:, ranks, None] - torch.cat([inner, worst[:, :, None]], dim=2))
        outsiders.append(torch.where(worst > -math.inf, outsider, anyone))
    pairs = torch.cat(tables, dim=1)
    return torch.where(pairs.isnan(), -math.inf, pairs), torch.cat(outsiders, dim=1)  # −∞ − −∞ holds nowhere
