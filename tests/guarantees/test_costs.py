import math
from fractions import Fraction
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

import safeset
from safeset import Affinity, ArgumentError, certify_logits
from safeset.guarantees import merging
from safeset.guarantees.merging import sets_of
from safeset.guarantees.text import parse
from safeset.recipes.recipe import Recipe

DIAGNOSES = ["benign", "unclear", "malignant"]
COSTS = [[0, 1, 2], [1, 0, 1], [9, 1, 0]]
TABLE = """
[costs]
classes = ["benign", "unclear", "malignant"]
matrix = [[0, 1, 2], [1, 0, 1], [9, 1, 0]]
most = 1
"""


@st.composite
def matrices(draw):
    classes = draw(st.integers(2, 6))
    cost = st.sampled_from([0, 0.5, 1, 2, math.inf])
    return draw(st.lists(st.lists(cost, min_size=classes, max_size=classes), min_size=classes, max_size=classes))


@given(matrix=matrices(), most=st.sampled_from([0, 0.5, 1, 1.5, 2]))
@example(matrix=[[math.nan, 0, 3], [0, -1, 0], [1, 0, 7]], most=2)  # the diagonal is ignored
def test_the_k_best_are_eligible_exactly_if_no_confusion_among_them_costs_more(matrix, most):
    classes = len(matrix)

    def cheap(group):
        return all(matrix[j][i] <= most and matrix[i][j] <= most for j, i in combinations(group, 2))

    if cheap(range(classes)):
        with pytest.raises(ArgumentError, match="promise nothing"):
            Affinity.from_costs(matrix, most=most)
        return
    guarantee = Affinity.from_costs(matrix, most=most)
    assert parse(str(guarantee)) == guarantee
    rankings = list(permutations(range(classes)))
    eligible = guarantee.eligible(torch.tensor(rankings), classes)
    assert eligible.tolist() == [[cheap(order[:k]) for k in range(1, classes + 1)] for order in rankings]
    largest = max(k for k in range(1, classes + 1) if any(map(cheap, combinations(range(classes), k))))
    assert guarantee.largest_k(classes) == largest


def test_answers_hold_no_costly_confusion():
    close = torch.tensor([[2.0, 1.9, 0.0], [2.0, 0.0, 1.9]])
    found = certify_logits(close, 1.0, 0.2, Affinity.from_costs(COSTS, most=1), class_names=DIAGNOSES)
    assert found.certified.tolist() == [True, False]
    assert not certify_logits(torch.tensor([[1.0, 1.0, 1.0]]), 1.0, 0.2, found.guarantee).certified.any()


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor])
def test_matrices_of_any_kind(kind):
    assert Affinity.from_costs(kind(COSTS), most=1) == Affinity([[0, 1], [1, 2]])
    assert Affinity.from_costs(kind(COSTS), most=kind([0.5])[0]) == Affinity([[0], [1], [2]])


@pytest.mark.parametrize("least", [2**53, Fraction(1, 3)])
def test_costs_just_above_the_limit_are_too_costly(least):
    """In float64 they are the limit itself."""
    more = least + Fraction(1, 2**60) if isinstance(least, Fraction) else least + 1
    assert float(more) == float(least)
    matrix = [[0, least, more], [least, 0, least], [least, least, 0]]
    for each in (matrix, np.array(matrix)):
        assert Affinity.from_costs(each, most=least) == Affinity([[0, 1], [1, 2]])


def test_names_and_indices():
    named = Affinity.from_costs(COSTS, most=1, classes=DIAGNOSES)
    assert named.bind(["unclear", "other", "benign", "malignant"]) == Affinity([[0, 2], [0, 3]])
    assert Affinity.from_costs(COSTS, most=1, classes=[5, 0, 2]) == Affinity([[0, 5], [0, 2]])
    with pytest.raises(ArgumentError, match="'unclear'"):
        named.bind(["benign", "malignant"])


def test_sets_are_costs_of_0_and_1():
    order = ["strong left", "left", "clear", "right", "strong right"]
    costs = [[int(abs(one - other) > 1) for one in range(5)] for other in range(5)]
    assert Affinity.from_costs(costs, most=0, classes=order) == Affinity.from_neighbours(order)


def test_files(tmp_path):
    (tmp_path / "costs.toml").write_text(TABLE.replace("9", "inf"))
    (tmp_path / "costs.json").write_text('{"costs": {"matrix": [[0, 1, 2], [1, 0, 1], [Infinity, 1, 0]], "most": 1}}')
    wanted = Affinity([[0, 1], [1, 2]])
    assert parse(f"affinity:{tmp_path / 'costs.toml'}").bind(DIAGNOSES) == wanted
    assert parse(f"affinity:{tmp_path / 'costs.json'}") == wanted
    assert parse('affinity:{"costs": {"matrix": [[0, 1], [2, 0]], "most": 1}}') == Affinity([[0], [1]])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("costs = 3", "`matrix`"),
        ("costs = { matrix = [[0, 1], [2, 0]] }", "`most`"),
        ("costs = { most = 1 }", "`matrix`"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 1, class = [0, 1] }", "Did you mean 'classes'"),
        ("costs = { matrix = [[0, 1], [2]], most = 1 }", "rows of 2, 1"),
        ("costs = { matrix = [[0, 1]], most = 1 }", "rows of 2"),
        ("costs = { matrix = [[0]], most = 1 }", "rows of 1"),
        ("costs = { matrix = [], most = 1 }", "square"),
        ("costs = { matrix = [1, 2], most = 1 }", "square"),
        ('costs = { matrix = "x", most = 1 }', "square"),
        ("costs = { matrix = [[0, -1], [2, 0]], most = 1 }", "-1 in row 0, column 1"),
        ("costs = { matrix = [[0, 1], [nan, 0]], most = 1 }", "nan in row 1, column 0"),
        ("costs = { matrix = [[0, true], [2, 0]], most = 1 }", "True in row 0"),
        ('costs = { matrix = [[0, "1"], [2, 0]], most = 1 }', "'1' in row 0"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = nan }", "`most`"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = -1 }", "`most`"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = true }", "`most`"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 2 }", "promise nothing"),
        ("costs = { matrix = [[0, 1], [inf, 0]], most = inf }", "promise nothing"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 1, classes = ['a'] }", "2 rows"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 1, classes = ['a', 'a'] }", "'a' again"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 1, classes = ['a', 1] }", "both"),
        ("costs = { matrix = [[0, 1], [2, 0]], most = 1, classes = 'ab' }", "a collection of classes"),
        ("sets = [[0, 1]]\ncosts = { matrix = [[0, 1], [2, 0]], most = 1 }", "`costs` alone"),
        ("everyone_with = [0]\ncosts = { matrix = [[0, 1], [2, 0]], most = 1 }", "also everyone_with"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, message):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ArgumentError, match="Expected") as error:
        Affinity.from_file(tmp_path / "a.toml")
    assert message in str(error.value)


def test_many_classes_and_many_sets():
    cheap = torch.zeros(300, 300)
    cheap[0, 1:] = 1.0  # one set of 299 classes: a search without a pivot would visit 2^299 groups
    assert [len(one) for one in Affinity.from_costs(cheap, most=0).sets] == [1, 299]
    costs = [[float(one // 3 == other // 3) for one in range(90)] for other in range(90)]  # 3^30 largest groups
    with pytest.raises(ArgumentError, match="100,000 steps"):
        Affinity.from_costs(costs, most=0)
    assert merging.MOST_VISITS == 100_000


@given(pairs=st.frozensets(st.sampled_from(list(combinations(range(7), 2)))))
def test_sets_are_the_largest_groups(pairs):
    groups = [
        set(one)
        for size in range(2, 8)
        for one in combinations(range(7), size)
        if all(pair in pairs for pair in combinations(one, 2))
    ]
    largest = [tuple(sorted(one)) for one in groups if not any(one < other for other in groups)]
    assert sets_of(pairs) == sorted(largest)


def test_a_recipe_with_costs_is_trained_and_loaded(tmp_path):
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1, 2], 20)
    points = rng.random((2, 60, 2), dtype=np.float32) + labels[:, None].astype(np.float32)
    recipe = '[data]\nsource = "points.npz"\n' + TABLE.replace("[costs]", "[guarantee.costs]")
    (tmp_path / "recipe.toml").write_text('epsilon = 0.01\nepochs = 20\nbatch = 6\nmodel = "mlp-2x32"\n' + recipe)
    arrays = {"x_train": points[0], "y_train": labels, "x_test": points[1], "y_test": labels}
    np.savez(tmp_path / "points.npz", **arrays, class_names=DIAGNOSES)
    written = Recipe.read(tmp_path / "recipe.toml")
    assert written.guarantee == str(Affinity([["benign", "unclear"], ["malignant", "unclear"]]))
    net = safeset.train(written, out=tmp_path / "run", progress=False)
    assert net.guarantee == Affinity([[0, 1], [1, 2]])
    stored = Recipe.read(tmp_path / "run" / "recipe.toml")
    assert parse(stored.guarantee).bind(DIAGNOSES) == net.guarantee
    assert safeset.load(tmp_path / "run").guarantee == net.guarantee
