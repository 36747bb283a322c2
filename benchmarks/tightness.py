"""How much of the truth each method certifies: the share of truly robust points, for random linear networks.

The truth is the distance to the nearest violation, by brute force (tests/linear_truth.py); ε is the median of these
distances, so that half of the points are truly robust.

    python benchmarks/tightness.py    # writes results/analyses/tightness.json
"""

import sys
import time
from typing import Any

import numpy as np
import torch

from common import ROOT, commit, machine, save
from safeset import HeadConstants, RelaxedTopK, certify_logits
from safeset.certificates.margins import METHODS

NETWORKS, CLASSES, FEATURES, SEED = 2000, 6, 4, 0


def measure() -> dict[str, Any]:
    """One point of each of many networks, for K = 1, …, 4."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.linear_truth import nearest_violation  # type: ignore[import-not-found]

    started = time.perf_counter()
    rows: dict[str, Any] = {}
    for k in range(1, 5):
        rng = np.random.default_rng([SEED, k])
        truths, radii = [], {method: [] for method in METHODS}  # type: ignore[var-annotated]
        for _ in range(NETWORKS):
            head, logits = rng.normal(size=(CLASSES, FEATURES)), rng.normal(size=CLASSES)
            truths.append(nearest_violation(head, logits, list(range(1, k + 1)))[0])
            for method in METHODS:
                certificate = certify_logits(
                    logits[None], HeadConstants(torch.tensor(head)), 0.0, RelaxedTopK(k), method=method
                )
                radii[method].append(certificate.radius.item())
        truth = np.array(truths)
        robust = truth > np.median(truth)
        rows[f"rt{k}"] = {
            "epsilon": float(np.median(truth)),
            "robust": int(robust.sum()),
            "false": {method: int((np.array(radii[method]) > truth * (1 + 1e-9)).sum()) for method in METHODS},
            "share": {method: float((np.array(radii[method])[robust] > np.median(truth)).mean()) for method in METHODS},
            "radius": {method: float(np.mean(np.array(radii[method]) / truth)) for method in METHODS},
        }
    return {
        "command": "python benchmarks/tightness.py",
        "networks": NETWORKS,
        "classes": CLASSES,
        "features": FEATURES,
        "seed": SEED,
        "dtype": "float64",
        "device": "cpu",
        "commit": commit(),
        "seconds": round(time.perf_counter() - started, 1),
        "machine": machine(),
        "rows": rows,
    }


if __name__ == "__main__":
    save("analyses/tightness.json", measure())
