"""How much of the truth each method certifies: the share of truly robust points, for small trained networks.

The truth is the distance to the nearest violation, linear region by linear region (tests/helpers/region_truth.py).

    python benchmarks/regions.py    # writes results/analyses/regions.json
"""

import sys
import time
from typing import Any

import torch

from common import ROOT, commit, machine, save


def measure() -> dict[str, Any]:
    """All networks, with all of their points."""
    sys.path.insert(0, str(ROOT / "tests"))
    from helpers.small_networks import (  # type: ignore[import-not-found]
        EPSILON,
        NETWORKS,
        POINTS,
        SEED,
        compare,
        trained,
    )

    torch.set_num_threads(1)
    networks: dict[str, Any] = {}
    for name, small in NETWORKS.items():
        started = time.perf_counter()
        net, x = trained(small)
        rows = compare(net, x[:POINTS])
        networks[name] = {
            "recipe": small.recipe,
            "layers": [str(layer) for layer in net.network.children()],
            "points": len(x[:POINTS]),
            "seconds": round(time.perf_counter() - started, 1),
            "rows": rows,
        }
        print(name, networks[name]["seconds"], "s", {each: row["share"] for each, row in rows.items()})
    return {
        "command": "python benchmarks/regions.py",
        "epsilon": EPSILON,
        "seed": SEED,
        "dtype": "float64",
        "device": "cpu",
        "commit": commit(),
        "seconds": round(sum(each["seconds"] for each in networks.values()), 1),
        "machine": machine(),
        "networks": networks,
    }


if __name__ == "__main__":
    save("analyses/regions.json", measure())
