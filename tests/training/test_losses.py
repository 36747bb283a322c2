import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from safeset import ArgumentError
from safeset.losses import cross_entropy, trades
from safeset.recipes.schedules import Schedule


def slow_trades(instrumented, labels, weight):
    """The definition, in float64: cross-entropy of f, and the divergence from (softmax f, 0) to softmax g."""
    total = 0.0
    for row, label in zip(instrumented.double().tolist(), labels.tolist(), strict=True):
        f = row[:-1]
        top = max(row)
        z_f, z_g = sum(math.exp(v - max(f)) for v in f), sum(math.exp(v - top) for v in row)
        log_p = [v - max(f) - math.log(z_f) for v in f]
        log_q = [v - top - math.log(z_g) for v in f]
        divergence = sum(math.exp(p) * (p - q) for p, q in zip(log_p, log_q, strict=True))
        total += -log_p[label] + weight * divergence
    return total / len(instrumented)


LOGITS = st.lists(st.lists(st.floats(-5, 5), min_size=4, max_size=4), min_size=1, max_size=4)


@given(LOGITS, st.floats(0, 10))
def test_trades_is_its_definition(rows, weight):
    instrumented, labels = torch.tensor(rows, dtype=torch.float64), torch.zeros(len(rows), dtype=torch.long)
    assert trades(instrumented, labels, weight).item() == pytest.approx(
        slow_trades(instrumented, labels, weight), rel=1e-9, abs=1e-12
    )
    exact = cross_entropy(instrumented, labels).item()
    assert cross_entropy(instrumented.float(), labels).item() == pytest.approx(exact, rel=1e-5, abs=1e-6)
    assert trades(instrumented.float(), labels, weight).item() == pytest.approx(
        trades(instrumented, labels, weight).item(), rel=1e-5, abs=1e-5
    )


@pytest.mark.parametrize("bottom", [-80.0, -30.0, 20.0, 60.0, 1000.0])
def test_gradients_survive_large_gaps(bottom):
    """In float32 the difference of two log-sum-exps would be 0, and so would its gradient."""
    instrumented = torch.tensor([[1.0, 0.0, bottom]], requires_grad=True)
    trades(instrumented, torch.tensor([0]), 1.0).backward()
    exact = torch.sigmoid(torch.tensor(bottom, dtype=torch.float64) - math.log(math.e + 1)).item()
    assert instrumented.grad[0, 2].item() == pytest.approx(exact, rel=1e-5)
    assert instrumented.grad.isfinite().all()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1e-3 -> 1e-6 after half", {0: 1e-3, 50: 1e-3, 100: 1e-6, 75: 10**-4.5}),
        ("0.01 -> 1.2 log half", {0: 0.01, 50: 1.2, 100: 1.2, 25: math.log((math.exp(0.01) + math.exp(1.2)) / 2)}),
        ("1.0 -> 10.0 half", {0: 1.0, 25: 5.5, 50: 10.0, 100: 10.0}),
        ("1.0 → 1.2", {0: 1.0, 50: 1.1, 100: 1.2}),
        ("0.5", {0: 0.5, 100: 0.5}),
        ("0.01 -> 0.002 cosine", {0: 0.01, 50: 0.006, 100: 0.002}),
    ],
)
def test_schedules_are_those_of_the_paper(text, values):
    schedule = Schedule.parse(text)
    for epoch, value in values.items():
        assert schedule(epoch, 101) == pytest.approx(value, rel=1e-12)
    assert Schedule.parse(str(schedule)) == schedule
    low, high = sorted((schedule.start, schedule.end))
    assert all(low <= schedule(epoch, 200) <= high for epoch in range(200))
    assert schedule(0, 1) == schedule.start


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 -> 2 afterhalf", "Did you mean 'after half'"),
        ("fast", "a schedule such as"),
        ("1 -> ", "a schedule such as"),
        ("-1 -> 1", "≥ 0"),
        ("0 -> 1 after half", "above 0"),
        (True, "a schedule such as"),
    ],
)
def test_mistakes_in_schedules_are_named(text, message):
    with pytest.raises(ArgumentError, match=message):
        Schedule.parse(text)


def test_warm_up_and_cosine_change_with_each_step():
    schedule = Schedule.parse("5e-3 -> 0 cosine, warm-up 0.1")
    assert Schedule.parse(str(schedule)) == schedule
    values = [each for epoch in range(10) for each in schedule.in_epoch(epoch, 10, 20)]
    assert len(set(values)) > 190
    for step, value in enumerate(values):  # the definition
        done = step / 200
        rising, falling = done / 0.1, (1 + math.cos(math.pi * max(0, done - 0.1) / 0.9)) / 2
        assert value == pytest.approx(5e-3 * min(rising, falling), rel=1e-12)
    constant = Schedule.parse("1e-3, warm-up 0.5")
    assert str(constant) == "0.001, warm-up 0.5"
    assert constant.in_epoch(0, 2, 2) + constant.in_epoch(1, 2, 2) == [0.0, 5e-4, 1e-3, 1e-3]
    paper = Schedule.parse("1e-3 -> 1e-6 after half")
    assert paper.in_epoch(7, 9, 3) == [paper(7, 9)] * 3
    assert paper.by_step(8, 9, 3)[-1] < paper.by_step(8, 9, 3)[0]


def test_a_number_is_a_constant():
    assert Schedule.parse(0.25) == Schedule(0.25, 0.25)
    assert str(Schedule.parse(0.25)) == "0.25"
