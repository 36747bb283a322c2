"""The published numbers of a network beyond the paper: each row of the table that it serves.

    python benchmarks/beyond.py RUN cifar100/rt5 cifar100/standard [--device cuda] [--record] [--seconds 400]

Writes results/beyond/ROW-seedN.json, or with --record results/beyond/tries/ROW-record-seedN.json, from the run's test
points, and what its audit found where there is one. A network may serve several rows: each is a guarantee.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from common import save
from safeset.certificates.margins import METHODS
from safeset.evaluation import SHARES, SIZES
from safeset.inputs import as_device
from safeset.paper.predictions import RATES
from safeset.paper.rows import recipe_of
from safeset.runs.data import load_run_data
from safeset.runs.evaluate import evaluate_net
from safeset.runs.load import load
from safeset.runs.run import Run


def rows_of(run: Run, rows: list[str], *, device: str | None, seconds: float | None, command: str) -> list[Any]:
    """The numbers of each row, as they are published."""
    recipe = run.read_recipe()
    net, points = load(run.path).to(as_device(device)), load_run_data(recipe)
    about = {
        "training_seconds": seconds or max((each.get("seconds", 0.0) for each in run.records()), default=0.0),
        "command": command,
        "model": f"one network, trained for {recipe.guarantee.partition(':')[0]}; rows: {', '.join(rows)}",
        **audited(run),
    }
    found = []
    for row in rows:
        guarantee = replace(recipe, guarantee=str(recipe_of(row, {}).guarantee)).resolve_guarantee(points)
        evaluation = evaluate_net(net, recipe, points, epsilons=[recipe.epsilon], guarantee=guarantee)
        ways = {each["method"]: numbers(each) for each in evaluation.pop("rows")}
        found.append(
            {"row": row, "seed": recipe.seed, "epsilon": recipe.epsilon}
            | {way: ways[way] for way in METHODS}
            | {**evaluation, **about}
        )
        print(row, {way: (round(ways[way]["vra"], 4), round(ways[way]["rejection"], 4)) for way in METHODS}, flush=True)
    return found


def numbers(row: dict[str, Any]) -> dict[str, float]:
    """Metrics by the names that published results have."""
    return {name: row[rate] for name, rate in RATES.items()} | {
        name: row[name] for name in (*SHARES, *SIZES) if name not in RATES.values()
    }


def audited(run: Run) -> dict[str, Any]:
    """What the last audit of a run found: its verdict, points, and how much of each proved bound is surely needed."""
    file = run.path / "audit.json"
    if not file.is_file():
        return {}
    found = json.loads(file.read_text())
    lower = [layer["lower"] / layer["bound"] for layer in found["bounds"] if layer.get("lower") and layer["bound"]]
    return {
        "audit": {
            "verdict": found["verdict"],
            "points": found["points"],
            "bounds_proved_again": sum(layer["verdict"] == "proved" for layer in found["bounds"]),
            "least_lower_bound_by_bound": min(lower, default=None),
        }
    }


def main() -> None:
    """Parse, evaluate, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("rows", nargs="+")
    parser.add_argument("--device")
    parser.add_argument("--record", action="store_true", help="of a training longer than nine minutes")
    parser.add_argument("--seconds", type=float, help="of the whole training, with teachers; else of its epochs")
    parser.add_argument("--command", default="", help="that trained it")
    given = parser.parse_args()
    run = Run(given.run)
    command = given.command or f"safeset train RECIPE --seed {run.read_recipe().seed} --out {given.run}"
    found = rows_of(run, given.rows, device=given.device, seconds=given.seconds, command=command)
    for each in found:
        place = f"tries/{each['row'].replace('/', '-')}-record" if given.record else each["row"]
        save(f"beyond/{place}-seed{each['seed']}.json", each)


if __name__ == "__main__":
    main()
