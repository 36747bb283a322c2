"""Maxima and minima of two values that are written as sums: b + ReLU(a − b), ½(a + b ± |a − b|), a + b − max(a, b).

Each is S + k·|d| with sums S and d of other values: max(S + kd, S − kd), or the smaller of both if k < 0. Where those
two are multiples m·a and m·b of values that the sum is made of, it is m·max(a, b) or m·min(a, b), in real arithmetic,
and that is then computed. So it shares its node with the other extreme of the same two, however that one is written.
"""

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import NamedTuple

from safeset.capture.graph import Graph, View
from safeset.program.entries import Scale
from safeset.program.pointwise import Absolute, MinMax, ReLU
from safeset.program.total import Sum

MOST = 24  # values that are looked at: what lies behind them is not, so that a long chain of residuals is read quickly

SOME = 16  # entries that are looked at before all are

Terms = dict[int, Fraction]  # a sum of terms, each a number times one of `_Reading.terms`


class Extreme(NamedTuple):
    """A number times the larger, or the smaller, of two values, all of them flat."""

    first: View
    second: View
    smaller: bool
    factor: float


class Bend(NamedTuple):
    """S + k·|d|."""

    straight: Terms
    slope: Fraction
    inside: Terms


def extreme(graph: Graph, parts: Sequence[tuple[View, float]]) -> Extreme | None:
    """What a sum of values of one shape, each with a factor, is the extreme of; that of the plainest factor."""
    if graph.is_trained or any(value.shape[:1] != (graph.points,) for value, _ in parts):
        return None
    few = [(_some(graph, value), factor) for value, factor in parts]
    return None if _found(graph, few) is None else _found(graph, parts)


def _some(graph: Graph, value: View) -> View:
    """A few entries: where they are no extremes, all need not be looked at."""
    return value.map(lambda places: (flat := places.reshape(graph.points, -1))[:, :: max(1, flat.shape[1] // SOME)])


def _found(graph: Graph, parts: Sequence[tuple[View, float]]) -> Extreme | None:
    reading = _Reading(graph)
    whole = _plus(*(_times(reading.sum(value), Fraction(factor)) for value, factor in parts))
    found = [each for bend in reading.bends(whole) for each in reading.extremes(bend)]
    return min(found, key=lambda each: (each.factor != 1, abs(each.factor)), default=None)


class _Reading:
    """Values as sums of terms, which are not sums themselves, or are not looked into."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.terms: list[View] = []
        self._looks = 0
        self._seen: list[tuple[View, Terms]] = []  # all values on the way

    def sum(self, value: View) -> Terms:
        """A value through all sums and products with one number."""
        self._looks += 1
        found = self._inside(value) if self._looks <= MOST else None
        found = {self._term(value): Fraction(1)} if found is None else found
        self._seen.append((value, found))
        return found

    def _inside(self, value: View) -> Terms | None:
        origin = self.graph.origin(value)
        if origin is None:
            return None
        operation = origin.node.operation
        if isinstance(operation, Sum):
            parts = (self.graph.read_by(origin, at, origin.places) for at in range(len(operation.signs)))
            signed = zip(parts, operation.signs, strict=True)
            return _plus(*(_times(self.sum(part), Fraction(sign)) for part, sign in signed))
        if isinstance(operation, Scale) and operation.scale.numel() == 1:
            read = self.graph.read_by(origin, 0, origin.places)
            return _times(self.sum(read), Fraction(float(operation.scale)))
        return None

    def _term(self, value: View) -> int:
        for number, other in enumerate(self.terms):
            if self.graph.is_same(value, other):
                return number
        self.terms.append(value)
        return len(self.terms) - 1

    def bends(self, whole: Terms) -> Iterator[Bend]:
        """All ways in which a sum is S + k·|d|: for each term that is one, together with those of the same |d|."""
        found = {number: bend for number in whole if (bend := self._bend(self.terms[number])) is not None}
        for pivot in found.values():
            opposite = _times(pivot.inside, Fraction(-1))
            own = {number: each for number, each in found.items() if each.inside in (pivot.inside, opposite)}
            rest = {number: factor for number, factor in whole.items() if number not in own}
            straight = _plus(rest, *(_times(each.straight, whole[number]) for number, each in own.items()))
            slope = sum((whole[number] * each.slope for number, each in own.items()), Fraction(0))
            yield Bend(straight, slope, pivot.inside)

    def _bend(self, term: View) -> Bend | None:
        """ReLU, |x|, and either extreme of two."""
        origin = self.graph.origin(term)
        if origin is None:
            return None
        operation, places, half = origin.node.operation, origin.places, Fraction(1, 2)
        if isinstance(operation, ReLU | Absolute):
            inside = self.sum(self.graph.read_by(origin, 0, places))
            is_absolute = isinstance(operation, Absolute)
            return Bend({}, Fraction(1), inside) if is_absolute else Bend(_times(inside, half), half, inside)
        if isinstance(operation, MinMax):
            middle = math.prod(origin.node.shape) // 2
            is_first, pairs = places < middle, places % middle
            if bool(is_first.all()) or not bool(is_first.any()):
                one, other = (self.sum(self.graph.read_by(origin, 0, pairs + start)) for start in (0, middle))
                slope = half if bool(is_first.all()) else -half
                return Bend(_times(_plus(one, other), half), slope, _plus(one, _times(other, Fraction(-1))))
        return None

    def extremes(self, bend: Bend) -> Iterator[Extreme]:
        """Max(S + kd, S − kd), where both are the same multiple of values that were seen."""
        if bend.slope == 0:
            return
        turned = _times(bend.inside, bend.slope)
        for first, factor in self._multiples(_plus(bend.straight, turned)):
            for second, same in self._multiples(_plus(bend.straight, _times(turned, Fraction(-1)))):
                if factor == same == Fraction(float(factor)):
                    yield Extreme(first, second, (bend.slope < 0) != (factor < 0), float(factor))

    def _multiples(self, wanted: Terms) -> Iterator[tuple[View, Fraction]]:
        """The values that were seen of which a sum is a multiple, and by what."""
        for value, terms in self._seen:
            if wanted and wanted.keys() == terms.keys():
                factor = next(wanted[number] / terms[number] for number in wanted)
                if wanted == _times(terms, factor):
                    yield value, factor


def _plus(*sums: Terms) -> Terms:
    found: Terms = {}
    for each in sums:
        for number, factor in each.items():
            found[number] = found.get(number, Fraction(0)) + factor
    return {number: factor for number, factor in found.items() if factor != 0}


def _times(terms: Terms, factor: Fraction) -> Terms:
    return {number: factor * each for number, each in terms.items() if factor != 0}
