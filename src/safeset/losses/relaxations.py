"""Relaxed forms of EMMA: only what the guarantee must keep out gets a margin.

Each form says which logits are compared, and with which labels; the guarantee is only asked what may stay together.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from safeset.certificates.joint import DEEPEST, WIDEST, Rows, chain_windows
from safeset.certificates.margins import among, split, window_least
from safeset.guarantees.contract import Guarantee, rank_behind
from safeset.losses.adaptive import adaptive_margins

Term = tuple[Tensor, Tensor]  # logits with margins, and what they are compared with: both (batch, classes)


@dataclass(frozen=True, eq=False)
class Batch:
    """What a form sees.

    Attributes:
        logits: (batch, classes).
        pairs: (classes, classes) constants, with gradient.
        labels: (batch,) the class that an answer must hold.
        target: (batch, classes) the same with soft labels.
        epsilon: radius.
        guarantee: what may stay together.
        floor: see `adaptive_margins`.
    """

    logits: Tensor
    pairs: Tensor
    labels: Tensor
    target: Tensor
    epsilon: float | Tensor
    guarantee: Guarantee
    floor: float

    def margins(self, labels: Tensor | None = None) -> Tensor:
        """EMMA's, for the labels or for other classes."""
        labels = self.labels if labels is None else labels
        return adaptive_margins(self.logits, self.pairs, labels, self.epsilon, floor=self.floor)


def every_class(batch: Batch) -> list[Term]:
    """No relaxation: a margin for every class but the label."""
    return [(batch.logits + batch.margins(), batch.target)]


def drop(batch: Batch) -> list[Term]:
    """No margin for what may stay together with the label: of RTK, only from the K-th rival on."""
    kept_out = ~batch.guarantee.companions(batch.labels, batch.logits)
    return [(batch.logits + batch.margins() * kept_out, batch.target)]


def membership(batch: Batch) -> list[Term]:
    """What may stay together with the label has no part at all: the label only has to beat what is kept out."""
    apart = ~batch.guarantee.companions(batch.labels, batch.logits)
    compared = apart.scatter(1, batch.labels[:, None], True)
    logits = (batch.logits + batch.margins()).masked_fill(~compared, -torch.inf)
    target = batch.target * compared
    total = target.sum(dim=1, keepdim=True)
    one = functional.one_hot(batch.labels, logits.shape[1]).to(target.dtype)
    return [(logits, torch.where(total > 0, target / total.clamp(min=torch.finfo(target.dtype).tiny), one))]


def window(batch: Batch) -> list[Term]:
    """The best window by `joint` whose core holds the label: both the label and the weakest of the core beat the rest.

    Classes of the window itself get no margin, whatever their order.
    """
    core, answer = _best_window(batch)
    rest = ~answer
    weakest = batch.logits.detach().masked_fill(~core, torch.inf).argmin(dim=1)
    compared = rest.scatter(1, weakest[:, None], True)
    against = (batch.logits + batch.margins(weakest)).masked_fill(~compared, -torch.inf)
    one = functional.one_hot(weakest, batch.logits.shape[1]).to(batch.target.dtype)
    return [(batch.logits + batch.margins() * rest, batch.target), (against, one)]


@torch.no_grad()
def _best_window(batch: Batch) -> tuple[Tensor, Tensor]:
    """Core and whole answer of the window with the largest radius, the label taken as the best class: (batch, classes).

    Radii are signed, so that windows of points that are wrong are compared too.
    """
    logits, classes = batch.logits.detach().double(), batch.logits.shape[1]
    k = batch.guarantee.largest_k(classes)
    ranking = rank_behind(batch.labels, logits, k)  # (batch, K)
    inside, distances = among(ranking, classes), batch.pairs.detach().double()[ranking]  # (batch, K, classes)
    gaps = logits.gather(1, ranking)[:, :, None] - logits[:, None, :]
    radii = gaps / distances.clamp(min=torch.finfo(torch.float64).tiny)
    least = window_least(split(radii, ranking, inside))  # (batch, K, K)
    rows = Rows(radii, distances, torch.zeros_like(distances), 0.0, 0.0, inside)
    held = chain_windows(least, rows, ranking)
    first, last = torch.arange(k, device=logits.device)[:, None], torch.arange(k, device=logits.device)
    proved = (last >= first) & ((last - first <= 1) | ((last - first <= WIDEST) & (last < DEEPEST)))  # (K, K)
    broken = (~batch.guarantee.eligible(ranking, classes)).long().cumsum(dim=1)  # (batch, K)
    run = broken[:, None, :] == functional.pad(broken, (1, -1))[:, :, None]  # (batch, K, K): all of a, …, b eligible
    best = held.masked_fill(~(proved & run), -torch.inf).flatten(1).argmax(dim=1, keepdim=True)
    core, answer = (torch.zeros_like(inside).scatter(1, ranking, last <= end) for end in (best // k, best % k))
    return core, answer


RELAXATIONS: dict[str, Callable[[Batch], list[Term]]] = {
    "none": every_class,
    "drop": drop,
    "membership": membership,
    "window": window,
}
