"""Three classifiers of handwritten digits, trained and certified: standard, relaxed top-3, and with lookalikes.

    python examples/digits.py [--out runs/demo]

What it prints is in docs/index.md, the picture that it draws also in the README.
"""

import argparse
import json
import shutil
import time
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from safeset import Certificate, CertifiedNet, train
from safeset.certificates.margins import METHODS
from safeset.data.embedded import digits
from safeset.evaluation import evaluate, vra_curve
from safeset.recipes.library import find_recipe
from safeset.recipes.recipe import Recipe
from safeset.system.memory import keep_freed_memory
from safeset.system.provenance import provenance
from safeset.terminal.console import TrainingWatch

NAMES = {"standard": "standard", "rt3": "relaxed top-3", "lookalikes": "{1,4,7} {3,5,8,9}"}


def table(rows: list[dict[str, Any]]) -> str:
    """Accuracy, VRA, rejection rate and mean sizes of both answers, a line for each model and method; 80 columns."""
    lines = ["guarantee          method    top-1  accuracy    VRA  rejected  largest  smallest"]
    for row in rows:
        name = NAMES[row["model"]] if row["method"] == METHODS[0] else ""
        lines.append(
            f"{name:<18} {row['method']:<8}  {row['top1']:.3f}     {row['accuracy']:.3f}  {row['vra']:.3f}     "
            f"{row['rejection_rate']:.3f}     {row['set_size']:.2f}      {row['smallest_set_size']:.2f}"
        )
    return "\n".join(lines)


def chosen(standard: Certificate, answer: Certificate) -> list[int]:
    """Test images worth looking at: certain ones, sets of several, sets that may grow, and rejected ones."""
    size, grows = answer.core.sum(dim=1), answer.optional.any(dim=1)
    kinds = [
        standard.certified & (size == 1) & ~grows,
        ~standard.certified & (size > 1) & ~grows,
        ~standard.certified & answer.certified & grows,
        ~answer.certified,
    ]
    return [place for kind in kinds for place in kind.nonzero()[:2, 0].tolist()]


def answer_text(certificate: Certificate) -> str:
    """The answer for one point: {core}, and what it may also include."""
    record = certificate.records()[0]
    joined = "".join(f" (+{name})" for name in record["optional"])
    return "{" + ",".join(record["core"]) + "}" + joined if record["certified"] else "⊥"


def sketch(images: torch.Tensor, labels: list[str]) -> str:
    """Images of 8 × 8 pixels as characters, side by side, with a line under each."""
    shades = " ░▒▓█"
    lines = []
    for row in range(8):
        cells = [
            "".join(2 * shades[min(4, int(5 * pixel))] for pixel in image[0, row].tolist()).ljust(20)
            for image in images
        ]
        lines.append("".join(cells).rstrip())
    return "\n".join([*lines, "".join(label.ljust(20) for label in labels).rstrip()])


def draw(path: Path, certificates: dict[tuple[str, str], Certificate], places: list[int]) -> None:
    """Some certified sets, and VRA against ε."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    test = digits().test
    standard, answer = certificates["standard", "joint"], certificates["rt3", "joint"]
    figure = plt.figure(figsize=(11, 4.6), layout="constrained")
    pictures, curves = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.25, 1])[0]
    for axis, place in zip(pictures.subplots(2, 4).flat, places, strict=False):
        axis.imshow(test.x[place, 0], cmap="gray_r")
        colour = "#1f6f43" if answer.certified[place] else "#a33"
        axis.set_title(answer_text(answer[place]), fontsize=14, color=colour, pad=4)
        beside = "certified" if standard.certified[place] else "⊥"
        axis.set_xlabel(f"label {test.y[place].item()}\nstandard: {beside}", fontsize=9)
    for axis in pictures.axes:
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_visible(bool(axis.images))
    pictures.suptitle(f"Smallest certified sets (relaxed top-3, joint, ε = {answer.epsilon:g})", fontsize=12)
    axis = curves.subplots()
    epsilons = np.linspace(0, 1.2, 121).tolist()
    for name, method, text, colour, style in [
        ("standard", "joint", "standard", "#888", "-"),
        ("lookalikes", "joint", "affinity {1,4,7} {3,5,8,9}, joint", "#c77d1e", "-"),
        ("rt3", "uniform", "relaxed top-3, uniform (the paper)", "#3b6fb6", ":"),
        ("rt3", "floating", "relaxed top-3, floating", "#3b6fb6", "--"),
        ("rt3", "joint", "relaxed top-3, joint", "#1f6f43", "-"),
    ]:
        line = vra_curve(certificates[name, method], test.y, epsilons)
        axis.plot(epsilons, line, style, color=colour, label=text)
    axis.axvline(answer.epsilon, color="#ccc", zorder=0)
    axis.set_xlabel("ε (L2, pixels in [0, 1])")
    axis.set_ylabel("verified-robust accuracy")
    axis.set_ylim(0, 1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    curves.suptitle("One pass answers every ε", fontsize=12)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Train, certify, print, draw."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for runs, numbers and picture")
    out = parser.parse_args().out
    started, test, said = time.perf_counter(), digits().test, []

    def say(text: str) -> None:
        print(text, flush=True)
        said.append(text)

    keep_freed_memory()
    nets: dict[str, CertifiedNet] = {}
    for name in NAMES:
        recipe = Recipe.read(find_recipe(f"digits/{name}"))
        say(f"Training {NAMES[name]}: {recipe.epochs} epochs of recipes/digits/{name}.toml")
        shutil.rmtree(out / name, ignore_errors=True)
        nets[name] = train(recipe, out=out / name, device="cpu", watch=TrainingWatch())
    rows = [{"model": name, **row} for name, net in nets.items() for row in evaluate(net, test)]
    epsilon = nets["rt3"].epsilon
    say(f"\n{len(test)} test digits, ε = {epsilon:g} (L2, pixels in [0, 1]), proved bounds:\n\n{table(rows)}")
    say("\nuniform is the paper's method. largest, smallest: mean classes of the certified answers.")
    certificates = {
        (name, method): net.certify(test.inputs, method=method) for name, net in nets.items() for method in METHODS
    }
    answers = certificates["rt3", "joint"]
    places = chosen(certificates["standard", "joint"], answers)
    say("\nSome of them, relaxed top-3, smallest answers. Within ε nothing else outranks the {core}:\n")
    say(sketch(test.inputs[places[::2]], [answer_text(answers[place]) for place in places[::2]]))
    draw(out / "digits.png", certificates, places)
    say(f"\nPicture: {out / 'digits.png'}    numbers: {out / 'digits.json'}    models: {out}/*")
    say(f"Go on:   .venv/bin/safeset evaluate {out / 'rt3'} --epsilon 0.2,0.5,0.8 --per-class")
    result = {
        "command": "make demo",
        "recipes": [f"recipes/digits/{name}.toml" for name in NAMES],
        "seed": 0,
        "epsilon": epsilon,
        "points": len(test),
        "bound_method": sorted({layer.method for net in nets.values() for layer in net.bounds().layers}),
        "dtype": "float64",
        **provenance(torch.device("cpu")),
        "seconds": round(time.perf_counter() - started, 1),
        "rows": rows,
        "said": "\n".join(said),
    }
    (out / "digits.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
