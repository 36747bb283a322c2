"""How often sets hold the true class on labelled points: as they are, guaranteed within ε, and under attack."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from safeset.coverage.attack import Attack
from safeset.coverage.coverage import Coverage
from safeset.coverage.curve import curve
from safeset.coverage.words import in_every_set
from safeset.data.dataset import Progress, Split
from safeset.errors import expected
from safeset.system.workers import Workers

POINTS_AT_ONCE = 256
QUANTILES = (0.1, 0.5, 0.9)
SEEN = (
    "These points are those of the calibration: about the promised share of them is covered whatever the sets are "
    "worth, which says nothing of new points. Evaluate on points that neither training nor calibration has seen."
)
DELTA = 0.05  # of the bound for the population


def evaluate_coverage(
    coverage: Coverage,
    split: Split,
    epsilons: Sequence[float],
    *,
    per_class: bool = False,
    attacked: Sequence[float] | None = None,
    seen: bool = False,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Coverage and sizes of sets on labelled points, as plain values; a row for ε = 0 and for each other ε.

    Where torch.distributed runs, all processes call it with the same points, share the work, and get the same.

    Args:
        coverage: calibrated, with other points unless they are ``seen``.
        split: points and labels.
        epsilons: radii.
        per_class: also by class.
        attacked: radii that are attacked; None: all. In the other rows ``under_attack`` is that of unchanged points.
        seen: whether the calibration was made with these points, which is then among the ``notes``.
        progress: wraps the batches.

    Returns:
        ``rows`` with ``epsilon``, ``clean`` (labels in the sets for ε of unchanged points), ``guaranteed`` (those that
        no change within ε gets out of the set), ``under_attack`` (those that the attack does not get out), ``size``
        (its mean), ``size_quantiles``, ``singletons``, and ``classes`` if asked for; ``curve``: what is guaranteed at
        each ε of sets that are made for ε = 0; what is promised, in words; and ``notes``, if there are any.
    """
    if not len(split):
        raise expected("at least one point", "none")
    radii = [0.0, *(epsilon for epsilon in dict.fromkeys(epsilons) if epsilon > 0)]
    reached, counts = _looked_at(coverage, split, radii, radii if attacked is None else attacked, progress)
    needed = coverage.thresholds[split.y.cpu()]
    is_concave = coverage.score.is_concave
    fixed = curve(reached, needed, radii, rule=0.0, delta=DELTA, is_concave=is_concave)
    names = coverage.net.class_names or tuple(map(str, range(coverage.net.classes)))
    rows = []
    for epsilon, found in zip(radii, counts, strict=True):
        row: dict[str, Any] = {"epsilon": epsilon, **_shares(found)}
        if per_class:
            parts = {name: found[split.y.cpu() == label] for label, name in enumerate(names)}
            row["classes"] = {name: _shares(part) for name, part in parts.items() if len(part)}
        rows.append(row)
    notes = [said for said in (SEEN if seen else "", in_every_set(coverage)) if said]
    return {
        "alpha": float(coverage.alpha),
        "confidence": None if coverage.confidence is None else float(coverage.confidence),
        "by_class": coverage.by_class,
        "score": str(coverage.score),
        "calibration_points": len(coverage),
        "thresholds": coverage.thresholds.tolist() if coverage.by_class else float(coverage.thresholds[0]),
        "words": coverage.promise,
        **({"notes": notes} if notes else {}),
        "rows": rows,
        "curve": fixed._asdict(),
    }


def _looked_at(
    coverage: Coverage, split: Split, radii: Sequence[float], attacked: Sequence[float], progress: Progress | None
) -> tuple[Tensor, list[Tensor]]:
    """Lower bounds of the labels' scores, (n,), and for each ε (n, 4): size, clean, guaranteed, under attack."""
    workers, device = Workers.here(), coverage.net.device
    thresholds, attack = coverage.thresholds, Attack(coverage) if attacked else None
    scores, tables = [torch.zeros(0, dtype=torch.float64)], [[torch.zeros(0, 4, dtype=torch.long)] for _ in radii]
    batches = torch.split(torch.arange(len(split))[workers.share(len(split))], POINTS_AT_ONCE)
    for places in progress(batches, len(batches)) if progress else batches:
        if not len(places):
            continue
        part = split[places].to(device)
        x, y = part.exact, part.y
        points = coverage.net.measure(x)
        own = coverage.scores(points, round="down").gather(1, y[:, None])[:, 0].cpu()
        scores.append(own)
        guaranteed = own >= thresholds[y.cpu()]
        for epsilon, table in zip(radii, tables, strict=True):
            sets = coverage.sets(points, epsilon)
            clean = sets.gather(1, y[:, None])[:, 0].cpu()
            kept = clean.clone()
            tried = (clean & ~guaranteed).nonzero()[:, 0]  # the others are decided
            if attack is not None and epsilon in attacked and len(tried) and epsilon > 0:
                some = tried.to(device)
                moved = attack.lowered(x[some], y[some], epsilon)
                kept[tried] = coverage.sets(moved, epsilon).gather(1, y[some][:, None])[:, 0].cpu()
            table.append(torch.stack([sets.sum(dim=1).cpu(), clean, guaranteed, kept], dim=1).long())
    gathered = workers.everyones((torch.cat(scores), [torch.cat(table) for table in tables]))
    return (
        torch.cat([reached for reached, _ in gathered]),
        [torch.cat([several[place] for _, several in gathered]) for place in range(len(radii))],
    )


def _shares(found: Tensor) -> dict[str, Any]:
    """The numbers of some points, from their rows (n, 4)."""
    sizes = found[:, 0].sort().values
    clean, guaranteed, kept = (int(count) / len(found) for count in found[:, 1:].sum(dim=0))
    return {
        "points": len(found),
        "clean": clean,
        "guaranteed": guaranteed,
        "under_attack": kept,
        "size": int(sizes.sum()) / len(sizes),
        "size_quantiles": {f"{level:g}": int(sizes[math.ceil(level * len(sizes)) - 1]) for level in QUANTILES},
        "singletons": int((sizes == 1).sum()) / len(sizes),
    }
