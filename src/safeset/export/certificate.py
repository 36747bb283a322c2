"""From logits and proved constants to certified sets, in ONNX: `certificates/` again, formula by formula.

Shapes are those of `certificates/radii.py` and `margins.py`, and so are the proofs behind each line: the same formulas
in the same order, but for `up` and `down`, which go a number or two farther than the next one. What takes the least
along ranks there one after another is here a least over a table with a constant mask. Values that could be NaN, which
runtimes treat as they like, are replaced before they are compared.
"""

import math
from dataclasses import dataclass

import numpy as np

from safeset.export.chains import Chains
from safeset.export.graph import Array, Graph, Value

# Logits of a graph are sums in another order than Python's. At an ε that is a radius of Python's own, where Python
# certifies nothing, the graph must not say otherwise. Each of the two is within the error at x of the exact logit, so a
# gap is at most that of Python if the graph gives away the errors at x of both once more: with those at x and at x'
# together, twice what Python does. The rest is for what is rounded on the way.
WARY = 2.0 + 2.0**-20  # times the error at x and at x'
SPARE = 2.0**-40  # of logits and of radii


@dataclass(frozen=True, eq=False)
class Constants:
    """What was proved of a network, as arrays, each of float64.

    Attributes:
        offsets: (classes,) rounding error of each logit at the input 0.
        slopes: (classes,) what it grows by with the norm of the input.
        room: the norm below which nothing overflows.
        pairs: (classes, classes), how fast a pair can close its gap: K_ji and the slopes, rounded up.
        distances: (classes, classes) between rows of the head.
        drift: (classes, classes), the share of slopes in each pair's constant.
        slack: relative error of the distances.
        least: below it they are not accurate.
    """

    offsets: Array
    slopes: Array
    room: float
    pairs: Array
    distances: Array
    drift: Array
    slack: float
    least: float

    @property
    def classes(self) -> int:
        """Number of classes."""
        return len(self.offsets)


@dataclass(frozen=True, eq=False)
class Eligible:
    """Which k a guarantee allows, as tables: k if `sizes` says so and one of the sets holds all of the k best.

    Attributes:
        sizes: (K,) booleans.
        sets: (sets, classes) booleans.
    """

    sizes: Array
    sets: Array


@dataclass(frozen=True, eq=False)
class Seen:
    """Points as far as the network has seen them.

    Attributes:
        logits: (batch, classes), 0 where nothing is known.
        offset: (batch, classes) rounding error of each logit, at x and at x' together.
        room: (batch, 1) how far x may move before something could overflow.
        known: (batch, 1) whether x is finite and nothing can have overflowed.
    """

    logits: Value
    offset: Value
    room: Value
    known: Value


def row_norms(x: Value, entries: int) -> Value:
    """‖x‖₂ from above: (batch, entries) finite → (batch, 1)."""
    graph = x.graph
    largest = abs(x).max(1, keep=True)
    scaled = x / graph.where(largest > 0.0, largest, 1.0)
    root = (scaled * scaled).sum(1, keep=True).apply("Sqrt")
    norms = (root * largest).up() * (1 + (entries + 8) * graph.precision.unit)
    return graph.where(largest > 0.0, norms.up(), largest)


def is_finite(x: Value) -> Value:
    """(batch, n) → (batch, 1): whether all are; what is NaN is below nothing."""
    return ~(~(abs(x) < math.inf)).any(1, keep=True)


def see(x: Value, entries: int, raw: Value, finite: Value, constants: Constants) -> Seen:
    """What follows from logits that were computed of x, (batch, entries), which is finite or was replaced."""
    graph = x.graph
    norms = row_norms(x, entries)
    room = min(constants.room, graph.precision.largest) - norms
    sure = ~(~(abs(raw) < graph.precision.largest)).any(1, keep=True)
    known = finite & (room > 0.0) & sure
    norms = graph.where(known, norms, 0.0)
    once = ((norms * constants.slopes).up() + constants.offsets).up()
    return Seen(graph.where(known, raw, 0.0), once * 2.0, room, known)


def ranking_of(logits: Value, k: int) -> tuple[Value, Value]:
    """The k best logits and classes, best first, equal ones by index: (batch, k) each."""
    best, ranking = logits.graph.several("TopK", 2, logits, np.array([k]), axis=1, largest=1, sorted=1)
    return best, ranking


@dataclass(frozen=True, eq=False)
class Pairs:
    """Tables about the K best classes against every class.

    Attributes:
        graph: where they are written.
        ranking: (batch, K).
        k: K.
        classes: number of classes.
    """

    graph: Graph
    ranking: Value
    k: int
    classes: int

    @property
    def inside(self) -> Value:
        """(batch, 1, classes): whether a class is among the K best."""
        return self.ranking.unsqueezed(2).equals(np.arange(self.classes)).any(1, keep=True)

    def corner(self, values: Value, rows: int) -> Value:
        """(batch, rows, classes) → (batch, rows, K): the K best classes, best first."""
        places = self.graph.node("Expand", self.ranking.unsqueezed(1), np.array([1, rows, 1]))
        return self.graph.node("GatherElements", values, places, axis=2)

    def split(self, values: Value, rows: int, inside: Value) -> Value:
        """(batch, rows, classes) → (batch, rows, K + 1): those of the K best, then the least of the others."""
        others = self.graph.where(inside, math.inf, values).min(2, keep=True)
        return self.graph.beside([self.corner(values, rows), others], 2)

    def beyond(self, pairs: Value) -> Value:
        """(batch, rows, K + 1) → (batch, rows, K): the least over all classes of a rank above b, for each b."""
        is_above = np.arange(self.k + 1) > np.arange(self.k)[:, None]  # (b, rank)
        return self.graph.where(is_above, pairs.unsqueezed(2), math.inf).min(3)

    def window_least(self, pairs: Value) -> Value:
        """(batch, K, K + 1) → (batch, K, K): the least over pairs that break a whole window at once."""
        is_inside = np.tril(np.ones((self.k, self.k), dtype=bool))[:, :, None]  # (a, rank, 1)
        return self.graph.where(is_inside, self.beyond(pairs).unsqueezed(1), math.inf).min(2)


def window_radii(seen: Seen, constants: Constants, eligible: Eligible, method: str) -> tuple[Value, Value]:
    """The windows and the ranking, as `certificates.radii.window_radii` has them: (batch, K, K) and (batch, K)."""
    graph, k = seen.logits.graph, len(eligible.sizes)
    best, ranking = ranking_of(seen.logits, k)
    pairs = Pairs(graph, ranking, k, constants.classes)
    inside = pairs.inside
    own_offset = graph.node("GatherElements", seen.offset, ranking, axis=1)
    offset = ((own_offset.unsqueezed(2) + seen.offset.unsqueezed(1)) * WARY).up()  # (batch, K, classes)
    first, second = best.unsqueezed(2), seen.logits.unsqueezed(1)
    lost = max(4 * graph.precision.unit, SPARE)
    gaps = first - second - offset - (abs(first) + abs(second)) * lost
    constant = graph.node("Gather", constants.pairs, ranking, axis=0)  # (batch, K, classes)
    radii = quotient(gaps, constant, has_zeros=bool((constants.pairs == 0).any()))
    table = pairs.split(radii, k, inside)
    least = pairs.window_least(table)
    strict = (graph.where(np.eye(k, dtype=bool), pairs.window_least(pairs.split(gaps, k, inside)), math.inf)).min(2)
    sound = (strict > 0.0) & eligible_of(ranking, eligible, graph) & seen.known
    if method == "joint":
        chains = Chains(pairs, constants.distances, constants.drift, constants.slack, constants.least)
        own = chains.windows(least, radii, inside)
    else:
        width = {"uniform": 0, "floating": 1}[method]
        own = graph.where(np.tril(np.triu(np.ones((k, k), dtype=bool)), width), least, 0.0)
    windows = propagate(own, sound, k) * (1 - lost)
    room = seen.room.unsqueezed(2)
    return graph.where(seen.known.unsqueezed(2), graph.smaller(windows, room), 0.0), ranking


def quotient(gaps: Value, constants: Value, *, has_zeros: bool) -> Value:
    """Gap / constant, rounded down where it is above 0; ±∞ by the sign of the gap where the constant is 0."""
    if not has_zeros:
        return (gaps / constants).down()
    graph = gaps.graph
    is_zero = constants.equals(0.0)
    found = (gaps / graph.where(is_zero, 1.0, constants)).down()
    return graph.where(is_zero, graph.where(gaps > 0.0, math.inf, -math.inf), found)


def eligible_of(ranking: Value, eligible: Eligible, graph: Graph) -> Value:
    """(batch, K): which k are eligible."""
    if eligible.sets.all():
        return graph.constant(eligible.sizes[None])
    k = len(eligible.sizes)
    stranger = graph.node("Gather", (~eligible.sets).T.astype(np.float64), ranking, axis=0)  # (batch, K, sets)
    is_within = np.tril(np.ones((k, k), dtype=bool))[:, :, None]  # (k, rank, 1)
    holds = ~(graph.where(is_within, stranger.unsqueezed(1), 0.0).max(2) > 0.0)  # (batch, k, sets)
    return holds.any(2) & eligible.sizes


def propagate(own: Value, sound: Value, k: int) -> Value:
    """The best radius of any window inside each admissible window; 0 where a window is not admissible."""
    graph = own.graph
    a, b, each = np.ogrid[:k, :k, :k]
    failed = ((~sound).unsqueezed(1, 2) & ((a <= each) & (each <= b))).any(3)  # (batch, a, b)
    admissible = ~failed & np.triu(np.ones((k, k), dtype=bool))
    proved = graph.where(admissible, graph.larger(own, 0.0), 0.0)
    ends = graph.where(np.tril(np.ones((k, k), dtype=bool)), proved.unsqueezed(2), 0.0).max(3)  # b' ≤ b
    starts = graph.where(np.triu(np.ones((k, k), dtype=bool))[:, :, None], ends.unsqueezed(1), 0.0).max(2)  # a' ≥ a
    return graph.where(admissible, starts, 0.0)


def answers(
    windows: Value, ranking: Value, epsilon: Value, valid: Value, k: int, classes: int, prefer: str
) -> tuple[Value, Value, Value]:
    """Certified (batch,), core and optional (batch, classes) at ε, as `Certificate` derives them from windows."""
    graph = windows.graph
    ranks = np.arange(k)
    proved = (windows > epsilon) & valid  # (batch, a, b)
    if prefer == "smallest":
        end = graph.where(proved.any(1), ranks, k).min(1, keep=True)  # (batch, 1); k where there is none
        is_answer = (proved & end.unsqueezed(2).equals(ranks)).any(2)
        start = graph.where(is_answer, ranks, -1).max(1, keep=True)
    else:
        start = graph.where(proved.any(2), ranks, -1).max(1, keep=True)
        is_answer = (proved & start.unsqueezed(2).equals(ranks[:, None])).any(1)
        end = graph.where(is_answer, ranks, k).min(1, keep=True)
    certified = start > np.array(-1)
    belongs = ranking.unsqueezed(2).equals(np.arange(classes))  # (batch, K, classes)
    places = graph.constant(ranks[None])

    def members(last: Value) -> Value:
        """The classes of ranks up to `last`."""
        return (belongs & (~(places > last) & certified).unsqueezed(2)).any(1)

    core = members(start)
    return certified.squeezed(1), core, members(end) & ~core
