"""Modules as they are certified: plain float64 layers, and the program that they are."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn.utils import parametrize

import safeset.program.lipschitz_layers  # noqa: F401  (registers safeset's layers, and torch's)
from safeset.errors import expected
from safeset.layers import Residual
from safeset.numerics.strict import strict_arithmetic
from safeset.program.freezing import freeze_layer, join_names, probe
from safeset.program.operation import Operation, Shape
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.registry import is_taken
from safeset.program.rules import check_untouched, rule_of
from safeset.program.total import Sum


def is_plain(network: nn.Module) -> bool:
    """Whether a network is layers with rules in plain sequences: then its program can be read off its modules."""
    if type(network) is nn.Sequential:
        return all(is_plain(child) for child in network.children())
    return is_plain(network.body) if type(network) is Residual else is_taken(network)


def program_of(network: nn.Module, input_shape: Shape) -> Program:
    """What a plain network, or a part of one, computes; with or without a head."""
    return frozen_and_program(network, input_shape)[1]


def frozen_and_program(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """A plain network, or a part of one, as it is certified, and its program. It is not touched, nor run."""
    with torch.inference_mode(False), strict_arithmetic(), without_cache():
        building = _Building()
        frozen, _, _ = building.add(network, "", INPUT, input_shape, [False])
    return frozen.eval(), Program(input_shape, tuple(building.nodes))


@contextmanager
def without_cache() -> Iterator[None]:
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
