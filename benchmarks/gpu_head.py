"""Steps of the paper's network on a GPU with the loss of the head in one pass, and in many small kernels.

    PYTHONPATH=src python benchmarks/gpu_head.py    # writes results/benchmarks/gpu-head.json, prints it

All take turns in one process; "plain, in blocks" is what a step costs without a guarantee.
"""

from typing import Any
from unittest.mock import patch

from torch import nn

from common import commit, save
from gpu import CUDA, KINDS, engine, milliseconds, spent
from safeset import create_model
from safeset.system.provenance import provenance

SHAPE = (3, 32, 32)


def network() -> nn.Sequential:
    """The paper's of CIFAR-100."""
    return create_model("cnn-2c2f", input_shape=SHAPE, classes=100)


def main() -> None:
    """Measure, print and save."""
    one_pass = [engine(kind, network=network, shape=SHAPE) for kind in KINDS]
    with patch("safeset.training.step.one_pass", lambda *_: None):
        many = [engine(kind, network=network, shape=SHAPE) for kind in KINDS]
    taken = milliseconds([*one_pass, *many])
    halves = {"one pass": taken[: len(KINDS)], "many": taken[len(KINDS) :]}
    place = list(KINDS).index("plain, in blocks")
    rows: dict[str, Any] = {}
    for number, kind in enumerate(KINDS):
        rows[kind] = {
            way: {"ms": times[number], "x_plain": round(times[number] / times[place], 3)}
            for way, times in halves.items()
        }
        print(kind, rows[kind], flush=True)
    kernels = {way: spent(made[list(KINDS).index("rt5")]) for way, made in (("one pass", one_pass), ("many", many))}
    about = {"command": "PYTHONPATH=src python benchmarks/gpu_head.py", "commit": commit(), **provenance(CUDA)}
    save("benchmarks/gpu-head.json", {**about, "steps": rows, "rt5": kernels})


if __name__ == "__main__":
    main()
