"""What onnxruntime computes of a new file, compared with Python at random points before it is written."""

import warnings
from importlib.util import find_spec

import numpy as np
import torch

from safeset.errors import SafesetError
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
    found = model.run(x.numpy(), wanted.epsilon)
    for name, own in (("logits", points.logits), ("windows", wanted.windows)):
        there, here = found[name].astype(np.float64), own.cpu().numpy()
        if not np.allclose(there, here, rtol=0, atol=TOLERANCE[model.says["precision"]] * (1e-6 + np.abs(here).max())):
            raise SafesetError(
                f"Expected onnxruntime to compute the {name} that safeset has, but got others at a random point. "
                "Please report it: nothing was written."
            )
