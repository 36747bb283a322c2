"""How low inequalities can be in a box, by the ball around it: |g(x) − g(c)| ≤ K·‖x − c‖ for the program's constants.

Of one row a·y the value at the centre is computed in float64, and everything that it can be off by is subtracted,
rounded up: a's own rounding, that of the sum, that of the program (docs/proofs.md), and ‖Wᵀa‖·L·ρ, where W is the head
and L the Lipschitz constant of all before it. A point is a ball of radius 0.
"""

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from safeset.lipschitz.forward_error import Affine
from safeset.numerics.directed import SUBNORMAL, gamma, row_norms, up
from safeset.numerics.strict import strict_arithmetic
from safeset.program.program import Program
from safeset.proofs.prove import LARGEST, Proof
from safeset.verification.regions import Boxes
from safeset.verification.rows import Matrix, Rows


@dataclass(frozen=True, eq=False)
class Balls:
    """The rows of some cases on a network whose bounds are proved.

    Attributes:
        program: with a linear head.
        proof: of it.
        rows: what is asked.
        stretch: (rows,) bounds of ‖Wᵀa‖.
    """

    program: Program
    proof: Proof
    rows: Rows
    stretch: Tensor

    @staticmethod
    def of(program: Program, proof: Proof, rows: Rows) -> "Balls":
        """With the norms of all rows."""
        weight, given = program.head.weight, rows.y
        features = given.near @ weight
        off = up(products_up(given.near.abs(), weight.abs()) * float(gamma(weight.shape[0])))
        off = up(off + weight.shape[0] * SUBNORMAL)
        if given.off is not None:
            off = up(off + products_up(given.off, weight.abs()))
        return Balls(program, proof, rows, up(row_norms(features) + row_norms(off)))

    def lower(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """What each row is at least, (boxes, rows), and how much each input counts, (boxes, inputs): by its width."""
        centres = boxes.centres
        reach = up(torch.maximum(up(centres - boxes.low), up(boxes.high - centres)))
        values, errors = self._around(centres, row_norms(reach))
        if self.rows.x is not None:
            least, off = least_products(self.rows.x, boxes)
            values, errors = _sums(values, errors, least, off)
        return -up(errors - values), boxes.high - boxes.low

    def upper_at(self, points: Tensor) -> Tensor:
        """What each row is at most at points: (points, inputs) → (points, rows)."""
        values, errors = self._around(points, points.new_zeros(len(points)))
        if self.rows.x is not None:
            least, off = least_products(self.rows.x, Boxes(points, points))
            values, errors = _sums(values, errors, least, off)
        return up(values + errors)

    def _around(self, centres: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        """Values of the rows' y-parts at centres, and how far they can be off anywhere in the balls."""
        head, given, before = self.program.head, self.rows.y, self.proof.features
        norms = row_norms(centres)
        with strict_arithmetic():
            outputs = self.program.run(centres.view(-1, *self.program.input_shape))
        values = outputs @ given.near.T
        size = outputs.abs()
        errors = up(products_up(size, given.near.abs().T) * float(gamma(head.weight.shape[0])))
        sizes = given.near.abs()
        if given.off is not None:
            errors = up(errors + products_up(size, given.off.T))
            sizes = up(sizes + given.off)
        # ‖Wᵀa‖·(E + L·ρ): the features are off by the rounding before the head, and they move in the ball.
        moved = up(_at(before.error, norms) + up(float(self.proof.bounds.head.scale) * radii))
        errors = up(errors + up(moved[:, None] * self.stretch))
        # Σ |a_j|·(γ_{m+1}(‖w_j‖(r + E) + |b_j|) + m·2⁻¹⁰⁷⁴): the head's own sums.
        features = head.weight.shape[1]
        sums = up(_at(before.size + before.error, norms)[:, None] * row_norms(head.weight))
        sums = sums if head.bias is None else up(sums + head.bias.abs())
        sums = up(up(sums * float(gamma(features + 1))) + features * SUBNORMAL)
        errors = up(errors + products_up(sums, sizes.T))
        errors = up(errors + head.weight.shape[0] * SUBNORMAL)  # products of outputs that underflow
        too_large = ~(_at(self.proof.peak, norms) <= LARGEST)  # partial sums could overflow
        return values, torch.where(too_large[:, None], inf, errors)


def least_products(matrix: Matrix, boxes: Boxes) -> tuple[Tensor, Tensor]:
    """The least of each row's product with a point of each box, (boxes, rows), and by how much it can be off."""
    near, widest = matrix.near, boxes.magnitudes
    # 0 times an infinite end would be NaN.
    low, high = (torch.where(end.isfinite(), end, 0.0) for end in (boxes.low, boxes.high))
    least = low @ near.clamp(min=0).T + high @ near.clamp(max=0).T
    finite = torch.where(widest.isfinite(), widest, 0.0)
    off = up(products_up(finite, near.abs().T) * float(gamma(2 * near.shape[1] + 1)))
    off = up(off + 2 * near.shape[1] * SUBNORMAL)
    if matrix.off is not None:
        off = up(off + products_up(finite, matrix.off.T))
    endless = (~widest.isfinite()).double() @ (near != 0).double().T > 0
    return least, torch.where(endless, inf, off)


def products_up(one: Tensor, two: Tensor) -> Tensor:
    """A product of matrices of numbers ≥ 0, from above: what is computed is at least (1 − γ_n) of it, but for n·2⁻¹⁰⁷⁴.

    1 / (1 − γ_n) ≤ 1 + 2γ_n, for γ_n ≤ 1/2.
    """
    terms = one.shape[-1]
    return up(up(one @ two + terms * SUBNORMAL) * float(1 + gamma(terms) * 2))


def _sums(values: Tensor, errors: Tensor, more: Tensor, off: Tensor) -> tuple[Tensor, Tensor]:
    """The sum of two values that may be off: it is rounded once."""
    found = values + more
    return found, up(up(errors + off) + up(found.abs() * float(gamma(1))))


def _at(affine: Affine, norms: Tensor) -> Tensor:
    """An affine bound, offset + slope·‖x‖ from above."""
    return up(up(float(affine.slope) * norms) + float(affine.offset))
