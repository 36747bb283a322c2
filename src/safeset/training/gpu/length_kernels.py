"""Norms of vectors and their directions, in one kernel, by Triton.

`safeset.training.gpu.lengths` says what it computes. Triton comes with torch on Linux where there is a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 16384  # numbers at once, at most: a vector stays in the cache between its two passes


def lengths(vectors: Tensor, otherwise: Tensor) -> tuple[Tensor, Tensor]:
    """`safeset.training.gpu.lengths.lengths` on a GPU."""
    count, n = vectors.shape
    norms, directions = vectors.new_empty(count), torch.empty_like(vectors)
    block = min(BLOCK, triton.next_power_of_2(n))
    warps = max(1, min(32, block // 256))
    _lengths[(count,)](vectors, otherwise, norms, directions, n=n, block=block, num_warps=warps)
    return norms, directions


@triton.jit
def _lengths(vectors, otherwise, norms, directions, n: tl.constexpr, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, block)
    squares = tl.zeros((block,), tl.float64)  # float64 has room for the squares of all numbers of float32
    for start in range(0, n, block):
        number = tl.load(vectors + row * n + start + place, mask=start + place < n, other=0.0).to(tl.float64)
        squares += number * number
    norm = tl.sqrt(tl.sum(squares, axis=0)).to(tl.float32)
    known = (norm > 0) & (norm < float("inf"))
    tl.store(norms + row, norm)
    for start in range(0, n, block):
        there = start + place < n
        number = tl.load(vectors + row * n + start + place, mask=there, other=0.0)
        other = tl.load(otherwise + row * n + start + place, mask=there & (known == 0), other=0.0)
        tl.store(directions + row * n + start + place, tl.where(known, number / norm, other), mask=there)
