"""Margins that adapt to each class (EMMA: Hu and others, 2023), and cross-entropies with soft labels."""

import torch
from torch import Tensor
from torch.nn import functional

from safeset.certificates.constants import HeadConstants, at_least_float32

LEAST_SQUARE = 1e-12  # of a distance between rows: below it the gradient of the root is taken as 0


def pair_table(constants: HeadConstants) -> Tensor:
    """K_ji = ‖w_j − w_i‖·scale of all pairs with gradient, 0 on the diagonal: (classes, classes). For losses only.

    >>> pair_table(HeadConstants(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), 2.0))
    tensor([[ 0., 10.],
            [10.,  0.]])
    """
    rows = at_least_float32(constants.rows)
    rows = rows - rows.detach().mean(dim=0)  # a common part would drown the differences
    squares = rows.square().sum(dim=1)
    apart = squares[:, None] + squares - 2 * rows @ rows.T
    same = torch.eye(len(rows), dtype=torch.bool, device=rows.device) | (apart <= LEAST_SQUARE)
    return torch.where(same, 0.0, torch.where(same, 1.0, apart).sqrt()) * constants.scale


def adaptive_margins(
    logits: Tensor, pairs: Tensor, labels: Tensor, epsilon: float | Tensor, *, floor: float = 0.01
) -> Tensor:
    """EMMA's margins r_j·ε·K_yj, with r_j = clip((f_y − f_j)/(ε·K_yj), floor, 1) without gradient; 0 at y.

    Each class is lifted by what it can gain on the label within ε, but not above the label: nothing is asked of a class
    that has won already, so the loss keeps a gradient for those that matter.

    Args:
        logits: (batch, classes).
        pairs: (classes, classes) constants, from `pair_table`.
        labels: (batch,).
        epsilon: radius, a number or a 0-d tensor.
        floor: the least share of the whole margin.

    Returns:
        (batch, classes), with gradient to the constants.

    >>> adaptive_margins(torch.tensor([[3.0, 2.0, 0.0]]), 4 * (1 - torch.eye(3)), torch.tensor([0]), 0.5)
    tensor([[0., 1., 2.]])
    """
    reach = epsilon * pairs[labels]  # (batch, classes)
    with torch.no_grad():
        ahead = logits.gather(1, labels[:, None]) - logits
        share = torch.where(reach > 0, ahead / reach, floor).clamp(floor, 1.0)
        share = share.scatter(1, labels[:, None], 0.0)
    return share * reach


def soft_cross_entropy(logits: Tensor, target: Tensor) -> Tensor:
    """The mean of −Σ_j t_j·ln softmax(f)_j; a class of logit −∞ must have t_j = 0, and has no part in it.

    Args:
        logits: (batch, classes).
        target: (batch, classes), which sum to 1.
    """
    return -(target * _logs(logits, target)).sum(dim=1).mean()


def annealed_cross_entropy(
    logits: Tensor, target: Tensor, *, power: float, offset: float, temperature: float
) -> Tensor:
    """Logit annealing (BRONet, 2025): the mean of −T·Σ_j t_j·(1 − p_j)^β·ln p_j, p = softmax((f − ξ·t)/T).

    Points that are won already weigh less, so that capacity goes to the others; ξ asks for an offset besides.

    Args:
        logits: (batch, classes).
        target: (batch, classes), which sum to 1; one-hot gives the published formula.
        power: β.
        offset: ξ.
        temperature: T.
    """
    logs = _logs((logits - offset * target) / temperature, target)
    # 1 − p = −expm1(ln p) keeps its digits where p is nearly 1, and is kept away from 0, where a power has no gradient.
    lacking = (-torch.expm1(logs)).clamp(min=torch.finfo(logits.dtype).eps)
    return -temperature * (target * lacking**power * logs).sum(dim=1).mean()


def _logs(logits: Tensor, target: Tensor) -> Tensor:
    """Logarithms of softmax, and 0 where the target is 0: 0·∞ must not come up, nor in the gradient."""
    return functional.log_softmax(logits, dim=1).masked_fill(target == 0, 0.0)
