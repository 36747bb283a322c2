"""Operations that only take entries of a point: any of them, in any order and as often as wanted, or all in a shape."""

from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from math import prod, sqrt

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Operation, Proved, Shape
from safeset.program.reorder import Reorder

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Select(Operation):
    """Entry i of what leaves is entry order[i] of what enters, both flattened; −1 is a 0. The order has the new shape.

    Permutations, crops, splits, padding by zeros or by copies, repetitions: √(how often the same entry is taken, at
    most)-Lipschitz, and nothing is computed.
    """

    kind = "Select"
    order: Tensor

    def __post_init__(self) -> None:
        """Refuse what are no places."""
        if self.order.dtype != torch.int64 or not self.order.numel() or int(self.order.min()) < -1:
            raise expected("places ≥ 0, or −1, in int64", f"{self.order.dtype} from {self.order.min()}")

    @cached_property
    def _places(self) -> tuple[Tensor, bool]:
        """The places, flat; whether there is a 0 before the first."""
        flat = self.order.flatten()
        has_zeros = bool((flat < 0).any())
        return flat + has_zeros, has_zeros

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        places, has_zeros = self._places
        entries = _aten.flatten.using_ints(inputs[0], 1)
        if has_zeros:
            entries = _aten.constant_pad_nd.default(entries, [1, 0])
        taken = _aten.index_select.default(entries, 1, places.to(entries.device))
        return _aten.view.default(taken, [len(taken), *self.order.shape])  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """√ of how often the same entry is taken, at most."""
        taken = self.order[self.order >= 0]
        if taken.numel() and int(taken.max()) >= prod(shape):
            raise expected(f"places below {prod(shape)}, for points of shape {shape}", int(taken.max()))
        most = int(torch.bincount(taken).max()) if taken.numel() else 0
        return Up(most).root(), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Nothing is added."""
        return before[0].exact(bound)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """The same entries."""
        order = self.order.cpu().numpy()
        return x[0].like(np.where(order < 0, 0, x[0].integers.reshape(-1)[order]))

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The copies of each entry, counted."""
        counts = Counter(place for place in self.order.flatten().tolist() if place >= 0)
        most = max(counts.values(), default=0)
        return ClosedForm(Fraction(most), sqrt(most), f"an entry is taken up to {most} times, counted")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """Nothing is added."""
        return before[0].unrounded(norm)


@dataclass(frozen=True, eq=False)
class Reshape(Reorder):
    """The same entries in the same order, as points of another shape."""

    kind = "Reshape"
    shape: Shape

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        return _aten.reshape.default(x, [len(x), *self.shape])  # type: ignore[no-any-return]
