"""Several linear layers in a row, or side by side, as one dense layer where that is small and has a smaller bound.

The matrix is that of the part as it is, padded borders included. It is what is proved and what runs; it differs from
what went in by rounding alone.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from safeset.numerics.directed import Up
from safeset.program.entries import Scale, Shift
from safeset.program.joining import Join
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation, Shape
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.reorder import Flatten, Reorder
from safeset.program.rewriting import Rewriting
from safeset.program.select import Reshape, Select
from safeset.program.sliding import AveragePooling, Conv2d
from safeset.program.total import Sum

MOST_ENTRIES = 2**21  # of a matrix: 16 MB
MOST_SIDE = 1024  # its smaller one: an exact proof takes about a second
WORTH = 1.01  # how many times smaller the bound must be
COLUMNS_AT_ONCE = 256

STRETCHING = (Linear, Conv2d, ChannelAffine, Scale, AveragePooling, Select, Sum, Join)
AFFINE = (*STRETCHING, Shift, Reorder)


@dataclass(frozen=True)
class LinearPart:
    """All nodes through which one node depends on another, every one of them affine; in order, the last one last."""

    start: int
    numbers: tuple[int, ...]


def merge(program: Program) -> Program:
    """The program with its affine parts, as far as they go, as dense layers, where these are small and bounded better.

    A dense layer has the name of the last node of its part.
    """
    with torch.no_grad():
        found = {part: _merged(program, part) for part in linear_parts(program)}
    merged = {part.numbers[-1]: (part.start, layers) for part, layers in found.items() if layers}
    if not merged:
        return program
    numbers, after = {INPUT: INPUT}, list[Node]()
    for number, node in enumerate(program.nodes):
        start, layers = merged.get(number, (None, [node]))
        reads = tuple(numbers[read] for read in (node.inputs if start is None else (start,)))
        for each in layers:
            after.append(replace(each, place=replace(each.place, inputs=reads)))
            reads = (len(after) - 1,)
        numbers[number] = len(after) - 1
    return Rewriting(Program(program.input_shape, tuple(after))).program()


def linear_parts(program: Program) -> Iterator[LinearPart]:
    """The largest affine parts with one start that end where something else reads them, or with the answer."""
    starts = {INPUT: INPUT}
    for number, node in enumerate(program.nodes):
        before = {starts[read] for read in node.inputs}
        starts[number] = before.pop() if isinstance(node.operation, AFFINE) and len(before) == 1 else number
    last = len(program.nodes) - 1
    for number, start in starts.items():
        if start == number:
            continue
        readers = [other for other, node in enumerate(program.nodes) if number in node.inputs]
        if number != last and all(starts[reader] == start for reader in readers):
            continue
        needed, open_ = set[int](), [number]
        while open_:
            each = open_.pop()
            if each != start and each not in needed:
                needed.add(each)
                open_ += program.nodes[each].inputs
        yield LinearPart(start, tuple(sorted(needed)))


def _merged(program: Program, part: LinearPart) -> list[Node]:
    """The nodes that are the part as one layer; none if that is not worth it.

    A matrix that is smaller than one of the part's is always worth it: its bound is no larger, its proof cheaper.
    """
    nodes = [program.nodes[number] for number in part.numbers]
    if sum(isinstance(node.operation, STRETCHING) for node in nodes) < 2:
        return []
    entering = next(node.shape for node in nodes if part.start in node.inputs)
    zero = torch.zeros(1, *entering, dtype=torch.float64, device=program.device)
    bias = _run(program, part, zero, biases=True)[0]
    outputs, inputs = bias.numel(), zero.numel()
    dense = [node.operation.weight.numel() for node in nodes if isinstance(node.operation, Linear)]
    is_smaller = outputs * inputs < max(dense, default=0)
    if not is_smaller and (outputs * inputs > MOST_ENTRIES or min(outputs, inputs) > MOST_SIDE):
        return []
    unit = torch.eye(inputs, dtype=torch.float64, device=program.device).view(inputs, *entering)
    columns = [_run(program, part, some, biases=False).flatten(1) for some in torch.split(unit, COLUMNS_AT_ONCE)]
    weight = torch.cat(columns).mT.contiguous()
    is_head = part.numbers[-1] == len(program.nodes) - 1
    if not bool(weight.isfinite().all()):
        return []
    if not is_smaller and not _composed(program, part, is_head) > WORTH * _norm(weight, is_head):
        return []
    layer = Linear(weight, bias.flatten().clone() if bool(bias.any()) else None)
    return list(_around(layer, nodes[-1].name, entering, tuple(bias.shape)))


def _around(layer: Linear, name: str, entering: Shape, leaving: Shape) -> Iterator[Node]:
    """A dense layer between the shapes of its part; what it reads is to be filled in."""
    flat = (math.prod(entering),)
    if entering != flat:
        yield Node(Place(f"{name}.flattened", "Flatten", (), entering, is_layer=True), Flatten(1, -1))
    yield Node(Place(name, "Linear", (), flat, is_layer=True), layer)
    if leaving != (out := (math.prod(leaving),)):
        yield Node(Place(f"{name}.shaped", "Reshape", (), out, is_layer=True), Reshape(leaving))


def _run(program: Program, part: LinearPart, x: Tensor, *, biases: bool) -> Tensor:
    """What leaves the part, with or without what its layers add."""
    values = {part.start: x}
    for number in part.numbers:
        node = program.nodes[number]
        operation = node.operation if biases else _without_shift(node.operation)
        values[number] = operation.run(*(values[read] for read in node.inputs))
    return values[part.numbers[-1]]


def _without_shift(operation: Operation) -> Operation:
    """The linear map of an affine operation."""
    if isinstance(operation, Linear | Conv2d):
        return replace(operation, bias=None)
    if isinstance(operation, ChannelAffine | Shift):
        return replace(operation, shift=torch.zeros_like(operation.shift))
    return operation


def _composed(program: Program, part: LinearPart, is_head: bool) -> float:
    """What the bounds of the part's layers make together; of a head the largest difference of two rows counts."""
    reaches = {part.start: Up(1.0)}
    for number in part.numbers:
        operation, shape = program.nodes[number].operation, program.nodes[number].shape
        alone = is_head and number == part.numbers[-1] and isinstance(operation, Linear)
        bound = Up(_norm(operation.weight, True)) if alone else operation.prove(shape, "auto", None)[0]  # type: ignore[attr-defined]
        reaches[number] = operation.reach(bound, *(reaches[read] for read in program.nodes[number].inputs))
    return float(reaches[part.numbers[-1]])


def _norm(weight: Tensor, is_head: bool) -> float:
    """About: the spectral norm, or the largest distance of two rows."""
    return float(torch.pdist(weight).amax() if is_head and len(weight) > 1 else torch.linalg.matrix_norm(weight, 2))
