r"""What the paper leaves open, chosen by validation data: a recipe with one change after another, one network each.

    PYTHONPATH=src python benchmarks/choices.py cifar100/standard --epochs 60 \
        augmentation.flips=none,augmentation.shift=0 augmentation.shift=0 augmentation.shift=4

adds them to results/analyses/choices/cifar100-standard.json. Changes are keys of the recipe with their values, several
with commas between, which a value cannot hold.
"""

import argparse
import json
from typing import Any

from common import ROOT, save
from safeset.cli.options import changes
from trial import trial

ABOUT = ("split", "points", "guarantee", "bound_method", "dtype", "device", "torch", "commit", "seed", "test")


def main() -> None:
    """Train, evaluate, save what there is after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("choices", nargs="+")
    arguments = parser.parse_args()
    for choice in arguments.choices:
        row, result = trial(arguments.recipe, {"epochs": arguments.epochs, **changes(choice.split(","))})
        print(choice, *(f"{each['method']} {each['vra']:.4f}" for each in row["rows"]), flush=True)
        command = f"python benchmarks/choices.py {arguments.recipe} --epochs {arguments.epochs} '{choice}'"
        about = {key: result[key] for key in ABOUT}
        keep(arguments.recipe, {"choice": choice, "epochs": arguments.epochs, **row, **about, "command": command})


def keep(recipe: str, row: dict[str, Any]) -> None:
    """Add a row to those of its recipe; it takes the place of one that was made in the same way."""
    name = f"analyses/choices/{recipe.replace('/', '-')}.json"
    path = ROOT / "results" / name
    before = json.loads(path.read_text())["choices"] if path.exists() else []
    others = [one for one in before if one["command"] != row["command"]]
    save(name, {"recipe": recipe, "choices": [*others, row]})


if __name__ == "__main__":
    main()
