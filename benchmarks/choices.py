r"""What the paper leaves open, chosen by validation data: a recipe with one change after another, one network each.

    PYTHONPATH=src python benchmarks/choices.py cifar100/standard --epochs 60 \
        augmentation.flips=none,augmentation.shift=0 augmentation.shift=0 augmentation.shift=4

writes results/analyses/choices-cifar100-standard.json. Changes are keys of the recipe, several with commas between.
"""

import argparse
from typing import Any

from common import save
from safeset.cli_options import changes
from trial import trial


def main() -> None:
    """Train, evaluate, save what there is after each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("recipe")
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("choices", nargs="+")
    arguments = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for choice in arguments.choices:
        row, result = trial(arguments.recipe, {"epochs": arguments.epochs, **changes(choice.split(","))})
        rows.append({"choice": choice, **row})
        print(choice, *(f"{each['method']} {each['vra']:.4f}" for each in row["rows"]), flush=True)
        command = f"python benchmarks/choices.py {arguments.recipe} --epochs {arguments.epochs}"
        result = {key: value for key, value in result.items() if key not in ("recipe", "weights")}
        save(
            f"analyses/choices-{arguments.recipe.replace('/', '-')}.json",
            {**result, "command": " ".join([command, *arguments.choices]), "choices": rows},
        )


if __name__ == "__main__":
    main()
