"""Attacks on coverage.

A score may fall by no more than ε within ε: then a set that is made for ε keeps every class whose score reached the
threshold, whatever the threshold is. That is attacked here, at the labels of test points.
"""

import io
import math
import statistics
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.coverage.attack import Attack
from safeset.coverage.coverage import Coverage
from safeset.data.dataset import Split
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import rational, squared_norm
from safeset.system.files import write_whole

FACTORS = (0.5, 0.25, 0.1)  # of ε: sets that are made for less must lose classes, in the positive control
STEPS = 30
ROWS_AT_ONCE = {"cpu": 64, "cuda": 1024}
MOST_SAVED = 20


def attack_coverage(coverage: Coverage, split: Split, epsilon: float, folder: Path, end: Deadline) -> dict[str, Any]:
    """Attack the sets of labelled points within ε; violations go into ``folder``.

    A violation is an input within ε, in rationals, at which the executed score for ε is below the executed score of the
    same class at the point itself: for some threshold the class is lost.

    Args:
        coverage: of the net that is audited.
        split: points and labels.
        epsilon: the run's own.
        folder: for violations.
        end: when to stop; at least one batch is attacked.

    Returns:
        ``points`` that were attacked of ``of``; ``reached``, those whose clean score reaches the threshold; ``lost`` of
        these; ``violations``; ``fall``, the median and the largest fall of a score in parts of ε; and ``control``: how
        many classes sets that are made for less than ε would lose.
    """
    result: dict[str, Any] = {"epsilon": epsilon, "points": 0, "of": len(split), "reached": 0, "lost": 0}
    control = [{"factor": factor, "broken": 0} for factor in FACTORS]
    violations: list[dict[str, Any]] = []
    falls: list[float] = []
    for start, x, y, moved in _rounds(coverage, split, epsilon, end):
        down, needed = _own(coverage.scores(x, round="down"), y), coverage.thresholds.to(y.device)[y]
        points = coverage.net.measure(moved)
        up = _own(coverage.scores(points, epsilon=epsilon), y)
        reached = down >= needed
        result["points"] += len(x)
        result["reached"] += int(reached.sum())
        if epsilon > 0:
            falls += ((down - _own(coverage.scores(points), y)) / epsilon).tolist()
        for row in control:
            row["broken"] += int((_own(coverage.scores(points, epsilon=row["factor"] * epsilon), y) < down).sum())
        for place in (~(up >= down)).nonzero()[:, 0].tolist():
            apart = squared_norm(rational(moved[place].cpu()) - rational(x[place].cpu()))
            if not apart <= Fraction(epsilon) ** 2:
                continue
            lost = bool(reached[place] and up[place] < needed[place])
            result["lost"] += lost
            about = {"point": start + place, "class": int(y[place]), "lost": lost, "distance": math.sqrt(apart)}
            about |= {"score": float(down[place]), "within": float(up[place])}
            file = _save(folder, len(violations), x[place], moved[place]) if len(violations) < MOST_SAVED else ""
            violations.append(about | {"file": file})
    finite = [fall for fall in falls if math.isfinite(fall)]
    fall = {"median": statistics.median(finite), "largest": max(finite)} if finite else None
    return {**result, "fall": fall, "control": control, "violations": violations}


def _rounds(
    coverage: Coverage, split: Split, epsilon: float, end: Deadline
) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
    """Some points at a time: the place of the first, points, labels, and where the attack moves them."""
    device, attack = coverage.net.device, Attack(coverage, STEPS)
    some = ROWS_AT_ONCE.get(device.type, 64)
    for start in range(0, len(split), some):
        part = split[torch.arange(start, min(start + some, len(split)))].to(device)
        yield start, part.exact, part.y, attack.lowered(part.exact, part.y, epsilon)
        if end.left <= 0:
            return


def _own(scores: Tensor, y: Tensor) -> Tensor:
    return scores.gather(1, y[:, None])[:, 0]


def _save(folder: Path, number: int, x: Tensor, moved: Tensor) -> str:
    """Save a violation; where it is."""
    path, content = folder / f"coverage-{number}.npz", io.BytesIO()
    np.savez(content, x=x.cpu().numpy(), violation=moved.cpu().numpy())
    try:
        folder.mkdir(exist_ok=True)
        write_whole(path, content.getvalue())
    except OSError as error:
        return f"not saved: {error.strerror or error}"
    return str(path)


def coverage_verdict(found: dict[str, Any] | None) -> tuple[list[str], list[str]]:
    """What is wrong with coverage, and what is open; nothing where a run is not calibrated."""
    if found is None:
        return [], []
    bad = [f"{len(found['violations'])} violations of coverage"] if found["violations"] else []
    open_ = []
    if found["points"] < found["of"]:
        open_.append(f"time to attack the coverage of {found['points']:,} of {found['of']:,} points only")
    if found["epsilon"] > 0 and not any(row["broken"] for row in found["control"]):
        open_.append("the attack on coverage finds nothing in its positive control either")
    return bad, open_
