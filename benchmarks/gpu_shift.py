"""Steps of networks of rotations and shifts on a GPU: plain and certified, with and without a teacher.

    PYTHONPATH=src python benchmarks/gpu_shift.py    # writes results/benchmarks/gpu-shift.json, prints a table

A plain step is the same network by the same optimiser with cross-entropy alone, its layers in blocks as ours are. A
certified one has EMMA with half of it relaxed for RT5. Adam's plain step lets the matrices go where they like: it is
what a network without a proof would cost. All take turns in one process.
"""

import time
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from common import commit, save
from gpu import CUDA, engine, milliseconds, recipe, spent
from safeset import create_model
from safeset.recipes.library import assemble_recipe
from safeset.recipes.recipe import FittedRecipe
from safeset.recipes.sections import Loss, Optimiser, Teacher
from safeset.system.provenance import provenance
from safeset.training.teacher import ResNet9, Teachers

SHAPE, CLASSES = (3, 32, 32), 100
SIZES: dict[str, dict[str, Any]] = {"512 × 16": {"width": 512, "depth": 16}, "1024 × 12": {"width": 1024, "depth": 12}}
STEPS = ("plain, Adam", "plain", "certified", "certified, a teacher")


def stated(kind: str) -> FittedRecipe:
    """The recipe of a step: that of cifar100/shift-rt5, as far as a step knows it."""
    shift = assemble_recipe("cifar100/shift-rt5", {})
    optimiser = Optimiser() if kind == "plain, Adam" else shift.optimiser
    loss = Loss() if kind.startswith("plain") else shift.loss
    usual = recipe("rt5", precision="bfloat16")
    return replace(usual, augmentation=shift.augmentation, optimiser=optimiser, loss=loss)


def measure(name: str) -> list[dict[str, Any]]:
    """Milliseconds of every kind of step of one network."""

    def network() -> nn.Sequential:
        return create_model("shift-net", input_shape=SHAPE, classes=CLASSES, patch=4, dense=2, **SIZES[name])

    engines = []
    for kind in STEPS:
        basis = "plain, in blocks" if kind.startswith("plain") else "rt5"
        alone = "teacher" not in kind
        engines.append(
            engine(basis, network=network, shape=SHAPE, stated=stated(kind)) if alone else with_teacher(network)
        )
    taken = milliseconds(engines, "bfloat16", steps=16)
    rows: list[dict[str, Any]] = [
        {"network": name, "step": kind, "ms": each} for kind, each in zip(STEPS, taken, strict=True)
    ]
    for row in rows:
        row["x_plain"] = round(row["ms"] / taken[STEPS.index("plain")], 3)
        print(row, flush=True)
    rows[2]["parts"] = spent(engines[2])
    return rows


def with_teacher(network: Any) -> Any:
    """Steps that ask a teacher too: it is set before they are captured."""
    made = engine("rt5", network=network, shape=SHAPE, stated=stated("certified"), captured=False)
    made.teachers = Teachers([ResNet9(SHAPE, CLASSES, 64).to(CUDA)], Teacher(noise=0.2))
    made._captured = True
    made.start(0)
    return made


def main() -> None:
    """Measure, print and save."""
    started = time.perf_counter()
    torch.manual_seed(0)
    rows = [row for name in SIZES for row in measure(name)]
    result: dict[str, Any] = {
        "command": "PYTHONPATH=src python benchmarks/gpu_shift.py",
        "network": "shift-net, patch 4, 2 dense layers, 3 × 32 × 32 pixels, 100 classes, batch 256, bfloat16, Muon",
        "commit": commit(),
        **provenance(CUDA),
        "steps": rows,
    }
    save("benchmarks/gpu-shift.json", {**result, "seconds": round(time.perf_counter() - started, 1)})


if __name__ == "__main__":
    main()
