"""What follows a convolution, in one pass over memory: bias, MinMax and downsampling, and their gradients, by Triton.

`safeset.training.gpu.blocks` says what they compute, in torch. Triton comes with torch on Linux where there is a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# Measured on an H200 with the paper's networks.
NUMBERS = 2048  # of a tile, about: what a program reads of a convolution's output at once
WARPS = 4  # of a program
TILES = 8  # that a program takes one after another, where sums are wanted


def finish(found: Tensor, bias: Tensor, out: Tensor, swapped: Tensor, size: int) -> None:
    """`safeset.training.gpu.blocks.finish` on a GPU."""
    programs, constants = _tiles(found, out, size, 1)
    _finish[(programs,)](found, bias, out, swapped, **constants)


def unfinish(gradient: Tensor, swapped: Tensor, found: Tensor, size: int) -> Tensor:
    """`safeset.training.gpu.blocks.unfinish` on a GPU."""
    programs, constants = _tiles(found, gradient, size, TILES)
    sums = torch.empty(programs, found.shape[1], dtype=torch.float32, device=found.device)
    _unfinish[(programs,)](gradient, swapped, found, sums, tiles=TILES, **constants)
    return sums.sum(dim=0)


def _tiles(found: Tensor, out: Tensor, size: int, tiles: int) -> tuple[int, dict[str, int | bool]]:
    """How many programs, and what each is compiled for."""
    batch, _, height, width = out.shape
    half, pixels = found.shape[1] // 2, batch * height * width
    block = triton.next_power_of_2(half)
    tile = triton.next_power_of_2(max(1, NUMBERS // (2 * block * size**2)))
    constants = {"half": half, "block": block, "size": size, "tile": tile, "flat": out.stride(1) != 1}
    constants |= {"pixels": pixels, "height": height, "width": width, "num_warps": WARPS}
    return triton.cdiv(pixels, tile * tiles), constants


@triton.jit
def _places(
    start,
    pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    tile: tl.constexpr,
    flat: tl.constexpr,
):
    """Of a tile (pixels of the output, channels of a half, pixels of a square): where each number lies.

    Returns:
        Which of them there are; places in the convolution's output, in the bits, in the output; and how far from there
        the output's other half is.
    """
    square: tl.constexpr = size * size
    pixel = start + tl.arange(0, tile)[:, None, None]
    channel = tl.arange(0, block)[None, :, None]
    part = tl.arange(0, square)[None, None, :]
    image, rest = pixel // (height * width), pixel % (height * width)
    row, column = rest // width * size + part // size, rest % width * size + part % size
    source = (image * height * size + row) * width * size + column
    there = (pixel < pixels) & (channel < half) & (part < square)  # the last one always: for the shape
    if flat:
        target = (image * 2 * half * square + channel * square + part) * (height * width) + rest
        other = half * square * height * width
    else:
        target = pixel * 2 * half * square + channel * square + part
        other = half * square
    return there, source * 2 * half + channel, source * half + channel, target, other


@triton.jit
def _finish(
    found,
    bias,
    out,
    swapped,
    pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    tile: tl.constexpr,
    flat: tl.constexpr,
):
    start = tl.program_id(0) * tile
    there, source, bit, target, other = _places(start, pixels, height, width, half, block, size, tile, flat)
    channel = tl.arange(0, block)[None, :, None]
    first = tl.load(found + source, there).to(tl.float32) + tl.load(bias + channel, channel < half)
    second = tl.load(found + source + half, there).to(tl.float32) + tl.load(bias + channel + half, channel < half)
    less = first < second
    tl.store(swapped + bit, less, there)
    tl.store(out + target, tl.where(less, second, first), there)
    tl.store(out + target + other, tl.where(less, first, second), there)


@triton.jit
def _unfinish(
    gradient,
    swapped,
    found,
    sums,
    pixels,
    height: tl.constexpr,
    width: tl.constexpr,
    half: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    tile: tl.constexpr,
    flat: tl.constexpr,
    tiles: tl.constexpr,
):
    begin = tl.program_id(0) * tile * tiles
    firsts = tl.zeros((tile, block, size * size), tl.float32)
    seconds = tl.zeros((tile, block, size * size), tl.float32)
    for start in range(begin, begin + tile * tiles, tile):
        there, source, bit, target, other = _places(start, pixels, height, width, half, block, size, tile, flat)
        larger = tl.load(gradient + target, there, 0.0).to(tl.float32)
        smaller = tl.load(gradient + target + other, there, 0.0).to(tl.float32)
        less = tl.load(swapped + bit, there, 0) != 0
        first, second = tl.where(less, smaller, larger), tl.where(less, larger, smaller)
        tl.store(found + source, first, there)
        tl.store(found + source + half, second, there)
        firsts += first
        seconds += second
    channel = tl.arange(0, block)
    place = tl.program_id(0) * 2 * half + channel
    tl.store(sums + place, tl.sum(tl.sum(firsts, 2), 0), channel < half)
    tl.store(sums + place + half, tl.sum(tl.sum(seconds, 2), 0), channel < half)
