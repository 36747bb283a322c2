"""Which relaxed form of EMMA helps an affinity guarantee: the same small network, the same steps, on held-out points.

    python benchmarks/relaxed_losses.py [--epochs 8] [--seeds 3] [--threads 1]    # about 25 minutes on one core

Writes results/affinity/losses.json. EuroSAT's highway + river + agriculture; a tenth of the training points is held
out.
"""

import argparse
import shlex
import sys
import time
from typing import Any

import torch

from common import commit, machine, save
from trial import trial

RECIPE = "eurosat/small-highway-river-agriculture"
SIZES = {"depth": 4, "width": 128, "dense": 2, "patch": 8}
FORMS = {
    "EMMA alone": {"loss.relaxation": "none", "loss.relaxed": 1.0},
    "½ drop": {"loss.relaxation": "drop", "loss.relaxed": 0.5},
    "½ membership": {"loss.relaxation": "membership", "loss.relaxed": 0.5},
    "½ window": {"loss.relaxation": "window", "loss.relaxed": 0.5},
}
METHODS = ("uniform", "joint")
NAMES = ("vra", "rejection_rate", "top1", "set_size", "smallest_set_size", "smallest_share")


def measure(epochs: int, seeds: int) -> list[dict[str, Any]]:
    """Every form with every seed: the forms take turns, so that whoever stops early has all of them."""
    rows = []
    for seed in range(seeds):
        for form, changes in FORMS.items():
            found, _ = trial(RECIPE, {"epochs": epochs, "sizes": SIZES, "seed": seed, **changes})
            ways = {row["method"]: {name: row[name] for name in NAMES} for row in found["rows"]}
            by_method = {way: ways[way] for way in METHODS}
            rows.append({"form": form, "seed": seed, **by_method, "seconds": found["seconds"]})
            print(form, seed, {way: round(ways[way]["vra"], 4) for way in METHODS}, found["seconds"], flush=True)
    return rows


def main() -> None:
    """Parse, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    started, begun_at = time.perf_counter(), commit()
    rows = measure(given.epochs, given.seeds)
    about = {
        "command": f"python benchmarks/relaxed_losses.py {shlex.join(sys.argv[1:])}".strip(),
        "commit": begun_at,
        "recipe": RECIPE,
        "changes": {"epochs": given.epochs, "sizes": SIZES},
        "points": "a tenth of the training points, held out",
        "epsilon": 0.141,
        "machine": machine(),
    }
    save("affinity/losses.json", {**about, "rows": rows, "seconds": round(time.perf_counter() - started, 1)})


if __name__ == "__main__":
    main()
