"""The tables of docs/performance.md about GPUs, from results/benchmarks."""

from typing import Any

from common import markdown
from safeset.certificates.margins import METHODS


def gpu_steps(result: dict[str, Any]) -> str:
    """A step of each kind on a GPU."""
    least = f"{result['floor']['floor_ms']:.2f}"
    names = ("captured_ms", "x_plain", "x_blocks")
    rows = [
        [row["step"], *(f"{row[name]:.2f}" for name in names), f"{row['eager_ms']:.1f}", least]
        for row in result["steps"]
    ]
    return markdown(["step", "captured, ms", "× plain", "× plain, in blocks", "eager, ms", "floor, ms"], rows)


def gpu_head(result: dict[str, Any]) -> str:
    """Steps of the paper's network, the loss of the head in one pass and in many."""
    rows = [
        [name, *(f"{each['ms']:.3f} ({each['x_plain']:.2f})" for each in (row["one pass"], row["many"]))]
        for name, row in result["steps"].items()
    ]
    return markdown(["step", "in one pass, ms (× plain, in blocks)", "in many"], rows)


def gpu_shift(result: dict[str, Any]) -> str:
    """Steps of networks of rotations and shifts beside plain ones."""
    rows: dict[str, list[str]] = {}
    for row in result["steps"]:
        rows.setdefault(row["network"], []).append(f"{row['ms']:.2f} ({row['x_plain']:.2f})")
    header = ["channels × layers", *dict.fromkeys(row["step"] for row in result["steps"])]
    return markdown(header, [[name, *cells] for name, cells in rows.items()])


def gpu_parts(result: dict[str, Any]) -> str:
    """Where the time of a captured step goes."""
    names = list(next(iter(result["parts"].values())))
    rows = [
        [step, str(parts["kernels"]), *(f"{parts[name]:.2f}" for name in names[1:])]
        for step, parts in result["parts"].items()
    ]
    return markdown(["step", *names], rows)


def gpu_seeds(result: dict[str, Any]) -> str:
    """Several seeds at once."""
    alone = result["seeds"][0]["rt5_ms"]
    rows = []
    for row in result["seeds"]:
        gain = f"{alone * row['seeds'] / row['rt5_ms']:.2f} ×"
        times = [f"{row[name]:.2f}" for name in ("plain_ms", "rt5_ms")]
        rows.append([str(row["seeds"]), *times, f"{row['rt5_ms'] / row['seeds']:.2f}", gain, f"{row['floor_ms']:.2f}"])
    return markdown(["seeds", "plain, in blocks, ms", "RT5, ms", "RT5, for each seed", "gain", "floor, ms"], rows)


def gpu_growth(result: dict[str, Any]) -> str:
    """How a captured step grows."""
    rows = [
        [row["changed"], f"{row['value']:,}", *(f"{row[name]:.2f}" for name in ("plain_ms", "rtk_ms", "floor_ms"))]
        for row in result["growth"]
    ]
    return markdown(["changed", "to", "plain, in blocks, ms", "RTK, ms", "floor, ms"], rows)


def gpu_certified(result: dict[str, Any]) -> str:
    """Points certified in a second on a GPU."""
    names = ["plain", *METHODS, "floor"]
    rows = [
        [f"{row['classes']:,}", *(f"{row[name]:,}" for name in names), f"{row['proof_seconds']:.1f}"]
        for row in result["certified"]
    ]
    header = ["classes", "plain forward pass", *METHODS, "by its operations alone", "proof, s"]
    return markdown(header, rows)


TABLES = [
    ("docs/performance.md", "gpu-steps", "benchmarks/gpu.json", gpu_steps),
    ("docs/performance.md", "gpu-head", "benchmarks/gpu-head.json", gpu_head),
    ("docs/performance.md", "gpu-shift", "benchmarks/gpu-shift.json", gpu_shift),
    ("docs/performance.md", "gpu-parts", "benchmarks/gpu.json", gpu_parts),
    ("docs/performance.md", "gpu-seeds", "benchmarks/gpu.json", gpu_seeds),
    ("docs/performance.md", "gpu-growth", "benchmarks/gpu.json", gpu_growth),
    ("docs/performance.md", "gpu-certified", "benchmarks/gpu.json", gpu_certified),
]
