"""Check a certificate of safeset without safeset: ``python check.py proof.json model.safetensors [image.png …]``.

One file, Python's standard library, integers and fractions: nothing is rounded but upwards, where a line says so.
Nothing that the proof says is believed. From the weights themselves this program evaluates the network at the input,
proves that no layer stretches by more than its stated bound, and asks whether the claim follows:

- a network f = W·h + b whose features h have the Lipschitz constant L, the product of the layers' bounds, has
  (f_j − f_i)(x') ≥ (f_j − f_i)(x) − ‖w_j − w_i‖·L·‖x' − x‖, and its float64 program is off by at most e_j + e_i;
- let k be *broken* at x' if a class outside of the k best at x is at or above one of them. If all k from p to q are,
  there are ranks j₁ ≤ p < j₂ < i₁ < j₃ < i₂ < … ≤ q < i_t with f_{i_s}(x') ≥ f_{j_s}(x') for all s: a *chain*. A chain
  cannot be where the pairs' sum with some weights λ ≥ 0 stays above 0, Σ λ_s (f_{j_s} − f_{i_s} − e_s) ≥
  radius·L·‖Σ λ_s (w_{j_s} − w_{i_s})‖ at x; then some k in p..q has the same k best classes at x' as at x.

Exit: 0 valid; 1 refuted: something that it states is false, or does not imply its claim; 2 not checkable: out of time,
unreadable, interrupted, or about something that this program does not know.
"""

import argparse
import hashlib
import io
import json
import os
import re
import struct
import sys
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, repeat
from math import ceil, floor, isqrt, prod
from operator import mul
from typing import Any

FORMAT = "safeset proof 1"
SECONDS = 300.0  # unless the caller says otherwise
MOST_BYTES, MOST_TEXT, MOST_NUMBERS = 2**31, 2**27, 2**24  # of weights, of a proof; of a tensor or a Gram matrix
TYPES = {"F64": "d float64", "F32": "f float32", "F16": "e float16", "BF16": "h bfloat16", "BOOL": "? bool"}
TYPES |= {"I64": "q int64", "I32": "i int32", "I16": "h int16", "I8": "b int8", "U8": "B uint8"}  # struct's and torch's
UNIT_ROUNDOFF, SUBNORMAL, OVERFLOW = 2**53, Fraction(1, 2**1074), 2**1001

Numbers = tuple[list[int], Fraction]  # whole multiples of a unit


class RefutedError(Exception):
    """Something that the proof states is false, or does not imply its claim."""


class UncheckedError(Exception):
    """Neither valid nor refuted."""


@dataclass(frozen=True)
class Clock:
    """The moment at which time is over."""

    end: float

    def tick(self) -> None:
        """Stop if it is over."""
        if not time.monotonic() < self.end:
            raise UncheckedError("out of time: give a larger --budget")


# -- what the proof and the files say ---------------------------------------------------------------------------------


def read(path: str, most: int) -> bytes:
    """A file that fits into memory."""
    if os.path.exists(path) and not os.path.isfile(path):  # a pipe may never end
        raise UncheckedError(f"{path} is no regular file")
    with open(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise UncheckedError(f"{path} is larger than {most:,} bytes")
    return content


def parse(text: bytes, what: str) -> Any:
    """JSON in which no key stands twice, and no number is NaN or ∞."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands twice")
        return dict(pairs)

    def none(constant: str) -> None:
        raise ValueError(f"{constant} is no number")

    try:
        return json.loads(text, object_pairs_hook=once, parse_constant=none)
    except (ValueError, RecursionError) as error:
        raise UncheckedError(f"{what} is no JSON: {error}") from None


def get(table: Any, key: str, kind: type) -> Any:
    """What stands under a key, if it is of a kind; numbers, ≥ 0 and below 2¹⁰²⁴, as fractions."""
    value: Any = table.get(key) if isinstance(table, dict) else None
    if kind is Fraction and type(value) in (int, float) and 0 <= value < 2**1024:
        return Fraction(value)
    if type(value) is not kind:
        raise UncheckedError(f"this is no {FORMAT}: {key!r} is missing, or something else than it must be")
    return value


def whole(table: Any, key: str, count: int | None, least: int, most: int) -> list[int]:
    """A list of so many integers from the least to the most."""
    found = get(table, key, list)
    if (count is not None and len(found) != count) or not all(type(n) is int and least <= n <= most for n in found):
        raise UncheckedError(f"this is no {FORMAT}: {key!r} must be integers in {least}..{most}")
    return list(found)


def floats(table: Any, key: str, count: int) -> list[float]:
    """A list of so many finite numbers."""
    found = get(table, key, list)
    if len(found) != count or not all(type(n) in (int, float) and abs(n) < 2**1023 for n in found):
        raise UncheckedError(f"this is no {FORMAT}: {key!r} must be {count} numbers")
    return [float(n) for n in found]


def exactly(numbers: Sequence[float]) -> Numbers:
    """Finite float64 numbers as multiples of a power of two."""
    try:
        ratios = [number.as_integer_ratio() for number in numbers]
    except (ValueError, OverflowError):
        raise RefutedError("there are weights that are NaN or infinite") from None
    divisor = max((below for _, below in ratios), default=1)
    return [above * (divisor // below) for above, below in ratios], Fraction(1, divisor)


class Weights:
    """The tensors of a safetensors file."""

    def __init__(self, content: bytes) -> None:
        length = int.from_bytes(content[:8], "little")
        if not 2 <= length <= len(content) - 8:
            raise UncheckedError("the weights are no safetensors file: its header is not there")
        header, data = parse(content[8 : 8 + length], "the header of the weights"), memoryview(content)[8 + length :]
        self.parts: dict[str, tuple[list[int], str, memoryview]] = {}
        self.used: set[str] = set()
        end, found = 0, [] if not isinstance(header, dict) else [each for each in header if each != "__metadata__"]
        try:
            ranges = {name: whole(header[name], "data_offsets", 2, 0, len(data)) for name in found}
            kinds = {n: (whole(header[n], "shape", None, 0, 2**40), get(header[n], "dtype", str)) for n in found}
        except UncheckedError:
            raise UncheckedError("the weights are no safetensors file, or cut off: its header does not fit") from None
        for name in sorted(found, key=lambda each: ranges[each]):  # one after another, without gaps or overlaps
            (start, stop), (shape, dtype) = ranges[name], kinds[name]
            if dtype not in TYPES:
                raise UncheckedError("the weights have a tensor of an unknown type")
            if start != end or stop - start != struct.calcsize(f"={TYPES[dtype][0]}") * prod(shape):
                raise UncheckedError("the weights are no safetensors file: its header does not fit what follows")
            end, self.parts[name] = stop, (shape, dtype, data[start:stop])
        if end != len(data):
            raise UncheckedError("the weights are no safetensors file: something follows them")

    def digest(self) -> str:
        """SHA-256 of names, shapes, types and numbers."""
        found = hashlib.sha256()
        for name, (shape, dtype, data) in sorted(self.parts.items()):
            found.update(json.dumps([name, shape, f"torch.{TYPES[dtype][2:]}"]).encode())
            found.update(data)
        return found.hexdigest()

    def numbers(self, name: Any, shape: Sequence[int | None]) -> tuple[list[int], Numbers]:
        """The shape and the numbers of a tensor; None in a wanted shape is any size."""
        own, dtype, data = self.parts.get(name if isinstance(name, str) else "", ([], "", memoryview(b"")))
        if len(own) != len(shape) or not all(a == b or (b is None and a) for a, b in zip(own, shape, strict=True)):
            raise RefutedError("the weights have no tensor of that name and shape")
        self.used.add(name)
        if dtype not in ("F64", "F32", "F16") or prod(own) > MOST_NUMBERS:
            raise UncheckedError(f"a tensor of shape {own} and type {dtype}")
        return own, exactly(struct.unpack(f"<{prod(own)}{TYPES[dtype][0]}", data))

    def bias(self, name: Any, count: int) -> Numbers:
        """A bias, or zeros where there is none."""
        return ([0] * count, Fraction(1)) if name is None else self.numbers(name, (count,))[1]


def pixels_of(png: bytes, channels: int, height: int, width: int) -> list[int]:
    """The bytes of an 8-bit PNG, channel by channel, as the network takes them, where it is of the network's size."""
    chunks, place = list[tuple[bytes, bytes]](), 8
    while png.startswith(b"\x89PNG\r\n\x1a\n") and place + 12 <= len(png) and chunks[-1:] != [(b"IEND", b"")]:
        size = int.from_bytes(png[place : place + 4], "big")
        name, data = png[place + 4 : place + 8], png[place + 8 : place + 8 + size]
        whole_chunk = png[place + 8 + size : place + 12 + size] == zlib.crc32(name + data).to_bytes(4, "big")
        chunks.append((name, data) if whole_chunk else (b"", b""))
        place += 12 + size
    names = [name for name, _ in chunks]
    first = names.index(b"IDAT") if b"IDAT" in names else 0
    # As every decoder reads it: the head first and once, all data in a row, an end.
    plain = names[:1] == [b"IHDR"] and names[-1:] == [b"IEND"] and names.count(b"IHDR") == 1 and b"" not in names
    plain = plain and names[first : first + names.count(b"IDAT")] == [b"IDAT"] * names.count(b"IDAT")
    head = (chunks[0][1] if plain else b"").ljust(13, b"\xff")
    w, h, bits, colour, *methods = struct.unpack(">IIBBBBB", head[:13])
    own = {0: 1, 2: 3}.get(colour, 0)
    # Decoders turn an image by what texts say of its camera, and some show another frame of an animation.
    odd = {b"tRNS", b"eXIf", b"acTL"} & set(names) or any(
        name in (b"tEXt", b"zTXt", b"iTXt") and re.match(rb"[^\0]*(exif|xmp|transparency)", data, re.I)
        for name, data in chunks
    )
    if (h, w, bits, *methods) != (height, width, 8, 0, 0, 0) or own not in (1, channels) or odd:
        raise UncheckedError(
            f"this is no plain 8-bit PNG of {width} × {height} pixels, grey or RGB as the network's input is, so "
            "that the proof's input cannot be compared with it. Without an image, the input in the proof is checked"
        )
    line = w * own
    try:
        stream = b"".join(data for name, data in chunks if name == b"IDAT")
        packed = zlib.decompressobj().decompress(stream, h * (line + 1))
    except zlib.error:
        packed = b""
    if len(packed) < h * (line + 1) or max(packed[:: line + 1]) > 4:
        raise UncheckedError("the image is damaged")
    rows, above = list[list[int]](), [0] * line
    for start in range(0, len(packed), line + 1):
        row, kind = list(packed[start + 1 : start + 1 + line]), packed[start]
        for n in range(line):
            a, b, c = (row[n - own] if n >= own else 0), above[n], (above[n - own] if n >= own else 0)
            nearest = min((abs(b - c), 0, a), (abs(a - c), 1, b), (abs(a + b - 2 * c), 2, c))[2]  # Paeth's
            row[n] = (row[n] + (0, a, b, (a + b) // 2, nearest)[kind]) % 256
        rows.append(row)
        above = row
    return [row[n] for channel in range(channels) for row in rows for n in range(channel % own, line, own)]


# -- norms ------------------------------------------------------------------------------------------------------------


def products(left: list[list[int]], right: list[list[int]], clock: Clock) -> list[list[int]]:
    """The product of two matrices of integers: rows on the right are packed into one long number each."""
    bits = sum(max((abs(n) for row in each for n in row), default=0).bit_length() for each in (left, right))
    slot = (bits + len(right).bit_length()) // 8 + 1  # bytes: every sum, of either sign, fits
    half, columns = 1 << (8 * slot - 1), len(right[0])
    offset = int.from_bytes(half.to_bytes(slot, "little") * columns, "little")
    packed = [
        int.from_bytes(b"".join((n + half).to_bytes(slot, "little") for n in row), "little") - offset for row in right
    ]
    found = []
    for row in left:
        clock.tick()
        total = (sum(map(mul, row, packed)) + offset).to_bytes(slot * columns, "little")
        found.append([int.from_bytes(total[s : s + slot], "little") - half for s in range(0, len(total), slot)])
    return found


def convolve(
    kernel: list[list[int]], patches: list[list[int]], planes: list[list[int]], clock: Clock
) -> Iterator[list[int]]:
    """Kernel rows (channels · taps) at all patches, which say what pixel each tap reads, −1 in the padding."""
    padded = [[*plane, 0] for plane in planes]
    values = [[plane[p] for plane in padded for p in patch] for patch in patches]
    for row in kernel:
        clock.tick()
        yield [sum(map(mul, row, each)) for each in values]


def check_norm(kernel: list[list[int]], patches: list[list[int]], pixels: int, bound: Fraction, clock: Clock) -> None:
    """Prove that a convolution A of integers on images of so many pixels has ‖A‖ ≤ bound, or raise.

    G = AᵀA, the products of the kernel's columns, where two taps read two pixels at once. M = (c − δ)·I − G is factored
    by Cholesky in integers, c ≤ bound²: L_jj = ⌊√S_jj⌋, L_ij = ⌊S_ij / L_jj⌋ of what is left, S. So M = LLᵀ + E,
    0 ≤ E_jj ≤ 2·L_jj and 0 ≤ E_ij < L_jj ≤ √c, and ‖E‖ ≤ ‖E‖_∞ ≤ (n + 1)·√c ≤ δ: c·I − G = LLᵀ + E + δ·I has no
    eigenvalue below 0. Where S_jj ≤ 0, the factor gives a vector v that A must stretch, which is then seen to.
    """
    if pixels == len(patches[0]) == 1 and len(kernel) < len(kernel[0]):  # a matrix, whose transpose is smaller
        kernel = [list(column) for column in zip(*kernel, strict=True)]
    taps = len(patches[0])
    channels = len(kernel[0]) // taps
    first = list(range(pixels))  # the first pixel that a patch has together with each
    for patch in patches:
        inside = [p for p in patch if p >= 0]
        for p in inside:
            first[p] = min(first[p], *inside)
    if max((taps * channels) ** 2, sum(channels**2 * (p - first[p] + 1) for p in range(pixels))) > MOST_NUMBERS:
        raise UncheckedError(f"too large for integers: {pixels * channels:,} inputs")
    columns = [[row[c * taps + t] for row in kernel] for t in range(taps) for c in range(channels)]
    table = products(columns, [list(row) for row in zip(*columns, strict=True)], clock)
    shift = 2 * max(0, 80 - floor(bound).bit_length())  # δ is below 2⁻⁶⁰ of c
    starts = [first[p] * channels for p in range(pixels) for _ in range(channels)]
    rows = [[0] * (n + 1 - start) for n, start in enumerate(starts)]
    for patch in patches:
        clock.tick()
        for s, p in enumerate(patch):
            for t, q in enumerate(patch):
                for c in range(channels) if 0 <= q <= p else ():
                    row, at = rows[p * channels + c], (q - first[p]) * channels
                    for d in range(channels if q < p else c + 1):
                        row[at + d] -= table[s * channels + c][t * channels + d] << shift
    square = floor(bound**2 * 2**shift)
    for n, row in enumerate(rows if any(map(any, rows)) else ()):  # 0 stretches nothing
        clock.tick()
        row[-1] += square - (len(rows) + 1) * isqrt(square)
        for m in range(starts[n], n + 1):
            since = max(starts[n], starts[m])
            before = row[since - starts[n] : m - starts[n]]
            rest = row[m - starts[n]] - sum(map(mul, before, rows[m][since - starts[m] :]))
            if m < n:
                row[m - starts[n]] = rest // rows[m][-1]
            elif rest > 0:
                row[-1] = isqrt(rest)
            else:
                vector, clue = [0] * len(rows), [0] * n
                vector[n], clue[starts[n] :] = 1 << 60, [value << 60 for value in row[:-1]]
                for k in reversed(range(n)):
                    solved = clue[k] // rows[k][-1]
                    vector[k] = -solved
                    for place, value in enumerate(rows[k][:-1], starts[k]):
                        clue[place] -= solved * value
                planes = [vector[c::channels] for c in range(channels)]
                stretched = sum(value**2 for plane in convolve(kernel, patches, planes, clock) for value in plane)
                if stretched > bound**2 * sum(value**2 for value in vector):
                    raise RefutedError("it stretches a vector by more than its bound")
                raise UncheckedError("its bound is neither proved nor refuted")


def root(square: Fraction) -> Fraction:
    """√ from above, to 2⁻¹⁰⁰."""
    above, below = square.numerator, square.denominator
    return up(Fraction(isqrt(above * below << 256) + 1, below << 128)) if above else square


def up(number: Fraction) -> Fraction:
    """A number ≥ 0, rounded up to 128 bits."""
    step = Fraction(2) ** (number.numerator.bit_length() - number.denominator.bit_length() - 128)
    return ceil(number / step) * step


# -- the network ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Layer:
    """What is known of a layer. Rounding: ``roundings`` in each output of |A||x| + |b| (docs/proofs.md), 0: none."""

    bound: Fraction
    run: Callable[[list[int], Fraction], Numbers]
    roundings: int = 0
    underflow: Fraction = Fraction(0)
    alpha: Fraction = Fraction(0)  # ≥ ‖ |A| ‖
    bias: Fraction = Fraction(0)
    body: "tuple[Layer, ...]" = ()  # of x + body(x)


Shape = tuple[int, int, int]  # channels, height, width; numbers without an order are channels


class Network:
    """The layers of a proof, put together from the weights, their bounds proved."""

    def __init__(self, proof: dict[str, Any], weights: Weights, clock: Clock) -> None:
        self.weights, self.clock = weights, clock
        shape, program = whole(proof, "input_shape", None, 1, MOST_NUMBERS), get(proof, "program", list)
        if len(shape) not in (1, 3) or prod(shape) > MOST_NUMBERS or len(program) < 1:
            raise UncheckedError(f"an input of shape {shape} and {len(program)} layers")
        self.shape: Shape = (shape[0], shape[1], shape[2]) if len(shape) == 3 else (shape[0], 1, 1)
        self.layers, (features, height, columns) = self.chain(program[:-1], self.shape)
        if get(program[-1], "kind", str) != "linear" or height * columns != 1:
            raise UncheckedError("the last layer is no linear head on flat features")
        (self.classes, _), (flat, unit) = weights.numbers(get(program[-1], "weight", str), (None, features))
        self.rows, self.unit = [flat[n : n + features] for n in range(0, len(flat), features)], unit
        self.bias = weights.bias(program[-1].get("bias"), self.classes)
        self.lipschitz = prod((layer.bound for layer in self.layers), start=Fraction(1))

    def chain(self, program: list[Any], shape: Shape) -> tuple[list[Layer], Shape]:
        """Layers one after another, and the shape that leaves them."""
        layers = []
        for place, entry in enumerate(program):
            self.clock.tick()
            try:
                layer, shape = self.layer(entry, shape)
            except (RefutedError, UncheckedError) as error:
                raise type(error)(f"layer {place}: {error}") from None
            layers.append(layer)
        return layers, shape

    def layer(self, entry: Any, shape: Shape) -> tuple[Layer, Shape]:
        """One layer on points of a shape, and the shape that leaves it."""
        kind, (channels, height, width) = get(entry, "kind", str), shape
        if kind == "residual":
            body, out = self.chain(get(entry, "body", list), shape)
            if out != shape:
                raise RefutedError("its body changes the shape")
            bound = 1 + prod((layer.bound for layer in body), start=Fraction(1))
            return Layer(bound, lambda v, u: added((v, u), through(body, v, u)), body=tuple(body)), shape
        bound = get(entry, "bound", Fraction)
        if kind in ("linear", "conv", "affine", "avgpool"):
            return self.affine(kind, entry, shape, bound)
        if kind == "maxpool":
            patches, out = patches_of(entry, whole(entry, "size", 2, 1, MOST_NUMBERS), shape)
            if not all(any(p >= 0 for p in patch) for patch in patches):
                raise UncheckedError("a patch lies in the padding")
            most = max(Counter(p for patch in patches for p in patch if p >= 0).values())
            need(bound**2 >= most, f"its bound is too small: a pixel is in {most} patches")

            def largest(v: list[int], u: Fraction) -> Numbers:
                planes = [v[n : n + height * width] for n in range(0, len(v), height * width)]
                return [max(plane[p] for p in patch if p >= 0) for plane in planes for patch in patches], u

            return Layer(bound, largest), out
        slope = get(entry, "slope", Fraction) if kind == "leaky" else Fraction(0)
        need(bound >= max(1, slope), "its bound is too small")
        half = prod(shape) // 2
        if kind == "leaky":
            a, b = slope.numerator, slope.denominator
            under = root(Fraction(prod(shape))) * SUBNORMAL
            return Layer(bound, lambda v, u: ([n * (b if n > 0 else a) for n in v], u / b), 1, under, slope), shape
        if kind == "flatten":
            return Layer(bound, lambda v, u: (v, u)), (prod(shape), 1, 1)
        if kind == "unshuffle":
            (size,) = whole(entry, "size", 1, 1, 2**20)
            if height % size or width % size:
                raise RefutedError("its size does not divide the image")
            order = [
                (c * height + y * size + i) * width + x * size + j
                for c in range(channels)
                for i in range(size)
                for j in range(size)
                for y in range(height // size)
                for x in range(width // size)
            ]
            return Layer(bound, lambda v, u: ([v[n] for n in order], u)), (
                channels * size**2,
                height // size,
                width // size,
            )
        if kind == "minmax" and channels % 2:
            raise RefutedError("its channels are odd")
        plain: dict[str, Callable[[list[int]], list[int]]] = {
            "identity": lambda v: v,
            "relu": lambda v: [max(n, 0) for n in v],
            "abs": lambda v: [abs(n) for n in v],
            "minmax": lambda v: [*map(max, v[:half], v[half:]), *map(min, v[:half], v[half:])],
        }
        if kind not in plain:
            raise UncheckedError("a layer that this program does not know")
        return Layer(bound, lambda v, u: (plain[kind](v), u)), shape

    def affine(self, kind: str, entry: Any, shape: Shape, bound: Fraction) -> tuple[Layer, Shape]:
        """Dense layers (on one pixel), convolutions, scale and shift, means over patches: all are convolutions."""
        channels, height, width = shape
        if kind == "linear" and height * width > 1:
            raise UncheckedError("a dense layer on more than flat features")
        size, groups = [1, 1], channels if kind in ("affine", "avgpool") else 1
        if kind == "avgpool":
            size = whole(entry, "size", 2, 1, 2**20)
            out, kernel, unit = channels, [1] * prod(size) * channels, Fraction(1, prod(size))
        else:
            if kind == "conv":
                (groups,) = whole(entry, "groups", 1, 1, channels)
                wanted: tuple[int | None, ...] = (None, channels // groups, None, None)
            else:
                wanted = (None, channels) if kind == "linear" else (channels,)
            (out, *rest), (kernel, unit) = self.weights.numbers(get(entry, "weight", str), wanted)
            size = rest[1:] if kind == "conv" else size
        if channels % groups or out % groups:
            raise RefutedError("its groups do not divide its channels")
        plain = {"stride": [1, 1], "dilation": [1, 1], "padding": [0, 0, 0, 0]}
        patches, after = patches_of(plain if kind in ("linear", "affine") else entry, size, shape)
        bias = self.weights.bias(entry.get("bias"), out)
        each = len(kernel) // out
        rows, ins, outs = [kernel[n : n + each] for n in range(0, len(kernel), each)], channels // groups, out // groups
        parts = [rows[n : n + outs] for n in range(0, out, outs)]
        if kind == "affine":  # a diagonal matrix
            need(bound >= max(map(abs, kernel)) * unit, "its bound is below the largest scale")
        for part in {"avgpool": parts[:1], "affine": []}.get(kind, parts):  # those of avgpool are all the same
            check_norm(part, patches, height * width, bound / unit, self.clock)
        most_out = max(sum(map(abs, row)) for row in rows)
        most_in = max(
            sum(abs(n) for row in part for n in row[c * prod(size) : (c + 1) * prod(size)])
            for part in parts
            for c in range(ins)
        )
        alpha = bound if min(kernel) >= 0 else root(most_out * most_in * unit**2)  # |A| = A where nothing is below 0

        def run(v: list[int], u: Fraction) -> Numbers:
            pixels = height * width
            planes = [v[n : n + pixels] for n in range(0, len(v), pixels)]
            found = list[int]()
            for n, part in enumerate(parts):
                for plane in convolve(part, patches, planes[n * ins : (n + 1) * ins], self.clock):
                    found += plane
            return added((found, u * unit), ([n for n in bias[0] for _ in patches], bias[1]))

        norm = root(sum(n * n for n in bias[0]) * len(patches) * bias[1] ** 2)
        under = root(Fraction(out * len(patches))) * each * SUBNORMAL
        return Layer(bound, run, each + 1, under, alpha, norm), (out, *after[1:])

    def logit_errors(self, norm: Fraction) -> list[Fraction]:
        """e_j at inputs of a norm: the computed f_j − f_i is within e_j + e_i of the exact one (docs/proofs.md)."""
        error, size = rounding(self.layers, Fraction(0), norm)
        features, classes = len(self.rows[0]), self.classes
        gamma = Fraction(features + 1, UNIT_ROUNDOFF - features - 1)
        means = [sum(column) for column in zip(*self.rows, strict=True)]  # times the number of classes
        found = []
        for row, bias in zip(self.rows, self.bias[0], strict=True):
            self.clock.tick()
            length = root(sum(n * n for n in row) * self.unit**2)
            apart = sum((n * classes - mean) ** 2 for n, mean in zip(row, means, strict=True))
            spread = root(apart * (self.unit / classes) ** 2)
            reach = length * (size + error) + abs(bias) * self.bias[1]
            need(reach <= OVERFLOW, "the float64 program may overflow in the ball")
            found.append(up(spread * error + gamma * reach + features * SUBNORMAL))
        return found


def rounding(layers: Sequence[Layer], error: Fraction, size: Fraction) -> tuple[Fraction, Fraction]:
    """How far the float64 program is from the network, and how large the network is, after layers; from above."""
    for layer in layers:
        if layer.body:
            other, more = rounding(layer.body, error, size)
            gamma = Fraction(1, UNIT_ROUNDOFF - 1)
            error, size = up((error + other) * (1 + gamma) + (size + more) * gamma), up(size + more)
        else:
            reach = layer.alpha * (size + error) + layer.bias
            gamma = Fraction(layer.roundings, UNIT_ROUNDOFF - layer.roundings)
            error, size = up(layer.bound * error + gamma * reach + layer.underflow), up(layer.bound * size + layer.bias)
            need(max(reach, size + error) <= OVERFLOW, "the float64 program may overflow in the ball")
    return error, size


def through(layers: Sequence[Layer], values: list[int], unit: Fraction) -> Numbers:
    """Numbers after layers."""
    for layer in layers:
        values, unit = layer.run(values, unit)
    return values, unit


def added(first: Numbers, second: Numbers) -> Numbers:
    """Sums, entry by entry."""
    (a, u), (b, v) = first, second
    unit = Fraction(1, u.denominator * v.denominator)
    s, t = int(u / unit), int(v / unit)
    return [m * s + n * t for m, n in zip(a, b, strict=True)], unit


def patches_of(entry: Any, size: Sequence[int], shape: Shape) -> tuple[list[list[int]], Shape]:
    """For each output the pixel that each tap reads, −1 in the padding; and the shape of the outputs."""
    stride, dilation = whole(entry, "stride", 2, 1, 2**20), whole(entry, "dilation", 2, 1, 2**20)
    padding, axes = whole(entry, "padding", 4, 0, 2**20), list[list[list[int]]]()
    for n, (length, taps) in enumerate(zip(shape[1:], size, strict=True)):
        outputs = (length + sum(padding[2 * n : 2 * n + 2]) - dilation[n] * (taps - 1) - 1) // stride[n] + 1
        if outputs < 1 or outputs * taps > 2**20:
            raise UncheckedError(f"{outputs} patches of {taps} along an axis")
        reads = [[stride[n] * o + dilation[n] * t - padding[2 * n] for t in range(taps)] for o in range(outputs)]
        axes.append([[p if 0 <= p < length else -1 for p in read] for read in reads])
    if len(axes[0]) * len(axes[1]) * prod(size) * shape[0] > MOST_NUMBERS:
        raise UncheckedError("too many patches")
    patches = [
        [y * shape[2] + x if min(x, y) >= 0 else -1 for y in rows for x in columns]
        for rows in axes[0]
        for columns in axes[1]
    ]
    return patches, (shape[0], len(axes[0]), len(axes[1]))


QUIET = ("kind", "bound", "proved by", "body")  # what a layer's line leaves out: shown otherwise, or checked


def words(program: list[dict[str, Any]]) -> str:
    """The layers of a program that was understood, in one line, with all that is said of them."""
    shown = []
    for entry in program:
        # As JSON, so that no text of the proof can look like a line of this program.
        parts = [f"{json.dumps(key)} {json.dumps(entry[key])}" for key in sorted(entry) if key not in QUIET]
        inside = f"x + ({words(entry['body'])})" if entry["kind"] == "residual" else f"{entry['kind']}"
        shown.append(f"{inside} [{', '.join(parts)}]" if parts else inside)
    return " → ".join(shown)


def need(condition: bool, otherwise: str) -> None:
    """Refute where a condition does not hold."""
    if not condition:
        raise RefutedError(otherwise)


# -- the claim --------------------------------------------------------------------------------------------------------


def claim(core: Sequence[int], optional: Sequence[int], radius: float, classes: int) -> str:
    """What a certificate claims of its input, in words; classes by number, from 0.

    >>> claim([3], [5], 0.5, 10)
    'at every input nearer than 0.5 (L2) the 2 best of 10 classes include {3}, and the 1 best are among {3, 5}'
    """
    first, either = (", ".join(map(str, sorted(each))) for each in (core, [*core, *optional]))
    return (
        f"at every input nearer than {radius!r} (L2) the {len(core) + len(optional)} best of {classes} classes include "
        f"{{{first}}}, and the {len(core)} best are among {{{either}}}"
    )


class Point:
    """A certificate's input as the network sees it, and what follows for pairs of classes up to its radius."""

    def __init__(self, network: Network, certificate: Any) -> None:
        get(certificate, "radius", float)  # an integer would be rounded in its words
        self.network, self.radius = network, get(certificate, "radius", Fraction)
        values, unit = exactly(floats(certificate, "input", prod(network.shape)))
        norm = root(sum(n * n for n in values) * unit**2)
        values, unit = through(network.layers, values, unit)
        network.clock.tick()
        values, unit = added(([sum(map(mul, row, values)) for row in network.rows], unit * network.unit), network.bias)
        self.logits = [n * unit for n in values]
        self.here, self.there = network.logit_errors(norm), network.logit_errors(norm + self.radius)
        self.known: dict[tuple[int, ...], Any] = {}

    def gap(self, j: int, i: int) -> Fraction:
        """What is left of f_j − f_i after rounding, anywhere in the ball."""
        return self.logits[j] - self.logits[i] - self.there[j] - self.there[i]

    def inner(self, j: int, i: int, k: int, m: int) -> Fraction:
        """(w_j − w_i)·(w_k − w_m)·L², exactly."""
        self.network.clock.tick()
        if (j, i, k, m) not in self.known:
            a, b, c, d = (self.network.rows[n] for n in (j, i, k, m))
            product = sum((p - q) * (r - s) for p, q, r, s in zip(a, b, c, d, strict=True))
            self.known[j, i, k, m] = product * (self.network.unit * self.network.lipschitz) ** 2
        found: Fraction = self.known[j, i, k, m]
        return found

    def excludes(self, *pairs: tuple[int, int]) -> bool:
        """Whether one pair, or two with the weights that are best for them, cannot be inverted in the ball."""
        self.network.clock.tick()  # also for what is known: a forger may ask for it without end
        key = tuple(n for pair in pairs for n in pair)
        if (*key, -1) not in self.known:
            weights = [Fraction(1)]
            gaps, table = [self.gap(*pair) for pair in pairs], [[self.inner(*p, *q) for q in pairs] for p in pairs]
            if len(pairs) == 2:  # the solution of table · weights ~ gaps
                weights = [table[1][1] * gaps[0] - table[0][1] * gaps[1], table[0][0] * gaps[1] - table[0][1] * gaps[0]]
            total = sum(map(mul, weights, gaps))
            square = sum(v * sum(map(mul, weights, line)) for v, line in zip(weights, table, strict=True))
            self.known[*key, -1] = min(weights) >= 0 and total > 0 and total**2 >= self.radius**2 * square
        return bool(self.known[*key, -1])

    def excludes_some(self, pairs: Sequence[tuple[int, int]]) -> bool:
        """Whether not all of some pairs can be inverted at one place in the ball: by one of them, or by two."""
        return any(self.excludes(*some) for count in (1, 2) for some in combinations(pairs, count))


def chains(ranking: list[int], p: int, q: int) -> Iterator[list[tuple[int, int]]]:
    """The chains of the window p..q: pairs of classes, the better one at x first."""
    for first in ranking[:p]:
        for last in ranking[q:]:
            for count in range(0, q - p + 1, 2):
                for inside in combinations(ranking[p:q], count):
                    yield list(zip([first, *inside[0::2]], [*inside[1::2], last], strict=True))


def check_certificate(certificate: Any, network: Network) -> None:
    """Raise unless a certificate's claim follows."""
    point, classes = Point(network, certificate), network.classes
    core, optional = (whole(certificate, key, None, 0, classes - 1) for key in ("core", "optional"))
    a, b = len(core), len(core) + len(optional)
    p, q = whole(certificate, "window", 2, 1, classes - 1)
    need(1 <= a <= p <= q <= b < classes, "its core, its optional classes and its window do not go together")
    need(get(certificate, "epsilon", Fraction) < point.radius, "its ε is not below its radius")
    kind = re.fullmatch(r"(standard|top|rt|affinity)([0-9]{0,9})", get(certificate, "guarantee", str))
    if kind is None or (kind[2] == "") != (kind[1] in ("standard", "affinity")):
        raise UncheckedError("its guarantee is none of standard, top…, rt…, affinity")
    number = int(kind[2] or 1)
    least, most = (number, number) if kind[1] == "top" else (1, b if kind[1] == "affinity" else number)
    need(least <= a and b <= most, f"its guarantee, {kind[0]}, does not allow an answer of {a} to {b} classes")
    if kind[1] == "affinity":
        need({*core, *optional} <= {*whole(certificate, "set", None, 0, classes - 1)}, "its classes are in no one set")
    ranking = sorted(range(classes), key=lambda j: (-point.logits[j], j))
    need(sorted(core) == sorted(ranking[:a]), f"its core is not the {a} best classes")
    need(sorted(optional) == sorted(ranking[a:b]), f"core and optional are not the {b} best classes")
    low, high = ([f + s * e for f, e in zip(point.logits, point.here, strict=True)] for s in (-1, 1))
    for k in range(a, b + 1):
        network.clock.tick()
        apart = min(low[j] for j in ranking[:k]) > max(high[i] for i in ranking[k:])
        need(apart, f"the {k} best classes at the input are tied with others, but for rounding")
    need(certificate.get("claim") == claim(core, optional, float(point.radius), classes), "its words are other ones")
    off = [Fraction(n) - f for n, f in zip(floats(certificate, "logits", classes), point.logits, strict=True)]
    least_off, most_off = ([d + s * e for d, e in zip(off, point.here, strict=True)] for s in (-1, 1))
    need(max(least_off) <= min(most_off), "its logits are not the network's")
    for chain in chains(ranking, p, q):
        overtaken = " and ".join(f"{i} may overtake {j}" for j, i in chain)
        need(point.excludes_some(chain), f"its radius is too large: {overtaken}")
    for inequality in get(certificate, "inequalities", list):
        flat, constants = whole(inequality, "classes", None, 0, classes - 1), get(inequality, "constants", list)
        pairs = list(zip(flat[0::2], flat[1::2], strict=False))
        for (j, i), constant in zip(pairs, floats({"constants": constants}, "constants", len(pairs)), strict=True):
            enough = constant >= 0 and Fraction(constant) ** 2 >= point.inner(j, i, j, i)
            need(enough, f"its constant of the classes {j} and {i} is too small")
        need(point.excludes_some(pairs), "one of its inequalities does not hold")


def check(proof: str, model: str, images: Sequence[str] = (), seconds: float = SECONDS) -> tuple[int, list[str]]:
    """The exit code, and what is to be said; arguments are the names of files."""
    said: list[str] = []
    clock = Clock(time.monotonic() + seconds)
    try:
        stated, weights = parse(read(proof, MOST_TEXT), proof), Weights(read(model, MOST_BYTES))
        if get(stated, "format", str) != FORMAT:
            raise UncheckedError(f"its format is not {FORMAT!r}")
        need(get(stated, "weights", str) == weights.digest(), "the weights are not those that it is about")
        certificates = get(stated, "certificates", list)
        if not certificates:
            raise UncheckedError("there is no certificate in it")
        if len(images) not in (0, len(certificates)):
            given = f"certificates: {len(certificates)}, images: {len(images)}"
            raise UncheckedError(f"{given}; give one image for each certificate, or none")
        network = Network(stated, weights, clock)
        need(weights.used == set(weights.parts), "its network leaves out some of the weights")
        about = f"The network of the weights {stated['weights']}, on inputs of shape {stated['input_shape']}"
        said.append(f"{about}: {words(stated['program'])}")
        for place, (certificate, image) in enumerate(zip(certificates, images or repeat(None), strict=False)):
            if image is not None:
                try:
                    seen = [n / 255 for n in pixels_of(read(image, MOST_BYTES), *network.shape)]
                except UncheckedError as error:
                    raise UncheckedError(f"{image}: {error}") from None
                same = seen == floats(certificate, "input", len(seen))
                need(same, f"{image} is not the input of certificate {place}")
            check_certificate(certificate, network)
            line = f"{image or f'the input of certificate {place}'}: {certificate['claim']}"
            stated_units = certificate.get("units")  # as JSON, so that it cannot look like a line of this program
            said.append(line if stated_units is None else f"{line}; its units are stated as {json.dumps(stated_units)}")
    except RefutedError as error:
        return 1, [*said, f"Refuted: {error}."]
    except UncheckedError as error:
        return 2, [*said, f"Not checkable: {error}."]
    except OSError as error:
        return 2, [*said, f"Not checkable: {error.filename}: {error.strerror}."]
    except (MemoryError, RecursionError, OverflowError):
        return 2, [*said, "Not checkable: too large for this machine."]
    return 0, [*said, "Valid, in exact arithmetic and for the float64 program; classes are numbers, from 0."]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description="Check a certificate: 0 valid, 1 refuted, 2 not checkable.")
    parser.add_argument("proof", help="JSON file, as safeset writes it with --proof")
    parser.add_argument("model", help="safetensors file of the weights")
    parser.add_argument("images", nargs="*", help="8-bit PNG files, one for each certificate")
    parser.add_argument("--budget", type=float, default=SECONDS, help="seconds (default: %(default)g)")
    given = parser.parse_args(arguments)
    try:
        code, said = check(given.proof, given.model, given.images, given.budget)
        if isinstance(sys.stdout, io.TextIOWrapper):  # which may know less letters than these lines have
            sys.stdout.reconfigure(errors="backslashreplace")
        print("\n".join(said), flush=True)
    except KeyboardInterrupt:
        return 2
    except OSError:  # Nobody can read the verdict; without another output Python would fail again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 2
    return code


if __name__ == "__main__":
    sys.exit(main())
