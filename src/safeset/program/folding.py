"""Fewer and better bounded linear layers: batch norm, normalisation and shortcuts become part of a layer beside them.

What comes out is what is proved and what runs. It differs from what went in by the rounding of its new weights alone.
"""

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.program.entries import Scale, Shift
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.one_row import OneRow
from safeset.program.operation import Shape
from safeset.program.program import Node, Program
from safeset.program.rewriting import Rewriting
from safeset.program.sliding import Conv2d
from safeset.program.total import Sum

Affine = Linear | Conv2d | ChannelAffine


def fold(program: Program) -> Program:
    """The program with fewer linear layers; no layer's bound, nor the whole's, is larger for it but for rounding.

    - Scale and shift of each channel after a linear layer that nobody else reads: ‖DW‖ ≤ max|d|·‖W‖.
    - The scale alone into all convolutions and dense layers that read it, ‖WD‖ ≤ ‖W‖·max|d|; the shift, divided by
      the scale, stays before them, because padding comes after it.
    - x + conv(x) with an odd kernel, stride 1 and padding that keeps the size: the identity is added to the kernel,
      ‖I + W‖ ≤ 1 + ‖W‖. The same of dense layers.

    A folded layer has the name and the type of the linear layer.
    """
    graph = Rewriting(program)
    with torch.no_grad():
        while any(_folded(graph, number) for number in list(graph.live)):
            pass
    return graph.program()


def _folded(graph: Rewriting, number: int) -> bool:
    """Whether something could be done at a node, which then has been done."""
    return _backwards(graph, number) or _forwards(graph, number) or _shortcut(graph, number)


# -- scale and shift --------------------------------------------------------------------------------------------------


class _Diagonal(NamedTuple):
    """scale·x + shift along one axis of a point."""

    scale: Tensor
    shift: Tensor


def _diagonal(node: Node, axis: int) -> _Diagonal | None:
    """What a node is along an axis, 0 or −1, of what enters it; None if it is nothing of that kind."""
    operation = node.operation
    if isinstance(operation, ChannelAffine):
        return _Diagonal(operation.scale, operation.shift) if axis == 0 or len(node.shape) == 1 else None
    if isinstance(operation, Scale | Shift):
        (numbers,) = operation.constants().values()
        if numbers.numel() not in (1, numbers.shape[axis]):  # along other axes
            return None
        numbers = numbers.flatten().expand(node.shape[axis])
        if isinstance(operation, Scale):
            return _Diagonal(numbers, torch.zeros_like(numbers))
        return _Diagonal(torch.ones_like(numbers), numbers)
    return None


def _backwards(graph: Rewriting, number: int) -> bool:
    """Scale and shift into the layer before them."""
    node = graph.nodes[number]
    read = node.inputs[0]
    there = graph.operation(read)
    before = there.inside if isinstance(there, OneRow) else there
    if not isinstance(before, Affine) or not graph.is_read_once(read):
        return False
    diagonal = _diagonal(node, -1 if isinstance(before, Linear) else 0)
    if diagonal is None or not _is_finite(after := _scaled(before, diagonal)):
        return False
    graph.put(read, OneRow(after) if isinstance(there, OneRow) and isinstance(after, Conv2d) else after)
    graph.leave_out(number, read)
    return True


def _scaled(before: Affine, after: _Diagonal) -> Affine:
    """D(Wx + b) + t as one layer."""
    scale, shift = after
    if isinstance(before, ChannelAffine):
        return ChannelAffine(scale * before.scale, scale * before.shift + shift)
    weight = scale.view(-1, *(1,) * (before.weight.ndim - 1)) * before.weight
    if before.bias is None:
        return replace(before, weight=weight, bias=shift.clone() if bool(shift.any()) else None)
    return replace(before, weight=weight, bias=scale * before.bias + shift)


def _forwards(graph: Rewriting, number: int) -> bool:
    """The scale into all that read it; the shift stays, divided by the scale."""
    node, diagonal = graph.nodes[number], _diagonal(graph.nodes[number], 0)
    if diagonal is None or number == graph.answer:
        return False
    sizes = diagonal.scale.abs()
    if bool((sizes == sizes.amax()).all()):  # nothing is gained
        return False
    shift = torch.where(diagonal.shift == 0, 0.0, diagonal.shift / diagonal.scale)  # ∞ where the scale is 0
    after = {reader: _reading(graph.nodes[reader], diagonal.scale) for reader in graph.readers(number)}
    if not bool(shift.isfinite().all()) or not all(each is not None and _is_finite(each) for each in after.values()):
        return False
    for reader, each in after.items():
        assert each is not None
        graph.put(reader, each)
    if bool(shift.any()):
        graph.put(number, Shift(shift.view(-1, *(1,) * (len(node.shape) - 1))))
    else:
        graph.leave_out(number, node.inputs[0])
    return True


def _reading(node: Node, scale: Tensor) -> Linear | Conv2d | None:
    """W D as one layer; None for what is no such layer."""
    operation = node.operation
    if isinstance(operation, Linear) and len(node.shape) == 1:
        return replace(operation, weight=operation.weight * scale)
    if isinstance(operation, Conv2d):
        parts = zip(operation.weight.chunk(operation.groups), scale.chunk(operation.groups), strict=True)
        return replace(operation, weight=torch.cat([weight * own.view(-1, 1, 1) for weight, own in parts]))
    return None


def _is_finite(operation: Affine) -> bool:
    return all(bool(each.isfinite().all()) for each in operation.constants().values())


# -- shortcuts --------------------------------------------------------------------------------------------------------


def _shortcut(graph: Rewriting, number: int) -> bool:
    """A layer and the shortcut around it as one layer."""
    node = graph.nodes[number]
    if not isinstance(node.operation, Sum) or len(node.inputs) != 2:
        return False
    for place in (0, 1):
        through, around = node.inputs[place], node.inputs[1 - place]
        operation = graph.operation(through)
        if isinstance(operation, Linear | Conv2d) and graph.is_read_once(through):
            own = graph.nodes[through]
            if own.inputs == (around,) and _keeps_places(operation, own.shape):
                sign, identity = node.operation.signs[place], node.operation.signs[1 - place]
                bias = None if operation.bias is None else sign * operation.bias
                graph.put(through, replace(operation, weight=_with_identity(operation, sign, identity), bias=bias))
                graph.leave_out(number, through)
                return True
    return False


def _keeps_places(operation: Linear | Conv2d, shape: Shape) -> bool:
    """Whether the identity is a layer of the same kind: as many outputs as inputs, a tap that reads the same pixel."""
    if isinstance(operation, Linear):
        return len(operation.weight) == shape[-1]
    return len(operation.weight) == shape[0] and all(
        axis.kernel % 2 == 1 and axis.stride == 1 and axis.before == axis.after == axis.extent // 2
        for axis in operation.axes(shape)
    )


def _with_identity(operation: Linear | Conv2d, sign: int, identity: int) -> Tensor:
    """The weights of ±W x ± x."""
    weight = sign * operation.weight
    if isinstance(operation, Linear):
        weight.diagonal().add_(identity)
        return weight
    channels = torch.arange(len(weight), device=weight.device)
    height, width = operation.kernel
    weight[channels, channels % weight.shape[1], height // 2, width // 2] += identity
    return weight
