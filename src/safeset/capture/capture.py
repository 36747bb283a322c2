"""A network as it is certified: plain layers in order, or whatever its forward computes."""

import copy

import torch
from torch import nn

from safeset.capture.from_export import compare, export, program_of_export
from safeset.capture.program_network import ProgramNetwork, check_program
from safeset.errors import expected
from safeset.numerics.strict import strict_arithmetic
from safeset.program.freezing import check_weights
from safeset.program.from_modules import frozen_and_program, is_plain, without_cache
from safeset.program.linear import Linear
from safeset.program.operation import Shape
from safeset.program.program import Program
from safeset.program.registry import has_rule
from safeset.program.rules import check_untouched, rule_of


def capture(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """The network as it is certified and served: plain float64 modules, and their program, which ends in a linear head.

    The modules are in evaluation mode and float64. Of layers in plain sequences, batch norm, normalisation and
    parametrisations are evaluated, and names stay; the network is not run. Any other network is run in a copy.

    Raises:
        UnsupportedLayerError: for what has no Lipschitz constant, for hooks, or a ``forward`` that is not of its class.
        ArgumentError: if shapes do not fit, weights are not finite, or what leaves is no logits.
    """
    way = _plain if is_plain(network) else _read if type(network) is ProgramNetwork else _exported
    frozen, program = way(network, input_shape)
    if program.classes < 2:
        raise expected("a head with at least 2 classes", f"{program.classes}")
    return frozen, program


def check_layers(network: nn.Module) -> None:
    """Refuse hooks and replaced methods in any layer; layers that have come or gone are for `capture` to see."""
    for name, layer in network.named_modules():
        if has_rule(layer):
            rule_of(layer, name)
        else:
            check_untouched(layer, name)


def _plain(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """Layers with rules, in plain sequences."""
    frozen, program = frozen_and_program(network, input_shape)
    head = program.nodes[-1] if program.nodes else None
    if head is None or not isinstance(head.operation, Linear) or len(head.shape) != 1:
        last = "something else"
        if head is not None and head.place.is_layer:
            last = f"{type(network.get_submodule(head.name)).__name__} on inputs of shape {head.shape}"
        remedy = "Give plain logits, without softmax, from flat features (nn.Flatten)."
        raise expected("the network's last layer to be the linear head, nn.Linear on flat features", last, remedy)
    return frozen, program


def _read(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """What was read from a file: it has its program already."""
    with torch.inference_mode(False), strict_arithmetic(), torch.no_grad():
        frozen = copy.deepcopy(network).double().eval()
        assert isinstance(frozen, ProgramNetwork)
        program = frozen.program
        if program.input_shape != input_shape:
            raise expected(f"inputs of shape {program.input_shape}, as the file has them", input_shape)
        check_program(program)
    return frozen, program


def _exported(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """A network with a forward of its own: what torch.export sees of it, compared with it at random points."""
    for name, layer in network.named_modules():
        check_weights(layer, name)
    check_layers(network)
    with torch.inference_mode(False), without_cache():
        frozen = copy.deepcopy(network).double().eval().requires_grad_(False)
        exported = export(frozen, input_shape)
        with strict_arithmetic():
            program = program_of_export(exported, frozen, input_shape)
            compare(frozen, program)
    return frozen, program
