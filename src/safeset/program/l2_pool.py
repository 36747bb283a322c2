"""L2 pooling: the root of the sum of squares of each group of entries."""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, isqrt, prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import LEAST, Carried, error_of, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import SUBNORMAL, Up, gamma
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Operation, Proved, Shape

_aten = torch.ops.aten
ROOT_ERROR = Fraction(1, 2**400)  # of a root that is rounded, where fractions are asked for

SMALLEST, LARGEST = (
    2.0**-1000,
    2.0**1000,
)  # powers of two by which groups are divided: they and their inverses are finite


@dataclass(frozen=True, eq=False)
class RootOfSquares(Operation):
    """√Σz² of each group: the last axis of a point, or, with ``patch``, the pixels of disjoint patches of an image.

    1-Lipschitz, because |‖u‖ − ‖v‖| ≤ ‖u − v‖ and groups share no entry; 0 at 0.
    """

    kind = "RootOfSquares"
    patch: tuple[int, int] | None = None

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen: each group is divided by a power of two near its largest entry, so that no square overflows."""
        groups = self._groups(*inputs)
        largest = _aten.amax.default(_aten.abs.default(_aten.detach.default(groups)), [-1], True)
        largest = _aten.clamp.default(largest, SMALLEST, LARGEST)
        mantissa, _ = _aten.frexp.Tensor(largest)
        power = _aten.div.Tensor(largest, _aten.mul.Scalar(mantissa, 2.0))  # exactly
        scaled = _aten.div.Tensor(groups, power)
        squares = _aten.sum.dim_IntList(_aten.mul.Tensor(scaled, scaled), [-1])
        is_zero = _aten.eq.Scalar(squares, 0.0)
        roots = _aten.sqrt.default(_aten.where.ScalarSelf(is_zero, 1.0, squares))  # for attacks: no slope of ∞ at 0
        found = _aten.where.ScalarSelf(is_zero, 0.0, roots)
        return _aten.mul.Tensor(found, _aten.squeeze.dim(power, -1))  # type: ignore[no-any-return]

    def products(self, shape: Shape) -> int:
        """One for each entry."""
        return prod(shape)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """1."""
        return Up(1.0), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """A sum of squares and a root: γ_{n+1} of each group's norm, and what falls below all numbers."""
        size, count = self._sizes(shape)
        return before[0].bent(bound, relative=gamma(size + 1), absolute=Up(count).root() * SUBNORMAL)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """Roots are no fractions: `rounded` has them nearly."""
        raise self.unknown("fractions", "Roots are none.")

    def rounded(self, x: Multiples) -> Multiples:
        """The roots in fractions, each rounded down by less than `ROOT_ERROR`, at one point of any shape."""
        groups = x.integers if self.patch is None else self._patches_of(x.integers)
        squares = (groups * groups).sum(axis=-1)
        # n·unit, n = ⌊2^spare·√squares⌋, with unit·2^−spare < ROOT_ERROR
        spare = max(0, ceil(x.unit / ROOT_ERROR).bit_length())
        roots = np.frompyfunc(lambda square: isqrt(square << 2 * spare), 1, 1)(squares)
        return Multiples(np.asarray(roots, dtype=object), x.unit / 2**spare)

    def _patches_of(self, image: NDArray[np.object_]) -> NDArray[np.object_]:
        """(channels, height, width) → (channels, high, wide, entries), as `_groups` has them."""
        assert self.patch is not None
        rows, columns = self.patch
        channels, height, width = image.shape
        high, wide = height // rows, width // columns
        split = image[:, : high * rows, : wide * columns].reshape(channels, high, rows, wide, columns)
        return split.transpose(0, 1, 3, 2, 4).reshape(channels, high, wide, rows * columns)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """1, and no less."""
        return ClosedForm(Fraction(1), 1.0, "closed form: norms of groups that share no entry")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same sum and root."""
        size, count = self._sizes(shape)
        return before[0].bent(norm, relative=error_of(size + 1), absolute=root(Fraction(count)) * LEAST)

    def _groups(self, x: Tensor) -> Tensor:
        """Its groups along the last axis."""
        if x.ndim < 2:
            raise expected("groups along the last axis of points", f"points of shape {tuple(x.shape[1:])}")
        if self.patch is None:
            return x
        rows, columns = self.patch
        batch, channels, height, width = x.shape
        high, wide = height // rows, width // columns
        # As torch has it, what is no whole patch is left out.
        inside = _aten.slice.Tensor(_aten.slice.Tensor(x, 2, 0, high * rows), 3, 0, wide * columns)
        split = _aten.reshape.default(inside, [batch, channels, high, rows, wide, columns])
        ordered = _aten.permute.default(split, [0, 1, 2, 4, 3, 5])
        return _aten.reshape.default(ordered, [batch, channels, high, wide, rows * columns])  # type: ignore[no-any-return]

    def _sizes(self, shape: Shape) -> tuple[int, int]:
        """Entries of a group, and groups."""
        size = shape[-1] if self.patch is None else prod(self.patch)
        return size, prod(shape) // size
