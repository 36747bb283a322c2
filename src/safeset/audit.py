"""The auditor: attacks what a run certifies, proves its bounds anew, and holds what is stored against what is found."""

import json
import math
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.arithmetic import strict_arithmetic
from safeset.attacks import Windows, attacked, breaking_margin
from safeset.certificates import Certificate
from safeset.certify import certify_logits
from safeset.constants import HeadConstants
from safeset.data.dataset import Progress, Split
from safeset.errors import UnsupportedLayerError, expected
from safeset.inputs import as_count, as_device, as_number
from safeset.jobs import plain, run_data
from safeset.net import FrozenNet
from safeset.provenance import provenance
from safeset.rational import evaluate as exactly
from safeset.reproofs import reproved
from safeset.runs import Run, load
from safeset.stored import stored_checks

FACTORS = (0.5, 0.25, 0.1)  # of the constants, in the positive control
CONTROL_POINTS = 100
EDGE = 0.9999  # of a certified radius: attacked there
FAR = 100.0  # where a certificate says that no perturbation can break it
NUMBERS_AT_ONCE = {"cpu": 2**16, "cuda": 2**22}  # of the points of windows that are attacked together
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0, math.inf)  # of the histogram: nearest violation / certified radius
SHARES = {"proofs": 0.3, "control": 0.5, "attacks": 0.9, "accuracy": 1.0}  # of the time, by their ends


def audit_run(
    run: Run,
    *,
    points: int | None = None,
    minutes: float = 5.0,
    source: str | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Audit a run on its test data, by the method ``joint`` at its own ε: what is written to audit.json.

    Args:
        run: a run whose training has ended.
        points: how many test points, chosen at random but always the same; by default all.
        minutes: how long it may take; what is not reached is said.
        source: other data, in the same form as the run's own.
        device: such as ``"cuda"``.
        progress: wraps the batches of the attack.

    Returns:
        A table with ``verdict`` (``passed``, ``failed`` or ``inconclusive``), ``checks``, ``bounds``, ``attack``,
        ``violations``, ``control``, ``tightness``, ``accuracy``.
    """
    if points is not None and as_count(points) is None:
        raise expected("`points` to be a whole number ≥ 1", points)
    if not (as_number(minutes) or 0) > 0:
        raise expected("a time in minutes above 0", minutes)
    clock = Clock(time.perf_counter(), 60 * minutes)
    net = load(run.path).to(as_device(device)).frozen()
    recipe = run.read_recipe()
    data = run_data(recipe, source, progress)
    checks = stored_checks(run, net, data, own_data=source is None)
    split = data.test if points is None else data.test[_some(len(data.test), points)]
    bounds = reproved(net, seconds=clock.left("proofs"))
    auditor = Auditor(net, split, clock)
    control = auditor.control()
    found = auditor.attack(run.path / "violations", progress)
    result = {
        "verdict": "",
        "data": data.name,
        "guarantee": str(net.guarantee),
        "epsilon": net.epsilon,
        "method": "joint",
        "points": len(split),
        "checks": checks,
        "bounds": [vars(line) for line in bounds],
        "control": control,
        **found,
        "accuracy": auditor.accuracy(),
        "dtype": "float64",
        "minutes": minutes,
        "seconds": 0.0,
        **provenance(next(net.parameters()).device),
        "recipe": json.loads(json.dumps(recipe.table(), default=str)),
    }
    result["verdict"], result["reasons"] = verdict(result)
    result["seconds"] = round(time.perf_counter() - clock.start, 3)
    return plain(result)  # type: ignore[no-any-return]


def verdict(result: dict[str, Any]) -> tuple[str, list[str]]:
    """The verdict of an audit, and what led to it."""
    bad = [f"{len(result['violations'])} violations"] if result["violations"] else []
    bad += [
        f"the bound of {line['name'] or 'the network'}: refuted"
        for line in result["bounds"]
        if line["verdict"] == "refuted"
    ]
    bad += [f"{check['what']}: {check['verdict']}" for check in result["checks"] if check["verdict"] == "different"]
    if bad:
        return "failed", bad
    if not result["attack"]["points"]:
        return "inconclusive", ["nothing is certified, or no time was left to attack it"]
    if not any(row["broken"] for row in result["control"]):
        return "inconclusive", ["the attack finds nothing in the positive control either"]
    return "passed", []


@dataclass(frozen=True)
class Clock:
    """How much of the time is left."""

    start: float
    seconds: float

    def left(self, part: str) -> float:
        """Seconds until the end of a part's share."""
        return self.start + SHARES[part] * self.seconds - time.perf_counter()


class Auditor:
    """Attacks on the certificates of a net at labelled points.

    Args:
        net: frozen.
        split: points and labels.
        clock: how long it may take.
    """

    def __init__(self, net: FrozenNet, split: Split, clock: Clock) -> None:
        self.net, self.clock = net, clock
        device = next(net.parameters()).device
        self.x, self.y = split.inputs.to(device).double(), split.y.to(device)
        self.head = net.bounds().head
        most = NUMBERS_AT_ONCE.get(device.type, 2**16) // max(1, self.x[0].numel())
        self.rows_at_once = min(max(most, 8), 64 if device.type == "cpu" else 1024)
        self.certificate = net.certify(self.x, method="joint")
        with strict_arithmetic():
            self.logits = torch.cat([net.network(part) for part in torch.split(self.x, 256)])
        self.ranking = self.logits.argsort(dim=1, descending=True, stable=True)

    def control(self) -> list[dict[str, Any]]:
        """The same attack on certificates from constants that are too small: it must find violations."""
        rows = []
        for place, factor in enumerate(FACTORS):
            small = HeadConstants(self.head.rows, float(self.head.scale) * factor)
            false = certify_logits(self.logits, small, self.net.epsilon, self.net.guarantee, method="joint")
            windows = self.promises(false, answers_only=True)[:CONTROL_POINTS]
            end = self.clock.left("control") / (len(FACTORS) - place)
            broken, tried, confirmed = 0, 0, False
            for part, found in self.rounds(windows, time.perf_counter() + end):
                tried, broken = tried + len(part), broken + int(found.broken.sum())
                for row in found.broken.nonzero()[:1, 0].tolist() if not confirmed else ():
                    confirmed = bool(self.confirmed(part[[row]], found.inside[row])["exact"])
            rows.append({"factor": factor, "points": tried, "broken": broken, "confirmed": confirmed})
        return rows

    def attack(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        """Attack every certified window, answers first, then small radii; violations go into ``folder``."""
        windows = self.promises(self.certificate)
        order = torch.argsort(windows.radius, stable=True)
        windows = windows[order[torch.argsort((windows.radius != self.net.epsilon)[order].int(), stable=True)]]
        violations: list[dict[str, Any]] = []
        ratios: list[float] = []
        seen: set[int] = set()
        tried = steps = 0
        rounds = self.rounds(windows, time.perf_counter() + self.clock.left("attacks"))
        for part, found in progress(rounds, math.ceil(len(windows) / self.rows_at_once)) if progress else rounds:
            tried, steps = tried + len(part), steps + found.steps
            seen |= set(part.place.tolist())
            edge = part.radius != self.net.epsilon
            proved = self.certificate.windows[part.place, part.first - 1, part.last - 1]
            ratios += (found.distance / proved)[edge].tolist()
            for row in found.broken.nonzero()[:, 0].tolist():
                told = self.confirmed(part[[row]], found.inside[row])
                if told["exact"] or told["float64"]:
                    violations.append(told | self.kept(folder, len(violations), part[[row]], found.inside[row]))
        certified = int((self.certificate.radius > 0).sum())
        finite = [ratio for ratio in ratios if ratio < math.inf]
        counts = [sum(low <= ratio < high for ratio in finite) for low, high in pairwise(EDGES)]
        return {
            "attack": {
                "points": len(seen),
                "certified": certified,
                "windows": tried,
                "of_windows": len(windows),
                "steps": steps,
            },
            "violations": violations,
            "tightness": {
                "edges": EDGES[:-1],
                "below": sum(ratio < 1 for ratio in finite),
                "counts": counts,
                "none_found": len(ratios) - len(finite),
                "median": statistics.median(finite) if finite else None,
            },
        }

    def accuracy(self) -> dict[str, Any]:
        """VRA, accuracy under attack and plain accuracy: what is true of the net lies between the first two.

        Under attack a point counts while its label is in F^k for some k that the guarantee allows and the attack does
        not break, wherever it looks in the ball.
        """
        certificate = self.certificate
        verified, correct = certificate.verified(self.y), certificate.correct(self.y)
        rank = (certificate.ranking == self.y[:, None]).long().argmax(dim=1) + 1
        ks = torch.arange(1, certificate.eligible.shape[1] + 1, device=rank.device)
        largest = (certificate.eligible * ks).amax(dim=1)
        open_ = (correct & ~verified).nonzero()[:, 0]
        radius = torch.full_like(self.logits[open_, 0], self.net.epsilon)
        windows = Windows(self.x[open_], self.ranking[open_], rank[open_], largest[open_], radius, open_)
        broken = tried = 0
        for part, found in self.rounds(windows, time.perf_counter() + self.clock.left("accuracy")):
            tried, broken = tried + len(part), broken + int(found.broken.sum())
        points = len(self.y)
        return {
            "vra": int(verified.sum()) / points,
            "under_attack": (int(correct.sum()) - broken) / points,
            "clean": int(correct.sum()) / points,
            "attacked": tried,
            "of": len(windows),
        }

    def promises(self, certificate: Certificate, *, answers_only: bool = False) -> Windows:
        """What a certificate promises: the window of each answer at ε, and for each core its widest radius, almost."""
        core = certificate.core.sum(dim=1)
        answer = certificate.certified.nonzero()[:, 0]
        first, last = core[answer], core[answer] + certificate.optional.sum(dim=1)[answer]
        radius = torch.full_like(certificate.radius[answer], certificate.epsilon)
        place = answer
        if not answers_only:
            best = certificate.windows.max(dim=2)
            point, start = (best.values > 0).nonzero(as_tuple=True)
            wide = best.values[point, start]
            radius = torch.cat([radius, torch.where(wide < math.inf, EDGE * wide, FAR)])
            place, first = torch.cat([place, point]), torch.cat([first, start + 1])
            last = torch.cat([last, best.indices[point, start] + 1])
        return Windows(self.x[place], self.ranking[place], first, last, radius, place)

    def rounds(self, windows: Windows, deadline: float) -> Iterator[tuple[Windows, Any]]:
        """Attacks on some windows at a time, while there is time; at least one."""
        for start in range(0, len(windows), self.rows_at_once):
            part = windows[slice(start, start + self.rows_at_once)]
            yield part, attacked(self.net.network, self.head.rows, part, seed=start)
            if time.perf_counter() > deadline:
                return

    def confirmed(self, window: Windows, moved: Tensor) -> dict[str, Any]:
        """Whether a violation is one: distance in rationals, logits in float64 as certified, and in rationals."""
        x = window.x[0]
        pairs = zip(moved.flatten().tolist(), x.flatten().tolist(), strict=True)
        near = sum((Fraction(a) - Fraction(b)) ** 2 for a, b in pairs) <= Fraction(float(window.radius)) ** 2
        with strict_arithmetic():
            in_floats = near and float(breaking_margin(self.net.network(moved[None]), window)) <= 0
        try:
            values = [list(exactly(self.net.network, each.cpu())) for each in (x, moved)]
        except UnsupportedLayerError:
            return {"exact": None, "float64": in_floats}
        order = sorted(range(len(values[0])), key=lambda each: -values[0][each])
        ks = range(int(window.first), int(window.last) + 1)
        broken = [min(values[1][j] for j in order[:k]) <= max(values[1][i] for i in order[k:]) for k in ks]
        return {"exact": near and all(broken), "float64": in_floats}

    def kept(self, folder: Path, number: int, window: Windows, moved: Tensor) -> dict[str, Any]:
        """Save a violation; what is told of it."""
        folder.mkdir(exist_ok=True)
        path = folder / f"{number}.npz"
        np.savez(path, x=window.x[0].cpu().numpy(), violation=moved.cpu().numpy())
        return {
            "point": int(window.place),
            "window": [int(window.first), int(window.last)],
            "radius": float(window.radius),
            "distance": float((moved - window.x[0]).norm()),
            "file": str(path),
        }


def _some(count: int, wanted: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:wanted].sort().values
