"""Inequalities of cases as matrices of float64 numbers, with what was lost by rounding them."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.numerics.directed import above
from safeset.verification.formula import Case, Coefficients, Inequality

MOST_NUMBERS = 2**27  # of one matrix; 1 GB


@dataclass(frozen=True, eq=False)
class Matrix:
    """Numbers near exact ones, and how far off they are at most."""

    near: Tensor
    off: Tensor | None  # None for numbers that are exact

    @staticmethod
    def of(rows: Sequence[Inequality], part: Callable[[Inequality], Coefficients], width: int) -> "Matrix":
        """(rows, width) coefficients of the inputs or of the outputs."""
        if len(rows) * width > MOST_NUMBERS:
            remedy = "Divide the property into several files."
            raise expected(f"inequalities with at most {MOST_NUMBERS:,} coefficients together", "more", remedy)
        near = torch.zeros(len(rows), width, dtype=torch.float64)
        off = torch.zeros_like(near)
        for number, row in enumerate(rows):
            for place, exact in part(row):
                value = above(exact)
                near[number, place] = value
                off[number, place] = above(Fraction(value) - exact) if math.isfinite(value) else math.inf
        return Matrix(near, off if bool(off.any()) else None)


@dataclass(frozen=True, eq=False)
class Rows:
    """The inequalities of several cases on one box, but for its own ends: x-part + y-part ≤ bound.

    Attributes:
        inequalities: the exact ones.
        x: coefficients of the inputs, (rows, inputs); None if all are 0.
        y: coefficients of the outputs, (rows, outputs).
        bounds: right-hand sides, rounded up, (rows,).
        strict: which are strict, (rows,).
        members: which rows belong to which case, (cases, rows).
    """

    inequalities: tuple[Inequality, ...]
    x: Matrix | None
    y: Matrix
    bounds: Tensor
    strict: Tensor
    members: Tensor

    @staticmethod
    def of(cases: Sequence[Case], inputs: int, outputs: int) -> "Rows":
        """Those of cases; inequalities about one input alone are left to the box, and each is taken once."""
        numbers: dict[Inequality, int] = {}
        members = []
        for case in cases:
            own = [each for each in case if not each.is_input_bound]
            if len(own) > 1:
                own.append(total(own))
            members.append([numbers.setdefault(each, len(numbers)) for each in own])
        rows = list(numbers)
        belongs = torch.zeros(len(cases), len(rows), dtype=torch.bool)
        for number, own_rows in enumerate(members):
            belongs[number, own_rows] = True
        x = Matrix.of(rows, lambda row: row.x, inputs) if any(row.x for row in rows) else None
        y = Matrix.of(rows, lambda row: row.y, outputs)
        bounds = torch.tensor([above(row.bound) for row in rows], dtype=torch.float64)
        strict = torch.tensor([row.strict for row in rows], dtype=torch.bool)
        return Rows(tuple(rows), x, y, bounds, strict, belongs)

    def excludes(self, low: Tensor) -> Tensor:
        """Which cases cannot hold where the rows are at least ``low``: (boxes, rows) → (boxes, cases)."""
        broken = (low > self.bounds) | (self.strict & (low >= self.bounds))
        return (broken[:, None, :] & self.members).any(dim=2)

    def excess(self, inputs: Tensor, outputs: Tensor) -> Tensor:
        """By how much the worst row of each case is broken at points, about: (points, cases); −∞ without rows."""
        values = outputs @ self.y.near.T - self.bounds  # (points, rows)
        if self.x is not None:
            values = values + inputs @ self.x.near.T
        worst = torch.where(self.members, values[:, None, :], -math.inf)  # (points, cases, rows)
        return worst.amax(dim=2) if len(self.bounds) else values.new_full((len(values), len(self.members)), -math.inf)

    def surely_hold(self, case: int, upper: Sequence[float]) -> bool:
        """Whether all rows of a case hold where they are at most ``upper``; of infinite bounds nothing follows."""
        return all(
            math.isfinite(high) and (Fraction(high) < row.bound or (Fraction(high) == row.bound and not row.strict))
            for row, high, own in zip(self.inequalities, upper, self.members[case].tolist(), strict=True)
            if own
        )


def is_contradiction(case: Case) -> bool:
    """Whether the sum of a case's inequalities, but for the box, says that 0 is below 0, whatever the network is."""
    whole = total([each for each in case if not each.is_input_bound])
    return not whole.x and not whole.y and (whole.bound < 0 or (whole.bound == 0 and whole.strict))


def total(rows: Sequence[Inequality]) -> Inequality:
    """The sum of several inequalities, which holds where all of them do."""

    def summed(parts: Sequence[Coefficients]) -> Coefficients:
        found: dict[int, Fraction] = {}
        for part in parts:
            for place, coefficient in part:
                found[place] = found.get(place, Fraction(0)) + coefficient
        return tuple(sorted((place, value) for place, value in found.items() if value))

    bound = sum((row.bound for row in rows), Fraction(0))
    return Inequality(
        summed([row.x for row in rows]), summed([row.y for row in rows]), bound, any(row.strict for row in rows)
    )
