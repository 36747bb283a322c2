"""Windows of points, proved again from their definition in integers (docs/reliability.md).

From a network's logits, its bounds, and the rows of its head: gaps, distances and chains without rounding, by the Gram
matrix of the rows and the closed form of two pairs, which cancel in floats and not here. Nothing of `radii.py`,
`chains.py`, `margins.py`, `constants.py` or `guarantees.py` is used.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import combinations
from math import inf, isqrt
from typing import Any

import numpy as np
from torch import Tensor

from safeset.lipschitz.forward_error_exact import LARGEST, LEAST, Carried, Line, error_of, root, squares
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Array, Multiples
from safeset.numerics.products import dot
from safeset.program.linear import Linear

SPARE = 64  # bits beyond what the smallest of the numbers needs
WIDEST = 5  # b − a up to which a window has chains of at most three pairs: wider ones rest on a window inside
ROUND = Fraction(1, 2**50)  # what the end of the radii, 2¹⁰⁰⁰ over a slope, may be rounded by

Windows = Sequence[Sequence[float]]  # (K, K) radii


@dataclass(frozen=True, eq=False)
class Head:
    """Rows, biases and Lipschitz constant of what enters them, without rounding.

    Args:
        layer: the linear head of a program.
        scale: the bound of all before it.
        before: what is known of the features.
        finest: a power of two of which all logits are multiples.
        deadline: when to stop.
    """

    layer: Linear
    scale: float
    before: Carried
    finest: Fraction
    deadline: Deadline

    @cached_property
    def rows(self) -> Multiples:
        """The weights."""
        return Multiples.of(self.layer.weight)

    @cached_property
    def gram(self) -> Array:
        """(classes, classes) products of rows, in squares of their unit."""
        return dot(self.rows.integers, self.rows.integers.T, self.deadline)

    @cached_property
    def apart(self) -> Array:
        """(classes, classes) squared distances of rows."""
        own = np.diagonal(self.gram)
        apart: Array = own[:, None] + own[None, :] - 2 * self.gram
        return apart

    @cached_property
    def bits(self) -> int:
        """All numbers are counted in 2^−bits."""
        errors = (self.before.strays.constant, self.before.strays.slope, self._rounded.constant, self._rounded.slope)
        least = min((int(each) for each in self.apart.flat if each), default=1)
        small: list[Fraction] = [
            *errors,
            self.finest,
            Fraction(self.scale),
            self.rows.unit,
            self.rows.unit * isqrt(least),
        ]
        depth = max(each.denominator.bit_length() - each.numerator.bit_length() for each in small if each)
        exact = (Fraction(self.scale) * self.rows.unit).denominator.bit_length() + self.finest.denominator.bit_length()
        return max(2 * depth, exact, 0) + SPARE

    @property
    def _rounded(self) -> Line:
        """What a product with a row of norm 1 loses, as a line."""
        return self.before.together.times(error_of(self.layer.weight.shape[1] + 1))

    @cached_property
    def steps(self) -> int:
        """How many of the unit are the scale times the rows' unit."""
        return int(Fraction(self.scale) * self.rows.unit * 2**self.bits)

    def count(self, number: Fraction) -> int:
        """A number in the unit, from above."""
        return -((-number.numerator << self.bits) // number.denominator)

    @cached_property
    def lengths(self) -> Array:
        """(classes, classes) distances of rows in the unit, from above."""
        unit = int(self.rows.unit * 2**self.bits)
        return _each(self.apart, lambda square: _upper_root(square * unit * unit))

    @cached_property
    def sizes(self) -> Array:
        """(classes,) norms of rows in the unit, from above."""
        unit = int(self.rows.unit * 2**self.bits)
        return _each(np.diagonal(self.gram), lambda square: _upper_root(square * unit * unit))

    @cached_property
    def fixed(self) -> Array:
        """(classes,) what rounding costs a logit at every point: its bias, and underflow."""
        share = error_of(self.layer.weight.shape[1] + 1)
        biases = np.zeros(len(self.sizes)) if self.layer.bias is None else self.layer.bias.cpu().numpy()
        underflow = self.layer.weight.shape[1] * LEAST
        found = [self.count(share * abs(Fraction(float(bias))) + underflow) for bias in biases]
        return np.array([*found, None], dtype=object)[:-1]

    def error(self, norm: Fraction | None, order: Any, k: int) -> Array:
        """(k, classes) rounding of the differences of the first k logits and all, at points of a norm, in the unit.

        ‖w_j − w_i‖·E + γ((‖w_j‖ + ‖w_i‖)(r + E) + |b_j| + |b_i|) + underflow; its slope in the norm for None.
        """
        strays, rounded = self.before.strays, self._rounded
        moved = self.count(strays.slope if norm is None else strays.at(norm))
        lost = self.count(rounded.slope if norm is None else rounded.at(norm))
        best, sizes = order[:k], self.sizes[order]
        products = self.lengths[np.ix_(best, order)] * moved + (sizes[:k, None] + sizes[None, :]) * lost
        found: Array = -(-products >> self.bits)
        return found if norm is None else found + self.fixed[best][:, None] + self.fixed[order][None, :]


class Point:
    """What can be proved at one point.

    Args:
        head: of the network.
        x: the point.
        logits: of the float64 program at it.
        k: how many of the best classes can be in an answer.
    """

    def __init__(self, head: Head, x: Tensor, logits: Sequence[float], k: int) -> None:
        self.head, self.k = head, k
        self.order = np.array(sorted(range(len(logits)), key=lambda each: (-logits[each], each)), dtype=np.int64)
        numbers = [int(Fraction(logits[each]) * 2**head.bits) for each in self.order.tolist()]
        ranked: Array = np.array([*numbers, None], dtype=object)[:-1]
        self.norm = root(squares(x))
        self.gaps = ranked[:k, None] - ranked[None, :] - 2 * head.error(self.norm, self.order, k)
        self.slopes = head.error(None, self.order, k)
        self.products = head.gram[np.ix_(self.order[:k], self.order)]
        self.apart = head.apart[np.ix_(self.order[:k], self.order)]

    def strict(self, k: int) -> bool:
        """Whether the first k logits exceed the others by more than the rounding of each pair."""
        return bool((self.gaps[:k, k:] > 0).all())

    def proves(self, a: int, b: int, radius: float) -> bool:
        """Whether no chain of the window from a to b (docs/mathematics.md) can be inverted nearer than the radius."""
        reach = Fraction(radius)
        left = self.gaps[:b] * reach.denominator - self.slopes[:b] * reach.numerator
        square = (reach.numerator * self.head.steps) ** 2
        alone = (left >= 0) & (left * left >= square * self.apart[:b])  # (b, classes): this pair cannot be
        if not alone[:a, b:].all():
            return False
        for j, second, i in combinations(range(b), 3):
            if j < a <= second and not alone[j, i]:
                ends = np.flatnonzero(~alone[second, b:].astype(bool)) + b
                if not self._both(left, square, j, i, second, ends).all():
                    return False
        for j, second, i, third, last in combinations(range(b), 5):
            if j < a <= second and not (alone[j, i] or alone[second, last]):
                if self._both(left, square, j, i, second, np.array([last])).all():
                    continue
                ends = np.flatnonzero(~alone[third, b:].astype(bool)) + b
                held = self._both(left, square, j, i, third, ends) | self._both(left, square, second, last, third, ends)
                if not held.all():
                    return False
        return True

    def _both(self, left: Array, square: int, j: int, i: int, k: int, ends: Any) -> Any:
        """Whether the pair (j, i) and each of the pairs (k, ends) cannot be inverted together.

        The nearest point of features at which two pairs p, q are: (h₁²‖q‖² − 2h₁h₂p·q + h₂²‖p‖²) / (‖p‖²‖q‖² − (p·q)²)
        is its squared distance, if both pairs bind.
        """
        one, two = left[j, i], left[k, ends]
        pp, qq = self.apart[j, i], self.apart[k, ends]
        pq = self.products[j, k] - self.products[j, ends] - self.products[i, k] + self.products[i, ends]
        independent = pp * qq - pq * pq
        bind = (one * qq >= two * pq) & (two * pp >= one * pq)
        far = one * one * qq - 2 * one * two * pq + two * two * pp >= square * independent
        opposite = (independent == 0) & (pq < 0) & (two > 0) & (one > 0)
        return ((independent > 0) & bind & far) | opposite


def false_windows(point: Point, eligible: Sequence[bool], windows: Windows) -> list[tuple[int, int]]:
    """The windows [a, b], counted from 1, whose stated radius is not proved: narrow ones first, wide ones by these."""
    held: dict[tuple[int, int], float] = {}
    false = []
    allowed = [eligible[k - 1] and point.strict(k) for k in range(1, point.k + 1)]
    largest = max((slope.slope for slope in point.head.before.reached), default=Fraction(1))
    constant = max((each.constant for each in point.head.before.reached), default=Fraction(0))
    end = LARGEST / largest * (1 + ROUND) - point.norm if constant < LARGEST else Fraction(0)
    spans = [(a, a + width) for width in range(point.k) for a in range(1, point.k - width + 1)]
    for a, b in spans:
        radius = windows[a - 1][b - 1]
        if radius == 0:
            continue
        known = max((held.get(inner, 0.0) for inner in ((a + 1, b), (a, b - 1))), default=0.0)
        sound = 0 < radius < inf and Fraction(radius) <= end and all(allowed[a - 1 : b])
        if sound and (known >= radius or (b - a <= WIDEST and point.proves(a, b, radius))):
            held[a, b] = radius
        else:
            held[a, b] = known
            false.append((a, b))
    return false


def eligible_at(guarantee: str, order: Sequence[int], k: int, classes: int) -> list[bool] | None:
    """For 1, …, k whether a guarantee, as text, allows it at a point of this order; None if it is not known here."""
    if guarantee == "standard":
        return [each == 1 for each in range(1, k + 1)]
    kind, number = guarantee[:2], guarantee[2:]
    if kind == "rt" and number.isdigit():
        return [each <= int(number) for each in range(1, k + 1)]
    if guarantee[:3] == "top" and guarantee[3:].isdigit():
        return [each == int(guarantee[3:]) for each in range(1, k + 1)]
    if not guarantee.startswith("affinity:"):
        return None
    table = json.loads(guarantee.removeprefix("affinity:"))
    common = {int(each) for each in table.get("everyone_with", [])}
    sets = [{int(each) for each in one} for one in table.get("sets", [])]
    grouped = {member for one in sets for member in one}
    sets = [one | common for one in (*sets, *({each} for each in range(classes) if each not in grouped))]
    return [any(one.issuperset(order[:each]) for one in sets) for each in range(1, k + 1)]


def answer(windows: Windows, epsilon: float, prefer: str) -> tuple[int, int]:
    """The window [a, b] of a point's answer at ε, counted from 1; (0, 0) where it is rejected."""
    proved = [(a + 1, b + 1) for a, row in enumerate(windows) for b, radius in enumerate(row) if radius > epsilon]
    if prefer == "smallest":
        return min(proved, key=lambda window: (window[1], -window[0]), default=(0, 0))
    return min(proved, key=lambda window: (-window[0], window[1]), default=(0, 0))


def _each(numbers: Array, function: Any) -> Array:
    found: Array = np.empty(numbers.size, dtype=object)
    found[:] = [function(each) for each in numbers.flat]
    return found.reshape(numbers.shape)


def _upper_root(square: int) -> int:
    return isqrt(square - 1) + 1 if square > 0 else 0
