"""Operations that compare the entries of groups: the last axis of a point. They are 1-Lipschitz, and round nothing."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.pointwise import Unrounded

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class GroupSort(Unrounded):
    """Each group in ascending order, or descending. Sorting brings two vectors nearer, never farther apart."""

    kind = "GroupSort"
    group: int
    descending: bool = False

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        if x.ndim < 2 or x.shape[-1] != self.group:
            raise expected(f"groups of {self.group} along the last axis", f"points of shape {tuple(x.shape[1:])}")
        return _aten.sort.default(x, -1, self.descending)[0]  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        ascending = np.sort(x[0].integers, axis=-1)
        return x[0].like(ascending[..., ::-1] if self.descending else ascending)


@dataclass(frozen=True, eq=False)
class Greatest(Unrounded):
    """The greatest entry of each group: |max a − max b| ≤ max|a − b| ≤ ‖a − b‖, and groups share no entry."""

    kind = "Greatest"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.amax.default(*inputs, [-1])  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0].like(x[0].integers.max(axis=-1))


@dataclass(frozen=True, eq=False)
class Least(Unrounded):
    """The least entry of each group: as the greatest, but for two signs."""

    kind = "Least"

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.amin.default(*inputs, [-1])  # type: ignore[no-any-return]

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        return x[0].like(x[0].integers.min(axis=-1))
