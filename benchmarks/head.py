"""The certified head against a plain head and against gloro: time and memory of a step, and the cost of certifying.

All libraries are measured in one run: each head lives in a process of its own, and the processes take steps in turn.

    python benchmarks/head.py --gloro .venv-gloro/bin/python    # writes results/benchmarks/head.json
"""

import statistics
import time
from typing import Any

import torch

from common import commit, machine, save
from safeset import HeadConstants, RelaxedTopK, certify_logits
from safeset.certificates.margins import METHODS
from stepper import Stepper, asked

BATCH, FEATURES, THREADS = 256, 256, 2


def heads(gloro: bool) -> list[dict[str, Any]]:
    """What is measured."""
    described = []
    for classes in (10, 100, 1000, 21841):
        groups = [list(range(start, min(start + 5, classes))) for start in range(0, classes, 5)]
        kinds: list[tuple[str, int, list[list[int]]]] = [("plain", 0, []), ("standard", 1, []), ("rt5", 5, [])]
        kinds += [("rt10", 10, [])] if classes > 10 else []
        kinds += [(f"affinity {len(groups)} × 5", 0, groups)]
        for library in ("safeset", "gloro") if gloro and classes <= 1000 else ("safeset",):
            for name, k, sets in kinds:
                described.append({"library": library, "classes": classes, "head": name, "k": k, "sets": sets})
    return described


def stepper(python: str, head: dict[str, Any], *, backward: bool, memory: bool = False) -> Stepper:
    """A process with a head."""
    description = {**head, "batch": BATCH, "features": FEATURES, "threads": THREADS}
    return Stepper(python, {**description, "backward": backward, "memory": memory})


def measure_heads(pythons: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Forward, and forward with backward, of every head; ours, gloro's and our plain head take steps in turn."""
    rows = heads("gloro" in pythons)
    for classes, name in dict.fromkeys((row["classes"], row["head"]) for row in rows):
        group = [row for row in rows if (row["classes"], row["head"]) == (classes, name)]
        plain = next(row for row in rows if (row["classes"], row["head"]) == (classes, "plain"))
        for direction in ("forward", "both"):
            backward = direction == "both"
            steppers = [stepper(pythons[row["library"]], row, backward=backward) for row in (*group, plain)]
            times = [[each.step()[0] for each in steppers] for _ in range(rounds)]
            medians = [round(1e3 * statistics.median(taken), 3) for taken in zip(*times, strict=True)]
            for row, milliseconds in zip(group, medians, strict=False):
                row[f"{direction}_ms"] = milliseconds
                row[f"{direction}_plain_ms"] = medians[-1]
            for each in steppers:
                each.stop()
            for row in group:
                row[f"{direction}_mb"] = memory(pythons[row["library"]], row, backward=backward)
        for row in group:
            numbers = {key: value for key, value in row.items() if key.endswith(("_ms", "_mb"))}
            print(row["library"], classes, name, numbers, flush=True)
    return [{**row, "sets": len(row["sets"])} for row in rows]


def memory(python: str, head: dict[str, Any], *, backward: bool) -> float:
    """Megabytes that a step adds at its peak, in a fresh process."""
    process = stepper(python, head, backward=backward, memory=True)
    process.stop()
    return round(float(process.first), 1)


def measure_methods(rounds: int) -> list[dict[str, Any]]:
    """Microseconds for each point of `certify_logits`, all of it: checks, ranking, constants, radii."""
    torch.set_num_threads(THREADS)
    torch.manual_seed(0)
    rows = []
    for classes, k, batch in ((10, 5, 256), (100, 5, 256), (1000, 5, 256), (1000, 10, 256), (21841, 10, 16)):
        logits = torch.randn(batch, FEATURES) @ (weight := torch.randn(classes, FEATURES) / FEATURES**0.5).T
        head = HeadConstants(weight)
        row: dict[str, Any] = {"classes": classes, "k": k, "batch": batch}
        if classes <= 1000:
            matrix = head.checked(classes, torch.device("cpu")).upper(torch.arange(classes))
            row["floating_matrix"] = _microseconds(logits, matrix, k, "floating", rounds)
        for method in METHODS:
            row[method] = _microseconds(logits, head, k, method, rounds if classes <= 1000 else 2)
        rows.append(row)
        print(row, flush=True)
    return rows


def _microseconds(
    logits: torch.Tensor, lipschitz: torch.Tensor | HeadConstants, k: int, method: str, rounds: int
) -> float:
    taken = []
    for _ in range(rounds + 1):
        started = time.perf_counter()
        certify_logits(logits, lipschitz, 0.1, RelaxedTopK(k), method=method)
        taken.append(time.perf_counter() - started)
    return round(1e6 * statistics.median(taken[1:]) / len(logits), 2)


def main() -> None:
    """Measure and save."""
    pythons, rounds = asked(__doc__, 15)
    started = time.perf_counter()
    result = {
        "command": "make bench",
        "batch": BATCH,
        "features": FEATURES,
        "rounds": rounds,
        "dtype": "float32 (steps), float64 (certification)",
        "device": "cpu",
        "commit": commit(),
        "machine": machine() | {"threads": THREADS},
        "heads": measure_heads(pythons, rounds),
        "methods": measure_methods(rounds),
        "seconds": round(time.perf_counter() - started, 1),
    }
    save("benchmarks/head.json", result)


if __name__ == "__main__":
    main()
