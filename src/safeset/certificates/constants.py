"""Lipschitz constants of logit differences: a matrix, or the rows of a linear head.

K_ji bounds the Lipschitz constant of f_j − f_i. Both kinds of constants answer the same questions: a quick value and a
differentiable one for losses, an upper bound for proofs. `HeadConstants` also knows the distances of the head's rows,
which the method ``joint`` needs; it never builds a (classes, classes) tensor.

Directed rounding, u = 2⁻⁵³: every upper bound below is above the exact value of its formula (docs/mathematics.md).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.inputs import Numbers, as_number, as_tensor
from safeset.numerics.directed import U, up

TINY, HUGE = 2.0**-480, 2.0**480  # between these a sum of squares neither underflows nor overflows
PAIRS_AT_ONCE = 4096
MOST_REMEMBERED = 4096  # classes; 128 MB of distances
SQRT_2 = math.nextafter(math.sqrt(2.0), 2.0)  # above √2, whichever way the square root was rounded
FEW = 4  # times as many ranks of points as classes, from which on a table of all pairs is cheaper


class Constants(Protocol):
    """What the margins need to know of Lipschitz constants."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    def quick(self, epsilon: float | Tensor) -> Callable[[Tensor], Tensor]:
        """A function for ε·K_ji to rounding, without gradient: (batch, n) classes j → (batch, n, classes)."""

    def pair(self, j: Tensor, i: Tensor) -> Tensor:
        """K_ji with gradient: (batch,) and (batch,) classes → (batch,). Finite gradients, also where K_ji = 0."""

    def upper(self, picked: Tensor) -> Tensor:
        """Upper bounds of K_ji in float64, rounding included: picked (n,) classes j → (n, classes)."""


@dataclass(frozen=True, eq=False)
class MatrixConstants:
    """K as a symmetric (classes, classes) tensor; its diagonal is ignored."""

    matrix: Tensor

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", as_tensor(self.matrix, "`lipschitz`"))

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.matrix)

    def quick(self, epsilon: float | Tensor) -> Callable[[Tensor], Tensor]:
        """Rows of the matrix."""
        matrix = self.matrix.detach() if self.matrix.is_floating_point() else self.matrix.double()
        return lambda picked: matrix[picked] * epsilon

    def pair(self, j: Tensor, i: Tensor) -> Tensor:
        """Entries of the matrix."""
        return self.matrix[j, i]

    def upper(self, picked: Tensor) -> Tensor:
        """Rows of the matrix: what the caller vouches for."""
        return self.matrix[picked].double()

    def checked(self, classes: int, device: torch.device) -> "MatrixConstants":
        """The same in float64 on the device, if it can be the constants of so many classes.

        Raises:
            ArgumentError: for a wrong shape, NaN, negative or asymmetric entries (off the diagonal). Differences
                of 1e-6 between K_ji and K_ij count as rounding: the larger one is taken.
        """
        given = self.matrix
        if given.shape != (classes, classes):
            raise expected(
                f"`lipschitz` to be a ({classes}, {classes}) tensor, a constant for each pair of classes",
                f"shape {tuple(given.shape)}",
            )
        matrix = given.detach().to(device, torch.float64).clone().fill_diagonal_(0.0)
        if not given.is_floating_point():
            matrix = torch.where(matrix < 2.0**53, matrix, up(matrix))  # large integers were rounded
        if not bool((matrix >= 0).all()):
            j, i = (~(matrix >= 0)).nonzero()[0].tolist()
            raise expected("Lipschitz constants that are ≥ 0", f"{matrix[j, i].item()} for the pair ({j}, {i})")
        smaller, larger = torch.minimum(matrix, matrix.T), torch.maximum(matrix, matrix.T)
        if not bool(((larger <= (1 + 1e-6) * smaller) | (larger == smaller)).all()):
            j, i = (larger > (1 + 1e-6) * smaller).nonzero()[0].tolist()
            raise expected(
                "symmetric Lipschitz constants (K[j, i] and K[i, j] both bound |f_j − f_i|)",
                f"{matrix[j, i].item()} and {matrix[i, j].item()} for the pair ({j}, {i})",
                "torch.maximum(K, K.T) is a valid choice.",
            )
        return MatrixConstants(larger)


@dataclass(frozen=True, eq=False)
class HeadConstants:
    """K_ji = ‖w_j − w_i‖₂ · scale, for a linear head with rows w on features whose Lipschitz constant is scale.

    Args:
        rows: (classes, features) weights of the head, one row for each class.
        scale: an upper bound of the features' Lipschitz constant, a number or a 0-d tensor; 1 for a linear network.
        known: distances of all rows, where `remembered` keeps them.

    >>> head = HeadConstants(torch.tensor([[3.0, 0.0], [0.0, 4.0]]), scale=2.0)
    >>> head.pair(torch.tensor([0]), torch.tensor([1]))
    tensor([10.])
    """

    rows: Tensor
    scale: float | Tensor = 1.0
    known: Tensor | None = field(default=None, repr=False)

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.rows)

    def __post_init__(self) -> None:
        rows = as_tensor(self.rows, "`rows`")
        if rows.ndim != 2 or not rows.is_floating_point() or rows.shape[1] == 0:
            raise expected(
                "`rows` to be the (classes, features) weights of the head, floating point",
                f"shape {tuple(rows.shape)}, {rows.dtype}",
            )
        object.__setattr__(self, "rows", rows)
        if isinstance(self.scale, Tensor) and self.scale.numel() == 1 and self.scale.is_floating_point():
            object.__setattr__(self, "scale", self.scale.reshape(()))
            return
        scale = as_number(self.scale)
        if scale is None or not scale >= 0:
            raise expected("`scale` to be a number ≥ 0 or a 0-d tensor", repr(self.scale)[:80])
        object.__setattr__(self, "scale", scale)

    def quick(self, epsilon: float | Tensor) -> Callable[[Tensor], Tensor]:
        """By the Gram matrix of the rows: ‖w_j‖² + ‖w_i‖² − 2 w_j·w_i. Good for choosing, worthless as a proof."""
        rows = at_least_float32(self.rows.detach())
        scale = self.scale.detach() if isinstance(self.scale, Tensor) else self.scale
        rows = (rows - rows.mean(dim=0)) * (epsilon * scale)  # a common part would drown the differences
        squares = rows.square().sum(dim=1, keepdim=True)
        left = torch.cat([-2 * rows, squares, torch.ones_like(squares)], dim=1)
        right = torch.cat([rows, torch.ones_like(squares), squares], dim=1).T  # left @ right = squared distances

        def distances(picked: Tensor) -> Tensor:
            few = len(rows) * FEW <= picked.numel()  # classes: each pair of them once, instead of once for each point
            with torch.autocast(rows.device.type, enabled=False):
                table = ((left if few else left[picked]) @ right).relu_().sqrt_()
            return table[picked] if few else table

        return distances

    def pair(self, j: Tensor, i: Tensor) -> Tensor:
        """By the rows' own difference; the gradient of ‖0‖ is taken as 0."""
        rows = at_least_float32(self.rows)
        squared = (rows.index_select(0, j) - rows.index_select(0, i)).square().sum(dim=1)
        apart = squared > 0
        return torch.where(apart, torch.where(apart, squared, 1.0).sqrt(), 0.0) * self.scale

    def distances(self, picked: Tensor) -> Tensor:
        """‖w_j − w_i‖₂ in float64 from explicit differences: picked (n,) → (n, classes).

        The exact distance lies within a factor of 1 ± `slack` of each; 0 means equal rows.
        """
        if self.known is not None:
            return self.known[picked]
        rows = self.rows.detach().double()
        near = torch.cdist(rows[picked], rows, compute_mode="donot_use_mm_for_euclid_dist")
        # A sum of squares that under- or overflowed says little: those pairs again, each scaled by its largest entry.
        unsure = ~((near > TINY) & (near < HUGE)) & (picked[:, None] != torch.arange(len(rows), device=rows.device))
        for part in torch.split(unsure.nonzero(), PAIRS_AT_ONCE):
            difference = rows[picked[part[:, 0]]] - rows[part[:, 1]]
            largest = difference.abs().amax(dim=1, keepdim=True)
            norm = up((difference / largest).square().sum(dim=1).sqrt() * largest[:, 0])
            near[part[:, 0], part[:, 1]] = torch.where(
                largest[:, 0] > 0, torch.where(norm.isnan(), math.inf, norm), 0.0
            )
        return near

    @property
    def slack(self) -> float:
        """Relative error of `distances`: η = (features + 8)·u."""
        return (self.rows.shape[1] + 8) * U

    @property
    def least_distance(self) -> float:
        """A distance above this has kept its relative accuracy, and so has its product with the scale."""
        return 2.0**-1000 / min(1.0, float(self.scale)) if float(self.scale) > 0 else math.inf

    def upper(self, picked: Tensor) -> Tensor:
        """Distances times scale, rounded up at each step."""
        return self.upper_from(self.distances(picked))

    def upper_from(self, distances: Tensor) -> Tensor:
        """The same from distances already computed."""
        scale = float(self.scale)
        if scale == 0:
            return torch.zeros_like(distances)
        factor = up(up(1.0 + self.slack) * scale)
        return torch.where(distances == 0, 0.0 if factor < math.inf else math.inf, up(distances * factor))

    def remembered(self) -> "HeadConstants":
        """The same, checked, with the distances of all rows at hand, if these are few enough to keep."""
        head = self.checked(self.classes, self.rows.device)
        if self.classes > MOST_REMEMBERED:
            return head
        return replace(head, known=head.distances(torch.arange(self.classes, device=head.rows.device)))

    def checked(self, classes: int, device: torch.device) -> "HeadConstants":
        """The same in float64 on the device, if it can be the head of so many classes.

        Raises:
            ArgumentError: for a wrong number of rows, rows that are not finite, a scale that is negative or NaN.
        """
        if len(self.rows) != classes:
            raise expected(
                f"`rows` of the head to have a row for each of the {classes} classes", f"{len(self.rows)} rows"
            )
        rows = self.rows.detach().to(device, torch.float64)
        if not bool(rows.isfinite().all()):
            raise expected("finite `rows` of the head", "NaN or infinite weights")
        scale = as_number(self.scale)
        if scale is None or not scale >= 0:
            raise expected("`scale` to be a Lipschitz constant ≥ 0", scale)
        return HeadConstants(rows, scale)


def at_least_float32(rows: Tensor) -> Tensor:
    """Half precision as float32: squares of a few hundred overflow float16."""
    return rows.float() if rows.dtype in (torch.float16, torch.bfloat16) else rows


Lipschitz = Numbers | float | HeadConstants | MatrixConstants  # what users may hand over as constants


def as_constants(lipschitz: Lipschitz, classes: int) -> HeadConstants | MatrixConstants:
    """Constants as they are, a matrix of numbers as `MatrixConstants`, one number as the same for all pairs."""
    if isinstance(lipschitz, HeadConstants | MatrixConstants):
        return lipschitz
    if isinstance(lipschitz, int | float | Fraction) or getattr(lipschitz, "ndim", None) == 0:
        return MatrixConstants(torch.tensor(pair_constant(lipschitz), dtype=torch.float64).expand(classes, classes))
    return MatrixConstants(as_tensor(lipschitz, "`lipschitz`"))


def pair_constant(whole: Any) -> float:
    """K = √2·L, rounded up, from one constant L of the map x → f(x) in L2, for every pair of classes.

    f_j − f_i = ⟨e_j − e_i, f⟩, so |(f_j − f_i)(x') − (f_j − f_i)(x)| ≤ ‖e_j − e_i‖·‖f(x') − f(x)‖ ≤ √2·L·‖x' − x‖ by
    Cauchy and Schwarz. f(x) = L·x₁·(e_j − e_i)/√2 attains it: nothing smaller follows from L alone.

    Raises:
        ArgumentError: for what is no finite number ≥ 0.

    >>> pair_constant(2.5)
    3.535533905932739
    """
    constant = as_number(whole)
    if constant is None or not 0 <= constant < math.inf:
        raise expected(
            "one Lipschitz constant for all of the logits to be a finite number ≥ 0",
            repr(whole)[:80],
            "An infinite one would certify nothing; in a matrix ∞ is a pair whose constant is unknown."
            if constant == math.inf
            else "",
        )
    exact = whole.item() if isinstance(whole, Tensor | np.ndarray | np.generic) else whole
    if constant < exact:  # a large integer or a fraction that was rounded down
        constant = up(constant)
    return up(constant * SQRT_2) if constant else 0.0
