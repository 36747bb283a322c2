"""The tables of docs/coverage.md, from results/coverage."""

from collections.abc import Callable
from typing import Any

from common import markdown

PARAMETERS = {"k": "k", "tau": "τ", "beta": "β", "ridge": "ridge"}
SCORES = {
    "unprotected (LAC)": "unprotected",
    "lip-rcp, one constant": "one constant",
    "log-softmax": "log-softmax, chosen",
    "r_1": "**membership**",
    "r_k (k chosen)": "**membership**, chosen",
    "soft-min": "**soft-min**, chosen",
    "fitted": "**fitted**, chosen",
}
NETWORKS = {  # of results/coverage: how each is called, and the ε that are shown
    "eurosat-rt3-small": ("EuroSAT, small", (0.0, 0.141, 0.25)),
    "acasxu-targeted-small": ("ACAS Xu", (0.0, 0.01, 0.03)),
    "cifar100-rt5-small": ("CIFAR-100, small", (0.0, 0.141, 0.25)),
    "tiny-imagenet-rt5-small": ("Tiny-ImageNet, small", (0.0, 0.141, 0.25)),
    "cifar100-rt5": ("CIFAR-100, the paper's", (0.0, 0.141, 0.25)),
    "cifar100-shift-rt5": ("CIFAR-100, `shift-rt5`", (0.0, 0.141, 0.25)),
    "cifar100-shift-rt20": ("CIFAR-100, `shift-rt20`", (0.0, 0.141, 0.25)),
    "tiny-imagenet-shift-rt5": ("Tiny-ImageNet, `shift-rt5`", (0.0, 0.141, 0.25)),
}
COMPARED = ("lip-rcp, one constant", "own constants", "centred", "log-softmax", "r_1", "soft-min", "fitted")


def coverage(result: dict[str, Any]) -> str:
    """Mean size of sets and coverage under attack, at each ε."""
    rows = [row for row in result["rows"] if row["alpha"] == "0.1"]
    epsilons = sorted({row["epsilon"] for row in rows})
    cells: dict[str, list[str]] = {}
    for row in rows:
        parameters = ", ".join(f"{PARAMETERS[key]} = {value:g}" for key, value in row["parameters"].items())
        name = SCORES.get(row["method"], row["method"]) + (f" ({parameters})" if parameters else "")
        cells.setdefault(name, []).append(f"{row['size']:.2f} ({row['coverage_attacked']:.3f})")
    return markdown(["score", *(f"ε = {each:g}" for each in epsilons)], [[name, *each] for name, each in cells.items()])


def coverage_networks(*results: dict[str, Any]) -> str:
    """Mean sizes at α = 0.1 on several networks, the smallest set of each line in bold."""
    rows = []
    for (name, epsilons), result in zip(NETWORKS.values(), results, strict=True):
        for place, epsilon in enumerate(epsilons):
            found = {
                row["method"]: row["size"]
                for row in result["rows"]
                if row["alpha"] == "0.1" and row["epsilon"] == epsilon
            }
            least = min(found[method] for method in COMPARED if method in found)
            cells = [f"{found[method]:.2f}" if method in found else "" for method in COMPARED]
            bold = [f"**{cell}**" if cell == f"{least:.2f}" else cell for cell in cells]
            about = f"{name}, top-1 {result['accuracy']:.2f}" if place == 0 else ""
            rows.append([about, f"{epsilon:g}", *bold])
    return markdown(["network", "ε", *(SCORES.get(method, method).replace("*", "") for method in COMPARED)], rows)


TABLES: list[tuple[str, str, str, Callable[..., str]]] = [
    ("docs/coverage.md", "coverage", "coverage/digits-rt3.json", coverage),
    (
        "docs/coverage.md",
        "coverage-networks",
        " ".join(f"coverage/{name}.json" for name in NETWORKS),
        coverage_networks,
    ),
]
