"""A linear classifier of handwritten digits, its answers certified as sets.

Fits a linear classifier on scikit-learn's digits (8×8 pixels in [0, 1]), certifies every test image, prints how each
guarantee and method does, and draws a picture.

    python examples/digits.py [--out runs/demo]
"""

import argparse
import json
import time
from pathlib import Path

import matplotlib
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

from safeset import Affinity, Certificate, Guarantee, HeadConstants, RelaxedTopK, Standard, certify_logits
from safeset.evaluation import Metrics, vra_curve
from safeset.margins import METHODS

EPSILON = 0.35
LOOKALIKES = Affinity([[1, 4, 7], [3, 5, 8, 9]])
GUARANTEES: dict[str, Guarantee] = {
    "standard": Standard(),
    "relaxed top-2": RelaxedTopK(2),
    "relaxed top-3": RelaxedTopK(3),
    "affinity {1,4,7} {3,5,8,9}": LOOKALIKES,
}


def fit() -> tuple[HeadConstants, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Head, test images, labels, logits, and a bound on the rounding error of each logit difference."""
    images, labels = load_digits(return_X_y=True)
    images = images / 16
    train = np.random.default_rng(0).permutation(len(images)) % 3 > 0
    model = LogisticRegression(C=0.02, max_iter=500).fit(images[train], labels[train])
    x, weights, bias = (torch.tensor(array) for array in (images[~train], model.coef_, model.intercept_))
    logits = x @ weights.T + bias
    # |fl(w·x + b) − (w·x + b)| ≤ γ₆₆ (|w|·|x| + |b|) for each logit, so at most twice the largest of them for a pair.
    error = 2 * (66 * 2.0**-52) * (x.abs() @ weights.abs().T + bias.abs()).amax(dim=1)
    return HeadConstants(weights), x, torch.tensor(labels[~train]), logits, error


def certify(
    head: HeadConstants, logits: torch.Tensor, error: torch.Tensor, guarantee: Guarantee, method: str
) -> Certificate:
    """The certificate of all test images."""
    return certify_logits(logits, head, EPSILON, guarantee, method=method, error=error)


def draw(
    path: Path, certificates: dict[tuple[str, str], Certificate], images: torch.Tensor, labels: torch.Tensor
) -> None:
    """Some certified sets, and VRA against ε."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    standard, answer = certificates["standard", "joint"], certificates["relaxed top-3", "joint"]
    size = answer.core.sum(dim=1)
    alone = (standard.certified & (size == 1) & ~answer.optional.any(dim=1)).nonzero()[:2, 0].tolist()
    with_optional = (~standard.certified & answer.certified & answer.optional.any(dim=1)).nonzero()[:2, 0].tolist()
    several = (~standard.certified & (size > 1) & ~answer.optional.any(dim=1)).nonzero()[:2, 0].tolist()
    rejected = (~answer.certified).nonzero()[:2, 0].tolist()
    shown = alone + several + with_optional + rejected
    figure = plt.figure(figsize=(11, 4.6), layout="constrained")
    pictures, curves = figure.subfigures(1, 2, squeeze=False, width_ratios=[1.25, 1])[0]
    axes = pictures.subplots(2, 4).flat
    for axis, place in zip(axes, shown, strict=False):
        axis.imshow(images[place].reshape(8, 8), cmap="gray_r")
        record = answer[place].records()[0]
        core = "{" + ", ".join(map(str, record["core"])) + "}"
        maybe = "".join(f"  (+{c})" for c in record["optional"])
        title = f"{core}{maybe}" if record["certified"] else "⊥"
        axis.set_title(title, fontsize=14, color="#1f6f43" if record["certified"] else "#a33", pad=4)
        beside = "certified" if standard.certified[place] else "⊥"
        axis.set_xlabel(f"label {labels[place].item()}\nstandard: {beside}", fontsize=9)
    for axis in pictures.axes:
        axis.set_xticks([])
        axis.set_yticks([])
        if not axis.images:
            axis.set_visible(False)
    pictures.suptitle(f"Certified sets (relaxed top-3, joint, ε = {EPSILON})", fontsize=12)
    axis = curves.subplots()
    epsilons = np.linspace(0, 1.0, 101).tolist()
    lines = [
        ("standard", "joint", "standard", "#888", "-"),
        ("relaxed top-3", "uniform", "relaxed top-3, uniform (the paper)", "#3b6fb6", ":"),
        ("relaxed top-3", "floating", "relaxed top-3, floating", "#3b6fb6", "--"),
        ("relaxed top-3", "joint", "relaxed top-3, joint", "#1f6f43", "-"),
    ]
    for name, method, text, colour, style in lines:
        axis.plot(epsilons, vra_curve(certificates[name, method], labels, epsilons), style, color=colour, label=text)
    axis.axvline(EPSILON, color="#ccc", zorder=0)
    axis.set_xlabel("ε (L2, pixels in [0, 1])")
    axis.set_ylabel("verified-robust accuracy")
    axis.set_ylim(0, 1)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(frameon=False, fontsize=9)
    curves.suptitle("One pass answers every ε", fontsize=12)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def main() -> None:
    """Fit, certify, print, draw."""
    parser = argparse.ArgumentParser(description="Certified sets for handwritten digits.")
    parser.add_argument("--out", type=Path, default=Path("runs/demo"), help="folder for the numbers and the picture")
    out = parser.parse_args().out
    started = time.perf_counter()
    head, images, labels, logits, error = fit()
    print(f"A linear classifier of digits, {len(labels)} test images, ε = {EPSILON} (L2, pixels in [0, 1]).\n")
    print("guarantee                   method       VRA  rejected  accuracy  core  core+optional")
    certificates, rows = {}, []
    for name, guarantee in GUARANTEES.items():
        for method in METHODS:
            certificate = certificates[name, method] = certify(head, logits, error, guarantee, method)
            row = Metrics().update(certificate, labels).compute()
            rows.append({"guarantee": str(guarantee), "method": method, **row})
            label = name if method == METHODS[0] else ""
            rates = f"{row['vra']:>6.3f} {row['rejection_rate']:>9.3f} {row['accuracy']:>9.3f}"
            print(f"{label:<27} {method:<9} {rates} {row['core_size']:>5.2f} {row['set_size']:>14.2f}")
    print("\nThe first test images, relaxed top-3:")
    print("\n".join(str(certificates["relaxed top-3", "joint"][:6]).splitlines()[1:]))
    draw(out / "digits.png", certificates, images, labels)
    result = {
        "command": "python examples/digits.py --out results/analyses",
        "model": "logistic regression (scikit-learn, C = 0.02), two thirds of the digits for training, seed 0",
        "bound_method": "the head's row differences, rounded up; rounding of the logits accounted for",
        "epsilon": EPSILON,
        "points": len(labels),
        "dtype": "float64",
        "device": "cpu",
        "seconds": round(time.perf_counter() - started, 2),
        "rows": rows,
    }
    (out / "digits.json").write_text(json.dumps(result, indent=1) + "\n")
    print(f"\nThe picture is {out / 'digits.png'}, the numbers are {out / 'digits.json'}.")


if __name__ == "__main__":
    main()
