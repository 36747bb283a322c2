"""One operation of an ONNX file with what it is given: arguments, attributes, and where its batch is."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture.aten_refusals import SQUARES
from safeset.capture.expressions import Absent, Squares, Value
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError

MOST_ENTRIES = 2**27  # of all values of one point together; a ResNet-152 of 224 pixels has half of that
Move = Callable[..., Tensor]
NOTHING = object()


@dataclass
class Frame:
    """In which form a file has its points.

    Where the file has a batch of any size, its first axis is that of views. Where it has one point at a time, with a
    batch of 1 or none, views have an axis more, in front of the file's own axes: whatever a file does with a batch of
    1, it does with one point.

    Attributes:
        graph: the program so far.
        hidden: whether views have an axis more.
        left: entries that values may still have.
    """

    graph: Graph
    hidden: bool
    left: int = MOST_ENTRIES

    def spend(self, shape: Sequence[int]) -> None:
        """Count a value of a shape, before it is made.

        Raises:
            UnsupportedLayerError: if all values together are too large to be a network's.
        """
        if any(size < 0 for size in shape):
            raise UnsupportedLayerError(f"values of shape {list(shape)[:8]}")
        self.left -= math.prod(shape)
        if self.left < 0:
            raise UnsupportedLayerError(f"values of more than {MOST_ENTRIES:,} entries in all: is a shape wrong?")

    def shape(self, value: Value) -> tuple[int, ...]:
        """As the file sees it."""
        return tuple(value.shape)[int(self.hidden) :] if isinstance(value, View) else tuple(value.shape)

    def axis(self, value: View, axis: int) -> int:
        """The axis of a view that a file calls so."""
        rank = len(self.shape(value))
        if not -rank <= axis < max(rank, 1):
            raise UnsupportedLayerError(f"axis {axis} of a value of shape {list(self.shape(value))}")
        return axis % max(rank, 1) + int(self.hidden)

    def moved(self, move: Move, *values: View) -> View:
        """What a function that only moves entries makes of views, in the file's own axes."""
        places = [value.places for value in values]
        return View(torch.vmap(move)(*places) if self.hidden else move(*places))

    def aligned(self, *values: Value) -> list[Value]:
        """Values with as many axes as the one with the most, 1 in front of their own, as ONNX broadcasts."""
        if not self.hidden:
            return [self._without_rows(value, values) for value in values]
        most = max(len(self.shape(value)) for value in values)
        found: list[Value] = []
        for value in values:
            ones = (1,) * (most - len(self.shape(value)))
            if isinstance(value, View):
                value = View(value.places.reshape(self.graph.points, *ones, *value.shape[1:]))
            found.append(value)
        return found

    def _without_rows(self, value: Value, others: Sequence[Value]) -> Value:
        """A constant that is the same for each point of the batch, once."""
        rank = max((len(each.shape) for each in others if isinstance(each, View)), default=0)
        if isinstance(value, View) or not rank or value.ndim != rank or value.shape[0] != self.graph.points:
            return value
        return value[:1] if bool(value.eq(value[:1]).all()) else value

    def image(self, value: View) -> View:
        """A value whose first axis in the file is the batch: (points, channels, …)."""
        if not self.hidden:
            return value
        if len(value.shape) < 3 or value.shape[1] != 1:
            raise UnsupportedLayerError(f"images of shape {list(self.shape(value))}, which are not one")
        return value.map(lambda places: places.squeeze(1))

    def of_image(self, value: View) -> View:
        """The same the other way round."""
        return value.map(lambda places: places.unsqueeze(1)) if self.hidden else value


@dataclass
class Call:
    """An operation and what it is given; what nobody asks for is a mistake.

    Attributes:
        kind: its name in ONNX.
        name: its own name.
        inputs: values; None for what is left out.
        outputs: how many values are wanted of it.
        attributes: by name.
        frame: in which form points are.
    """

    kind: str
    name: str
    inputs: Sequence[Any]
    outputs: int
    attributes: Mapping[str, Any]
    frame: Frame
    asked: set[str] = field(default_factory=set)

    @property
    def graph(self) -> Graph:
        """The program so far."""
        return self.frame.graph

    def input(self, place: int) -> Any:
        """An argument, or None."""
        found = self.inputs[place] if place < len(self.inputs) else None
        if isinstance(found, Absent):
            raise UnsupportedLayerError(found.reason)
        return found

    def value(self, place: int = 0) -> Value:
        """An argument that is a value or a constant."""
        found = self.input(place)
        if isinstance(found, Squares):
            raise UnsupportedLayerError(SQUARES)
        if not isinstance(found, View | Tensor):
            raise UnsupportedLayerError(f"nothing where its input {place} should be")
        return found

    def view(self, place: int = 0) -> View:
        """An argument that depends on the network's input."""
        found = self.value(place)
        if not isinstance(found, View):
            raise UnsupportedLayerError(f"a constant where its input {place} should be something of the input")
        return found

    def constant(self, place: int, name: str = "") -> Tensor | None:
        """An argument that must be a constant, or in older files an attribute of that name; None if there is none."""
        found = self.input(place)
        if found is None and name:
            given = self.attribute(name, None)
            found = None if given is None else torch.tensor(given)
        if isinstance(found, View | Squares):
            raise UnsupportedLayerError(f"{name or f'its input {place}'} that depends on the input")
        return found if isinstance(found, Tensor) else None

    def integers(self, place: int, name: str) -> list[int] | None:
        """The same as a list of integers."""
        found = self.constant(place, name)
        if found is None:
            return None
        if found.is_floating_point() or found.numel() > 10**6:
            raise UnsupportedLayerError(f"{name} that are no integers")
        return [int(each) for each in found.flatten().tolist()]

    def number(self, place: int, name: str) -> float | None:
        """The same as one number."""
        found = self.constant(place, name)
        if found is None:
            return None
        if found.numel() != 1:
            raise UnsupportedLayerError(f"{found.numel()} numbers as its {name}")
        return float(found.reshape(()))

    def attribute(self, name: str, default: Any = NOTHING) -> Any:
        """An attribute of the default's type; one without a default must be there."""
        self.asked.add(name)
        found = self.attributes.get(name, default)
        if found is NOTHING:
            raise UnsupportedLayerError(f"no attribute {name}")
        kind = type(default)
        if default is not NOTHING and default is not None and found is not default:
            fits = isinstance(found, kind) or (kind is float and isinstance(found, int))
            if not fits:
                raise UnsupportedLayerError(f"an attribute {name} that is no {kind.__name__}")
        return found

    def added(self, x: Value, y: Value) -> Value:
        """The sum of both, as ONNX broadcasts."""
        self.frame.spend(torch.broadcast_shapes(self.frame.shape(x), self.frame.shape(y)))  # type: ignore[no-untyped-call]
        first, second = self.frame.aligned(x, y)
        return ex.added(self.graph, first, second, self.name)

    def check_asked(self) -> None:
        """Refuse attributes that nobody asked for: they may mean anything."""
        for name in self.attributes:
            if name not in self.asked:
                raise UnsupportedLayerError(f"an attribute {name[:40]!r}, which is not known")
