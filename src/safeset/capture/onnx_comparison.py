"""What was read from an ONNX file, compared with what onnxruntime computes of it, where that is installed."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch

from safeset.errors import UnsupportedLayerError
from safeset.program.program import Program

TOLERANCE = 1e-2  # relative to the largest logit: files are mostly computed in float32, or less
POINTS = 4


def compare_with_runtime(path: Path, program: Program) -> None:
    """Refuse a program that gives other logits than its file, at random points; nothing is said where nothing runs."""
    session = _session(path)
    if session is None:
        return
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((POINTS, *program.input_shape), generator=generator, dtype=torch.float64)
    found, given = program.run(x.to(program.device)).cpu().numpy(), session.get_inputs()[0]
    dtype = {"tensor(double)": np.float64, "tensor(float16)": np.float16}.get(given.type, np.float32)
    for point, logits in zip(x.numpy().astype(dtype), found, strict=True):
        batch = max(math.prod(_sizes(given.shape)) // point.size, 1)
        try:
            (wanted,) = session.run(None, {given.name: np.stack([point] * batch).reshape(_sizes(given.shape))})
        except Exception:  # onnxruntime has errors of its own: a kernel that is missing, a type
            return
        first = np.asarray(wanted, dtype=np.float64).reshape(batch, -1)[0]
        is_same_size = first.shape == logits.shape
        if not (is_same_size and np.abs(first - logits).max() <= TOLERANCE * (np.abs(first).max() + TOLERANCE)):
            raise UnsupportedLayerError(
                f"Expected {path} to compute what safeset reads from it, but got other logits from onnxruntime at a "
                "random point. Please report it: nothing is certified."
            )


def _sizes(shape: Any) -> list[int]:
    return [size if isinstance(size, int) and size > 0 else 1 for size in shape]


def _session(path: Path) -> Any:
    """One that says nothing; None where onnxruntime is not installed, or cannot run the file."""
    try:
        import onnxruntime
    except ImportError:
        return None
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception:  # an operator or a type that it does not have
        return None
