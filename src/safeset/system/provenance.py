"""What a number was made with: versions, commit, device, and digests of weights."""

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from safeset import __version__


def commit() -> str:
    """$COMMIT if it is set, else the commit of a checkout, with a + if its files differ, else ``unknown``."""
    root = Path(__file__).parents[3]
    command = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    if os.environ.get("COMMIT") or not (root / ".git").exists():
        return os.environ.get("COMMIT") or "unknown"
    try:
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def weights_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """Names, shapes and numbers of weights as a digest."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach().cpu().contiguous()
        found.update(json.dumps([name, list(tensor.shape), str(tensor.dtype)]).encode())
        found.update(tensor.flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def provenance(device: torch.device) -> dict[str, Any]:
    """Version, commit, Python, torch and device."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "safeset": __version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": f"{device.type} ({name})",
    }
