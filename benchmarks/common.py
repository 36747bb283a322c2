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
    """The commit that is measured, with a + if the tree differs from it."""
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
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


def load(path: str) -> dict[str, Any]:
    """A result saved before."""
    result: dict[str, Any] = json.loads((ROOT / "results" / path).read_text())
    return result


def fill(page: str, name: str, table: str) -> None:
    """Put a table into a page, between its markers ``<!-- name -->`` and ``<!-- /name -->``."""
    path = ROOT / page
    before, rest = path.read_text().split(f"<!-- {name} -->")
    after = rest.split(f"<!-- /{name} -->")[1]
    path.write_text(f"{before}<!-- {name} -->\n{table.strip()}\n<!-- /{name} -->{after}")


def filled(page: str, name: str) -> str:
    """The table that a page holds between its markers."""
    text = (ROOT / page).read_text()
    return text.split(f"<!-- {name} -->\n")[1].split(f"\n<!-- /{name} -->")[0]


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
