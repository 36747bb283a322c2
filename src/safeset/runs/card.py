"""The card of a model: what it is, what it promises, and how well it does, as Markdown."""

from pathlib import Path
from typing import Any

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.errors import counted, shown_rate
from safeset.recipes.recipe import FittedRecipe, Recipe


def card(
    recipe: FittedRecipe,
    evaluation: dict[str, Any],
    records: list[dict[str, Any]],
    *,
    epoch: int | None = None,
    trained: int | None = None,
) -> str:
    """The README.md of a run.

    Args:
        recipe: by which it was trained.
        evaluation: what `evaluate_net` gives.
        records: lines of metrics.jsonl.
        epoch: after which the net had its weights; the last by default.
        trained: epochs that were trained; those of the recipe by default.
    """
    task = recipe.task
    shape = " × ".join(map(str, task.input_shape))
    names = ", ".join(task.class_names[:20]) + (", …" if len(task.class_names) > 20 else "")
    seconds = f" in {records[-1]['seconds']:.0f} s" if records else ""
    network = recipe.network or recipe.model
    done = recipe.epochs if trained is None else trained
    epochs = counted(done, "epoch") if done == recipe.epochs else f"{done} of {recipe.epochs} epochs"
    best = f", the best (epoch {epoch}) chosen by {recipe.hold_out:.0%} of the training data" if recipe.hold_out else ""
    apart = f"- {recipe.calibration:.0%} of the training data, drawn at random, is kept for `safeset calibrate` alone."
    rows = [
        f"| {row['method']} | {shown_epsilon(row['epsilon'])} | {shown_rate(row['vra'])} | "
        f"{shown_rate(row['rejection_rate'])} | {shown_rate(row['accuracy'])} | {shown_rate(row['top1'])} | "
        f"{_size(row['core_size'])} | {_size(row['set_size'])} | {shown_rate(row['smallest_share'])} | "
        f"{_size(row['smallest_core_size'])} | {_size(row['smallest_set_size'])} |"
        for row in evaluation["rows"]
    ]
    return "\n".join(
        [
            f"# {recipe.data.source.rstrip('/').rpartition('/')[2]}, {shorten(evaluation['guarantee'])}",
            "",
            "A classifier whose answers are certified sets, trained with safeset "
            f"{evaluation['safeset']} ({evaluation['commit']}).",
            "",
            f"- Input: {shape}; ε is in {task.units}.",
            f"- Classes ({len(task.class_names)}): {names}.",
            f"- Network: {network}, {epochs}{seconds}{best}, seed {recipe.seed}; see `recipe.toml`.",
            f"- Guarantee: {shorten(evaluation['guarantee'])}, trained for ε = {shown_epsilon(recipe.epsilon)}.",
            *([apart] if recipe.calibration else []),
            "",
            f"On {counted(evaluation['points'], evaluation['split'] + ' point')}, by proved bounds, in float64:",
            "",
            "| method | ε | VRA | rejected | accuracy | top-1 | core | answer "
            "| label in smallest core | smallest core | smallest answer |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "VRA: certified with the true label in the core of the largest answer, whose mean sizes follow; then the",
            "same of the smallest answer, which `safeset certify` shows. The same answer at every point would hold at",
            f"most {shown_rate(evaluation['rows'][0]['baseline'])} of the labels.",
            "",
            "A certificate says that no perturbation of L2 norm ≤ ε makes a class outside the answer outrank its core;",
            "it says nothing about larger or other perturbations.",
            *(f"\n**Note.** {remark}" for remark in evaluation["remarks"]),
            "",
        ]
    )


def name_for(recipe: Recipe) -> str:
    """A short name for the run of a recipe, for its directory.

    >>> from safeset.recipes.sections import Data
    >>> name_for(Recipe(Data("photos/"), guarantee="rt3"))
    'photos-rt3'
    """
    source = Path(recipe.data.source).stem or "data"
    return f"{source}-{(recipe.guarantee or 'default').partition(':')[0]}"


def _size(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
