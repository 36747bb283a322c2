"""A network as it is certified: plain layers in order, or whatever its forward computes."""

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from safeset.capture.comparison import compare
from safeset.capture.from_export import Exported, export, program_of_export
from safeset.capture.program_network import ProgramNetwork, check_program
from safeset.errors import UnsupportedLayerError, expected
from safeset.numerics.strict import strict_arithmetic
from safeset.program.freezing import check_weights
from safeset.program.from_modules import frozen_and_program, is_plain, without_cache
from safeset.program.linear import Linear
from safeset.program.operation import Shape
from safeset.program.program import Program
from safeset.program.registry import has_rule
from safeset.program.rules import check_untouched, rule_of


class Captured(NamedTuple):
    """A network as it is certified and served.

    Attributes:
        frozen: plain float64 modules in evaluation mode.
        program: what they compute; it ends in a linear head.
        exported: what torch.export saw, where modules alone do not tell.
    """

    frozen: nn.Module
    program: Program
    exported: Exported | None


def capture(network: nn.Module, input_shape: Shape, exported: Exported | None = None) -> Captured:
    """The network as it is certified and served: plain float64 modules, and their program, which ends in a linear head.

    The modules are in evaluation mode and float64. Of layers in plain sequences, batch norm, normalisation and
    parametrisations are evaluated, and names stay; the network is not run. Any other network is run in a copy.

    Args:
        network: any module.
        input_shape: of one input.
        exported: what torch.export saw before; if only weights have changed since, it need not look again.

    Raises:
        UnsupportedLayerError: for what has no Lipschitz constant, for hooks, or a ``forward`` that is not of its class.
        ArgumentError: if shapes do not fit, weights are not finite, or what leaves is no logits.
    """
    if is_plain(network):
        found = _plain(network, input_shape)
    elif type(network) is ProgramNetwork:
        found = _read(network, input_shape)
    else:
        found = _exported(network, input_shape, exported)
    if found.program.classes < 2:
        raise expected("a head with at least 2 classes", f"{found.program.classes}")
    return found


def copy_of(network: nn.Module) -> nn.Module:
    """A copy of a network.

    Raises:
        UnsupportedLayerError: if there is none.
    """
    try:
        return copy.deepcopy(network)
    except Exception as error:  # whatever its attributes may raise
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise UnsupportedLayerError(
            f"Expected a network that can be copied, but got one that cannot: {reason}. Locks, files, generators and "
            "tensors with a history must not be among the attributes of its modules."
        ) from None


def check_layers(network: nn.Module) -> None:
    """Refuse hooks and replaced methods in any layer; layers that have come or gone are for `capture` to see."""
    for name, layer in network.named_modules():
        if has_rule(layer):
            rule_of(layer, name)
        else:
            check_untouched(layer, name)


def _plain(network: nn.Module, input_shape: Shape) -> Captured:
    """Layers with rules, in plain sequences."""
    frozen, program = frozen_and_program(network, input_shape)
    head = program.nodes[-1] if program.nodes else None
    if head is None or not isinstance(head.operation, Linear) or len(head.shape) != 1:
        last = "something else"
        if head is not None and head.place.is_layer:
            last = f"{type(network.get_submodule(head.name)).__name__} on inputs of shape {head.shape}"
        remedy = "Give plain logits, without softmax, from flat features (nn.Flatten)."
        raise expected("the network's last layer to be the linear head, nn.Linear on flat features", last, remedy)
    return Captured(frozen, program, None)


def _read(network: nn.Module, input_shape: Shape) -> Captured:
    """What was read from a file: it has its program already."""
    with torch.inference_mode(False), strict_arithmetic(), torch.no_grad():
        frozen = copy.deepcopy(network).double().eval()
        assert isinstance(frozen, ProgramNetwork)
        program = frozen.program
        if program.input_shape != input_shape:
            raise expected(f"inputs of shape {program.input_shape}, as the file has them", input_shape)
        check_program(program)
    return Captured(frozen, program, None)


def _materialised(network: nn.Module) -> nn.Module:
    """A network whose parametrisations are replaced by the weights that they give in evaluation mode.

    They are evaluated in float64, or in the network's own type where one insists on that: what is certified is what
    they give here, not what they were meant to.
    """
    for module in [each for each in network.modules() if parametrize.is_parametrized(each)]:
        values = {name: _evaluated(module, name) for name in module.parametrizations}  # type: ignore[union-attr]
        # `remove_parametrizations` would take the property from the class, which the user's own module has too.
        module.__class__ = parametrize.type_before_parametrizations(module)
        del module.parametrizations
        for name, value in values.items():
            module.register_parameter(name, nn.Parameter(value, requires_grad=False))
    return network


def _evaluated(module: nn.Module, name: str) -> Tensor:
    """What a parametrisation gives."""
    with torch.no_grad():
        try:
            value = getattr(copy.deepcopy(module).double(), name)
        except RuntimeError:
            value = getattr(module, name)
    return value.detach().double().clone()  # type: ignore[no-any-return]


def _check_unwrapped(network: nn.Module) -> None:
    """Refuse what only wraps a network: it adds nothing, and torch.export does not see through it."""
    kind = type(network).__name__
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in network.modules()):
        raise UnsupportedLayerError(f"Expected a module, but got TorchScript ({kind}). Give the module it was made of.")
    wrappers = {"OptimizedModule": "_orig_mod", "DataParallel": "module", "DistributedDataParallel": "module"}
    inner = wrappers.get(kind)
    if inner in network._modules:
        raise UnsupportedLayerError(f"Expected a network, but got one in a {kind}. Give the one inside, its .{inner}.")


def _exported(network: nn.Module, input_shape: Shape, exported: Exported | None) -> Captured:
    """A network with a forward of its own: what torch.export sees of it, compared with it at random points."""
    _check_unwrapped(network)
    for name, layer in network.named_modules():
        check_weights(layer, name)
    check_layers(network)
    with torch.inference_mode(False), without_cache():
        frozen = _materialised(copy_of(network).eval()).double().requires_grad_(False)
        if exported is None or not exported.is_of(frozen, input_shape):
            exported = export(frozen, input_shape)
        with strict_arithmetic():
            program = program_of_export(exported, frozen, input_shape)
            compare(frozen, program)
    return Captured(frozen, program, exported)
