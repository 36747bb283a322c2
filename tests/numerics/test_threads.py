"""Small operations on one thread: set only where it is meant, and always restored."""

import threading

import pytest
import torch

from safeset import CertifiedNet, HeadConstants, certify_logits
from safeset.certificates import certify_logits as certify
from safeset.numerics import threads
from safeset.numerics.threads import FEW_LOGITS, few_logits, one_thread
from safeset.training.engine import Engine


@pytest.fixture(autouse=True)
def two():
    """As on a machine of two cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def in_a_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(params=["by the runtime", "by torch"])
def way(request, monkeypatch):
    """Each of the ways to it; the first is there wherever torch has OpenMP and MKL as on Linux."""
    if request.param == "by torch":
        monkeypatch.setattr(threads, "_runtime", lambda: None)
    elif threads._runtime() is None:
        pytest.skip("torch's OpenMP or MKL cannot be found")


def elsewhere(*steps):
    """A thread that does the next step each time it is called."""
    go, done, found = threading.Semaphore(0), threading.Semaphore(0), []

    def work():
        for step in steps:
            go.acquire()
            found.append(step())
            done.release()

    threading.Thread(target=work, daemon=True).start()

    def following():
        go.release()
        assert done.acquire(timeout=60)
        return found[-1]

    return following


def section():
    with one_thread():
        inside = torch.get_num_threads()
    return inside, torch.get_num_threads()


def test_what_a_user_sets_in_a_thread_meanwhile_stays(way):
    step = elsewhere(section, lambda: torch.set_num_threads(1), section)
    assert step() == (1, 2)
    with one_thread():
        step()
        assert step() == (1, 1)
    assert torch.get_num_threads() == 2


def test_new_threads_begin_with_what_the_user_has_set():
    if threads._runtime() is None:
        pytest.skip("torch's OpenMP or MKL cannot be found")
    with one_thread():
        assert torch.get_num_threads() == 1
        assert torch.__config__.parallel_info().count("threads() : 1\n") >= 3  # OpenMP's, torch's and MKL's
        assert in_a_thread(torch.get_num_threads) == 2  # a late thread, which keeps it
        assert in_a_thread(lambda: torch.set_num_threads(3)) is None
        assert in_a_thread(torch.get_num_threads) == 3
    assert torch.get_num_threads() == 2
    assert in_a_thread(torch.get_num_threads) == 3


def test_one_thread_inside_and_as_many_as_before_outside(way):
    with one_thread():
        assert torch.get_num_threads() == 1
        with one_thread(), one_thread(False):
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with one_thread(False):
        assert torch.get_num_threads() == 2
    with pytest.raises(KeyError), one_thread():
        raise KeyError
    assert torch.get_num_threads() == 2
    assert in_a_thread(torch.get_num_threads) == 2


def test_a_thread_that_begins_meanwhile_does_not_keep_the_one(way):
    def begun():
        with one_thread():
            inside = torch.get_num_threads()
        return inside, torch.get_num_threads()

    with one_thread():
        assert in_a_thread(begun) == (1, 2)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    assert in_a_thread(torch.get_num_threads) == 2


def test_many_threads_leave_everything_as_it_was(way):
    start, found = threading.Barrier(8), []

    def work():
        start.wait()
        for _ in range(200):
            with one_thread():
                inside = torch.get_num_threads()
            found.append((inside, torch.get_num_threads()))

    eight = [threading.Thread(target=work) for _ in range(8)]
    for thread in eight:
        thread.start()
    for thread in eight:
        thread.join()
    assert set(found) == {(1, 2)}
    assert torch.get_num_threads() == 2
    assert in_a_thread(torch.get_num_threads) == 2


@pytest.mark.parametrize(("points", "count"), [(256, 1), (FEW_LOGITS // 4 + 1, 2)])
def test_few_points_are_certified_by_one_thread_and_many_by_all(monkeypatch, points, count):
    seen = []
    radii = certify.window_radii

    def watched(*given, **options):
        seen.append(torch.get_num_threads())
        return radii(*given, **options)

    monkeypatch.setattr(certify, "window_radii", watched)
    head = HeadConstants(torch.eye(4))
    assert few_logits(torch.zeros(points, 4)) == (count == 1)
    certify_logits(torch.zeros(points, 4), head, 0.1, "rt2")
    net = CertifiedNet(torch.nn.Sequential(torch.nn.Linear(2, 4)), input_shape=(2,), guarantee="rt2", epsilon=0.1)
    net.certify(torch.zeros(points, 2))
    assert seen == [count, count]
    assert torch.get_num_threads() == 2


def test_the_step_of_a_small_network_is_taken_by_one_thread(monkeypatch):
    from safeset import train

    seen, step = set(), Engine._step

    def watched(engine):
        seen.add(torch.get_num_threads())
        step(engine)

    monkeypatch.setattr(Engine, "_step", watched)
    x, y = torch.rand(40, 3), torch.arange(40) % 2
    train({"epochs": 1, "guarantee": "standard", "model": "mlp-2x32"}, data=(x, y))
    assert seen == {1}
    assert torch.get_num_threads() == 2
