"""Affinity sets from what points need: few pairs of classes to put together, so that many points are satisfied.

A point *needs* a group of classes: it is satisfied if all of them lie in one affinity set. Sets are described by the
pairs of classes that may be confused; they are the largest groups in which every two classes are such a pair. So a
point is satisfied exactly if all pairs of its group are chosen.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Set
from itertools import combinations
from typing import NamedTuple

from safeset.errors import expected

Group = frozenset[int]
Pair = tuple[int, int]
MOST_VISITS = 100_000  # of the search for largest groups, whose number can grow as 3^(classes/3)


class Step(NamedTuple):
    """Pairs that are put together at once, and how many points are satisfied then."""

    pairs: tuple[Pair, ...]
    satisfied: int


def pairs_of(group: Collection[int]) -> frozenset[Pair]:
    """The pairs of classes in a group, the smaller index first.

    >>> sorted(pairs_of({3, 1, 2}))
    [(1, 2), (1, 3), (2, 3)]
    """
    return frozenset(combinations(sorted(group), 2))


def sets_of(pairs: Set[Pair]) -> list[tuple[int, ...]]:
    """The largest groups in which every two classes are one of the pairs: the maximal cliques of their graph.

    Raises:
        ArgumentError: where there are too many to find them.

    >>> sets_of({(0, 1), (1, 2), (0, 2), (2, 3)})
    [(0, 1, 2), (2, 3)]
    """
    near: dict[int, int] = {}  # the classes that each class is paired with, a bit each
    for first, second in pairs:
        near[first] = near.get(first, 0) | 1 << second
        near[second] = near.get(second, 0) | 1 << first
    found, visits = list[tuple[int, ...]](), 0
    waiting: list[tuple[tuple[int, ...], int, int]] = [((), sum(1 << each for each in near), 0)] if near else []
    while waiting:  # Bron and Kerbosch's search: a group, what may still join it, and what was tried before
        group, able, tried = waiting.pop()
        visits += 1
        if visits > MOST_VISITS:
            remedy = "Allow fewer pairs, or write the sets themselves."
            raise expected(f"pairs of classes whose sets are found in {MOST_VISITS:,} steps", "more", remedy)
        if not able and not tried:
            found.append(tuple(sorted(group)))
            continue
        # A largest group lacks the pivot only if it has a class that is not paired with it: few are left to try.
        pivot = max(_bits(able | tried), key=lambda each: (able & near[each]).bit_count())
        for each in _bits(able & ~near[pivot]):
            waiting.append(((*group, each), able & near[each], tried & near[each]))
            able, tried = able & ~(1 << each), tried | 1 << each
    return sorted(found)


def _bits(number: int) -> Iterator[int]:
    """The places at which an integer has a 1, from below."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest


def count_satisfied(groups: Mapping[Group, int], pairs: Set[Pair]) -> int:
    """How many points have a group whose pairs are all chosen; a group of one class has none to choose.

    >>> count_satisfied({frozenset({0}): 5, frozenset({0, 1}): 2, frozenset({0, 2}): 1}, {(0, 1)})
    7
    """
    return sum(count for group, count in groups.items() if pairs_of(group) <= pairs)


def choose_pairs(groups: Mapping[Group, int], *, most: int, largest: int) -> list[Step]:
    """Choose pairs greedily: in each step those that one more group lacks, the most points gained for a pair first.

    Where every group has at most two classes, no other choice of as many pairs satisfies more points. In general the
    best choice is a problem without a fast solution (densest subgraphs), and this is a good one.

    Args:
        groups: how many points need each group.
        most: pairs in all.
        largest: classes of a set; pairs that would make a larger one are left out.

    Returns:
        The steps, until nothing more is gained or no pairs are left.
    """
    chosen: frozenset[Pair] = frozenset()
    satisfied, steps = count_satisfied(groups, chosen), list[Step]()
    lacking = Counter[frozenset[Pair]]()
    for group in sorted(groups, key=sorted):  # the order decides between equal gains, so that it is always the same
        lacking[pairs_of(group)] += groups[group]
    while len(chosen) < most:
        del lacking[frozenset()]
        gains = _gains(lacking, most - len(chosen))
        for more in sorted(gains, key=lambda more: (-gains[more] / len(more), len(more))):
            if max(map(len, sets_of(chosen | more))) <= largest:
                break
            del lacking[more]  # for good: pairs that are chosen later make no set smaller
        else:
            break
        chosen |= more
        satisfied += gains[more]
        steps.append(Step(tuple(sorted(more)), satisfied))
        before, lacking = lacking, Counter()
        for each, count in before.items():
            lacking[each if each.isdisjoint(more) else each - more] += count
    return steps


def _gains(lacking: Mapping[frozenset[Pair], int], most: int) -> dict[frozenset[Pair], int]:
    """How many points each choice of at most so many lacking pairs satisfies: those that lack no others."""
    by_first: dict[Pair, list[frozenset[Pair]]] = {}  # so that few choices are compared with each other
    for each in lacking:
        by_first.setdefault(min(each), []).append(each)
    return {
        more: sum(lacking[each] for pair in more for each in by_first.get(pair, ()) if each <= more)
        for more in lacking
        if len(more) <= most
    }
