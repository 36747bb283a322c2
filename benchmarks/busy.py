"""What small operations take while others use every core, beside what they take on an idle machine.

    python benchmarks/busy.py

`certify_logits` of 256 points from the rows of a head, `net.certify` of 64 points by a small network, and a training
step of the digits' network; each once as safeset does it, small operations on one thread, and once with all of torch's
threads. Busy is one process for each core that computes without pause. Idle and busy take turns, and every number is
the median over turns of the median of a turn. Writes results/benchmarks/busy.json.
"""

import contextlib
import multiprocessing
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from unittest.mock import patch

import torch
from torch import nn

from common import commit, machine, save
from safeset import CertifiedNet, Recipe, certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.data.embedded import digits
from safeset.runs.load import build_net
from safeset.training.engine import Engine
from safeset.training.state import State

TURNS, SECONDS = 5, 1.5
USERS = (
    "safeset.certificates.certify_logits",
    "safeset.nets.net",
    "safeset.proofs.prove",
    "safeset.nets.points",
    "safeset.training.engine",
    "safeset.training.step",
)


def spin() -> None:
    """Take a core."""
    while True:
        pass


@contextlib.contextmanager
def taken(cores: int) -> Iterator[None]:
    """While it is active, others use so many cores."""
    others = [multiprocessing.get_context("fork").Process(target=spin, daemon=True) for _ in range(cores)]
    for each in others:
        each.start()
    try:
        yield
    finally:
        for each in others:
            each.kill()


@contextlib.contextmanager
def all_threads() -> Iterator[None]:
    """While it is active, small operations use all of torch's threads, as they would by themselves."""
    with contextlib.ExitStack() as stack:
        for name in USERS:
            with contextlib.suppress(AttributeError):
                stack.enter_context(patch(f"{name}.one_thread", lambda small=True: contextlib.nullcontext()))
        yield


def turn(work: Callable[[], object]) -> float:
    """Median seconds of a call."""
    work()
    end, found = time.perf_counter() + SECONDS, []
    while time.perf_counter() < end:
        started = time.perf_counter()
        work()
        found.append(time.perf_counter() - started)
    return statistics.median(found)


def works() -> dict[str, tuple[Callable[[], object], int]]:
    """What is measured, and for how many points."""
    torch.manual_seed(0)
    found: dict[str, tuple[Callable[[], object], int]] = {}
    for classes in (10, 100):
        head = HeadConstants(torch.randn(classes, 256, dtype=torch.float64), 1.0)
        logits = torch.randn(256, classes, dtype=torch.float64)
        work = partial(certify_logits, logits, head, 0.01, "rt5")
        found[f"certify_logits, {classes} classes"] = work, 256
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="rt3", epsilon=0.1)
    x = torch.rand(64, 1, 8, 8)
    found["net.certify, a network of 10,000 weights"] = (lambda: net.certify(x)), 64
    data = digits()
    table = {"data": {"source": "digits"}, "guarantee": "rt3", "epsilon": 0.3, "batch": 64, "epochs": 1000}
    recipe = Recipe.from_table(table).fit(data)
    own = build_net(recipe)
    engine = Engine(own, recipe, data.train, State.start([own], recipe, [0]), [0], captured=False)

    def step() -> None:
        engine._place.zero_()  # the same points again: an epoch ends
        engine.step()

    engine.start(0)
    found["a training step, digits, batch 64"] = step, 64
    return found


def main() -> None:
    """Measure and save."""
    cores = torch.get_num_threads()
    rows = []
    for what, (work, points) in works().items():
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(TURNS):
            for load in ("idle", "busy"):
                with taken(cores if load == "busy" else 0):
                    times.setdefault(("safeset", load), []).append(turn(work))
                    with all_threads():
                        times.setdefault(("all threads", load), []).append(turn(work))
        medians = {key: 1e6 * statistics.median(found) / points for key, found in times.items()}
        row = {"what": what} | {f"{who}, {load}": round(each, 2) for (who, load), each in medians.items()}
        rows.append(row)
        print(row, flush=True)
    save(
        "benchmarks/busy.json",
        {"command": "python benchmarks/busy.py", "commit": commit(), "machine": machine(), "rows": rows},
    )


if __name__ == "__main__":
    main()
