"""Tiny runs whose data is full of names that try to become part of the page."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.hostile_names import HOSTILE, TURNED
from safeset import TrainingWarning, train
from safeset.report.findings import look_at
from safeset.report.page import report_page
from safeset.runs.run import Run


@pytest.fixture(scope="session")
def work(tmp_path_factory):
    """A table in the plane, and photos."""
    path = tmp_path_factory.mktemp("report")
    random = np.random.default_rng(0)
    labels = np.arange(160) % 4
    x = random.normal(size=(160, 2)) * 0.35 + np.array([[0, 0], [0, 1], [1, 0], [1, 1]])[labels]
    quoted = ['"' + name.replace('"', '""') + '"' for name in HOSTILE]
    lines = [f"{a:.4f},{b:.4f},{quoted[label]}" for (a, b), label in zip(x, labels, strict=True)]
    (path / "table.csv").write_text("\n".join(["<b>x</b>,y,kind", *lines]) + "\n")
    for name in ("<u>one", "two & three", TURNED):
        (path / "photos" / name).mkdir(parents=True)
        for number in range(10):
            pixels = random.integers(0, 256, (6, 6, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(path / "photos" / name / f"<i onclick=alert(3)>{number}.png")
    torch.manual_seed(0)
    small = {"model": "mlp-2x32", "guarantee": "rt3", "epsilon": 0.05, "epochs": 8, "batch": 32}
    small["optimiser"] = {"rate": 0.01}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TrainingWarning)  # photos of noise are classified by chance
        train({**small, "data": {"source": str(path / "table.csv"), "label": "kind"}}, out=path / "table")
        small |= {"guarantee": "rt2", "epochs": 1}
        train({**small, "data": {"source": str(path / "photos")}}, out=path / "photo-run")
    return path


@pytest.fixture(scope="session")
def found(work):
    """Both runs, measured once."""
    return [look_at(Run(work / name)) for name in ("table", "photo-run")]


@pytest.fixture(scope="session")
def page(found):
    return report_page(found)
