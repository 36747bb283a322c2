"""The sum of nodes, each with a sign: residual shortcuts, sums of branches and differences."""

from dataclasses import dataclass
from fractions import Fraction
from functools import reduce

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import Operation, Proved, Shape

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Sum(Operation):
    """±x ± y ± …: Lipschitz constants add, whatever the parts have in common. A sign is 1 or −1, one for each input."""

    kind = "Sum"
    signs: tuple[int, ...] = (1, 1)

    def __post_init__(self) -> None:
        """Refuse other factors."""
        if len(self.signs) < 2 or not set(self.signs) <= {1, -1}:
            raise expected("two or more signs, each 1 or −1", self.signs)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen, from the left to the right."""
        if len(inputs) != len(self.signs) or len({each.shape for each in inputs}) != 1:
            shapes = [tuple(each.shape) for each in inputs]
            raise expected(f"{len(self.signs)} parts of a sum, all of one shape", shapes)
        total = inputs[0] if self.signs[0] == 1 else _aten.neg.default(inputs[0])
        for sign, part in zip(self.signs[1:], inputs[1:], strict=True):
            total = _aten.add.Tensor(total, part) if sign == 1 else _aten.sub.Tensor(total, part)
        return total

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1 for each part: `reach` adds them."""
        return Up(1.0), "sum", None

    def reach(self, bound: Up, *before: Up) -> Up:
        """The sum."""
        return Up(sum(before, Up(0.0)))

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One sum for each entry and each part but the first."""
        return reduce(Rounding.plus, before)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        parts = (each.like(sign * each.integers) for sign, each in zip(self.signs, x, strict=True))
        return reduce(Multiples.__add__, parts)

    def second_reach(self, bound: Fraction, *before: Fraction) -> Fraction:
        """The sum."""
        return sum(before, Fraction(0))

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One sum for each entry and each part but the first."""
        return reduce(Carried.plus, before)
