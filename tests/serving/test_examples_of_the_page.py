"""What docs/serve.md tells people to send is sent, as it stands, to a server of its run."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from helpers.commands import ENVIRONMENT
from helpers.served import Process
from safeset import train

PAGE = Path(__file__).parents[2] / "docs" / "serve.md"


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    """A directory with images, and the address of a server of runs/photos."""
    path = tmp_path_factory.mktemp("page")
    draw = np.random.default_rng(0)
    for name in ("a.jpg", "b.png"):
        Image.fromarray(draw.integers(0, 256, (64, 64, 3)).astype(np.uint8)).save(path / name)
    x = torch.from_numpy(draw.integers(0, 256, (12, 3, 64, 64)).astype(np.uint8)) / 255
    table = {"guarantee": "rt3", "epsilon": 0.25, "epochs": 1, "model": "mlp-2x32"}
    train(table, data=(x, torch.arange(12) % 4), out=path / "runs" / "photos", progress=False)
    server = Process(run=path / "runs" / "photos")
    yield path, server.port
    assert server.stop()[0] == 0


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL)


def typed(work, command, text):
    path, port = work
    text = text.replace("localhost:8000", f"localhost:{port}")
    done = subprocess.run(
        [*command, text], cwd=path, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_curl(work):
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    (command,) = (block for block in blocks("sh") if block.startswith("curl"))
    found = json.loads(typed(work, ["bash", "-c"], command))
    assert [one["name"] for one in found["points"]] == ["a.jpg", "b.png"]
    assert {one["epsilon"] for one in found["points"]} == {0.1}


@pytest.mark.parametrize("place", [0, 1])
def test_clients_in_python(work, place):
    said = typed(work, [sys.executable, "-W", "error", "-c"], blocks("py")[place]).splitlines()
    assert len(said) == 2
    assert "L2, pixels in [0, 1]" in said[0] if place == 0 else re.fullmatch(r"\[.*\] [\d.e-]+", said[0])
