"""Programs with smaller bounds, for networks that nobody trained for this: folded, merged and rebalanced."""

import copy

from torch import nn

from safeset.layers import ChannelAffine as ChannelAffineLayer
from safeset.program.entries import Shift
from safeset.program.folding import fold
from safeset.program.from_modules import frozen_and_program
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.merging import merge
from safeset.program.program import Node, Program
from safeset.program.rebalancing import rebalance
from safeset.program.sliding import Conv2d
from safeset.program.total import Sum


def has_batch_norm(program: Program) -> bool:
    """Whether some channels are scaled and shifted after a linear layer."""
    return any(isinstance(node.operation, ChannelAffine) for node in program.nodes[1:])


def tighten(program: Program) -> Program:
    """The same network, up to rounding, with a bound that is mostly smaller: what comes out is proved and runs."""
    folded = merge(fold(program))
    return rebalance(folded, powers_of_two=program.equals(folded))  # if nothing was folded, logits stay the same


def tighten_layers(frozen: nn.Module, program: Program) -> tuple[nn.Module, Program]:
    """Plain frozen layers with the weights of a tightened program, and the program that they then are.

    Batch norm that has become part of another layer becomes the identity, so that names stay. Where layers have been
    joined in other ways they stay as they were, and the program alone is another one.
    """
    folded = fold(program)
    tight = rebalance(folded, powers_of_two=program.equals(folded))  # if nothing was folded, logits stay the same
    if len(_sums(tight)) != len(_sums(program)):
        return frozen, tight
    layers, nodes = copy.deepcopy(frozen), {node.name: node for node in tight.nodes}
    for node in program.layers:
        after = nodes.get(node.name)
        made = nn.Identity() if after is None else _layer(layers.get_submodule(node.name), after)
        if made is None:
            return frozen, tight
        parent, _, name = node.name.rpartition(".")
        setattr(layers.get_submodule(parent), name, made)
    return frozen_and_program(layers, program.input_shape)


def _sums(program: Program) -> list[Node]:
    return [node for node in program.nodes if isinstance(node.operation, Sum)]


def _layer(layer: nn.Module, node: Node) -> nn.Module | None:
    """A layer with the constants of a node; None if it cannot be."""
    operation = node.operation
    if isinstance(operation, ChannelAffine):
        return ChannelAffineLayer(operation.scale, operation.shift)
    if isinstance(operation, Shift) and operation.shift.numel() == node.shape[0]:
        shift = operation.shift.flatten()
        return ChannelAffineLayer(shift.new_ones(shift.shape), shift)
    if isinstance(operation, Linear | Conv2d):
        if not isinstance(layer, nn.Linear | nn.Conv2d):
            return None
        layer.weight = nn.Parameter(operation.weight, requires_grad=False)
        layer.bias = None if operation.bias is None else nn.Parameter(operation.bias, requires_grad=False)
        return layer
    return None if operation.constants() else layer
