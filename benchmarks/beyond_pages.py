"""The tables of docs/beyond.md, from results/beyond: what is published, and every try with its price."""

import statistics
from collections.abc import Callable
from itertools import groupby
from typing import Any

from common import markdown
from safeset.paper.table import PAPER, spread

CHANGES = {  # of each try; the first ones are beside base30, those with a number in front beside 10-b30
    "base30": "a plain teacher, mixup and cutmix",
    "noise30": "base30, the teacher with noise σ = 0.1",
    "noise2-30": "base30, σ = 0.2",
    "noise3-30": "base30, σ = 0.3",
    "softn30": "noise30, margins that shrink with the teacher's labels",
    "hier30": "base30, four layers of 256 channels at 16 × 16 pixels first",
    "nomix30": "noise2-30, no mixup, no cutmix",
    "long200": "noise2-30, 200 epochs",
    "10-b30": "nomix30, labels asked once for 32 views of each image",
    "11-t3": "10-b30, three teachers",
    "11b-near": "11-t3, rotations begin near the identity",
    "12-emma": "11-t3, EMMA alone",
    "13-group": "11-t3, ½ without margins inside the superclass",
    "14-remove": "11-t3, ½ without the four best rivals (`membership`)",
    "15-pool": "11-t3, 2 × 2 pooling at half of the depth",
    "e-base": "a plain teacher, mixup and cutmix",
    "e-n1": "e-base, the teacher with noise σ = 0.1",
    "e-nomix": "e-base, no mixup, no cutmix",
    "e-long": "e-nomix, 190 epochs",
}
KINDS = {"cifar100": ("rt5", "superclass"), "eurosat": ("rt3", "affinity")}


def published(*results: dict[str, Any]) -> str:
    """Each row: VRA beside the paper's, and how large the answers are."""
    order = {row: place for place, row in enumerate(PAPER)}
    ranked = sorted(results, key=lambda each: (order[each["row"]], each["seed"]))
    rows = []
    for row, group in groupby(ranked, key=lambda each: str(each["row"])):
        seeds = list(group)

        def of(way: str, name: str, seeds: list[dict[str, Any]] = seeds) -> list[float]:
            return [each[way][name] for each in seeds]

        def mean(way: str, name: str, digits: int, of: Any = of) -> str:
            return f"{statistics.fmean(of(way, name)):.{digits}f}"

        minutes = statistics.fmean(each["training_seconds"] for each in seeds) / 60
        rows.append(
            [
                f"`{row}`",
                f"{PAPER[row][0][0]:.3f}",
                *(spread(of(way, "vra")) for way in ("uniform", "joint")),
                str(len(seeds)),
                mean("joint", "rejection", 3),
                mean("joint", "top1", 3),
                f"{mean('joint', 'set_size', 2)}, {mean('joint', 'smallest_set_size', 2)}",
                mean("joint", "smallest_share", 3),
                f"{minutes:.1f}, {'H200' if 'H200' in seeds[0]['device'] else 'CPU'}",
            ]
        )
    header = ["row", "VRA: the paper", "uniform", "joint", "seeds", "rejected, joint", "top-1"]
    header += ["classes in an answer, joint: largest, smallest", "label in the smallest core", "minutes"]
    return markdown(header, rows)


def tries(data: str, *results: dict[str, Any]) -> str:
    """Every try with a data set: what was changed, seconds of the GPU, VRA on held-out points, and for each minute."""
    relaxed, other = KINDS[data]
    rows = []
    for result in results:
        for name, each in result.items():
            if name == "about":
                continue
            if name in CHANGES and each["settings"]["data"] == data:
                seconds = each["training"]["seconds"] + each["training"].get("bank_seconds", 0.0)
                seconds += sum(one["seconds"] for one in each["teachers"])
                numbers = {kind: found["vra"] for kind, found in each["held_out"]["one"].items()}
                cells = row_of(name, CHANGES[name], each["settings"]["epochs"], seconds, numbers, relaxed, other)
                rows.append(cells)
            elif "changes" in each and data in each["changes"]:
                numbers = {kind: found["vra"] for kind, found in each["rows"].items()}
                cells = row_of(name, each["what"], each["epochs"], each["seconds"], numbers, relaxed, other)
                rows.append(cells)
    header = ["try", "what", "epochs", "GPU, s", "standard", f"{relaxed.upper()}, uniform", "joint"]
    header += [f"{other}, uniform", "joint", f"{relaxed.upper()}, uniform, a minute"]
    places = list(CHANGES)
    rows.sort(key=lambda cells: places.index(cells[0]) if cells[0] in CHANGES else len(places))
    return markdown(header, rows)


def row_of(
    name: str, what: str, epochs: float, seconds: float, numbers: dict[str, float], relaxed: str, other: str
) -> list[str]:
    """One try."""
    kinds = ["standard uniform", *(f"{kind} {way}" for kind in (relaxed, other) for way in ("uniform", "joint"))]
    shares = [f"{numbers[kind]:.3f}" for kind in kinds]
    speed = f"{60 * numbers[f'{relaxed} uniform'] / seconds:.2f}"
    return [name, what, f"{epochs:g}", f"{seconds:.0f}", *shares, speed]


def cifar100(*results: dict[str, Any]) -> str:
    """Tries with CIFAR-100."""
    return tries("cifar100", *results)


def eurosat(*results: dict[str, Any]) -> str:
    """Tries with EuroSAT."""
    return tries("eurosat", *results)


def affinity_losses(result: dict[str, Any]) -> str:
    """Means and standard deviations over seeds."""
    lines = []
    for form in dict.fromkeys(row["form"] for row in result["rows"]):
        own = [row for row in result["rows"] if row["form"] == form]

        def mean(name: str, digits: int, own: list[dict[str, Any]] = own) -> str:
            return f"{statistics.fmean(row['joint'][name] for row in own):.{digits}f}"

        shares = [spread([row[way]["vra"] for row in own]) for way in ("uniform", "joint")]
        sizes = f"{mean('set_size', 2)}, {mean('smallest_set_size', 2)}"
        lines.append([form, *shares, mean("rejection_rate", 3), mean("top1", 3), sizes])
    header = ["loss", "uniform", "joint", "rejected, joint", "top-1", "classes in an answer, joint: largest, smallest"]
    return markdown(header, lines)


TRIES = " ".join(f"beyond/tries/h200-held-out{number}.json" for number in ("", "-2", "-3", "-4", "-5"))
PUBLISHED = " ".join(f"beyond/{data}/*.json" for data in ("acasxu", "cifar100", "eurosat", "tiny-imagenet"))
TABLES: list[tuple[str, str, str, Callable[..., str]]] = [
    ("docs/beyond.md", "published-beyond", PUBLISHED, published),
    ("docs/beyond.md", "tries-cifar100", TRIES, cifar100),
    ("docs/beyond.md", "tries-eurosat", TRIES, eurosat),
    ("docs/beyond.md", "affinity-losses", "affinity/losses.json", affinity_losses),
]
