"""A head's loss as one layer of training: the pair that decides ⊥, the loss and its gradient in one pass.

On a GPU the search for that pair is a chain of some fifty small kernels, each of which waits for the one before. By
`safeset.training.gpu.head_kernels` it is one. What is computed is `safeset.losses.trades`, or `cross_entropy`, of
`CertifiedNet.instrument`, and their gradient, that of one pair for each point.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from safeset.certificates.constants import HeadConstants
from safeset.errors import SafesetError
from safeset.guarantees.contract import Guarantee
from safeset.losses.adaptive import pair_table
from safeset.recipes.sections import Loss

KERNELS = "safeset.training.gpu.head_kernels"
MOST_CLASSES, MOST_RANKS = 1024, 16  # of a point, that one program holds at once
WORD = 64  # bits

Head = Callable[[Tensor, Tensor, Tensor, float | Tensor], Tensor]


def one_pass(guarantee: Guarantee, classes: int, loss: Loss, device: torch.device) -> Head | None:
    """The loss of a head in one pass: (logits, ε·K of all pairs, labels, λ) ↦ the mean; None where there is none."""
    if loss.name not in ("trades", "cross-entropy") or loss.margins != "uniform" or classes > MOST_CLASSES:
        return None
    try:
        counts, sets = guarantee.tables(classes)
    except SafesetError:  # a guarantee of somebody else's, which does not say what it lets stay together
        return None
    k = len(counts)
    if k > MOST_RANKS:
        return None
    ends = sum(1 << place for place, each in enumerate(counts.tolist()) if each)
    words = as_words(sets).to(device)
    trades = loss.name == "trades"

    def head(logits: Tensor, table: Tensor, labels: Tensor, weight: float | Tensor) -> Tensor:
        strength = torch.as_tensor(weight, dtype=torch.float32, device=logits.device)
        given = (logits, table, labels, strength, words, ends, k, trades)
        found: Tensor = _Head.apply(*given)[0]  # type: ignore[no-untyped-call]
        return found

    return head


def as_words(sets: Tensor) -> Tensor:
    """Which sets hold each class, 64 to a word: (sets, classes) booleans → (classes, words); none if all hold all.

    >>> as_words(torch.tensor([[True, False], [True, True]])).tolist(), as_words(torch.tensor([[True, True]])).tolist()
    ([[3], [2]], [[], []])
    """
    if bool(sets.all()):
        return torch.zeros(sets.shape[1], 0, dtype=torch.int64)
    places = torch.arange(WORD)[:, None]
    return torch.stack([(some << places[: len(some)]).sum(dim=0) for some in torch.split(sets.long(), WORD)], dim=1)


def reach_table(constants: HeadConstants, epsilon: float) -> Tensor:
    """ε·K of all pairs with gradient, (classes, classes); never in TF32, whose squared distances are too coarse."""
    matmul = torch.backends.cuda.matmul
    before = matmul.allow_tf32
    matmul.allow_tf32 = False
    try:
        return epsilon * pair_table(constants)
    finally:
        matmul.allow_tf32 = before


class _Head(torch.autograd.Function):
    """The mean loss of a batch; its gradients are computed with it."""

    @staticmethod
    def forward(
        logits: Tensor, table: Tensor, labels: Tensor, weight: Tensor, words: Tensor, ends: int, k: int, trades: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        found = import_module(KERNELS).head_loss(
            logits.detach().contiguous(), table.detach().contiguous(), labels, weight, words, ends, k, trades
        )
        return found[0].sum(), *found[1:]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.shape = inputs[1].shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        slopes, pairs, pulls = ctx.saved_tensors
        table = torch.zeros(ctx.shape.numel(), dtype=pulls.dtype, device=pulls.device)
        table.index_add_(0, pairs, pulls)
        return gradient * slopes, (gradient * table).view(ctx.shape), None, None, None, None, None, None
