"""A head's loss as one layer of training: what decides it, the loss and its gradient in one pass.

On a GPU the loss on logits is a chain of some hundred small kernels, each of which waits for the one before. By
`safeset.training.gpu.head_kernels` and `safeset.training.gpu.emma_kernels` it is one. What is computed is
`safeset.losses.trades` or `cross_entropy` of `CertifiedNet.instrument`, or `safeset.losses.emma`, and their gradient.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from safeset.certificates.constants import HeadConstants
from safeset.certificates.margins import instrument
from safeset.errors import SafesetError
from safeset.guarantees.contract import Guarantee
from safeset.guarantees.guarantee import RelaxedTopK
from safeset.losses import cross_entropy, emma, trades
from safeset.losses.adaptive import pair_table
from safeset.recipes.sections import Loss

BOTTOM, EMMA = "safeset.training.gpu.head_kernels", "safeset.training.gpu.emma_kernels"
MOST_CLASSES, MOST_RANKS = 1024, 16  # of a point, that one program holds at once
WORD = 64  # bits
# Logits and table → losses, (batch,); their sum's slopes by the logits; and by entries, or rows, of the table: which
# of them, and the slopes.
Compute = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class OnePass:
    """The loss of a head in one pass.

    Attributes:
        loss: which, and its settings.
        epsilon: of the guarantee.
        words: (classes, words): which sets hold each class, `as_words`.
        counts: whether each k = 1, …, K may be eligible.
    """

    loss: Loss
    epsilon: float
    words: Tensor
    counts: tuple[bool, ...]

    def takes(self, target: Tensor | None) -> bool:
        """Whether it takes these soft labels."""
        return target is None or self.loss.name == "emma"

    def table(self, constants: HeadConstants) -> Tensor:
        """The constants of all pairs as `__call__` takes them, with gradient: (classes, classes).

        Never in TF32, whose squared distances are too coarse.
        """
        matmul = torch.backends.cuda.matmul
        before = matmul.allow_tf32
        matmul.allow_tf32 = False
        try:
            found = pair_table(constants)
            return found if self.loss.name == "emma" else self.epsilon * found
        finally:
            matmul.allow_tf32 = before

    def __call__(
        self,
        logits: Tensor,
        table: Tensor,
        labels: Tensor,
        weight: float | Tensor,
        radius: float | Tensor,
        target: Tensor | None,
    ) -> Tensor:
        """The mean loss, with gradient to logits and table.

        Args:
            logits: (batch, classes).
            table: of `table`.
            labels: (batch,).
            weight: λ of TRADES.
            radius: of EMMA, in parts of ε.
            target: soft labels, (batch, classes), of EMMA.
        """
        last = max(place for place, each in enumerate(self.counts) if each) + 1
        if self.loss.name == "emma":
            kernels, relaxation = import_module(EMMA), self.loss.relaxation
            relaxed = 0.0 if relaxation == "none" else self.loss.relaxed
            form = kernels.Form(self.loss.temperature, self.loss.floor, relaxed, relaxation == "membership", last)
            reach = torch.as_tensor(radius * self.epsilon, dtype=torch.float32, device=logits.device)
            soft = None if target is None else target.contiguous()
            about = {"labels": labels, "epsilon": reach, "target": soft, "words": self.words, "form": form}
            compute = partial(kernels.emma, **about)
        else:
            ends = sum(1 << place for place, each in enumerate(self.counts) if each)
            strength = torch.as_tensor(weight, dtype=torch.float32, device=logits.device)
            about = {"labels": labels, "weight": strength, "words": self.words, "ends": ends, "k": len(self.counts)}
            compute = partial(import_module(BOTTOM).head_loss, **about, trades=self.loss.name == "trades")
        return _InOnePass.apply(logits, table, compute)[0]  # type: ignore[no-any-return, no-untyped-call]


def one_pass(guarantee: Guarantee, epsilon: float, classes: int, loss: Loss, device: torch.device) -> OnePass | None:
    """The loss of a head in one pass; None where there is none."""
    plain = loss.name in ("trades", "cross-entropy") and loss.margins == "uniform"
    emma = loss.name == "emma" and loss.relaxation != "window" and not (loss.anneal or loss.offset)
    if not (plain or emma) or classes > MOST_CLASSES:
        return None
    try:
        counts, sets = guarantee.tables(classes)
    except SafesetError:  # a guarantee of somebody else's, which does not say what it lets stay together
        return None
    if len(counts) > MOST_RANKS or not counts.any():
        return None
    return OnePass(loss, epsilon, as_words(sets).to(device), tuple(counts.tolist()))


@cache
def is_right(device: torch.device, loss: Loss) -> bool:
    """Whether the one pass computes there what the plain loss does; else training falls back on that, with a warning.

    Kernels are compiled on the machine where they run: a small head shows whether that went well.
    """
    generator = torch.Generator().manual_seed(0)
    f, w = (torch.randn(4, 4, generator=generator).to(device).requires_grad_() for _ in range(2))
    labels, constants, guarantee = torch.arange(4, device=device), HeadConstants(w), RelaxedTopK(2)
    head = one_pass(guarantee, 0.3, 4, loss, device)
    assert head is not None
    try:
        found = head(f, head.table(constants), labels, 0.7, 1.5, None)
        if loss.name == "emma":
            plain = emma(f, constants, labels, 1.5 * 0.3, guarantee, **loss.settings())
        else:
            instrumented = instrument(f, constants, 0.3, guarantee)
            plain = trades(instrumented, labels, 0.7) if loss.name == "trades" else cross_entropy(instrumented, labels)
        for one, other in zip(*(torch.autograd.grad(each, [f, w]) for each in (found, plain)), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-4)
    except Exception as error:  # whatever Triton, the compiler or the driver raise
        text = f"{type(error).__name__}: {str(error)[:200]}"
        warnings.warn(f"Triton does not work here ({text}): training takes longer.", RuntimeWarning, stacklevel=2)
        return False
    return True


def as_words(sets: Tensor) -> Tensor:
    """Which sets hold each class, 64 to a word: (sets, classes) booleans → (classes, words); none if all hold all.

    >>> as_words(torch.tensor([[True, False], [True, True]])).tolist(), as_words(torch.tensor([[True, True]])).tolist()
    ([[3], [2]], [[], []])
    """
    if bool(sets.all()):
        return torch.zeros(sets.shape[1], 0, dtype=torch.int64)
    places = torch.arange(WORD)[:, None]
    return torch.stack([(some << places[: len(some)]).sum(dim=0) for some in torch.split(sets.long(), WORD)], dim=1)


class _InOnePass(torch.autograd.Function):
    """The mean loss of a batch; its gradients are computed with it."""

    @staticmethod
    def forward(logits: Tensor, table: Tensor, compute: Compute) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        losses, *slopes = compute(logits.detach().contiguous(), table.detach().contiguous())
        return losses.sum(), *slopes  # type: ignore[return-value]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*output[1:])
        ctx.shape = inputs[1].shape

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> Any:
        slopes, places, pulls = ctx.saved_tensors
        table = torch.zeros(ctx.shape, dtype=pulls.dtype, device=pulls.device)
        table.view(-1, *pulls.shape[1:]).index_add_(0, places, pulls)
        return gradient * slopes, gradient * table, None
