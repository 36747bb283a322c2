"""Losses on instrumented logits g = (f, g_⊥): (batch, classes + 1), ⊥ last."""

from torch import Tensor
from torch.nn import functional


def cross_entropy(instrumented: Tensor, labels: Tensor) -> Tensor:
    """The mean of −ln softmax(g)_y: a point that is not certified costs as one that is wrong.

    Args:
        instrumented: (batch, classes + 1), from `CertifiedNet.instrument`.
        labels: (batch,) true classes, or (batch, classes) soft labels.

    >>> import torch
    >>> cross_entropy(torch.tensor([[2.0, 0.0, -20.0]]), torch.tensor([0])).item() < 0.13
    True
    """
    soft = labels.ndim == 2
    return functional.cross_entropy(instrumented, functional.pad(labels, (0, 1)) if soft else labels)  # none on ⊥


def trades(instrumented: Tensor, labels: Tensor, weight: float | Tensor) -> Tensor:
    """The mean of −ln softmax(f)_y + λ·softplus(g_⊥ − logsumexp f): accuracy, and λ times robustness.

    The second term is the Kullback–Leibler divergence from (softmax f, 0) to softmax g. Written as a softplus it keeps
    its digits and its gradient where ⊥ is far below or far above the other logits.

    Args:
        instrumented: (batch, classes + 1), from `CertifiedNet.instrument`.
        labels: (batch,) true classes, or (batch, classes) soft labels.
        weight: λ.
    """
    logits, bottom = instrumented[:, :-1], instrumented[:, -1]
    robustness = functional.softplus(bottom - logits.logsumexp(dim=1)).mean()
    return functional.cross_entropy(logits, labels) + weight * robustness
