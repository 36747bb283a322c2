"""Pairs to put together, compared with every other choice of as many."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from safeset import Affinity
from safeset.guarantees.merging import choose_pairs, count_satisfied, pairs_of, sets_of

CLASSES = 5
PAIRS = list(combinations(range(CLASSES), 2))


def some_groups(largest):
    group = st.frozensets(st.integers(0, CLASSES - 1), min_size=1, max_size=largest)
    return st.dictionaries(group, st.integers(1, 9), min_size=1, max_size=12)


def best(groups, most, largest):
    """The most points that any choice of so many pairs satisfies, by trying them all."""
    choices = (frozenset(each) for count in range(most + 1) for each in combinations(PAIRS, count))
    fitting = (each for each in choices if max(map(len, sets_of(each)), default=1) <= largest)
    return max(count_satisfied(groups, each) for each in fitting)


def chosen(steps):
    return frozenset(pair for step in steps for pair in step.pairs)


@given(groups=some_groups(2), most=st.integers(1, 5))
def test_for_groups_of_two_no_choice_is_better(groups, most):
    steps = choose_pairs(groups, most=most, largest=CLASSES)
    assert count_satisfied(groups, chosen(steps)) == best(groups, most, CLASSES)


@given(groups=some_groups(4), most=st.integers(1, 5), largest=st.integers(2, 4))
def test_what_it_says_is_so_and_the_limits_are_kept(groups, most, largest):
    steps = choose_pairs(groups, most=most, largest=largest)
    pairs: frozenset = frozenset()
    before = count_satisfied(groups, pairs)
    for step in steps:
        assert not pairs & set(step.pairs)
        pairs |= set(step.pairs)
        assert step.satisfied == count_satisfied(groups, pairs) > before
        before = step.satisfied
    assert len(pairs) <= most
    assert max(map(len, sets_of(pairs)), default=1) <= largest
    assert before <= best(groups, most, largest)


def test_for_groups_of_three_it_is_near_the_best():
    """Greedy is no optimum there: of what the best choice gains it recovers nearly all on average, here 0.97."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(150):
        groups = Counter()
        for _ in range(25):
            groups[frozenset(rng.choice(CLASSES, rng.integers(1, 4), replace=False).tolist())] += int(
                rng.integers(1, 9)
            )
        none = count_satisfied(groups, frozenset())
        for most in (1, 2, 3, 4):
            found = choose_pairs(groups, most=most, largest=3)
            gain = best(groups, most, 3) - none
            shares.append((count_satisfied(groups, chosen(found)) - none) / gain if gain else 1.0)
    assert np.mean(shares) > 0.95
    assert min(shares) > 0.5


def test_a_group_of_three_is_taken_whole_where_that_is_worth_more_for_a_pair():
    groups = {frozenset({0, 1, 2}): 30, frozenset({3, 4}): 9}
    assert [step.pairs for step in choose_pairs(groups, most=3, largest=3)] == [((0, 1), (0, 2), (1, 2))]
    assert [step.pairs for step in choose_pairs(groups, most=2, largest=3)] == [((3, 4),)]
    assert [step.pairs for step in choose_pairs(groups, most=9, largest=2)] == [((3, 4),)]


@given(pairs=st.frozensets(st.sampled_from(PAIRS), min_size=1))
def test_a_group_lies_in_one_set_exactly_if_all_its_pairs_are_chosen(pairs):
    sets = [set(one) for one in sets_of(pairs)]
    for size in range(2, CLASSES + 1):
        for group in combinations(range(CLASSES), size):
            assert any(one.issuperset(group) for one in sets) == (pairs_of(group) <= pairs)


@pytest.mark.parametrize("groups", [{}, {frozenset({1}): 4}])
def test_nothing_to_choose(groups):
    assert choose_pairs(groups, most=3, largest=3) == []
    assert sets_of(frozenset()) == []


def test_pairs_of_a_chain_stay_pairs():
    assert Affinity(sets_of({(0, 1), (1, 2)})) == Affinity.from_neighbours([0, 1, 2])
