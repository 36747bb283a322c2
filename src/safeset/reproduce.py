"""The paper's table, trained and evaluated anew: a JSON file for each row and seed, beside the paper's numbers."""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from safeset.certify import certify_logits
from safeset.constants import HeadConstants
from safeset.errors import expected
from safeset.evaluation import POINTS_AT_ONCE, Metrics
from safeset.files import write_json
from safeset.inputs import as_device
from safeset.jobs import plain, run_data
from safeset.net import CertifiedNet
from safeset.runs import Run, load
from safeset.training.recipe import assembled
from safeset.training.train import train
from safeset.training.watch import Silent, Watch

# Table 1 of the paper: VRA, rejection rate and clean accuracy, each with its standard deviation over ten runs.
PAPER: dict[str, tuple[tuple[float, float | None], ...]] = {
    "eurosat/standard": ((0.749, 0.003), (0.204, 0.002), (0.862, 0.003)),
    "eurosat/rt3": ((0.908, 0.002), (0.073, 0.002), (0.987, 0.002)),
    "eurosat/highway-river": ((0.798, 0.002), (0.170, 0.002), (0.917, 0.003)),
    "eurosat/highway-river-agriculture": ((0.819, 0.003), (0.151, 0.003), (0.930, 0.003)),
    "cifar100/standard": ((0.281, 0.002), (0.640, 0.003), (0.473, 0.002)),
    "cifar100/rt5": ((0.360, 0.002), (0.562, 0.002), (0.706, 0.003)),
    "cifar100/superclass": ((0.323, 0.002), (0.599, 0.002), (0.520, 0.002)),
    "tiny-imagenet/standard": ((0.224, None), (0.639, None), (0.346, None)),
    "tiny-imagenet/rt5": ((0.277, 0.002), (0.447, 0.006), (0.537, 0.002)),
    "acasxu/targeted": ((0.749, 0.001), (0.195, 0.001), (0.858, 0.002)),
}
RATES = {"vra": "vra", "rejection": "rejection_rate", "accuracy": "accuracy"}
WAYS = ("uniform", "floating", "joint", "estimate")
POWER_STEPS = 500


def reproduce(
    rows: Sequence[str] = tuple(PAPER),
    *,
    seeds: int = 10,
    out: Path = Path("results/paper"),
    runs: Path = Path("runs/paper"),
    changes: Mapping[str, Any] | None = None,
    device: str | None = None,
    watch: Watch | None = None,
) -> list[dict[str, Any]]:
    """Train and evaluate rows of the paper's table, seeds 0 to ``seeds`` − 1: what ``out`` lacks.

    A seed that has its file is skipped, a training that was interrupted is continued.

    Args:
        rows: names of recipes: those of the paper's rows, or any other.
        seeds: how many of each.
        out: where the JSON files go, ``<row>-seed<N>.json``.
        runs: where the trained models go.
        changes: keys of the recipes to change.
        device: such as ``"cuda"``.
        watch: is told how it goes.

    Returns:
        What the files hold, row by row and seed by seed.
    """
    if seeds < 1:
        raise expected("`seeds` to be at least 1", seeds)
    watch = watch or Silent()
    found = []
    for row in rows:
        missing = [seed for seed in range(seeds) if not _file(out, row, seed).exists()]
        for first, count in _stretches(missing):
            recipe = assembled(row, {**(changes or {}), "seed": first, "seeds": count})
            group = runs / f"{row}-seed{first}" if count == 1 else runs / f"{row}-seed{first}-to-{first + count - 1}"
            group.parent.mkdir(parents=True, exist_ok=True)
            train(recipe, out=group, resume=True, device=device, watch=watch)
            for seed in range(first, first + count):
                run = Run(group / f"seed{seed}" if count > 1 else group)
                seconds = Run(group).records()[-1]["seconds"] / count
                target = _file(out, row, seed)
                target.parent.mkdir(parents=True, exist_ok=True)
                write_json(target, record(row, run, seconds, device))
        found += [json.loads(_file(out, row, seed).read_text()) for seed in range(seeds)]
    return found


def record(row: str, run: Run, seconds: float, device: str | None) -> dict[str, Any]:
    """The numbers of one trained network as they are published: from its own evaluation, and by the power method."""
    result = json.loads(run.evaluation.read_text())
    ways = {each["method"]: each for each in result["rows"]} | {"estimate": estimate(run, device)}
    keep = ("seed", "points", "guarantee", "data", "split", "bound_method", "dtype", "device", "commit", "safeset")
    return {
        "row": row,
        "epsilon": result["rows"][0]["epsilon"],
        **{way: {name: ways[way][rate] for name, rate in RATES.items()} for way in WAYS},
        "seconds": round(seconds, 3),
        **{name: result[name] for name in (*keep, "torch", "weights", "recipe")},
        "command": f"safeset reproduce {row}",
    }


def estimate(run: Run, device: str | None) -> dict[str, Any]:
    """The metrics by `uniform` with the power method's constants instead of proved ones: they prove nothing."""
    net = load(run.path).to(as_device(device))
    data, metrics = run_data(run.read_recipe()).test, Metrics()
    constants = converged(net)
    frozen = net.frozen()
    for places in torch.split(torch.arange(len(data)), POINTS_AT_ONCE):
        part = data[places].to(constants.rows.device)
        with torch.no_grad():
            logits = torch.cat([frozen(some) for some in torch.split(part.inputs, 256)])
        found = certify_logits(logits, constants, net.epsilon, net.guarantee, method="uniform")
        metrics.update(found, part.y)
    return plain(metrics.compute())  # type: ignore[no-any-return]


@torch.no_grad()
def converged(net: CertifiedNet) -> HeadConstants:
    """The head's constants by many steps of the power method."""
    constants, _ = net.estimate(None, net.start_vectors(), POWER_STEPS)
    return HeadConstants(constants.rows.double(), float(constants.scale))


def compared(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row and number: the paper's, and ours by each way, mean ± standard deviation."""
    lines = []
    for row, group in groupby(records, key=lambda each: str(each["row"])):
        several = list(group)
        for place, name in enumerate(RATES):
            ours = [_spread([one[way][name] for one in several]) for way in WAYS]
            mean, deviation = PAPER[row][place] if row in PAPER else (None, None)
            paper = "–" if mean is None else f"{mean:.3f}" + (f" ± {deviation:.3f}" if deviation is not None else "")
            lines.append([row if place == 0 else "", name, str(len(several)) if place == 0 else "", paper, *ours])
    return lines


def _spread(values: list[float]) -> str:
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean} ± {statistics.stdev(values):.3f}" if len(values) > 1 else mean


def _file(out: Path, row: str, seed: int) -> Path:
    return out / f"{row}-seed{seed}.json"


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers in a row as first and count.

    >>> list(_stretches([0, 1, 2, 5, 6]))
    [(0, 3), (5, 2)]
    """
    for _, group in groupby(enumerate(numbers), key=lambda each: each[1] - each[0]):
        several = [number for _, number in group]
        yield several[0], len(several)
