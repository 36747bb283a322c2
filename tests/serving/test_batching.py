"""One thread answers all: together what waits, alone what fails, and no more than a bound."""

import threading
from concurrent.futures import CancelledError

import pytest

from safeset.serving.batching import Batcher, BusyError, ClosedError


class Slow:
    """Work that goes on when it is told to, and remembers what was asked together."""

    def __init__(self):
        self.go, self.begun, self.batches = threading.Event(), threading.Event(), []

    def __call__(self, asked):
        self.begun.set()
        assert self.go.wait(30)
        self.batches.append(list(asked))
        if "bad" in asked:
            raise RuntimeError("bad")
        return [each.upper() for each in asked]


@pytest.fixture
def slow():
    return Slow()


def busy(slow, **options):
    """A batcher that works on something already."""
    batcher = Batcher(slow, **{"most": 4, "batch": 3} | options)
    first = batcher.submit("first", 1)
    assert slow.begun.wait(30)
    return batcher, first


def test_what_waits_is_answered_together_up_to_a_size(slow):
    batcher, first = busy(slow)
    others = [batcher.submit(name, 1) for name in "abcd"]
    assert batcher.waiting == 4
    slow.go.set()
    assert [each.result(30) for each in (first, *others)] == ["FIRST", "A", "B", "C", "D"]
    assert slow.batches == [["first"], ["a", "b", "c"], ["d"]]
    assert batcher.waiting == 0
    batcher.close()


def test_a_full_queue_refuses_and_takes_again_later(slow):
    batcher, _ = busy(slow)
    waiting = batcher.submit("a", 4)
    with pytest.raises(BusyError, match="4 points are waiting"):
        batcher.submit("b", 1)
    slow.go.set()
    assert waiting.result(30) == "A"
    assert batcher.submit("b", 1).result(30) == "B"
    batcher.close()


def test_who_leaves_is_not_answered_and_makes_room(slow):
    batcher, _ = busy(slow)
    left, stays = batcher.submit("a", 2), batcher.submit("b", 2)
    assert left.cancel()
    slow.go.set()
    assert stays.result(30) == "B"
    with pytest.raises(CancelledError):
        left.result(30)
    assert all("a" not in batch for batch in slow.batches)
    batcher.close()


def test_nobody_pays_for_the_failure_of_another(slow):
    batcher, _ = busy(slow)
    good, bad = batcher.submit("a", 1), batcher.submit("bad", 1)
    slow.go.set()
    assert good.result(30) == "A"
    with pytest.raises(RuntimeError, match="bad"):
        bad.result(30)
    assert batcher.submit("c", 1).result(30) == "C"
    batcher.close()


def test_closing_answers_what_was_taken_and_takes_nothing_more(slow):
    batcher, first = busy(slow)
    second = batcher.submit("a", 1)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    slow.go.set()
    closing.join(30)
    assert not closing.is_alive()
    assert [first.result(0), second.result(0)] == ["FIRST", "A"]
    with pytest.raises(ClosedError, match="stopping"):
        batcher.submit("b", 1)
