"""The sum of two nodes: what a residual shortcut is."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import Operation, Proved, Shape


@dataclass(frozen=True, eq=False)
class Sum(Operation):
    """x + y: Lipschitz constants add, whatever x and y have in common."""

    kind = "Sum"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return torch.ops.aten.add.Tensor(*inputs)  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1 for each of both: `reach` adds them."""
        return Up(1.0), "sum", None

    def reach(self, bound: Up, *before: Up) -> Up:
        """The sum."""
        return before[0] + before[1]

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One sum for each entry."""
        return before[0].plus(before[1])

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0] + x[1]

    def second_reach(self, bound: Fraction, *before: Fraction) -> Fraction:
        """The sum."""
        return before[0] + before[1]

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One sum for each entry."""
        return before[0].plus(before[1])
