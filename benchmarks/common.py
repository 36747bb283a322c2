"""What every benchmark needs: where results go, and on what they were measured."""

import json
import os
import platform
import re
from pathlib import Path
from typing import Any

import torch

from safeset.system.provenance import commit as commit

ROOT = Path(__file__).parents[1]


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


def markdown(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
