"""Programs: a network as a value, which proofs, the auditor, portable proofs and the interpreter all read."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from safeset.program.content import canonical, same_tensors, same_values
from safeset.program.linear import Linear
from safeset.program.operation import Operation, Shape

INPUT = -1  # what a node reads that reads the program's input


@dataclass(frozen=True)
class Place:
    """Where a node stands: its layer's name and type, the nodes that it reads, and the shape of one point that enters.

    ``is_layer`` is whether it has a bound of its own; a sum has none.
    """

    name: str
    type: str
    inputs: tuple[int, ...]
    shape: Shape
    is_layer: bool


@dataclass(frozen=True, eq=False)
class Node:
    """An operation at its place."""

    place: Place
    operation: Operation

    @property
    def name(self) -> str:
        """Of the layer that it was."""
        return self.place.name

    @property
    def inputs(self) -> tuple[int, ...]:
        """The nodes that it reads, by their numbers; −1 is the program's input."""
        return self.place.inputs

    @property
    def shape(self) -> Shape:
        """Of one point that enters it."""
        return self.place.shape


@dataclass(frozen=True, eq=False)
class Program:
    """A small graph of operations, each after those that it reads; the last one is the answer. It never changes.

    Attributes:
        input_shape: of one point.
        nodes: in an order in which they can be computed.
    """

    input_shape: Shape
    nodes: tuple[Node, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """The graph without its operations."""
        return tuple(node.place for node in self.nodes)

    @property
    def layers(self) -> Iterator[Node]:
        """The nodes that have bounds of their own, in order."""
        return (node for node in self.nodes if node.place.is_layer)

    @property
    def head(self) -> Linear:
        """The last operation, if the program is one that can be certified."""
        operation = self.nodes[-1].operation
        assert isinstance(operation, Linear)  # `capture` has looked
        return operation

    @property
    def classes(self) -> int:
        """Of the head."""
        return len(self.head.weight)

    @cached_property
    def device(self) -> torch.device:
        """Where it computes."""
        constants = (tensor for node in self.nodes for tensor in node.operation.constants().values())
        return next((tensor.device for tensor in constants if tensor.is_floating_point()), torch.device("cpu"))

    @cached_property
    def assumptions(self) -> tuple[str, ...]:
        """What is believed of the library that computes it, not proved: each different one once, in order."""
        every = (node.operation.assumption for node in self.nodes)
        return tuple(dict.fromkeys(each for each in every if each is not None))

    @cached_property
    def products(self) -> int:
        """Multiplications of one point, about."""
        return sum(node.operation.products(node.shape) for node in self.nodes)

    @cached_property
    def _last_readers(self) -> dict[int, int]:
        """For each node the last one that reads it: after that its values are not needed any more."""
        return {read: number for number, node in enumerate(self.nodes) for read in node.inputs}

    def run(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) float64 → (batch, classes), by ATen's own operations, one node after another."""
        values = {INPUT: x}
        for number, node in enumerate(self.nodes):
            values[number] = node.operation.run(*(values[read] for read in node.inputs))
            for read in set(node.inputs):
                if self._last_readers[read] == number:
                    del values[read]
        return values[len(self.nodes) - 1] if self.nodes else x

    def equals(self, other: "Program") -> bool:
        """Whether both compute the same, number by number, on the same device: then a proof of one is one of both."""
        return (
            self.input_shape == other.input_shape
            and self.places == other.places
            and all(
                type(one.operation) is type(two.operation)
                and same_values(one.operation.settings(), two.operation.settings())
                and same_tensors(one.operation.constants(), two.operation.constants())
                for one, two in zip(self.nodes, other.nodes, strict=True)
            )
        )

    def digest(self) -> str:
        """A text that no other program has: graph, kinds, settings, numbers, and the code of own layers."""
        found = hashlib.sha256(json.dumps(self.input_shape).encode())
        for node in self.nodes:
            place, operation = node.place, node.operation
            found.update(json.dumps([place.name, place.inputs, place.shape, operation.kind]).encode())
            found.update(json.dumps(operation.settings(), default=canonical, sort_keys=True).encode())
            for name, tensor in sorted(operation.constants().items()):
                found.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
                found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        return found.hexdigest()
