"""EMMA, whole or in part relaxed, and its gradient, in one pass over a point's logits, by Triton.

`safeset.training.gpu.head` says what it computes. Triton comes with torch on Linux where there is a GPU.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Form(NamedTuple):
    """What is computed: the settings of the loss, and how many classes may stay together at the most."""

    temperature: float
    floor: float
    relaxed: float
    membership: bool
    together: int


def emma(
    logits: Tensor, pairs: Tensor, labels: Tensor, epsilon: Tensor, target: Tensor | None, words: Tensor, form: Form
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A `safeset.training.gpu.head.Compute` of ``pairs``: the slopes by a point's label's row of it."""
    batch, classes = logits.shape
    losses = torch.empty(batch, dtype=torch.float32, device=logits.device)
    slopes, pulls = torch.empty_like(logits), torch.empty(batch, classes, dtype=torch.float32, device=logits.device)
    block, width = triton.next_power_of_2(classes), words.shape[1]
    soft = logits if target is None else target  # read only where there is one
    tensors = (logits, pairs, labels, epsilon, soft, words, losses, slopes, pulls)
    sizes = {"classes": classes, "block": block, "width": width, "together": form.together}
    sizes |= {"words_block": triton.next_power_of_2(max(1, width)), "is_soft": target is not None}
    sizes |= {"membership": form.membership, "whole": form.relaxed < 1, "part": form.relaxed > 0}
    numbers = (batch, form.temperature, form.floor, form.relaxed)
    _emma[(batch,)](*tensors, *numbers, **sizes, num_warps=max(1, block // 512))
    return losses, slopes, labels, pulls


@triton.jit
def _cost(f, margins, target, compared, temperature):
    """−Σ t·ln softmax(τ·(f + margins)) among the classes that are compared, and its slopes."""
    z = tl.where(compared, temperature * (f + margins), -float("inf"))
    top = tl.max(z, axis=0)
    powers = tl.exp(z - top)
    total = tl.sum(powers, axis=0)
    logs = tl.where(target > 0, z - top - tl.log(total), 0.0)
    return -tl.sum(target * logs, axis=0), temperature * (powers * (tl.sum(target, axis=0) / total) - target)


@triton.jit
def _emma(
    logits,
    pairs,
    labels,
    epsilon,
    soft,
    words,
    losses,
    slopes,
    pulls,
    batch,
    temperature,
    floor,
    relaxed,
    classes: tl.constexpr,
    block: tl.constexpr,
    width: tl.constexpr,
    together: tl.constexpr,
    words_block: tl.constexpr,
    is_soft: tl.constexpr,
    membership: tl.constexpr,
    whole: tl.constexpr,
    part: tl.constexpr,
):
    infinity = float("inf")
    point = tl.program_id(0)
    column = tl.arange(0, block)
    there = column < classes
    label, radius = tl.load(labels + point), tl.load(epsilon)
    f = tl.load(logits + point * classes + column, mask=there, other=-infinity).to(tl.float32)
    is_label = column == label
    target = tl.where(is_label, 1.0, 0.0)
    if is_soft:
        target = tl.load(soft + point * classes + column, mask=there, other=0.0).to(tl.float32)
    # The margins of all classes.
    reach = radius * tl.load(pairs + label * classes + column, mask=there, other=0.0)
    ahead = tl.sum(tl.where(is_label, f, 0.0), axis=0) - f
    share = tl.where(reach > 0, ahead / tl.where(reach > 0, reach, 1.0), floor)
    share = tl.where(is_label, 0.0, tl.minimum(tl.maximum(share, floor), 1.0))
    margins = tl.where(there, share * reach, 0.0)
    loss, slope, pull = 0.0, tl.zeros((block,), tl.float32), tl.zeros((block,), tl.float32)
    if whole:
        cost, own = _cost(f, margins, target, there, temperature)
        loss += (1 - relaxed) * cost
        slope += (1 - relaxed) * own
        pull += (1 - relaxed) * own * share
    if part:
        # What may stay together with the label: its best rivals, as long as one of the sets holds them all.
        word = tl.arange(0, words_block)
        companion = is_label
        if width:
            common = tl.load(words + label * width + word, mask=word < width, other=0)
            held = tl.load(
                words + column[:, None] * width + word[None, :],
                mask=there[:, None] & (word < width)[None, :],
                other=0,
            )
        for _ in tl.static_range(together - 1):
            fits = there & (companion == 0)
            if width:
                fits = fits & (tl.max(((common[None, :] & held) != 0).to(tl.int32), axis=1) > 0)
            best = tl.minimum(tl.argmax(tl.where(fits, f, -infinity), axis=0), classes - 1)  # padding, beside a NaN
            found = (column == best) & fits
            companion = companion | found
            if width:
                chosen = tl.load(words + best * width + word, mask=word < width, other=0)
                common = tl.where(tl.max(found.to(tl.int32), axis=0) > 0, common & chosen, common)
        kept_out = there & (companion == 0)
        compared, wanted = there, target
        if membership:
            compared = kept_out | is_label
            wanted = tl.where(compared, target, 0.0)
            total = tl.sum(wanted, axis=0)
            wanted = tl.where(total > 0, wanted / tl.where(total > 0, total, 1.0), tl.where(is_label, 1.0, 0.0))
        cost, own = _cost(f, tl.where(kept_out, margins, 0.0), wanted, compared, temperature)
        loss += relaxed * cost
        slope += relaxed * own
        pull += relaxed * tl.where(kept_out, own * share, 0.0)
    tl.store(losses + point, loss / batch)
    tl.store(slopes + point * classes + column, slope / batch, mask=there)
    tl.store(pulls + point * classes + column, radius * pull / batch, mask=there)
