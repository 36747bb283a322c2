"""EMMA and its relaxed forms: the definitions as loops, finite gradients, and what a guarantee lets stay together."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from helpers.reference import eligible_ks
from helpers.strategies import guarantees
from safeset import Affinity, ArgumentError, HeadConstants, RelaxedTopK, Standard, TopK
from safeset.losses import RELAXATIONS, annealed_cross_entropy, cross_entropy, emma, pair_table, trades
from safeset.losses.relaxations import Batch, _best_window


def drawn(seed, classes, batch=3, features=4):
    make = torch.Generator().manual_seed(seed)
    rows = torch.randn(classes, features, generator=make, dtype=torch.float64)
    logits = 2 * torch.randn(batch, classes, generator=make, dtype=torch.float64)
    labels = torch.randint(classes, (batch,), generator=make)
    target = torch.rand(batch, classes, generator=make, dtype=torch.float64)
    return HeadConstants(rows, 1.3), logits, labels, target / target.sum(1, keepdim=True)


def slow_entropy(logits, target):
    top = max(logits)
    total = sum(math.exp(each - top) for each in logits)
    return -sum(t * (each - top - math.log(total)) for each, t in zip(logits, target, strict=True) if t)


def slow_margin(logits, rows, scale, y, j, epsilon, floor):
    reach = epsilon * scale * math.dist(rows[y], rows[j])
    return min(1.0, max(floor, (logits[y] - logits[j]) / reach)) * reach


def slow_companions(kind, guarantee, logits, y):
    """By hand: of a relaxed top-k the best rivals; of affinity sets one rival after another that fits."""
    order = sorted((j for j in range(len(logits)) if j != y), key=lambda j: -logits[j])
    if not isinstance(guarantee, Affinity):
        most = max(eligible_ks(kind, [y, *order]))
        return {y, *order[: most - 1]}
    sets = [set(one) for one in guarantee.sets]
    chosen = {y}
    for j in order:
        if any({*chosen, j} <= {*one, *guarantee.everyone_with} for one in sets):
            chosen.add(j)
    return chosen


@given(data=st.data(), seed=st.integers(0, 10**6), classes=st.integers(2, 6))
def test_companions_are_what_may_stay_together(data, seed, classes):
    guarantee, kind = data.draw(guarantees(classes))
    _, logits, labels, _ = drawn(seed, classes)
    found = guarantee.companions(labels, logits)
    for row, y, got in zip(logits.tolist(), labels.tolist(), found, strict=True):
        chosen = set(got.nonzero()[:, 0].tolist())
        assert y in chosen
        assert len(chosen) <= guarantee.largest_k(classes)
        # Whatever their order, these classes as the best ones are an eligible answer.
        rest = [j for j in range(classes) if j not in chosen]
        assert len(chosen) in eligible_ks(kind, [*chosen, *rest]) or (len(chosen) == 1)
        if not isinstance(guarantee, Affinity) or guarantee.sets:
            assert chosen == slow_companions(kind, guarantee, row, y)


def test_affinity_keeps_out_what_lies_between():
    logits = torch.tensor([[5.0, 4.0, 3.0, 2.0, 1.0]])
    label = torch.tensor([0])
    assert Affinity([[0, 2, 4], [1, 3]]).companions(label, logits).tolist() == [[True, False, True, False, True]]
    # In several sets: the best rival decides which.
    assert Affinity([[0, 4], [0, 3]]).companions(label, logits).tolist() == [[True, False, False, True, False]]
    assert RelaxedTopK(3).companions(torch.tensor([4]), logits).tolist() == [[True, True, False, False, True]]
    assert TopK(2).companions(label, logits).tolist() == [[True, True, False, False, False]]
    assert Standard().companions(label, logits).sum() == 1


@given(st.integers(0, 10**6), st.integers(2, 6), st.sampled_from([0.01, 0.3]), st.sampled_from([1.0, 3.5]))
def test_emma_is_its_definition(seed, classes, floor, temperature):
    head, logits, labels, target = drawn(seed, classes)
    rows, total = head.rows.tolist(), 0.0
    for f, y, wanted in zip(logits.tolist(), labels.tolist(), target.tolist(), strict=True):
        shifted = [
            temperature * (each + (slow_margin(f, rows, 1.3, y, j, 0.4, floor) if j != y else 0.0))
            for j, each in enumerate(f)
        ]
        total += slow_entropy(shifted, wanted)
    found = emma(logits, head, labels, 0.4, Standard(), target=target, temperature=temperature, floor=floor)
    assert found.item() == pytest.approx(total / len(logits), rel=1e-9)


@given(st.integers(0, 10**6), st.sampled_from([RelaxedTopK(2), RelaxedTopK(3), Affinity([[0, 1, 2], [2, 3]])]))
def test_relaxed_forms_are_their_definitions(seed, guarantee):
    head, logits, labels, target = drawn(seed, 5)
    rows = head.rows.tolist()
    companions = guarantee.companions(labels, logits).tolist()
    drop = membership = whole = 0.0
    for f, y, wanted, kept in zip(logits.tolist(), labels.tolist(), target.tolist(), companions, strict=True):
        margins = [slow_margin(f, rows, 1.3, y, j, 0.4, 0.01) if j != y else 0.0 for j in range(5)]
        shifted = [each + margin for each, margin in zip(f, margins, strict=True)]
        whole += slow_entropy(shifted, wanted)
        drop += slow_entropy([f[j] if kept[j] else shifted[j] for j in range(5)], wanted)
        compared = [j for j in range(5) if j == y or not kept[j]]
        share = sum(wanted[j] for j in compared)
        membership += slow_entropy([shifted[j] for j in compared], [wanted[j] / share for j in compared])
    given_ = (logits, head, labels, 0.4, guarantee)
    for name, value in (("drop", drop), ("membership", membership)):
        assert emma(*given_, target=target, relaxation=name).item() == pytest.approx(value / 3, rel=1e-9)
        half = emma(*given_, target=target, relaxation=name, relaxed=0.5).item()
        assert half == pytest.approx((value + whole) / 6, rel=1e-9)


@given(st.integers(0, 10**6))
def test_nothing_is_relaxed_where_nothing_may_stay_together(seed):
    head, logits, labels, target = drawn(seed, 5)
    whole = emma(logits, head, labels, 0.4, Standard(), target=target)
    for name in ("drop", "membership"):
        found = emma(logits, head, labels, 0.4, Standard(), target=target, relaxation=name)
        torch.testing.assert_close(found, whole)


@given(data=st.data(), seed=st.integers(0, 10**6), classes=st.integers(3, 6))
def test_windows_hold_the_label_and_are_eligible_throughout(data, seed, classes):
    guarantee, kind = data.draw(guarantees(classes))
    head, logits, labels, target = drawn(seed, classes)
    core, answer = _best_window(Batch(logits, pair_table(head), labels, target, 0.4, guarantee, 0.01))
    assert core.gather(1, labels[:, None]).all()
    assert (core <= answer).all()
    for row, y, first, last in zip(logits.tolist(), labels.tolist(), core, answer, strict=True):
        order = [y, *sorted((j for j in range(classes) if j != y), key=lambda j: -row[j])]
        a, b = int(first.sum()), int(last.sum())
        assert set(first.nonzero()[:, 0].tolist()) == set(order[:a])
        assert set(last.nonzero()[:, 0].tolist()) == set(order[:b])
        assert set(range(a, b + 1)) <= set(eligible_ks(kind, order))


def test_the_best_window_is_that_of_the_certificate():
    """Of points that are right, no window is certified further than the one that the loss takes."""
    from safeset import certify_logits

    head, logits, _, target = drawn(3, 8, batch=40, features=12)
    labels, guarantee = logits.argmax(1), RelaxedTopK(4)
    core, answer = _best_window(Batch(logits, pair_table(head), labels, target, 0.4, guarantee, 0.01))
    windows = certify_logits(logits, head, 0.0, guarantee, method="joint").windows
    a, b = core.sum(1) - 1, answer.sum(1) - 1
    found = windows[torch.arange(40), a, b]
    torch.testing.assert_close(found, windows.flatten(1).amax(1), rtol=1e-9, atol=0)


@pytest.mark.parametrize("relaxation", RELAXATIONS)
@pytest.mark.parametrize("guarantee", [Standard(), RelaxedTopK(2), Affinity([[0, 1], [1, 2]])], ids=str)
def test_gradients_are_finite_everywhere(relaxation, guarantee):
    """Equal rows, equal logits, huge logits, labels that the teacher gives nothing."""
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0 + 1e-7]], requires_grad=True)
    logits = torch.tensor([[0.0] * 4, [60.0, -60.0, 0.0, 0.0], [-1e4, 1e4, 0.0, 1.0]], requires_grad=True)
    target = torch.tensor([[0.25] * 4, [0.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 0.0]])
    for anneal in (0.0, 5.0):
        loss = emma(
            logits, HeadConstants(rows, 1.0), torch.tensor([0, 1, 2]), 0.3, guarantee, target=target,
            temperature=3.0, relaxation=relaxation, anneal=anneal, offset=anneal / 2,
        )  # fmt: skip
        assert loss.isfinite()
        for gradient in torch.autograd.grad(loss, (logits, rows)):
            assert gradient.isfinite().all()


@given(st.integers(0, 10**6), st.sampled_from([1.0, 5.0]), st.sampled_from([0.0, 2.0]))
def test_annealing_is_the_published_formula(seed, power, offset):
    _, logits, labels, _ = drawn(seed, 4)
    hot = torch.nn.functional.one_hot(labels, 4).double()
    p = ((logits - offset * hot) / 0.75).softmax(1).gather(1, labels[:, None])
    expected = (0.75 * (1 - p) ** power * -p.log()).mean()
    found = annealed_cross_entropy(logits, hot, power=power, offset=offset, temperature=0.75)
    torch.testing.assert_close(found, expected)


@given(st.integers(0, 10**6))
def test_soft_labels_that_are_hard_cost_the_same(seed):
    _, logits, labels, _ = drawn(seed, 5)
    hot = torch.nn.functional.one_hot(labels % 4, 4).double()
    torch.testing.assert_close(cross_entropy(logits, hot), cross_entropy(logits, labels % 4))
    torch.testing.assert_close(trades(logits, hot, 0.7), trades(logits, labels % 4, 0.7))


def test_pairs_are_distances():
    head, *_ = drawn(0, 6)
    rows = head.rows.numpy()
    table = pair_table(head)
    for j, i in combinations(range(6), 2):
        assert table[j, i].item() == pytest.approx(1.3 * np.linalg.norm(rows[j] - rows[i]), rel=1e-9)
    assert not table.diagonal().any()


def test_an_unknown_relaxation_is_named():
    head, logits, labels, _ = drawn(0, 4)
    with pytest.raises(ArgumentError, match="Did you mean 'drop'"):
        emma(logits, head, labels, 0.1, Standard(), relaxation="dorp")
