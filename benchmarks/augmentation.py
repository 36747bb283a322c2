"""How training images are best moved, by validation data: what the paper leaves open.

    PYTHONPATH=src python benchmarks/augmentation.py eurosat/standard

writes results/analyses/augmentation-eurosat.json: the recipe with no augmentation, and with more and more of it, one
network each.
"""

import argparse
from typing import Any

from common import save
from trial import trial

MOVES = {
    "none": {"flips": "none", "turns": False, "shift": 0},
    "horizontal flips": {"flips": "horizontal", "turns": False, "shift": 0},
    "horizontal flips, shifts": {"flips": "horizontal", "turns": False, "shift": 4},
    "all flips and turns": {"flips": "both", "turns": True, "shift": 0},
    "all flips and turns, shifts": {"flips": "both", "turns": True, "shift": 4},
}


def main() -> None:
    """Train, evaluate, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--epochs", type=int, default=60)
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for name, moves in MOVES.items():
        changes = {"epochs": arguments.epochs, **{f"augmentation.{key}": value for key, value in moves.items()}}
        row, result = trial(arguments.recipe, changes)
        rows.append({"augmentation": name, **row})
        print(name, *(f"{each['method']} {each['vra']:.4f}" for each in row["rows"]), flush=True)
    command = f"python benchmarks/augmentation.py {arguments.recipe} --epochs {arguments.epochs}"
    target = f"analyses/augmentation-{arguments.recipe.partition('/')[0]}.json"
    save(target, {**result, "command": command, "augmentations": rows})


if __name__ == "__main__":
    main()
