"""Several nodes next to each other: what a concatenation is, before its entries are put in order."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import torch
from torch import Tensor

from safeset.lipschitz.forward_error import Rounding, root_of_squares
from safeset.lipschitz.forward_error_exact import Carried, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import Operation, Proved, Shape

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Join(Operation):
    """The entries of each input, flattened, one after the other: squares of Lipschitz constants add."""

    kind = "Join"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.cat.default([_aten.flatten.using_ints(each, 1) for each in inputs], 1)  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1 for each: `reach` puts them together."""
        return Up(1.0), "join", None

    def reach(self, bound: Up, *before: Up) -> Up:
        """√ of the sum of squares."""
        return root_of_squares(before)

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Nothing is added."""
        return before[0].beside(*before[1:])

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return Multiples.from_fractions(np.concatenate([each.fractions().reshape(-1) for each in x]))

    def second_reach(self, bound: Fraction, *before: Fraction) -> Fraction:
        """√ of the sum of squares, from above."""
        return root(sum((each * each for each in before), Fraction(0)))

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """Nothing is added."""
        return before[0].beside(*before[1:])
