"""What deel-torchlip and orthogonium say of their layers, and what is proved of them as they are installed.

Each layer is moved from its initial weights and passed through a few times in training mode, as a trained one was. The
lower bound is the largest norm of the Jacobian at random points.

    python benchmarks/other_libraries.py    # writes results/benchmarks/other-libraries.json
"""

import sys
import time
from importlib.metadata import version
from typing import Any

import torch

from common import ROOT, commit, machine, save
from safeset import UnsupportedLayerError
from safeset.capture.capture import capture
from safeset.capture.tightening import tighten

POINTS, SEED = 8, 0


def measure() -> dict[str, Any]:
    """Every layer of the catalogue that the tests run too."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.lipschitz_libraries import (  # type: ignore[import-not-found]
        IMAGE,
        LAYERS,
        REFUSED,
        Flat,
        lived_in,
        proved,
        steepest,
    )

    started = time.perf_counter()
    rows = []
    for name, layer in LAYERS.items():
        torch.manual_seed(SEED)
        program = tighten(capture(lived_in(layer.make(), layer.shape), layer.shape).program)
        least = steepest(program, torch.randn(POINTS, *layer.shape, dtype=torch.float64))
        numbers = {"proved": proved(program), "least": least}
        rows.append({"library": layer.library, "layer": name, "claim": layer.claim, **numbers})
    refused = {}
    for name, (make, _) in REFUSED.items():
        try:
            capture(Flat(make()).eval(), IMAGE)
        except UnsupportedLayerError as error:
            refused[name] = str(error).replace(sys.prefix, "")
    sys.path.insert(0, str(ROOT / "examples"))
    from torchlip_digits import said

    return {
        "said": said(),
        "command": "python benchmarks/other_libraries.py",
        "versions": {name: version(name) for name in ("deel-torchlip", "orthogonium", "torch")},
        "points": POINTS,
        "seed": SEED,
        "rows": rows,
        "refused": refused,
        "commit": commit(),
        "seconds": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }


if __name__ == "__main__":
    save("benchmarks/other-libraries.json", measure())
