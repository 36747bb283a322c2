import copy
import json
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.reference import eligible_ks, ranking
from helpers.strategies import guarantees, logits
from safeset import Affinity, ArgumentError, RelaxedTopK, SafesetError, Standard, TopK
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import as_guarantee, parse

ALL = [
    Standard(),
    TopK(3),
    RelaxedTopK(3),
    Affinity([[0, 1], [2, 3]]),
    Affinity([["cat", "dog"], ['kühl ∖ "x"', "dog"]]),
    Affinity([["a", "b"]], everyone_with=["c"]),
    Affinity(everyone_with=[3, 4]),
]


class TestEveryGuarantee:
    """What holds for each of them, by one line each in ALL."""

    @pytest.fixture(params=ALL, ids=str)
    def guarantee(self, request):
        return request.param

    def test_text_parses_back(self, guarantee):
        assert parse(str(guarantee)) == guarantee

    def test_in_words_it_is_a_sentence_without_its_text(self, guarantee):
        names = ["cat", "dog", 'kühl ∖ "x"', "a", "b", "c", "d"]
        words = guarantee.in_words(names)
        assert re.search(r"stays? the|may be confused", words)
        assert str(guarantee) not in words

    def test_repr_is_python(self, guarantee):
        names = {"Affinity": Affinity, "RelaxedTopK": RelaxedTopK, "Standard": Standard, "TopK": TopK}
        assert eval(repr(guarantee), names) == guarantee

    def test_is_a_frozen_value(self, guarantee):
        again = pickle.loads(pickle.dumps(guarantee))
        assert again == guarantee == copy.deepcopy(guarantee)
        assert hash(again) == hash(guarantee)
        assert sum(other == guarantee for other in ALL) == 1
        with pytest.raises(AttributeError):
            guarantee.k = 5

    def test_as_guarantee(self, guarantee):
        assert as_guarantee(guarantee) is guarantee
        assert as_guarantee(str(guarantee)) == guarantee


@given(data=st.data(), values=logits())
def test_eligible_k_are_those_of_the_definition(data, values):
    classes = values.shape[1]
    guarantee, kind = data.draw(guarantees(classes))
    k = guarantee.largest_k(classes)
    orders = [ranking(row) for row in values.tolist()]
    got = guarantee.eligible(torch.tensor([order[:k] for order in orders]), classes)
    assert 1 <= k < classes
    assert got.shape == (len(values), k)
    for row, order in zip(got.tolist(), orders, strict=True):
        assert [place + 1 for place, yes in enumerate(row) if yes] == eligible_ks(kind, order)


def test_many_sets_need_more_than_one_word_of_bits():
    pairs = [[j, i] for j in range(20) for i in range(j)]
    guarantee = Affinity(pairs)
    ranking = torch.stack([torch.randperm(20) for _ in range(50)])[:, :2]
    assert guarantee.largest_k(20) == 2
    assert guarantee.eligible(ranking, 20).all()
    without = Affinity([pair for pair in pairs if set(pair) != {3, 17}])
    assert without.eligible(torch.tensor([[17, 3], [3, 17], [3, 16]]), 20).tolist() == [
        [True, False],
        [True, False],
        [True, True],
    ]


def test_equal_sets_are_one_and_order_does_not_matter():
    assert Affinity([[1, 0], [2, 3], [0, 1]]) == Affinity([{2, 3}, (np.int64(0), 1)])
    assert repr(Affinity([[1, 0]])) == "Affinity([[0, 1]])"


def test_long_collections_print_shortly():
    assert len(repr(Affinity([[j, j + 1] for j in range(500)]))) < 120
    assert repr(Affinity([range(50)])) == "Affinity([[50 classes]])"


@pytest.mark.parametrize("text", ["RT3", " rt3 ", "Rt3"])
def test_text_is_forgiving(text):
    assert parse(text) == RelaxedTopK(3)


@pytest.mark.parametrize(
    "text", ["", "rt", "rt0", "top-3", "rtx", "rt3.0", "standard3", "affinity:", "affinity:{", "affinity:[]", "rt³", 7]
)
def test_bad_text_is_an_error(text):
    with pytest.raises(ArgumentError, match="Expected"):
        parse(text)


KEYS = st.sampled_from(["sets", "groups", "neighbours", "hierarchy", "everyone_with", "edges", "depth", "max_leaves"])
LEAVES = st.none() | st.booleans() | st.integers(-2, 5) | st.floats(allow_nan=False) | st.sampled_from(["a", "b", ""])
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=12
)


@given(st.text() | JSON.map(json.dumps).map("affinity:".__add__) | st.text().map("affinity:".__add__))
@settings(max_examples=500)
def test_any_text_is_a_guarantee_or_a_named_mistake(text):
    try:
        guarantee = parse(text)
    except ArgumentError:
        return
    assert parse(str(guarantee)) == guarantee


@pytest.mark.parametrize("k", [0, -1, 1.5, "3", True, None])
@pytest.mark.parametrize("kind", [TopK, RelaxedTopK])
def test_bad_k_is_an_error(kind, k):
    with pytest.raises(ValueError, match="Expected `k` to be an integer ≥ 1, but got"):
        kind(k)


def test_k_may_be_any_integer():
    assert TopK(np.int64(3)) == TopK(3) == TopK(torch.tensor(3))


@pytest.mark.parametrize("guarantee", [TopK(10), RelaxedTopK(12), Affinity([range(10)]), Affinity([[0, 10]])])
def test_guarantees_that_do_not_fit_the_classes(guarantee):
    with pytest.raises(SafesetError, match="Expected"):
        guarantee.largest_k(10)
    with pytest.raises(SafesetError, match="Expected"):
        guarantee.bind([f"class {place}" for place in range(10)])


def test_the_message_for_k():
    with pytest.raises(ValueError, match=r"^Expected `k` to be an integer in 1..9 \(classes − 1\), but got 12\.$"):
        RelaxedTopK(12).largest_k(10)


def test_not_a_guarantee():
    with pytest.raises(ArgumentError, match="Expected `guarantee` to be Standard"):
        as_guarantee(3)


def test_the_base_class_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Guarantee()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("standard", "the best class stays the best"),
        ("top1", "the best class stays the best"),
        ("rt1", "the best class stays the best"),
        ("top2", "the 2 best classes stay the 2 best, in any order"),
        ("rt2", "the 1 or 2 best classes stay the same, in one place perhaps 1, in another 2"),
        ("rt5", "the 1, 2, … or 5 best classes stay the same, in one place perhaps 1, in another 5"),
        (
            'affinity:{"sets":[["river","road"],["sea"]]}',
            "only classes that share a set may be confused: {river, road}",
        ),
        ('affinity:{"sets":[["sea"]]}', "the best class stays the best"),
        (
            'affinity:{"sets":[["river"]],"everyone_with":["road"]}',
            "only classes that share a set may be confused: {river, road}; {road, sea}; {road, crop}",
        ),
    ],
)
def test_in_words_people_read_names_and_no_notation(text, words):
    assert parse(text).in_words(["river", "road", "sea", "crop"]) == words
