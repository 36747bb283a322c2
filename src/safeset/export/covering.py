"""Sets that hold the truth, in ONNX: the score ``membership`` of `coverage/`, rounded up, against its thresholds."""

import math

import numpy as np

from safeset.coverage.coverage import Coverage
from safeset.errors import expected
from safeset.export.certificate import Constants, Seen
from safeset.export.graph import Array, Value
from safeset.export.operations import numbers


def check_score(coverage: Coverage) -> None:
    """Refuse scores that are not written in ONNX."""
    if coverage.score.kind != "membership":
        raise expected("the score 'membership' in an ONNX file", coverage.score.kind, "Export without coverage.")


def coverage_set(seen: Seen, coverage: Coverage, constants: Constants, epsilon: Value, valid: Value) -> Value:
    """The classes that may be true at ε, (batch, classes), as `Coverage.sets` has them; all where nothing is known.

    r_yj = (f_y − f_j)/K_yj is rounded up: what follows is `signed_radii.signed_pairs` with its signs turned around. Of
    the errors at x there is more than Python has, so that no class which is in Python's set is missing here: logits are
    sums in another order (`certificate.WARY`), and Python's upper end is at most three errors above the graph's own.
    """
    graph, ends = seen.logits.graph, coverage._geometry.constants
    low, high = numbers(ends.low), numbers(ends.high)
    ties = np.full_like(low, math.nan) if ends.ties is None else numbers(ends.ties).copy()
    np.fill_diagonal(ties, math.inf)
    wary = seen.offset * 2.0  # four times the error at x alone
    difference = seen.logits.unsqueezed(2) - seen.logits.unsqueezed(1)  # (batch, y, j)
    difference = graph.where(difference.equals(0.0), difference, above(difference))
    offset = (wary.unsqueezed(2) + wary.unsqueezed(1)).up()
    difference = graph.where(offset > 0.0, above(difference + offset), difference)
    is_above = difference > 0.0
    divisor = graph.where(is_above, low, high)
    is_zero = divisor.equals(0.0)
    radii = above(difference / graph.where(is_zero, 1.0, divisor))
    radii = graph.where(difference.equals(0.0) | divisor.equals(math.inf), 0.0, radii)
    radii = graph.where(is_zero & is_above, math.inf, radii)
    still = graph.where(difference >= 0.0, math.inf, -math.inf)
    radii = graph.where(high == 0, still, radii)
    radii = graph.where(np.isnan(ties), radii, np.nan_to_num(ties, nan=0.0, posinf=math.inf, neginf=-math.inf))
    k = coverage.score.k or 1
    smallest = graph.several("TopK", 2, radii, np.array([k]), axis=2, largest=0, sorted=1)[0]
    score = smallest.taken(np.array(k - 1), 2)  # (batch, classes)
    moved = score + epsilon
    score = graph.where((epsilon > 0.0) & (abs(moved) < math.inf), above(moved), moved)
    score = graph.where(seen.known, score, math.inf)
    member = ~(score < numbers(coverage.thresholds))
    least = scores_from_below(radii, k, ties.T, epsilon)
    # Python's set may be empty where this one is not, and its best class another one: all that may be are added.
    best = ~(score < least.max(1, keep=True))
    is_sure = (~(least < numbers(coverage.thresholds))).any(1, keep=True)
    return member | (best & ~is_sure) | ~valid


def scores_from_below(radii: Value, k: int, ties: Array, epsilon: Value) -> Value:
    """What Python's scores at ε are at the least, (batch, classes), from r_yj rounded up, (batch, y, j).

    −r_jy from above is r_yj from below; that of equal rows, `ties`, at [j, y], is known.
    """
    graph = radii.graph
    others = graph.where(np.isnan(ties), radii, np.nan_to_num(-ties, nan=0.0, posinf=math.inf, neginf=-math.inf))
    largest = graph.several("TopK", 2, others, np.array([k]), axis=1, largest=1, sorted=1)[0]
    moved = -largest.taken(np.array(k - 1), 1) + epsilon
    return graph.where(abs(moved) < math.inf, -above(-moved), moved)


def above(value: Value) -> Value:
    """At least the next number above a finite one of whatever sign."""
    precision = value.graph.precision
    return value + (abs(value) * (2 * precision.unit) + precision.least)
