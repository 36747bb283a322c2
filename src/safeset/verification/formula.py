"""What a VNN-LIB file asserts: linear inequalities over inputs and outputs, and the cases that they make."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import prod

from safeset.errors import expected

MOST_INEQUALITIES = 2**20  # of all cases together, and of parts of them; those that all share are not counted
Coefficients = tuple[tuple[int, Fraction], ...]  # places, and the numbers ≠ 0 there
Variable = tuple[str, int]  # "x" or "y", and a place


@dataclass(frozen=True)
class Inequality:
    """Σ x_i·input_i + Σ y_j·output_j ≤ bound, or < if it is strict; exactly."""

    x: Coefficients
    y: Coefficients
    bound: Fraction
    strict: bool

    def holds(self, inputs: Sequence[Fraction], outputs: Sequence[Fraction]) -> bool:
        """Whether it holds at a point, exactly."""
        value = sum((c * inputs[i] for i, c in self.x), Fraction(0))
        value += sum((c * outputs[j] for j, c in self.y), Fraction(0))
        return value < self.bound or (value == self.bound and not self.strict)

    @property
    def is_input_bound(self) -> bool:
        """Whether it is about one input alone."""
        return len(self.x) == 1 and not self.y


@dataclass(frozen=True)
class Linear:
    """Σ coefficient·variable + constant."""

    terms: Mapping[Variable, Fraction]
    constant: Fraction

    def at_most_zero(self, sign: int, strict: bool) -> "Formula":
        """The inequality that it, or for the sign −1 its opposite, is ≤ 0, or < 0; true or false without variables."""
        x: list[tuple[int, Fraction]] = []
        y: list[tuple[int, Fraction]] = []
        for (kind, place), c in self.terms.items():
            if c:
                (x if kind == "x" else y).append((place, c if sign > 0 else -c))
        bound = -self.constant if sign > 0 else self.constant
        if not x and not y:
            return bound > 0 or (bound == 0 and not strict)
        return Inequality(tuple(sorted(x)), tuple(sorted(y)), bound, strict)


@dataclass(frozen=True)
class Several:
    """All of its parts, or any of them."""

    every: bool
    parts: tuple["Formula", ...]


Formula = Inequality | Several | bool
Case = tuple[Inequality, ...]  # all of them


def split_cases(assertions: Iterable[Formula]) -> tuple[Case, tuple[Case, ...]]:
    """Assertions, which must all hold, as what every case has in common, and the cases, of which one must hold.

    No case at all means that nothing can hold; one without inequalities, that what they have in common is all.
    """
    common: list[Inequality] = []
    choices: list[list[Case]] = []
    expansion = _Expansion()
    waiting = list(assertions)[::-1]
    while waiting:
        each = waiting.pop()
        if isinstance(each, Inequality):
            common.append(each)
        elif isinstance(each, Several) and each.every:
            waiting += each.parts[::-1]
        elif each is not True:
            choices.append(expansion.cases(each))
    return tuple(common), tuple(expansion.joined(choices))


class _Expansion:
    """Formulas as cases of which one must hold; all that is written down on the way is counted."""

    def __init__(self) -> None:
        self.size = 0

    def cases(self, formula: Formula) -> list[Case]:
        """Those of one formula."""
        if isinstance(formula, Inequality):
            return [(formula,)]
        if isinstance(formula, bool):
            return [()] if formula else []
        parts = [self.cases(part) for part in formula.parts]
        if formula.every:
            return self.joined(parts)
        self.count(sum(1 + len(case) for cases in parts for case in cases))
        return [case for cases in parts for case in cases]

    def joined(self, choices: list[list[Case]]) -> list[Case]:
        """Cases that choose one of each."""
        many = prod(map(len, choices))
        # Each case of one factor is written down once for every choice of the others.
        self.count(many + sum(many // len(cases) * sum(map(len, cases)) for cases in choices) if many else 0)
        return [tuple(each for case in combined for each in case) for combined in product(*choices)]

    def count(self, more: int) -> None:
        """Refuse what grows too large, before it is written down."""
        self.size += more
        if self.size > MOST_INEQUALITIES:
            remedy = "Divide the property into several files."
            raise expected(f"cases with at most {MOST_INEQUALITIES:,} inequalities together", "more", remedy)
