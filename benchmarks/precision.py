"""Whether the arithmetic of training changes what is certified: the same seeds in float32, TF32 and bfloat16.

    PYTHONPATH=src python benchmarks/precision.py    # writes results/analyses/precision.json

RT5 on CIFAR-100 (in $SAFESET_DATA), ten seeds at once, evaluated by proved bounds on validation data: a tenth of the
training data.
"""

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from common import save
from safeset import train
from safeset.runs import Run
from safeset.training.recipe import PRECISIONS, assembled


def main() -> None:
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--recipe", default="cifar100/rt5")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for precision in PRECISIONS:
        folder = Path(tempfile.mkdtemp())
        changes = {"epochs": arguments.epochs, "seeds": arguments.seeds, "precision": precision, "validation": True}
        started = time.perf_counter()
        train(assembled(arguments.recipe, changes), out=folder / "run")
        result = json.loads(Run(folder / "run").evaluation.read_text())
        seconds = [record["seconds"] for record in Run(folder / "run").records()]
        rows.append({"precision": precision, "training_seconds": seconds[-1], "rows": result.pop("rows")})
        rows[-1]["seconds"] = round(time.perf_counter() - started, 1)
        print(rows[-1], flush=True)
        shutil.rmtree(folder)
    save("analyses/precision.json", {**result, "command": "python benchmarks/precision.py", "precisions": rows})


if __name__ == "__main__":
    main()
