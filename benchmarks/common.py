"""What every benchmark needs: where results go, and on what they were measured."""

import json
import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[1]


def commit() -> str:
    """The commit that is measured, with a + if the tree differs from it; from $COMMIT where there is no git."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return os.environ.get("COMMIT", "unknown")
    return done.stdout.strip()


def machine() -> dict[str, Any]:
    """Processor, threads and versions."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    model = re.search(r"model name\s*:\s*(.*)", text)
    return {
        "processor": model[1] if model else platform.processor(),
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def save(path: str, result: dict[str, Any]) -> None:
    """Write a result as JSON under results/, whole or not at all."""
    target = ROOT / "results" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".tmp")
    temporary.write_text(json.dumps(result, indent=1) + "\n")
    temporary.replace(target)
    print(f"wrote {target.relative_to(ROOT)}")
