"""Triton's kernels without a GPU: by its interpreter, in a process of its own."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

HELPERS = Path(__file__).parent

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="needs Triton, which comes with torch for GPUs")


def words_of(helper: str) -> list[str]:
    """What a script of the helpers prints, word by word, where kernels are interpreted."""
    path = os.pathsep.join([*sys.path, str(HELPERS.parent)])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    command = [sys.executable, str(HELPERS / helper)]
    found = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr[-2000:]
    return found.stdout.split()
