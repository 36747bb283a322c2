"""An ONNX graph that is being written, and its values, with which formulas can be written as they stand."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Union

import numpy as np
from numpy.typing import NDArray

from safeset.errors import expected

Array = NDArray[Any]
Given = Union["Value", Array, float]

OPSET, IR = 17, 8  # old enough for every runtime that has float64, new enough for what is used
PRECISIONS = ("float64", "float32")


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a graph.

    Attributes:
        name: ``float64`` or ``float32``.
        unit: its unit roundoff.
        least: the smallest number above 0.
        largest: far below overflow.
    """

    name: str
    unit: float
    least: float
    largest: float

    @property
    def dtype(self) -> np.dtype[Any]:
        """As numpy has it."""
        return np.dtype(self.name)

    @staticmethod
    def of(name: str) -> "Precision":
        """By its name."""
        if name == "float64":
            return Precision(name, 2.0**-53, 2.0**-1074, 2.0**1010)
        if name == "float32":
            return Precision(name, 2.0**-24, 2.0**-149, 2.0**120)
        raise expected(f"the precision of a graph to be one of {', '.join(PRECISIONS)}", repr(name))


@dataclass(eq=False)
class Graph:
    """Nodes and constants so far.

    Attributes:
        precision: of its numbers.
        nodes: in order, as onnx's own.
        constants: by name.
        true: a condition that always holds where anything is certified, and that no runtime knows beforehand.
    """

    precision: Precision
    nodes: list[Any] = field(default_factory=list)
    constants: dict[str, Array] = field(default_factory=dict)
    true: "Value | None" = None
    _scalars: dict[tuple[str, bytes], str] = field(default_factory=dict)
    _made: dict[str, str] = field(default_factory=dict)

    def constant(self, numbers: Given) -> "Value":
        """A constant: floating-point ones in the graph's precision, integers as int64, booleans as they are.

        onnxruntime reads a constant of one number in float32 where it looks for operations to leave out or to fuse:
        y(1 + 2u) is y to it, and y/6 is y times 1/6 in float32. So such numbers are made where the graph runs.
        """
        if isinstance(numbers, Value):
            return numbers
        array = np.asarray(numbers)
        if array.dtype.kind in "fiu":
            array = array.astype(self.precision.dtype if array.dtype.kind == "f" else np.int64)
        stored = self._stored(array)
        if self.true is None or self.precision.name != "float64" or not _is_delicate(array):
            return stored
        if stored.name not in self._made:
            self._made[stored.name] = self.where(self.true, stored, 1.0).name
        return Value(self, self._made[stored.name])

    def _stored(self, array: Array) -> "Value":
        """A constant as it is, once if it is small."""
        key = (f"{array.dtype}{array.shape}", array.tobytes() if array.size <= 64 else b"")
        if key[1] and key in self._scalars:
            return Value(self, self._scalars[key])
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.ascontiguousarray(array).reshape(array.shape)
        if key[1]:
            self._scalars[key] = name
        return Value(self, name)

    def node(self, kind: str, *inputs: Given, **attributes: Any) -> "Value":
        """The only output of an operator of ONNX."""
        return self.several(kind, 1, *inputs, **attributes)[0]

    def several(self, kind: str, outputs: int, *inputs: Given, **attributes: Any) -> list["Value"]:
        """The outputs of an operator."""
        from onnx import helper

        given = [self.constant(each).name for each in inputs]  # which may write nodes of their own
        place = len(self.nodes)
        names = [f"{kind.lower()}_{place}" + (f"_{number}" if number else "") for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, given, names, name=f"{kind}_{place}", **attributes))
        return [Value(self, name) for name in names]

    def call(self, value: "Value", name: str) -> None:
        """Give a value the name of an output."""
        from onnx import helper

        self.nodes.append(helper.make_node("Identity", [value.name], [name], name=name))

    def where(self, condition: Given, yes: Given, no: Given) -> "Value":
        """`yes` where the condition holds, else `no`."""
        return self.node("Where", condition, yes, no)

    def larger(self, one: Given, two: Given) -> "Value":
        """The larger of both; what is NaN is undefined."""
        return self.node("Max", one, two)

    def smaller(self, one: Given, two: Given) -> "Value":
        """The smaller of both; what is NaN is undefined."""
        return self.node("Min", one, two)

    def beside(self, parts: Iterable["Value"], axis: int) -> "Value":
        """Values next to each other along an axis."""
        return self.node("Concat", *parts, axis=axis)


def _is_delicate(array: Array) -> bool:
    """Whether a constant is one number, and it or its inverse would be another in float32."""
    if array.size != 1 or array.dtype.kind != "f" or not np.isfinite(array).all():
        return False
    part, exponent = math.frexp(array.item())
    return part != 0 and not (abs(part) == 0.5 and abs(exponent) < 100)


@dataclass(frozen=True, eq=False)
class Value:
    """A value of a graph."""

    graph: Graph
    name: str

    def __add__(self, other: Given) -> "Value":
        return self.graph.node("Add", self, other)

    def __radd__(self, other: Given) -> "Value":
        return self.graph.node("Add", other, self)

    def __sub__(self, other: Given) -> "Value":
        return self.graph.node("Sub", self, other)

    def __rsub__(self, other: Given) -> "Value":
        return self.graph.node("Sub", other, self)

    def __mul__(self, other: Given) -> "Value":
        return self.graph.node("Mul", self, other)

    def __rmul__(self, other: Given) -> "Value":
        return self.graph.node("Mul", other, self)

    def __truediv__(self, other: Given) -> "Value":
        return self.graph.node("Div", self, other)

    def __rtruediv__(self, other: Given) -> "Value":
        return self.graph.node("Div", other, self)

    def __matmul__(self, other: Given) -> "Value":
        return self.graph.node("MatMul", self, other)

    def __rmatmul__(self, other: Given) -> "Value":
        return self.graph.node("MatMul", other, self)

    def __neg__(self) -> "Value":
        return self.graph.node("Neg", self)

    def __abs__(self) -> "Value":
        return self.graph.node("Abs", self)

    def __gt__(self, other: Given) -> "Value":  # type: ignore[misc]
        return self.graph.node("Greater", self, other)

    def __lt__(self, other: Given) -> "Value":  # type: ignore[misc]
        return self.graph.node("Less", self, other)

    def __ge__(self, other: Given) -> "Value":
        return self.graph.node("GreaterOrEqual", self, other)

    def __and__(self, other: Given) -> "Value":
        return self.graph.node("And", self, other)

    def __or__(self, other: Given) -> "Value":
        return self.graph.node("Or", self, other)

    def __invert__(self) -> "Value":
        return self.graph.node("Not", self)

    def equals(self, other: Given) -> "Value":
        """Where both are the same."""
        return self.graph.node("Equal", self, other)

    def apply(self, kind: str, **attributes: Any) -> "Value":
        """An operator of one input, such as Exp or Sqrt."""
        return self.graph.node(kind, self, **attributes)

    def max(self, axis: int, *, keep: bool = False) -> "Value":
        """The largest along an axis."""
        return self.graph.node("ReduceMax", self, axes=[axis], keepdims=int(keep))

    def min(self, axis: int, *, keep: bool = False) -> "Value":
        """The least along an axis."""
        return self.graph.node("ReduceMin", self, axes=[axis], keepdims=int(keep))

    def sum(self, axis: int, *, keep: bool = False) -> "Value":
        """The sum along an axis, in whatever order."""
        return self.graph.node("ReduceSum", self, np.array([axis]), keepdims=int(keep))

    def any(self, axis: int, *, keep: bool = False) -> "Value":
        """Whether a boolean holds anywhere along an axis."""
        return self.cast(np.int32).max(axis, keep=keep).cast(np.bool_)

    def reshaped(self, *sizes: int) -> "Value":
        """Points, the batch left out, in another shape."""
        return self.graph.node("Reshape", self, np.array([0, *sizes]))

    def unsqueezed(self, *axes: int) -> "Value":
        """With new axes of size 1."""
        return self.graph.node("Unsqueeze", self, np.array(axes))

    def squeezed(self, axis: int) -> "Value":
        """Without an axis of size 1."""
        return self.graph.node("Squeeze", self, np.array([axis]))

    def taken(self, places: Array, axis: int) -> "Value":
        """Entries at constant places along an axis, which becomes the axes of the places."""
        return self.graph.node("Gather", self, places, axis=axis)

    def split(self, axis: int, sizes: Sequence[int]) -> list["Value"]:
        """Parts of some sizes along an axis."""
        return self.graph.several("Split", len(sizes), self, np.array(sizes), axis=axis)

    def padded(self, before: int, after: int, value: float) -> "Value":
        """(batch, n, m) with more entries along the last axis."""
        pads = np.array([0, 0, before, 0, 0, after])
        return self.graph.node("Pad", self, pads, np.array(value), mode="constant")

    def cast(self, dtype: Any) -> "Value":
        """As another type."""
        from onnx import helper

        return self.graph.node("Cast", self, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))

    def number(self) -> "Value":
        """A boolean as 0 or 1 in the graph's precision."""
        return self.cast(self.graph.precision.dtype)

    def up(self) -> "Value":
        """Above, of a number ≥ 0: at least the next one.

        y(1 + 2u) is at least y and a unit in its last place, which is a number, so rounding it gives no less; below the
        normal numbers, where that is y, the smallest one is added, without rounding.
        """
        return self * (1 + 2 * self.graph.precision.unit) + self.graph.precision.least

    def down(self) -> "Value":
        """Below, of a number ≥ 0: at most the one before, for the same reason; ∞ stays. Not for numbers below 0."""
        return self * (1 - 2 * self.graph.precision.unit) - self.graph.precision.least
