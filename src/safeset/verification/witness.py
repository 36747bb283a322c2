"""Witnesses: an input at which a query holds, confirmed exactly, and the forms in which others read it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, Inexact
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from safeset.errors import UnsupportedLayerError
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import rational
from safeset.program.exact import evaluate
from safeset.program.program import Program
from safeset.verification.formula import Case
from safeset.verification.regions import Box, Interval, inner_box, least_float32, least_float64
from safeset.verification.vnnlib import REAL, Declared, Query

DIGITS = 500  # of a number that is no float: the bounds of a file have at most 400


@dataclass(frozen=True, eq=False)
class Witness:
    """An input and what the network gives there: exactly, or by float64 where an operation has no exact form."""

    inputs: tuple[Fraction, ...]
    outputs: tuple[Fraction, ...]


@dataclass(frozen=True, eq=False)
class Confirmation:
    """Decides exactly whether a query holds at points near those that a search has found.

    Attributes:
        program: the network.
        query: what is asked.
        box: the exact box of the case.
        case: all inequalities of the case, those in common and those of the box among them.
        holds: whether bounds alone prove that all rows of the case hold at points, for programs without exact form.
    """

    program: Program
    query: Query
    box: Box
    case: Case
    holds: Callable[[Tensor], bool]

    def at(self, point: Tensor, deadline: Deadline) -> Witness | None:
        """A witness near a point, (inputs,): of float32 numbers if there is one, else of float64, else of fractions."""
        for inputs in self._candidates(point):
            found = self._confirmed(inputs, deadline)
            if found is not None:
                return found
        return None

    def _candidates(self, point: Tensor) -> list[list[Fraction]]:
        """Points of the exact box: in each format, where the box has a number of it."""
        kind = self.query.inputs.type
        rounds: list[tuple[Callable[[Fraction, bool], float], torch.dtype]] = [(least_float32, torch.float32)]
        if kind != "float32":
            rounds.append((least_float64, torch.float64))
        found = []
        for least, dtype in rounds:
            low, high = inner_box(self.box, least)
            inside = point.to(dtype).double().clamp(low, high)
            if bool(((low <= inside) & (inside <= high) & inside.isfinite()).all()):
                found.append(list(rational(inside)))
        if not found and kind == REAL:  # a point that no float has, such as 0.1
            low, high = inner_box(self.box, least_float64)
            has_float = (low <= high).tolist()
            near = rational(point.clamp(low, high).nan_to_num())
            found.append(
                [_middle(end) if not has else value for end, has, value in zip(self.box, has_float, near, strict=True)]
            )
        return found

    def _confirmed(self, inputs: Sequence[Fraction], deadline: Deadline) -> Witness | None:
        values = np.empty(len(inputs), dtype=object)
        values[:] = list(inputs)
        try:
            outputs = tuple(evaluate(self.program, values.reshape(self.program.input_shape), deadline).reshape(-1))
        except UnsupportedLayerError:
            return self._by_bounds(inputs)
        if all(each.holds(inputs, outputs) for each in self.case):
            return Witness(tuple(inputs), outputs)
        return None

    def _by_bounds(self, inputs: Sequence[Fraction]) -> Witness | None:
        """Where exact arithmetic does not know an operation: float64, if all that it can be off by does not matter."""
        point = torch.tensor([float(each) for each in inputs], dtype=torch.float64)
        if any(Fraction(near) != each for near, each in zip(point.tolist(), inputs, strict=True)):
            return None
        nothing = (Fraction(0),) * self.query.outputs.size
        of_inputs = [each for each in self.case if not each.y]
        if not all(each.holds(inputs, nothing) for each in of_inputs) or not self.holds(point[None]):
            return None
        outputs = self.program.run(point.view(1, *self.program.input_shape)).reshape(-1).tolist()
        return Witness(tuple(inputs), tuple(map(Fraction, outputs)))


def witness_text(query: Query, witness: Witness) -> str:
    """A witness as VNN-COMP's checker reads it for files of 1.0, or as the standard says for 2.0."""
    tensors: list[tuple[Declared, tuple[Fraction, ...]]] = [
        (query.inputs, witness.inputs),
        (query.outputs, witness.outputs),
    ]
    if query.version == "1.0":
        pairs = [
            f"({tensor.name}_{place} {number_text(value)})"
            for tensor, row in tensors
            for place, value in enumerate(row)
        ]
        return "(" + "\n ".join(pairs) + ")"
    lines = []
    for tensor, row in tensors:
        lines.append(f"{tensor.name} {tensor.type} [{','.join(map(str, tensor.shape))}]")
        lines += map(number_text, row)
    return "\n".join(lines)


def number_text(value: Fraction) -> str:
    """A number in decimals: a float as it is read back, a decimal as it is, else the nearest float.

    >>> number_text(Fraction(1, 2)), number_text(Fraction(1, 10)), number_text(Fraction(1, 3))
    ('0.5', '0.1', '0.3333333333333333')
    """
    context = Context(prec=DIGITS, traps=[])
    decimal = context.divide(Decimal(value.numerator), Decimal(value.denominator))
    near = float(value)
    return repr(near) if near == value or context.flags[Inexact] else str(decimal)


def _middle(interval: Interval) -> Fraction:
    assert interval.low is not None  # an interval without an end holds floats
    assert interval.high is not None
    return (interval.low + interval.high) / 2
