"""Modules as they are certified: plain float64 layers, and the program that they are."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import parametrize

import safeset.program.torch_layers  # noqa: F401  (registers torch's layers)
from safeset.errors import expected
from safeset.layers import Residual
from safeset.numerics.strict import strict_arithmetic
from safeset.program.freezing import check_weights, freeze_layer, join_names, probe
from safeset.program.from_export import compare, export, program_of_export
from safeset.program.linear import Linear
from safeset.program.operation import Operation, Shape
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.registry import has_rule
from safeset.program.rules import check_untouched, rule_of
from safeset.program.total import Sum


def capture(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """The network as it is certified and served: plain layers, and their program, which ends in a linear head.

    The layers are in evaluation mode and float64; batch norm, normalisation and parametrisations are evaluated. They
    have the same names as before. The network itself is not touched, nor run.

    Raises:
        UnsupportedLayerError: for layers without a rule, with hooks, or with a ``forward`` that is not their class's.
        ArgumentError: if shapes do not fit, weights are not finite, or the last layer is no linear head.
    """
    if not is_plain(network):
        return _exported(network, input_shape)
    frozen, program = _captured(network, input_shape)
    head = program.nodes[-1] if program.nodes else None
    if head is None or not isinstance(head.operation, Linear) or len(head.shape) != 1:
        last = "something else"
        if head is not None and head.place.is_layer:
            last = f"{type(network.get_submodule(head.name)).__name__} on inputs of shape {head.shape}"
        remedy = "Give plain logits, without softmax, from flat features (nn.Flatten)."
        raise expected("the network's last layer to be the linear head, nn.Linear on flat features", last, remedy)
    _check_classes(program)
    return frozen, program


def is_plain(network: nn.Module) -> bool:
    """Whether a network is layers with rules in plain sequences: then its program can be read off its modules."""
    if type(network) is nn.Sequential:
        return all(is_plain(child) for child in network.children())
    return is_plain(network.body) if type(network) is Residual else has_rule(network)


def program_of(network: nn.Module, input_shape: Shape) -> Program:
    """What a plain network, or a part of one, computes; with or without a head."""
    return _captured(network, input_shape)[1]


def _captured(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    with torch.inference_mode(False), strict_arithmetic(), _without_cache():
        building = _Building()
        frozen, _, _ = building.add(network, "", INPUT, input_shape, [False])
    return frozen.eval(), Program(input_shape, tuple(building.nodes))


def _exported(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """A network with a forward of its own: what torch.export sees of it, compared with it at random points."""
    for name, layer in network.named_modules():
        check_untouched(layer, name)
        check_weights(layer, name)
    with torch.inference_mode(False), _without_cache():
        frozen = copy.deepcopy(network).double().eval().requires_grad_(False)
        exported = export(frozen, input_shape)
        with strict_arithmetic():
            program = program_of_export(exported, frozen, input_shape)
            _check_classes(program)
            compare(frozen, program)
    return frozen, program


def _check_classes(program: Program) -> None:
    if program.classes < 2:
        raise expected("a head with at least 2 classes", f"{program.classes}")


@contextmanager
def _without_cache() -> Iterator[None]:
    """Evaluate parametrisations again: in `parametrize.cached()` torch gives a copy the weights of its original."""
    before, parametrize._cache_enabled = parametrize._cache_enabled, 0
    try:
        yield
    finally:
        parametrize._cache_enabled = before


@dataclass
class _Building:
    """The nodes of a program so far."""

    nodes: list[Node] = field(default_factory=list)

    def append(self, place: Place, operation: Operation) -> int:
        """One more node; its number."""
        self.nodes.append(Node(place, operation))
        return len(self.nodes) - 1

    def add(
        self, layer: nn.Module, name: str, source: int, shape: Shape, shared: list[bool]
    ) -> tuple[nn.Module, int, Shape]:
        """The nodes of a module that reads ``source``.

        ``shared`` says whether the memory that enters is that of a shortcut: then nothing may be computed in place.

        Returns:
            The frozen module, the node that it ends with, and the shape that leaves it.
        """
        if type(layer) is nn.Sequential:
            check_untouched(layer, name)
            frozen = nn.Sequential()
            for child_name, child in layer._modules.items():  # named_children would skip a layer that comes twice
                if child is not None:
                    part, source, shape = self.add(child, join_names(name, child_name), source, shape, shared)
                    frozen.add_module(child_name, part)
            return frozen, source, shape
        if type(layer) is Residual:
            check_untouched(layer, name)
            body, end, out = self.add(layer.body, join_names(name, "body"), source, shape, [True])
            shared[0] = False
            if out != shape:
                raise expected(f"the body of the residual layer {name!r} to keep the shape {shape}", out)
            total = self.append(Place(name, "Residual", (source, end), shape, is_layer=False), Sum())
            return Residual(body), total, shape
        plain = freeze_layer(layer, name, shape, shared=shared[0])
        operation = rule_of(plain, name).value(plain, shape)
        out, same_memory = probe(plain, operation, name, shape)
        shared[0] = shared[0] and same_memory
        return plain, self.append(Place(name, type(plain).__name__, (source,), shape, is_layer=True), operation), out


def layer_names(network: nn.Module, name: str = "") -> Iterator[str]:
    """The names of a network's layers in order, as far as they can be seen without running it."""
    if type(network) is nn.Sequential:
        for child_name, child in network._modules.items():
            if child is not None:
                yield from layer_names(child, join_names(name, child_name))
    elif type(network) is Residual:
        yield from layer_names(network.body, join_names(name, "body"))
    else:
        yield name


def check_layers(network: nn.Module) -> None:
    """Refuse hooks and replaced methods in any layer; layers that have come or gone are for `capture` to see."""
    for name, layer in network.named_modules():
        if has_rule(layer):
            rule_of(layer, name)
        else:
            check_untouched(layer, name)
