"""What onnxruntime computes of a new file, compared with Python at random points before it is written."""

import warnings
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import torch

from safeset.errors import SafesetError
from safeset.export.certificate import WARY
from safeset.export.file import Exported
from safeset.guarantees.guarantee import Guarantee
from safeset.nets.frozen import FrozenNet

POINTS = 4
TOLERANCE = {"float64": 1e-9, "float32": 1e-2}  # of logits and radii, relative to the largest


def compare_with_python(model: Exported, net: FrozenNet, guarantee: Guarantee, method: str) -> None:
    """Refuse a file whose logits or radii differ; nothing is said where onnxruntime is not installed."""
    if find_spec("onnxruntime") is None:
        return
    generator = torch.Generator().manual_seed(0)
    x = torch.rand((POINTS, *net.input_shape), generator=generator, dtype=torch.float64)
    with warnings.catch_warnings(action="ignore"):  # random points say nothing of the units
        points = net.measure(x)
    wanted = points.certificate(guarantee=guarantee, method=method)
    # What rounding may make of it: both have an error at x, and the graph gives away more of it.
    error = points._error._replace(offset=points._error.offset * (WARY + 2))
    least = replace(points, _error=error).certificate(guarantee=guarantee, method=method)
    apart = points._error.offset
    found = model.run(x.numpy(), wanted.epsilon)
    ends = {
        "logits": (points.logits - apart, points.logits + apart),
        "windows": (least.windows, wanted.windows),
    }
    for name, (low, high) in ends.items():
        there, lower, upper = found[name].astype(np.float64), low.cpu().numpy(), high.cpu().numpy()
        largest = np.abs(upper, where=np.isfinite(upper), out=np.zeros_like(upper)).max()
        more = TOLERANCE[model.says["precision"]] * (1e-6 + largest)
        if not ((lower - more <= there) & (there <= upper + more)).all():
            raise SafesetError(
                f"Expected onnxruntime to compute the {name} that safeset has, but got others at a random point. "
                "Please report it: nothing was written."
            )
