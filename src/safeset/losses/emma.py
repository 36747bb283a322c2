"""EMMA, whole or in part relaxed by what a guarantee lets stay together."""

import torch
from torch import Tensor
from torch.nn import functional

from safeset.certificates.constants import HeadConstants
from safeset.errors import expected, nearest
from safeset.guarantees.contract import Guarantee
from safeset.losses.adaptive import annealed_cross_entropy, pair_table, soft_cross_entropy
from safeset.losses.relaxations import RELAXATIONS, Batch, Term


def emma(
    logits: Tensor,
    constants: HeadConstants,
    labels: Tensor,
    epsilon: float | Tensor,
    guarantee: Guarantee,
    *,
    target: Tensor | None = None,
    temperature: float = 1.0,
    floor: float = 0.01,
    relaxation: str = "none",
    relaxed: float = 1.0,
    anneal: float = 0.0,
    offset: float = 0.0,
) -> Tensor:
    """Cross-entropy of τ·(f + margins), a margin for every class; a share of it by a relaxed form.

    The gradients of the margins reach the constants; r_j, and what a guarantee lets stay together, are taken as they
    are.

    Args:
        logits: (batch, classes).
        constants: of the head, with gradient.
        labels: (batch,): the classes that answers must hold.
        epsilon: radius, a number or a 0-d tensor.
        guarantee: asked what may stay together with a label (`Guarantee.companions`).
        target: (batch, classes) soft labels instead of the labels alone.
        temperature: τ: where the Lipschitz constant is fixed, it decides between margins and accuracy.
        floor: the least share of a margin.
        relaxation: ``none``, ``drop`` (no margins between the label and what may stay with it), ``membership`` (these
            are not compared at all) or ``window`` (the best window by `joint` whose core holds the label).
        relaxed: the share of the relaxed form; the rest has a margin for every class.
        anneal: β of logit annealing (`annealed_cross_entropy`); 0: none.
        offset: ξ of it.

    >>> from safeset import RelaxedTopK
    >>> head, y = HeadConstants(torch.eye(3)), torch.tensor([0])
    >>> near = torch.tensor([[2.0, 2.0, 0.0]])
    >>> whole, half = (emma(near, head, y, 0.5, RelaxedTopK(2), relaxation="drop", relaxed=share) for share in (0, 0.5))
    >>> bool(half < whole)
    True
    """
    if relaxation not in RELAXATIONS:
        names = ", ".join(RELAXATIONS)
        raise expected(f"`relaxation` to be one of {names}", repr(relaxation), nearest(relaxation, RELAXATIONS))
    if target is None:
        target = functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
    batch = Batch(logits, pair_table(constants), labels, target, epsilon, guarantee, floor)

    def cost(terms: list[Term]) -> Tensor:
        if anneal or offset:
            given = {"power": anneal, "offset": offset, "temperature": 1 / temperature}
            costs = [annealed_cross_entropy(shifted, wanted, **given) for shifted, wanted in terms]
        else:
            costs = [soft_cross_entropy(temperature * shifted, wanted) for shifted, wanted in terms]
        return torch.stack(costs).mean()

    if relaxation == "none" or relaxed == 0:
        return cost(RELAXATIONS["none"](batch))
    some = cost(RELAXATIONS[relaxation](batch))
    return some if relaxed == 1 else (1 - relaxed) * cost(RELAXATIONS["none"](batch)) + relaxed * some
