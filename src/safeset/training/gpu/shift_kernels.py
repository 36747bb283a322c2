"""What follows a rotation in a shift net, in one pass over memory: shift, biases and |·|, and their gradients.

`safeset.training.gpu.shifts` says what they compute, in torch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# As in the trials on an H200 (results/beyond/tries).
CHANNELS, POINTS, WARPS = 128, 32, 4  # of a tile, and of a program
PARTS = 8  # of a batch, whose gradients of biases are added up apart


def finish(found: Tensor, bias: Tensor, out: Tensor, moving: int, even: bool) -> None:
    """`safeset.training.gpu.shifts.finish` on a GPU."""
    batch, height, width, channels = found.shape
    grid = (height * width, triton.cdiv(channels, CHANNELS), triton.cdiv(batch, POINTS))
    _finish[grid](
        found, bias, out, batch, channels, height, width, moving, even, CHANNELS, POINTS, num_warps=WARPS
    )  # fmt: skip


def unfinish(gradient: Tensor, found: Tensor, bias: Tensor, of_found: Tensor, moving: int, even: bool) -> Tensor:
    """`safeset.training.gpu.shifts.unfinish` on a GPU."""
    batch, height, width, channels = found.shape
    sums = torch.empty(PARTS, height, width, channels, dtype=torch.float32, device=found.device)
    grid = (height * width, triton.cdiv(channels, CHANNELS), PARTS)
    _unfinish[grid](
        gradient, found, bias, of_found, sums, batch, triton.cdiv(batch, PARTS), channels, height, width, moving, even,
        CHANNELS, POINTS // 2, num_warps=WARPS,
    )  # fmt: skip
    return sums.sum(dim=0)


@triton.jit
def _source(pixel, channel, height: tl.constexpr, width: tl.constexpr, moving: tl.constexpr):
    """The pixel from which each channel comes."""
    group = channel // moving
    down = tl.where(group == 0, 1, 0) - tl.where(group == 1, 1, 0)
    right = tl.where(group == 2, 1, 0) - tl.where(group == 3, 1, 0)
    return ((pixel // width + height - down) % height) * width + (pixel % width + width - right) % width


@triton.jit
def _absolute(channel, channels: tl.constexpr, even: tl.constexpr):
    """Whether a channel has |·|."""
    return (channel % 2 == 0) if even else (channel < channels // 2)


@triton.jit
def _finish(
    found,
    bias,
    out,
    batch,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    moving: tl.constexpr,
    even: tl.constexpr,
    block: tl.constexpr,
    points: tl.constexpr,
):
    pixel = tl.program_id(0)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    point = (tl.program_id(2) * points + tl.arange(0, points))[:, None]
    there = (point < batch) & (channel < channels)[None, :]
    size: tl.constexpr = height * width * channels
    source = (_source(pixel, channel, height, width, moving) * channels + channel)[None, :]
    here = (pixel * channels + channel)[None, :]
    value = tl.load(found + point * size + source, there, 0.0).to(tl.float32)
    value += tl.load(bias + here, (channel < channels)[None, :], 0.0)
    value = tl.where(_absolute(channel, channels, even)[None, :], tl.abs(value), value)
    tl.store(out + point * size + here, value.to(out.dtype.element_ty), there)


@triton.jit
def _unfinish(
    gradient,
    found,
    bias,
    of_found,
    sums,
    batch,
    each,
    channels: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    moving: tl.constexpr,
    even: tl.constexpr,
    block: tl.constexpr,
    points: tl.constexpr,
):
    pixel = tl.program_id(0)
    part = tl.program_id(2)
    channel = tl.program_id(1) * block + tl.arange(0, block)
    known = channel < channels
    size: tl.constexpr = height * width * channels
    source = (_source(pixel, channel, height, width, moving) * channels + channel)[None, :]
    here = (pixel * channels + channel)[None, :]
    shift = tl.load(bias + here, known[None, :], 0.0)
    absolute = _absolute(channel, channels, even)[None, :]
    total = tl.zeros((block,), tl.float32)
    for start in range(0, each, points):
        within = (start + tl.arange(0, points))[:, None]
        point = part * each + within
        there = (point < batch) & (within < each) & known[None, :]
        value = tl.load(found + point * size + source, there, 0.0).to(tl.float32) + shift
        slope = tl.load(gradient + point * size + here, there, 0.0).to(tl.float32)
        slope = tl.where(absolute & (value < 0), -slope, slope)
        tl.store(of_found + point * size + source, slope.to(of_found.dtype.element_ty), there)
        total += tl.sum(slope, 0)
    tl.store(sums + part * size + pixel * channels + channel, total, known)
