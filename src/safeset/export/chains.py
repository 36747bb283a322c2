"""The method ``joint`` in ONNX: `certificates/joint.py` again, with all chains in one table instead of one by one."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from safeset.certificates.joint import DEEPEST, WIDEST
from safeset.export.graph import Array, Value

if TYPE_CHECKING:
    from safeset.export.certificate import Pairs

Pair = tuple[int, int, int]  # the ranks j and i of a pair, and the rank of another that meets each class
SMALLEST = 2.0**-900  # of products of distances, below which roundings are not bounded


@dataclass(frozen=True, eq=False)
class Chains:
    """What chains need: `certificates.joint.Rows`, with distances and drifts of all pairs of classes as constants."""

    pairs: "Pairs"
    distances: Array
    drift: Array
    slack: float
    least: float

    def windows(self, least: Value, radii: Value, inside: Value) -> Value:
        """What chains prove of each window, (batch, K, K).

        Args:
            least: (batch, K, K), the least radius over single pairs.
            radii: (batch, K, classes), of pairs.
            inside: (batch, 1, classes).
        """
        graph, k = least.graph, self.pairs.k
        deep = min(k, DEEPEST)
        a, b = np.ogrid[:k, :k]
        narrow = (b >= a) & (b - a <= np.where((a < deep) & (b < deep), WIDEST, 1))
        own = graph.where(narrow, least, 0.0)
        three = [each for each in combinations(range(deep), 3) if each[2] - each[1] < WIDEST]
        five = [each for each in combinations(range(deep), 5) if each[4] - each[1] < WIDEST]
        if not three:
            return own
        needed = dict.fromkeys((j1, i1, j2) for j1, j2, i1 in three)
        for j1, j2, i1, j3, i2 in five:
            needed |= dict.fromkeys([(j1, i1, j2), (j1, i1, j3), (j2, i2, j3)])
        place = {each: number for number, each in enumerate(needed)}
        found = self._radii(list(needed), radii)  # (batch, needed, classes)
        parts = [found.taken(np.array([place[j1, i1, j2] for j1, j2, i1 in three]), 1)]
        reach = list(three)  # first, second and last rank of each chain
        if five:
            corner = self.pairs.corner(found, len(needed)).reshaped(len(needed) * k)
            known = corner.taken(np.array([place[j1, i1, j2] * k + i2 for j1, j2, i1, _, i2 in five]), 1)
            one = found.taken(np.array([place[j1, i1, j3] for j1, _, i1, j3, _ in five]), 1)
            two = found.taken(np.array([place[j2, i2, j3] for _, j2, _, j3, i2 in five]), 1)
            parts.append(graph.larger(graph.larger(one, two), known.unsqueezed(2)))
            reach += [(j1, j2, i2) for j1, j2, _, _, i2 in five]
        values = parts[0] if len(parts) == 1 else graph.beside(parts, 1)
        ends = self.pairs.beyond(self.pairs.split(values, len(reach), inside)).unsqueezed(2)  # (batch, chains, 1, K)
        first, second, last = (np.array(each)[:, None, None] for each in zip(*reach, strict=True))
        breaks = (first <= a) & (a < second) & (last <= b) & (b < np.minimum(deep, a + WIDEST + 1))  # (chains, K, K)
        return graph.smaller(own, graph.where(breaks, ends, math.inf).min(1))

    def _radii(self, needed: list[Pair], radii: Value) -> Value:
        """Radii of two pairs together, the pair of ranks (j, i) and each pair (second, any class)."""
        graph, k, unit = radii.graph, self.pairs.k, radii.graph.precision.unit
        j, i, second = (np.array(each) for each in zip(*needed, strict=True))
        largest = float(self.distances.max())
        size = 2.0 ** (math.frexp(largest)[1] - 1) if largest > 0 else 1.0  # a power of two, so that nothing is rounded

        def of_ranks(table: Array) -> tuple[Value, Value]:
            """(batch, K, classes), and (batch, K·K) between the K best."""
            rows = graph.node("Gather", table, self.pairs.ranking, axis=0)
            return rows, self.pairs.corner(rows, k).reshaped(k * k)

        def inner(corner: Value, rows: Array, columns: Array) -> Value:
            """(batch, needed, 1)."""
            return corner.taken(rows * k + columns, 1).unsqueezed(2)

        scaled, inner_scaled = of_ranks(self.distances / size)
        squares, inner_squares = scaled * scaled, inner_scaled * inner_scaled
        drift, inner_drift = of_ranks(self.drift)
        apart, inner_apart = of_ranks((self.distances > self.least).astype(np.float64))
        inner_radii = self.pairs.corner(radii, k).reshaped(k * k)

        first, other = inner(inner_radii, j, i), radii.taken(second, 1)
        alone = graph.larger(first, other)
        across = squares.taken(j, 1) + inner(inner_squares, i, second)
        along = squares.taken(i, 1) + inner(inner_squares, j, second)
        product = inner(inner_scaled, j, i) * 2.0 * scaled.taken(second, 1)
        # Only where nothing under- or overflowed, and no constant is 0: then the bounds on rounding hold.
        sure = (inner(inner_apart, j, i) > 0.0) & (apart.taken(second, 1) > 0.0) & (product > SMALLEST)
        sure = sure & (first > 0.0) & (other > 0.0) & (alone < math.inf)
        divisor, product = graph.where(sure, alone, 1.0), graph.where(sure, product, 1.0)
        one, two = graph.where(sure, first, 1.0) / divisor, graph.where(sure, other, 1.0) / divisor

        cosine = (across - along) / product
        uncertain = cosine + (across + along) / product * (8 * self.slack)
        uncertain = graph.smaller(graph.larger(uncertain, -1.0), 1.0)
        weight_1 = graph.larger(one - two * cosine, 0.0)
        weight_2 = graph.larger(two - one * cosine, 0.0)
        largest_weight = graph.larger(weight_1, weight_2)
        divisor = graph.where(largest_weight > 0.0, largest_weight, 1.0)
        weight_1, weight_2 = weight_1 / divisor, weight_2 / divisor
        squared = weight_1 * weight_1 + weight_2 * weight_2 + weight_1 * 2.0 * weight_2 * uncertain
        norm = (graph.larger(squared, 0.0) + 64 * unit).apply("Sqrt")
        share, slack = 1 + 4 * unit, 3 * self.slack
        lost = weight_1 * (inner(inner_drift, j, i) * share + slack) + weight_2 * (
            drift.taken(second, 1) * share + slack
        )
        both = (weight_1 * one + weight_2 * two) / (norm + lost * 2.0) * (1 - 16 * unit) * alone
        return graph.where(sure & (both > alone), both, alone)
