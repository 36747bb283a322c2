"""A training step and a prediction of the paper's CIFAR-100 network: plain and certified, ours and gloro's.

Every kind lives in a process of its own, and the processes take steps in turn, so that all share the machine's moods.
Ratios are medians over rounds of the ratio to the plain step of the same round and library, in CPU seconds.

    python benchmarks/step.py --gloro .venv-gloro/bin/python    # writes results/benchmarks/step.json
"""

import random
import statistics
import time
from typing import Any

from common import commit, machine, save
from stepper import Stepper, asked, median_with_interval

BATCH, CLASSES, THREADS = 256, 100, 2
GROUPS = [list(range(start, start + 5)) for start in range(0, CLASSES, 5)]
KINDS: list[tuple[str, int, list[list[int]]]] = [
    ("plain", 0, []),
    ("standard", 1, []),
    ("rt5", 5, []),
    ("affinity 20 × 5", 0, GROUPS),
]


def described(library: str, kind: str, k: int, sets: list[list[int]], **more: Any) -> dict[str, Any]:
    """What serve_steps.py is told."""
    base = {"library": library, "kind": kind, "k": k, "sets": sets, "classes": CLASSES, "batch": BATCH}
    return {**base, "threads": THREADS, "memory": False, **more}


def measured(pythons: dict[str, str], rows: list[dict[str, Any]], rounds: int) -> list[dict[str, Any]]:
    """Median seconds of each row, and its ratio to the plain row that it names, all interleaved."""
    steppers = [Stepper(pythons[row["library"]], row) for row in rows]
    times: list[list[tuple[float, float]]] = [[] for _ in rows]
    order = list(range(len(rows)))
    shuffle = random.Random(0)
    for _ in range(rounds):
        shuffle.shuffle(order)
        for place in order:
            times[place].append(steppers[place].step())
    for stepper in steppers:
        stepper.stop()
    results = []
    for row, taken in zip(rows, times, strict=True):
        base = times[row["against"]]
        cpu = [one[1] / other[1] for one, other in zip(taken, base, strict=True)]
        wall = [one[0] / other[0] for one, other in zip(taken, base, strict=True)]
        result = {name: row[name] for name in ("library", "kind", "dtype", "method") if row.get(name)}
        result["cpu_seconds"] = round(statistics.median(one[1] for one in taken), 5)
        result["wall_seconds"] = round(statistics.median(one[0] for one in taken), 5)
        result["cpu_ratio"], *result["cpu_interval"] = (round(value, 4) for value in median_with_interval(cpu))
        result["wall_ratio"], *result["wall_interval"] = (round(value, 4) for value in median_with_interval(wall))
        results.append(result)
        print(result, flush=True)
    return results


def main() -> None:
    """Measure and save."""
    pythons, rounds = asked(__doc__, 40)
    started = time.perf_counter()
    steps = [
        described(library, *kind, network="step", against=len(KINDS) * place)
        for place, library in enumerate(pythons)
        for kind in KINDS
    ]
    rt5: tuple[str, int, list[list[int]]] = ("rt5", 5, [])
    predictions = [
        described("safeset", "plain", 0, [], network="prediction", dtype="float64", method="", against=0),
        described("safeset", "plain", 0, [], network="prediction", dtype="float32", method="", against=0),
        *(
            described("safeset", *rt5, network="prediction", dtype="float64", method=method, against=0)
            for method in ("uniform", "floating", "joint")
        ),
    ]
    if "gloro" in pythons:
        place = len(predictions)
        predictions += [
            described("gloro", "plain", 0, [], network="prediction", dtype="float32", against=place),
            described("gloro", *rt5, network="prediction", dtype="float32", method="uniform", against=place),
        ]
    result = {
        "command": "make bench-step",
        "network": "cnn-2c2f, 3 × 32 × 32 pixels, 100 classes",
        "batch": BATCH,
        "power_steps": 2,
        "rounds": rounds,
        "interval": "95 %, of the median, distribution-free",
        "dtype": "float32 (steps), float64 (certification)",
        "device": "cpu",
        "commit": commit(),
        "machine": machine() | {"threads": THREADS},
        "steps": measured(pythons, steps, rounds),
        "predictions": measured(pythons, predictions, rounds),
        "seconds": round(time.perf_counter() - started, 1),
    }
    save("benchmarks/step.json", result)


if __name__ == "__main__":
    main()
