"""Whether the arithmetic of training changes what is certified: the same seeds in float32, TF32 and bfloat16.

    PYTHONPATH=src python benchmarks/precision.py    # writes results/analyses/precision.json

RT5 on CIFAR-100 (in $SAFESET_DATA), ten seeds at once, evaluated by proved bounds on validation data.
"""

import argparse
from typing import Any

from common import save
from safeset.recipes.recipe import PRECISIONS
from trial import trial


def main() -> None:
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--recipe", default="cifar100/rt5")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        changes = {"epochs": arguments.epochs, "seeds": arguments.seeds, "precision": precision}
        row, result = trial(arguments.recipe, changes)
        rows.append({"precision": precision, **row})
        print(rows[-1], flush=True)
    save("analyses/precision.json", {**result, "command": "python benchmarks/precision.py", "precisions": rows})


if __name__ == "__main__":
    main()
