"""A map of logits that makes smaller sets: fitted on points that are not calibrated with, and exact as a function.

g = B f + c, with c and B from anywhere: whatever they are, a score of g is proved by the distances of the rows of B W,
W the head's rows. B is a table of integers times a power of 2, and **each of its rows sums to exactly 0**: what is
proved of the rounding of logits is about their differences, and B f is made of differences.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from safeset.certificates.constants import HeadConstants
from safeset.certificates.radii import ClassError
from safeset.errors import expected
from safeset.inputs import as_number
from safeset.numerics.directed import U, row_norms, up

MOST_CLASSES = 1024  # a record holds a number for each pair
BITS = 20  # of the entries
LARGEST_ENTRY, LARGEST_EXPONENT = 2**40, 200
LEAST_CONSTANT, LARGEST_CONSTANT = 2.0**-200, 2.0**200


class Mapped(NamedTuple):
    """The head of g on the features.

    Attributes:
        rows: (classes, features), those of B W as computed.
        error: how far any of them may be from the exact one, in length.
        constant: no less than the Lipschitz constant of any g_y − g_j in the network's input.
    """

    rows: Tensor
    error: float
    constant: float


@dataclass(frozen=True, eq=False)
class LogitMap:
    """g = B f + c, and the constant by which scores of g are divided.

    Made by `safeset.fit_logits` of training points, never on those of the calibration.

    Attributes:
        entries: (classes, classes) integers, each row with the sum 0.
        exponent: B is entries · 2^exponent.
        shift: (classes,) c, float64.
        constant: no less than the Lipschitz constant of any difference of two g.
    """

    entries: Tensor
    exponent: int
    shift: Tensor
    constant: float

    def __repr__(self) -> str:
        return f"LogitMap({len(self.shift)} logits, constant {self.constant:.4g})"

    @classmethod
    def of(cls, matrix: Tensor, shift: Tensor, constant: float = LARGEST_CONSTANT) -> "LogitMap":
        """The nearest one with rows that sum to 0: entries to 20 bits of the largest; the diagonal takes the rest."""
        matrix = matrix.detach().cpu().double()
        largest = float(matrix.abs().amax())
        if not 2.0**-150 < largest < 2.0**150 or not bool(shift.isfinite().all()):
            remedy = (
                "Logits that are far too large or too small have none: multiply weights and biases of the last layer "
                "by a power of 2 that brings them near 1, which changes no answer, or take the score 'soft-min'."
            )
            raise expected("a map of logits with finite entries of 1e-45..1e45", f"up to {largest:.3g}", remedy)
        exponent = math.frexp(largest)[1] - BITS
        entries = (matrix * 2.0**-exponent).round().long()
        entries -= torch.diag(entries.sum(dim=1))
        return cls(entries, exponent, shift.detach().cpu().double(), constant)

    def copied(self, classes: int) -> "LogitMap":
        """A copy that nobody else can write to, checked: only `fit_logits` makes maps whose rows surely sum to 0.

        Raises:
            ArgumentError: for what is no map of so many logits.
        """
        tables = (self.entries, self.shift)
        if not all(isinstance(table, Tensor) for table in tables):
            raise expected("a map of logits that safeset.fit_logits has made", repr(self)[:80])
        return self.from_values(self.to_values(), classes)

    @property
    def matrix(self) -> Tensor:
        """B, exactly: (classes, classes) float64."""
        return self.entries.double() * 2.0**self.exponent

    def head(self, rows: Tensor, scale: float) -> Mapped:
        """What g is of features whose Lipschitz constant is at most scale, for a head with these rows (float64)."""
        matrix = self.matrix.to(rows.device)
        centred = rows - rows.mean(dim=0)  # rounded to u of itself; what is subtracted B does not see
        found = matrix @ centred
        size = row_norms(matrix.abs() @ centred.abs())
        error = float((2 * (len(rows) + 8) * U * size).amax()) + 2.0**-1000  # products of tiny weights underflow
        every = torch.arange(len(rows), device=rows.device)
        apart = float(HeadConstants(found, scale).upper(every).fill_diagonal_(0.0).amax())
        return Mapped(found, error, max(up(up(apart) + up(up(2 * error) * up(scale))), LEAST_CONSTANT))

    def logits(self, logits: Tensor) -> Tensor:
        """G of logits (batch, classes), rounded anyhow, with gradient."""
        return logits @ self.matrix.T.to(logits) + self.shift.to(logits)

    def enclosed(self, logits: Tensor, error: ClassError) -> tuple[Tensor, ClassError]:
        """G as computed, and how far each may be from that of the exact network.

        B f is Σ_k B_yk (f_k − f_r) for whichever r: an error of at most Σ_k |B_yk|·(a_k + a_r).
        """
        matrix, shift = self.matrix.to(logits), self.shift.to(logits)
        sizes, offset = matrix.abs().T, error.offset
        known = up(offset + offset.amin(dim=1, keepdim=True)) @ sizes
        rounded = (len(matrix) + 4) * U * (logits.abs() @ sizes + shift.abs())
        # The sums above err by (C + 4)u of themselves, products that underflow by less than 2⁻¹⁰⁰⁰ together.
        total = (known + 2 * rounded) * (1 + 2 * (len(matrix) + 8) * U) + 2.0**-1000
        total = torch.where(total.isnan(), math.inf, total)
        return logits @ matrix.T + shift, ClassError(total, torch.zeros_like(shift))

    def to_values(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "entries": self.entries.tolist(),
            "exponent": self.exponent,
            "shift": self.shift.tolist(),
            "constant": self.constant,
        }

    @classmethod
    def from_values(cls, values: Any, classes: int) -> "LogitMap":
        """The same from what JSON gave.

        Raises:
            ArgumentError: for what `to_values` does not write.
        """
        keys = ("entries", "exponent", "shift", "constant")
        if classes > MOST_CLASSES or not isinstance(values, dict) or set(values) != set(keys):
            raise expected(f"a map of at most {MOST_CLASSES} logits with {', '.join(keys)}", repr(values)[:80])
        entries, exponent, shift, constant = (values[key] for key in keys)
        lists = isinstance(entries, list) and isinstance(shift, list) and len(entries) == len(shift) == classes
        if not lists or not all(isinstance(row, list) and len(row) == classes for row in entries):
            raise expected(f"a map of {classes} logits: as many rows, entries of each, and shifts", "others")
        if not all(type(one) is int and abs(one) <= LARGEST_ENTRY for row in entries for one in row) or any(
            sum(row) for row in entries
        ):
            raise expected("a map of logits by integers, each row with the sum 0", "others")
        if type(exponent) is not int or abs(exponent) > LARGEST_EXPONENT:
            raise expected("the exponent of a map of logits to be a small integer", repr(exponent)[:80])
        numbers = [as_number(one) for one in shift]
        if not all(one is not None and math.isfinite(one) for one in numbers):
            raise expected("the shifts of a map of logits to be finite", repr(shift)[:80])
        found = as_number(constant)
        if found is None or not LEAST_CONSTANT <= found <= LARGEST_CONSTANT:
            raise expected("the constant of a map of logits to be a number > 0", repr(constant)[:80])
        return cls(torch.tensor(entries), exponent, torch.tensor(numbers, dtype=torch.float64), found)
