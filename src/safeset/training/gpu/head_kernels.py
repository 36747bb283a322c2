"""The loss on logits and ⊥, and its gradient, in one pass over a point's logits, by Triton.

`safeset.training.gpu.head` says what it computes. Triton comes with torch on Linux where there is a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def head_loss(
    logits: Tensor, table: Tensor, labels: Tensor, weight: Tensor, words: Tensor, ends: int, k: int, trades: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A `safeset.training.gpu.head.Compute`: ``table`` holds ε·K, ``ends`` a bit for each k that may count."""
    batch, classes = logits.shape
    losses, pulls = (torch.empty(batch, dtype=torch.float32, device=logits.device) for _ in range(2))
    pairs = torch.empty(batch, dtype=torch.int64, device=logits.device)
    slopes = torch.empty_like(logits)
    block, ranks = triton.next_power_of_2(classes), max(2, triton.next_power_of_2(k))
    width = words.shape[1]
    sizes = {"classes": classes, "block": block, "k": k, "ranks": ranks, "ends": ends, "width": width}
    sizes |= {"words_block": triton.next_power_of_2(max(1, width)), "trades": trades}
    _head_loss[(batch,)](
        logits,
        table,
        labels,
        weight,
        words,
        losses,
        slopes,
        pairs,
        pulls,
        batch,
        **sizes,
        num_warps=max(1, block // 512),
    )
    return losses, slopes, pairs, pulls


@triton.jit
def _head_loss(
    logits,
    table,
    labels,
    weight,
    words,
    losses,
    slopes,
    pairs,
    pulls,
    batch,
    classes: tl.constexpr,
    block: tl.constexpr,
    k: tl.constexpr,
    ranks: tl.constexpr,
    ends: tl.constexpr,
    width: tl.constexpr,
    words_block: tl.constexpr,
    trades: tl.constexpr,
):
    infinity = float("inf")
    point = tl.program_id(0)
    column, place = tl.arange(0, block), tl.arange(0, ranks)
    f = tl.load(logits + point * classes + column, mask=column < classes, other=-infinity).to(tl.float32)
    # The k best classes, best first.
    best, ranking = tl.full((ranks,), 0.0, tl.float32), tl.full((ranks,), 0, tl.int32)
    left = f
    for rank in tl.static_range(k):
        found = tl.minimum(tl.argmax(left, axis=0), classes - 1)  # what is largest beside a NaN may be padding
        best = tl.where(place == rank, tl.max(left, axis=0), best)
        ranking = tl.where(place == rank, found, ranking)
        left = tl.where(column == found, -infinity, left)
    others = (left > -infinity) & (column < classes)
    # How far each of them is above the others, the nearest of which is kept, and above each other.
    nearest, outsider = tl.full((ranks,), infinity, tl.float32), tl.full((ranks,), 0, tl.int32)
    for rank in tl.static_range(k):
        own = tl.sum(tl.where(place == rank, ranking, 0), axis=0)
        above = tl.sum(tl.where(place == rank, best, 0.0), axis=0) - f
        above -= tl.load(table + own * classes + column, mask=column < classes, other=0.0)
        above = tl.where(others, above, infinity)
        nearest = tl.where(place == rank, tl.min(above, axis=0), nearest)
        outsider = tl.where(place == rank, tl.minimum(tl.argmin(above, axis=0), classes - 1), outsider)
    within = best[:, None] - best[None, :] - tl.load(table + ranking[:, None] * classes + ranking[None, :])
    row, other = place[:, None], place[None, :]
    # Of the k that count, the one with the largest margin.
    margin, last = -infinity, 0
    word = tl.arange(0, words_block)
    common = tl.full((words_block,), -1, tl.int64)
    for end in tl.static_range(k):
        counts = True
        if width:
            own = tl.sum(tl.where(place == end, ranking, 0), axis=0)
            common = common & tl.load(words + own * width + word, mask=word < width, other=0)
            counts = tl.max((common != 0).to(tl.int32), axis=0) > 0
        if (ends >> end) & 1:
            inner = tl.min(tl.min(tl.where((row <= end) & (other > end) & (other < k), within, infinity), 1), 0)
            least = tl.minimum(inner, tl.min(tl.where(place <= end, nearest, infinity), axis=0))
            better = counts & (least > margin)
            margin, last = tl.where(better, least, margin), tl.where(better, end, last)
    # The pair that decides it: j in the answer, i outside.
    broken = tl.where((row <= last) & (other > last) & (other < k), within, infinity)
    inner = tl.min(broken, axis=1)
    least = tl.where(place <= last, tl.minimum(inner, nearest), infinity)
    place_j = tl.argmin(least, axis=0)
    j = tl.sum(tl.where(place == place_j, ranking, 0), axis=0)
    of_j = tl.min(tl.where(row == place_j, broken, infinity), axis=0)
    rank_i = tl.argmin(of_j, axis=0)
    is_inside = tl.min(of_j, axis=0) <= tl.sum(tl.where(place == place_j, nearest, 0.0), axis=0)
    i_inside = tl.sum(tl.where(place == rank_i, ranking, 0), axis=0)
    i = tl.where(is_inside, i_inside, tl.sum(tl.where(place == place_j, outsider, 0), axis=0))
    margin = tl.load(logits + point * classes + j).to(tl.float32) - tl.load(logits + point * classes + i).to(tl.float32)
    margin -= tl.load(table + j * classes + i)
    # The loss, and its slopes.
    top, first = tl.max(f, axis=0), tl.sum(tl.where(place == 0, ranking, 0), axis=0)
    bottom, label = top - margin, tl.load(labels + point)
    spread = top + tl.log(tl.sum(tl.exp(f - top), axis=0))
    own = tl.load(logits + point * classes + label).to(tl.float32)
    one = tl.where(column == label, 1.0, 0.0)
    if trades:
        strength = tl.load(weight)
        behind = bottom - spread
        loss = spread - own + strength * (tl.maximum(behind, 0.0) + tl.log(1 + tl.exp(-tl.abs(behind))))
        pull = strength / (1 + tl.exp(-behind))
        slope = tl.exp(f - spread) * (1 - pull) - one
    else:
        highest = tl.maximum(spread, bottom)
        whole = highest + tl.log(tl.exp(spread - highest) + tl.exp(bottom - highest))
        loss = whole - own
        pull = tl.exp(bottom - whole)
        slope = tl.exp(f - whole) - one
    slope += pull * (tl.where(column == first, 1.0, 0.0) - tl.where(column == j, 1.0, 0.0))
    slope += pull * tl.where(column == i, 1.0, 0.0)
    tl.store(slopes + point * classes + column, slope / batch, mask=column < classes)
    tl.store(losses + point, loss / batch)
    tl.store(pairs + point, (j * classes + i).to(tl.int64))
    tl.store(pulls + point, pull / batch)
