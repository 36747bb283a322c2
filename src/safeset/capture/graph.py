"""A program in the making: values as views of what nodes compute, so that a reordering is seen however it is written.

Splits, rolls, concatenations and transpositions compute nothing: they say where entries come from. A view keeps just
that, and becomes nodes only where something computes with it. So a permutation in ten steps is one permutation, and
two halves of the same node have no more than its Lipschitz constant.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from safeset.errors import UnsupportedLayerError
from safeset.program.entries import Scale
from safeset.program.joining import Join
from safeset.program.operation import Operation, Shape
from safeset.program.pointwise import MinMax, ReLU
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.select import Reshape, Select
from safeset.program.total import Sum

POINTS = 3  # in a batch of any size: enough to see a value that mixes them


@dataclass(frozen=True, eq=False)
class View:
    """Where each entry of a value comes from.

    Attributes:
        places: (batch, …) float64 numbers of entries of nodes, for all points of the graph; 0 for the number 0.
    """

    places: Tensor

    @property
    def shape(self) -> Shape:
        """Of the whole batch."""
        return tuple(self.places.shape)

    @property
    def point(self) -> Shape:
        """Of one point."""
        return self.shape[1:]

    def map(self, function: Callable[[Tensor], Tensor]) -> "View":
        """The same entries in another order or shape, as a function gives them."""
        return View(function(self.places))


class Origin(NamedTuple):
    """The node that computes a value's entries, and their places in what it gives, flattened."""

    number: int
    node: Node
    places: Tensor


@dataclass
class Graph:
    """The nodes of a program so far.

    Attributes:
        input_shape: of one point.
        device: where the constants are.
        points: in the batch whose entries views number.
        nodes: in the order in which they were added.
        is_trained: whether what is added now has numbers that training changes: no more than that is known of it.
    """

    input_shape: Shape
    device: torch.device
    points: int = POINTS
    nodes: list[Node] = field(default_factory=list)
    is_trained: bool = False
    _trained: set[int] = field(default_factory=set)  # nodes that were added so
    _shapes: dict[int, Shape] = field(default_factory=dict)  # what each node gives, of one point
    _starts: list[int] = field(default_factory=list)  # the number of the first entry of each source, the input first
    _made: dict[Any, int] = field(default_factory=dict)  # nodes of views that were asked for before
    _given: dict[int, tuple[View, ...]] = field(default_factory=dict)  # what nodes were asked to read, not as nodes
    _names: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._starts.append(1)
        self._shapes[INPUT] = self.input_shape

    # -- values -------------------------------------------------------------------------------------------------------

    def input(self) -> View:
        """The program's input."""
        return self._whole(INPUT)

    def add(self, operation: Operation, *values: View, name: str, kind: str = "", is_layer: bool = True) -> View:
        """What an operation makes of values; a new node."""
        inputs = tuple(self.node_of(value) for value in values)
        number = self._append(operation, inputs, name, kind, is_layer)
        self._remember(number, values)
        return self._whole(number)

    def add_once(self, operation: Operation, *values: View, name: str) -> View:
        """The same, or the node that has been made of this kind of operation, with its constants, and of these values.

        So the larger and the smaller of the same two values are one node, which counts once.
        """
        inputs = tuple(self.node_of(value) for value in values)
        constants = tuple(each.cpu().numpy().tobytes() for each in operation.constants().values())
        key = (type(operation), inputs, constants)
        if key not in self._made:
            self._made[key] = self._append(operation, inputs, name, "", True)
            self._remember(self._made[key], values)
        return self._whole(self._made[key])

    def total(self, values: Sequence[View], signs: Sequence[int], *, name: str) -> View:
        """The sum of values of the same shape, each with its sign."""
        return self.add(Sum(tuple(signs)), *values, name=name, kind="Sum", is_layer=False)

    def operation_of(self, value: View) -> tuple[Operation, View] | None:
        """What computed a value, and of what, if it is just what a node of one input gives, in any shape."""
        found = self._source(value)
        if found is None or found == INPUT:
            return None
        node = self.nodes[found]
        if len(node.inputs) != 1:
            return None
        return node.operation, self._given[found][0] if found in self._given else self._whole(node.inputs[0])

    def origin(self, value: View) -> "Origin | None":
        """Where a value's entries are computed, if that is one node of known numbers, and no points are mixed."""
        if not value.shape or value.shape[0] != self.points or not value.places.numel():
            return None
        flat = value.places.reshape(self.points, -1)
        number = self._number(int(flat[0, 0]))
        if number is None or number == INPUT or number in self._trained:
            return None
        size, inside = math.prod(self._shapes[number]), flat - self._starts[number + 1]
        own = inside - torch.arange(self.points, dtype=torch.float64)[:, None] * size
        if not bool(((own >= 0) & (own < size) & (own == own[:1])).all()):
            return None
        return Origin(number, self.nodes[number], own[0].long())

    def read_by(self, origin: "Origin", at: int, places: Tensor) -> View:
        """Entries, flat, of one of the values that a node reads, as it was asked to."""
        if origin.number in self._given:
            return self._given[origin.number][at].map(lambda entries: entries.reshape(self.points, -1)[:, places])
        read = origin.node.inputs[at]
        points = torch.arange(self.points, dtype=torch.float64)[:, None] * math.prod(self._shapes[read])
        return View(self._starts[read + 1] + points + places)

    def is_same(self, first: View, second: View) -> bool:
        """Whether both are the same entries, in the same order, whatever their shapes."""
        return torch.equal(first.places.reshape(-1), second.places.reshape(-1))

    def is_same_value(self, first: View, second: View) -> bool:
        """Whether both are the same entries, of which one may have been made a node of its own."""
        if first.shape == second.shape and not self.is_same(first, second):
            return self.node_of(first) == self.node_of(second)
        return self.is_same(first, second)

    def node_of(self, value: View) -> int:
        """The node that gives a value as it is; made if there is none yet."""
        if len(value.shape) == 1:
            raise UnsupportedLayerError("a value without axes beside the batch: keep one, by keepdim=True or [:, :1]")
        whole = self._source(value)
        if whole is not None and self._shapes[whole] == value.point:
            return whole
        sources, order = self._order(value)
        for negative in sources:
            origin = self._negated(negative)
            for positive in sources:
                if origin is not None and self._is_relu_of(positive, origin):
                    return self.node_of(self._in_halves(value, positive, negative, origin))
        key = (tuple(sources), value.point, order.numpy().tobytes())
        if key not in self._made:
            self._made[key] = self._reordered(sources, order, value.point)
        return self._made[key]

    def finished(self, value: View) -> Program:
        """The program that gives a value, without the nodes that it does not need."""
        last = self.node_of(value)
        if last == INPUT:
            raise UnsupportedLayerError("Expected a network that computes something, but got one that gives its input.")
        needed = {last}
        for number in range(last, -1, -1):
            if number in needed:
                needed.update(self.nodes[number].inputs)
        order = [number for number in range(last + 1) if number in needed]
        numbers = {old: new for new, old in enumerate(order)} | {INPUT: INPUT}
        nodes = []
        for number in order:
            place = self.nodes[number].place
            inputs = tuple(numbers[read] for read in place.inputs)
            moved = Place(place.name, place.type, inputs, place.shape, place.is_layer)
            nodes.append(Node(moved, self.nodes[number].operation))
        return Program(self.input_shape, tuple(nodes))

    # -- inside -------------------------------------------------------------------------------------------------------

    def _remember(self, number: int, values: tuple[View, ...]) -> None:
        """What a node was asked to read, if some of it is no node as it is."""
        if any(self._source(value) != read for value, read in zip(values, self.nodes[number].inputs, strict=True)):
            self._given[number] = values

    def _append(self, operation: Operation, inputs: tuple[int, ...], name: str, kind: str, is_layer: bool) -> int:
        shapes = [self._shapes[read] for read in inputs]
        zeros = (torch.zeros(1, *shape, dtype=torch.float64, device=self.device) for shape in shapes)
        out = operation.run(*zeros)
        place = Place(self._new_name(name), kind or operation.kind, inputs, shapes[0], is_layer)
        number = len(self.nodes)
        self._trained.update([number] * self.is_trained)
        self.nodes.append(Node(place, operation))
        self._shapes[number] = tuple(out.shape[1:])
        before = self._shapes[number - 1] if number else self.input_shape
        self._starts.append(self._starts[-1] + self.points * math.prod(before))
        return number

    def _new_name(self, name: str) -> str:
        """A name that no node has yet: a layer that is called twice has two."""
        found, count = name, 1
        while found in self._names:
            count += 1
            found = f"{name}@{count}"
        self._names.add(found)
        return found

    def _whole(self, number: int) -> View:
        """All that a node gives."""
        shape, start = self._shapes[number], self._starts[number + 1]
        entries = torch.arange(start, start + self.points * math.prod(shape), dtype=torch.float64)
        return View(entries.view(self.points, *shape))

    def _source(self, value: View) -> int | None:
        """The node all of whose entries a value has, in their order."""
        if not value.shape or value.shape[0] != self.points or not value.places.numel():
            return None
        first, count = int(value.places.reshape(-1)[0]), value.places.numel()
        number = self._number(first)
        if number is None or self._starts[number + 1] != first:
            return None
        whole = self._whole(number)
        return number if whole.places.numel() == count and self.is_same(value, whole) else None

    def _number(self, entry: int) -> int | None:
        """The node, or the input, that an entry is of; None for the number 0."""
        if entry < 1:
            return None
        return int(torch.searchsorted(torch.tensor(self._starts), entry, right=True)) - 2

    def _order(self, value: View) -> tuple[list[int], Tensor]:
        """The nodes that a value's entries come from, and for each entry its place among theirs; −1 for the number 0.

        Raises:
            UnsupportedLayerError: if a point of the batch has entries of another, or points are treated differently.
        """
        if not value.shape or value.shape[0] != self.points or not value.places.numel():
            raise _mixed(f"values of shape {value.shape} for a batch of {self.points}")
        flat = value.places.reshape(self.points, -1).long()
        starts = torch.tensor(self._starts)
        source = torch.searchsorted(starts, flat, right=True) - 1  # 0 is the input, −1 the number 0
        sizes = torch.tensor([math.prod(self._shapes[number - 1]) for number in range(len(starts))])
        size = sizes[source.clamp_min(0)]
        inside = flat - starts[source.clamp_min(0)]
        point, entry = inside // size, inside % size
        zero = flat == 0
        own = zero | (point == torch.arange(self.points)[:, None])
        entry, source = torch.where(zero, -1, entry), torch.where(zero, -1, source)
        if not bool(own.all()) or bool((entry != entry[0]).any()) or bool((source != source[0]).any()):
            raise _mixed("a value in which points of a batch are mixed")
        entry, source = entry[0], source[0]
        seen = dict.fromkeys(source[source >= 0].tolist())
        if not seen:
            raise UnsupportedLayerError("Expected values that depend on the input, but got zeros.")
        offsets, total = torch.zeros(len(starts), dtype=torch.int64), 0
        for number in seen:
            offsets[number], total = total, total + int(sizes[number])
        order = torch.where(source >= 0, entry + offsets[source.clamp_min(0)], -1)
        return [number - 1 for number in seen], order

    def _is_relu_of(self, number: int, origin: int) -> bool:
        return (
            number != INPUT
            and isinstance(self.nodes[number].operation, ReLU)
            and self.nodes[number].inputs == (origin,)
        )

    def _negated(self, number: int) -> int | None:
        """The node, or the input, of whose negative a node is the ReLU."""
        read = self.nodes[number].inputs[0] if number != INPUT else INPUT
        if read == INPUT or read in self._trained or not self._is_relu_of(number, read):
            return None
        operation = self.nodes[read].operation
        is_negative = isinstance(operation, Scale) and bool((operation.scale == -1).all())
        return self.nodes[read].inputs[0] if is_negative else None

    def _in_halves(self, value: View, positive: int, negative: int, origin: int) -> View:
        """A value with entries of ReLU(x) and ReLU(−x) as one with entries of max(x, 0) and −min(x, 0).

        Those are one node, whose Lipschitz constant is 1: at every x at most one of the two is steep.
        """
        x = self._whole(origin).places.reshape(self.points, -1)
        key = ("halves", origin)
        if key not in self._made:
            signs = torch.tensor([[1.0], [-1.0]], dtype=torch.float64, device=self.device)
            both = self.add_once(MinMax(), View(torch.stack([x, torch.zeros_like(x)], dim=1)), name="halves")
            self._made[key] = self.node_of(self.add(Scale(signs), both, name="halves"))
        halves = self._whole(self._made[key]).places  # (points, 2, entries)
        places = value.places.clone()
        for half, number in enumerate((positive, negative)):
            inside = value.places - self._starts[number + 1]
            own = (inside >= 0) & (inside < x.numel())
            places[own] = halves[:, half].reshape(-1)[inside[own].long()]
        return View(places)

    def _reordered(self, sources: list[int], order: Tensor, shape: Shape) -> int:
        """A node with entries of others, in an order."""
        total = sum(math.prod(self._shapes[number]) for number in sources)
        number = sources[0]
        if len(sources) > 1:
            number = self._append(Join(), tuple(sources), "join", "Join", False)
        if torch.equal(order, torch.arange(total)):
            if self._shapes[number] == shape:
                return number
            return self._append(Reshape(shape), (number,), "reshape", "Reshape", False)
        used = torch.bincount(order[order >= 0], minlength=1)
        repeats = bool((used > 1).any())  # only then it has a Lipschitz constant other than 1
        return self._append(Select(order.view(shape).to(self.device)), (number,), "select", "Select", repeats)


def _mixed(got: str) -> UnsupportedLayerError:
    return UnsupportedLayerError(
        f"Expected each point of a batch to be computed alone, as (batch, …), but got {got}: keep the batch in front."
    )
