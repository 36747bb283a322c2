"""What a training says while it runs: before the first step, after each epoch, and in pictures at its end."""

import contextlib
import io
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageColor

from helpers.accidents import Accident
from helpers.commands import ENVIRONMENT, safeset
from safeset import train
from safeset.runs.run import Run
from safeset.terminal.console import TrainingWatch
from safeset.training import pictures
from safeset.training.pictures import draw_curves
from safeset.training.watch import Silent, choose_watch

QUICK = {"data": {"source": "digits"}, "epochs": 3, "guarantee": "rt3", "epsilon": 0.3, "model": "mlp-2x32"}


def test_a_training_is_introduced_before_its_first_step(capsys):
    train(QUICK, progress=True)
    first, *rest = capsys.readouterr().err.splitlines()
    about = "Training on 1,198 points, 10 classes, mlp-2x32 with 3,466 parameters, 3 epochs, rt3, ε = 0.3 "
    assert first.startswith(f"{about}(pixels in [0, 1]), on ")
    assert rest[0].startswith("epoch 1/3: loss ")
    assert "training VRA ≈" in rest[0]
    assert not [line for line in rest if "VRA" in line and "training VRA" not in line]


def test_held_out_points_are_named(capsys):
    train({**QUICK, "hold_out": 0.1, "seeds": 1}, progress=True)
    shown = capsys.readouterr().err
    assert "Training on 1,078 points and 120 held out, 10 classes" in shown
    assert "held-out VRA ≈" in shown


def test_the_time_is_estimated_from_the_first_steps(capsys, monkeypatch):
    clock = iter(range(1000))
    monkeypatch.setattr("safeset.terminal.console.time.perf_counter", lambda: next(clock) * 0.5)
    watch = TrainingWatch()
    watch.begin(10, 100, 0)
    for _ in range(40):
        watch.step(0.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines == ["About 8 min 14 s to go (measured over 10 steps)."]  # five seconds have passed: 0.5 s a step
    watch.end()


def test_commands_introduce_themselves_in_a_pipe(tmp_path):
    _, errors = safeset(
        "train", "--data", "digits", "--epochs", "1", "--model", "mlp-2x32", "--out", "run", cwd=tmp_path
    )
    assert errors.startswith("Training on 1,198 points, 10 classes, mlp-2x32 with 3,466 parameters, 1 epoch, ")


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_python_shows_progress_in_a_terminal_and_in_a_notebook(monkeypatch):
    assert isinstance(choose_watch(None), Silent)
    assert isinstance(choose_watch(True), TrainingWatch)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Terminal())
        assert isinstance(choose_watch(None), TrainingWatch)
        assert isinstance(choose_watch(False), Silent)
    monkeypatch.setitem(sys.modules, "ipykernel", object())
    assert isinstance(choose_watch(None), TrainingWatch)


def test_python_is_silent_in_a_pipe(capsys):
    train({**QUICK, "epochs": 1})
    assert capsys.readouterr() == ("", "")


# -- pictures ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def drawn(monkeypatch):
    monkeypatch.setenv("SAFESET_PICTURES", "1")


def test_pictures_are_made_at_the_end(drawn, tmp_path):
    pytest.importorskip("matplotlib")
    train({**QUICK, "hold_out": 0.1}, out=tmp_path / "run")
    for name in ("metrics.png", "samples.png"):
        with Image.open(tmp_path / "run" / name) as image:
            assert image.size[0] == 1008
            assert len(np.unique(np.asarray(image.convert("L")))) > 3


def test_tables_have_no_sheet_and_few_epochs_no_curves(drawn, tmp_path):
    x = torch.rand(100, 3, generator=torch.Generator().manual_seed(0))
    recipe = {"epochs": 2, "guarantee": "standard", "epsilon": 0.01, "optimiser": {"rate": 0.05}}
    train(recipe, data=(x, (x[:, 0] > 0.5).long()), out=tmp_path / "run", watch=Accident(0, None))
    assert not list((tmp_path / "run").glob("*.png"))


def test_without_matplotlib_nothing_is_drawn_and_all_is_well(drawn, tmp_path, monkeypatch):
    monkeypatch.setattr(pictures, "find_spec", lambda name: None)
    train({**QUICK, "epochs": 3}, out=tmp_path / "run")
    assert Run(tmp_path / "run").has_ended
    assert not list((tmp_path / "run").glob("*.png"))


def test_lines_that_safeset_did_not_write_are_not_drawn(drawn, tmp_path):
    pytest.importorskip("matplotlib")
    good = {"loss": 1.0, "vra": 0.5, "rejection_rate": 0.1, "accuracy": 0.9}
    lines = [{"epoch": epoch, "seconds": 1.0, **good} for epoch in (1, 2, 3)]
    draw_curves(Run(tmp_path), [*lines[:2], {"epoch": 3, "seconds": 1.0, "loss": "<b>"}], None)
    assert not list(tmp_path.iterdir())
    draw_curves(Run(tmp_path), [*lines, {"epoch": 4, "seconds": 1.0}], 2)
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.png"]


def test_top1_is_drawn_where_it_was_recorded(drawn, tmp_path):
    pytest.importorskip("matplotlib")
    numbers = {"loss": 1.0, "vra": 0.5, "rejection_rate": 0.1, "accuracy": 0.9}
    for also, there in (({}, False), ({"top1": 0.7}, True)):
        lines = [{"epoch": epoch, "seconds": 1.0, **numbers, **also} for epoch in (1, 2, 3)]
        draw_curves(Run(tmp_path), lines, None)
        with Image.open(tmp_path / "metrics.png") as image:
            violet = (np.asarray(image.convert("RGB")) == ImageColor.getrgb(pictures.TOP1[2])).all(axis=2)
        assert bool(violet.any()) == there


PROOF = """
import torch
from torch import nn
import safeset, safeset.proofs.prove
safeset.proofs.prove.LONG = 1e6  # a network whose proof takes long would make a long test
network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 64), nn.Linear(64, 4))
net = safeset.CertifiedNet(network, input_shape=(3, 8, 8), guarantee="rt2", epsilon=0.1)
print(len(net.certify(torch.zeros(1, 3, 8, 8))))
"""


def test_a_long_proof_shows_a_bar_in_python_too():
    terminal, end = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "80"}
    command = [sys.executable, "-c", PROOF]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=end, text=True) as process:
        os.close(end)
        shown = b""
        with contextlib.suppress(OSError):  # the end of a terminal that nobody has any more
            while more := os.read(terminal, 65536):
                shown += more
        output = process.stdout.read()
    os.close(terminal)
    assert "proving layer 1 of 5 (0)" in shown.decode()
    assert "proving layer 4 of 5 (3)" in shown.decode()
    assert output == "1\n"
