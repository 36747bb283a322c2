"""Attacks on what a net certifies, at labelled points: the auditor's own work."""

import io
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

from safeset.audit.attacks import Found, Windows, attack_windows, breaking_margin
from safeset.audit.recheck import Rechecked, recheck
from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.data.dataset import Progress, Split
from safeset.errors import UnsupportedLayerError, expected
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import Deadline, OutOfTimeError
from safeset.numerics.multiples import Array, rational, squared_norm
from safeset.numerics.strict import strict_arithmetic
from safeset.program.exact import enclose
from safeset.system.files import write_whole

FACTORS = (0.5, 0.25, 0.1)  # of the constants, in the positive control
CONTROL_WINDOWS = 100
MOST_CONFIRMED = 20  # violations: more are counted
DEAR = 0.05  # of the time: a confirmation in rationals that takes longer is made once in the positive control
EDGE = 0.9999  # of a certified radius: attacked there
FAR = 100.0  # where a certificate says that no perturbation can break it
NUMBERS_AT_ONCE = {"cpu": 2**16, "cuda": 2**22}  # of the points of windows that are attacked together
EDGES = (1.0, 1.02, 1.05, 1.1, 1.2, 1.5, 2.0, 5.0, math.inf)  # of the histogram: nearest violation / certified radius
SHARES = {
    "windows": 0.25,
    "logits": 0.3,
    "control": 0.5,
    "attacks": 0.9,
    "coverage": 0.95,
    "accuracy": 1.0,
}  # ends of parts


@dataclass(frozen=True)
class Clock:
    """How much of the time is left."""

    start: float
    seconds: float

    def left(self, part: str) -> float:
        """Seconds until the end of a part's share."""
        return self.end(part).left

    def end(self, part: str) -> Deadline:
        """The end of a part's share."""
        return Deadline(self.start + SHARES[part] * self.seconds)


@dataclass(frozen=True, eq=False)
class Promises:
    """What is promised, one window in a row.

    Attributes:
        place: (n,) number of the point.
        first: (n,) a, counted from 1.
        last: (n,) b.
        radius: (n,) where it is attacked.
        proved: (n,) the promise holds below this distance.
        answer: (n,) booleans: the window of an answer at ε.
    """

    place: Tensor
    first: Tensor
    last: Tensor
    radius: Tensor
    proved: Tensor
    answer: Tensor

    def __len__(self) -> int:
        return len(self.place)

    def __getitem__(self, index: Any) -> "Promises":
        """Some of the rows."""
        return Promises(*(getattr(self, name)[index] for name in self.__dataclass_fields__))


class Auditor:
    """Attacks on the certificates of a net at labelled points.

    Args:
        net: frozen.
        split: points and labels.
        clock: how long it may take.
    """

    def __init__(self, net: FrozenNet, split: Split, clock: Clock) -> None:
        if not len(split):
            raise expected("points to audit", "none")
        self.net, self.clock = net, clock
        device = net.program.device
        self.layers = net.network  # the same as the program, with gradients that cost less
        self.x, self.y = split.exact.to(device), split.y.to(device)
        self.head = net.bounds().head
        largest = net.guarantee.largest_k(net.classes)
        most = min(NUMBERS_AT_ONCE.get(device.type, 2**16) // self.x[0].numel(), 2**23 // largest**3)
        self.rows_at_once = min(max(most, 8), 64 if device.type == "cpu" else 1024)
        self.certificate = net.certify(self.x, method="joint")
        self.logits = net.measure(self.x).logits
        self.ranking = self.logits.argsort(dim=1, descending=True, stable=True)

    def recheck(self) -> Rechecked:
        """The windows of all points, proved again from their definition."""
        windows, logits = self.clock.end("windows"), self.clock.end("logits")
        return recheck(self.net, self.net.bounds(), self.x, self.logits, self.certificate, windows, logits)

    def control(self) -> list[dict[str, Any]]:
        """The same attack on certificates from constants that are too small: it must find violations.

        One of each is confirmed in rationals; where that takes long, one in all: ``confirmed`` of the others is None.
        """
        rows, cost = list[dict[str, Any]](), 0.0
        for place, factor in enumerate(FACTORS):
            small = HeadConstants(self.head.rows, float(self.head.scale) * factor)
            false = certify_logits(self.logits, small, self.net.epsilon, self.net.guarantee, method="joint")
            promises = self.promises(false)
            promises = promises[some_of(len(promises), CONTROL_WINDOWS).to(self.x.device)]
            end = time.perf_counter() + self.clock.left("control") / (len(FACTORS) - place)
            enough = any(each["confirmed"] for each in rows) and cost > DEAR * self.clock.seconds
            row: dict[str, Any] = {"factor": factor, "windows": 0, "broken": 0, "confirmed": None if enough else False}
            for part, found in self.rounds(promises, end):
                broken = (found.distance < part.proved).nonzero()[:, 0]
                row["windows"], row["broken"] = row["windows"] + len(part), row["broken"] + len(broken)
                for one in broken[:1].tolist() if row["confirmed"] is False else ():
                    started = time.perf_counter()
                    row["confirmed"] = self.confirm(part[[one]], found.nearest[one], "control")["exact"]
                    cost = time.perf_counter() - started
            rows.append(row)
        return rows

    def attack(self, folder: Path, progress: Progress | None) -> dict[str, Any]:
        """Attack every certified window: the answers first, then small radii first; violations go into ``folder``."""
        promises = self.promises(self.certificate)
        order = torch.argsort(promises.radius, stable=True)
        promises = promises[order[torch.argsort((~promises.answer)[order].int(), stable=True)]]
        violations: list[dict[str, Any]] = []
        ratios: list[float] = []
        seen: set[int] = set()
        tried = steps = answers = unconfirmed = 0
        rounds = self.rounds(promises, time.perf_counter() + self.clock.left("attacks"))
        for part, found in progress(rounds, math.ceil(len(promises) / self.rows_at_once)) if progress else rounds:
            tried, steps, answers = tried + len(part), steps + found.steps, answers + int(part.answer.sum())
            seen |= set(part.place.tolist())
            ratios += (found.distance / part.proved)[~part.answer].tolist()
            for row in (found.distance < part.proved).nonzero()[:, 0].tolist():
                if len(violations) + unconfirmed >= MOST_CONFIRMED:
                    unconfirmed += 1
                    continue
                promise, nearest = part[[row]], found.nearest[row]
                checked = self.confirm(promise, nearest, "attacks")
                if checked["exact"] or checked["float64"]:
                    violations.append(checked | self.save_violation(folder, len(violations), promise, nearest))
                else:
                    unconfirmed += 1
        finite = [ratio for ratio in ratios if ratio < math.inf]
        return {
            "attack": {
                "points": len(seen),
                "certified": int((self.certificate.radius > 0).sum()),
                "answers": answers,
                "of_answers": int(promises.answer.sum()),
                "windows": tried,
                "of_windows": len(promises),
                "steps": steps,
                "unconfirmed": unconfirmed,
            },
            "violations": violations,
            "tightness": {
                "edges": EDGES[:-1],
                "counts": [sum(low <= ratio < high for ratio in finite) for low, high in pairwise(EDGES)],
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
        first = torch.maximum(rank, certificate.eligible.long().argmax(dim=1) + 1)
        place = (correct & ~verified).nonzero()[:, 0]
        radius = torch.full_like(self.logits[place, 0], self.net.epsilon)
        promises = Promises(
            place, first[place], largest[place], radius, radius, torch.ones_like(place, dtype=torch.bool)
        )
        broken = tried = 0
        for part, found in self.rounds(promises, time.perf_counter() + self.clock.left("accuracy")):
            tried, broken = tried + len(part), broken + int(found.broken.sum())
        points = len(self.y)
        return {
            "vra": int(verified.sum()) / points,
            "under_attack": (int(correct.sum()) - broken) / points,
            "clean": int(correct.sum()) / points,
            "top1": int((certificate.ranking[:, 0] == self.y).sum()) / points,
            "attacked": tried,
            "of": len(promises),
        }

    def promises(self, certificate: Certificate) -> Promises:
        """What a certificate promises: the windows of both answers at ε, and every window, almost at its radius."""
        large, small = (certificate.preferring(which) for which in ("largest", "smallest"))
        (first, last), (least_first, least_last) = (
            (each.core.sum(dim=1), each.whole.sum(dim=1)) for each in (large, small)
        )
        other = certificate.certified & ((first != least_first) | (last != least_last))
        answer = torch.cat([certificate.certified.nonzero()[:, 0], other.nonzero()[:, 0]])
        start = torch.cat([first[certificate.certified], least_first[other]])
        end = torch.cat([last[certificate.certified], least_last[other]])
        point, row, column = (certificate.windows > 0).nonzero(as_tuple=True)
        place = torch.cat([answer, point])
        first, last = torch.cat([start, row + 1]), torch.cat([end, column + 1])
        proved = certificate.windows[place, first - 1, last - 1]
        answers = torch.arange(len(place), device=place.device) < len(answer)
        edge = torch.where(proved < math.inf, EDGE * proved, FAR)
        return Promises(place, first, last, torch.where(answers, certificate.epsilon, edge), proved, answers)

    def rounds(self, promises: Promises, deadline: float) -> Iterator[tuple[Promises, Found]]:
        """Attacks on some windows at a time, while there is time; at least one."""
        for start in range(0, len(promises), self.rows_at_once):
            part = promises[slice(start, start + self.rows_at_once)]
            yield part, attack_windows(self.layers, self.head.rows, self.windows(part), seed=start)
            if time.perf_counter() > deadline:
                return

    def windows(self, promises: Promises) -> Windows:
        """Promises with their points."""
        place = promises.place
        return Windows(self.x[place], self.ranking[place], promises.first, promises.last, promises.radius)

    def confirm(self, promise: Promises, moved: Tensor, part: str) -> dict[str, Any]:
        """Whether a violation is one: distance in rationals, logits in float64 as certified, and in rationals.

        The latter are None where there is no time for them, or the network has no exact form, or roots in it are not
        known to enough digits.
        """
        x = self.x[promise.place][0]
        proved = float(promise.proved)
        apart = squared_norm(rational(moved.cpu()) - rational(x.cpu()))
        if proved < math.inf and not apart < Fraction(proved) ** 2:
            return {"exact": False, "float64": False}
        with strict_arithmetic():
            in_floats = float(breaking_margin(self.net.program.run(moved[None]), self.windows(promise))) <= 0
        try:
            end = self.clock.end(part)
            bounds = [line.bound for line in self.net.bounds().layers]
            (before, one), (after, two) = (enclose(self.net.program, each.cpu(), bounds, end) for each in (x, moved))
        except (UnsupportedLayerError, OutOfTimeError):
            return {"exact": None, "float64": in_floats}
        order = sorted(range(len(before)), key=lambda each: -before[each])
        ks = range(int(promise.first), int(promise.last) + 1)

        def gaps(logits: Array) -> list[Fraction]:
            return [min(logits[j] for j in order[:k]) - max(logits[i] for i in order[k:]) for k in ks]

        if (one and min(gaps(before)) <= 2 * one) or (two and min(map(abs, gaps(after))) <= 2 * two):
            return {"exact": None, "float64": in_floats}
        return {"exact": all(gap <= 0 for gap in gaps(after)), "float64": in_floats}

    def save_violation(self, folder: Path, number: int, promise: Promises, moved: Tensor) -> dict[str, Any]:
        """Save a violation; what is reported of it."""
        x, path, content = self.x[promise.place][0], folder / f"{number}.npz", io.BytesIO()
        np.savez(content, x=x.cpu().numpy(), violation=moved.cpu().numpy())
        try:
            folder.mkdir(exist_ok=True)
            write_whole(path, content.getvalue())
            file = str(path)
        except OSError as error:
            file = f"not saved: {error.strerror or error}"
        return {
            "point": int(promise.place),
            "window": [int(promise.first), int(promise.last)],
            "radius": float(promise.proved),
            "distance": float((moved - x).norm()),
            "file": file,
        }


def some_of(count: int, wanted: int) -> Tensor:
    """Some of ``count`` things, chosen at random but always the same, in rising order."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:wanted].sort().values
