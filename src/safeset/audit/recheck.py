"""Certificates of a net, compared with what is proved again of the same points."""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.audit.exact_windows import Head, Point, answer, eligible_at, false_windows
from safeset.audit.second_proof import carry_rounding
from safeset.certificates.certificate import Certificate
from safeset.errors import UnsupportedLayerError
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import Deadline, OutOfTimeError
from safeset.numerics.multiples import Multiples
from safeset.numerics.strict import strict_arithmetic
from safeset.program.exact import enclose
from safeset.proofs.prove import Bounds

EXACTLY = 3  # points whose logits are computed in rationals
LARGER = 1 + 1e-6  # times a stated radius: where this is proved too, the radius is smaller than need be
TRIED_LARGER = 10  # points at which that is looked for
SHOWN = 20  # windows that are named
AT_ONCE = 64


@dataclass
class Rechecked:
    """What became of it.

    Attributes:
        points: whose windows were recomputed.
        of_points: that have windows.
        windows: of these points.
        logits: points whose logits were confirmed in rationals.
        false: windows whose stated radius is not proved, the first of them.
        wrong: what else is wrong, in words.
        open: what could not be looked at, in words.
        smaller: windows whose radius is smaller than need be, of a few points.
    """

    points: int = 0
    of_points: int = 0
    windows: int = 0
    logits: int = 0
    false: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    open: list[str] = field(default_factory=list)
    smaller: int = 0

    def note(self, wrong: str) -> None:
        """Note something that is wrong, once."""
        if wrong not in self.wrong:
            self.wrong.append(wrong)


def recheck(
    net: FrozenNet,
    bounds: Bounds,
    x: Tensor,
    logits: Tensor,
    certificate: Certificate,
    deadline: Deadline,
    last: Deadline,
) -> Rechecked:
    """Prove every window of a certificate again, in integers, while there is time.

    Args:
        net: frozen.
        bounds: on which the certificate rests.
        x: points.
        logits: of the points, from which it was made.
        certificate: of the points.
        deadline: when to stop.
        last: when to stop computing logits in rationals, which is done after all else.
    """
    found = Rechecked(of_points=len(_with_windows(certificate)))
    _compare(found, net, x, certificate)
    try:
        before = carry_rounding(net.program, bounds.layers)
    except (UnsupportedLayerError, OverflowError, ValueError):
        found.open.append("windows cannot be recomputed: a layer of your own, or a bound that is not finite")
        return found
    head = Head(net.program.head, float(bounds.head.scale), before, _unit(logits), deadline)
    try:
        _points(found, head, net, x, logits, certificate)
    except OutOfTimeError:
        found.open.append(f"time to recompute the windows of {found.points:,} of {found.of_points:,} points only")
    with suppress(OutOfTimeError, UnsupportedLayerError):
        finite = logits.isfinite().all(dim=1)
        for place in [place for place in _with_windows(certificate) if bool(finite[place])][:EXACTLY]:
            point = Point(head, x[place].cpu(), logits[place].tolist(), certificate.ranking.shape[1])
            exact, error = enclose(net.program, x[place].cpu(), [line.bound for line in bounds.layers], last)
            if not _near(point, logits[place].tolist(), exact.tolist(), 1, error):
                found.note("logits further from the exact ones than rounding can be")
            found.logits += 1
    if not found.logits and found.of_points:
        found.open.append("no time to compute the logits of a point exactly")
    return found


def _with_windows(certificate: Certificate) -> list[int]:
    """The points that have a window."""
    return (certificate.windows > 0).any(dim=2).any(dim=1).nonzero()[:, 0].tolist()


def _unit(logits: Tensor) -> Any:
    return Multiples.of(logits[logits.isfinite().all(dim=1)]).unit


def _compare(found: Rechecked, net: FrozenNet, x: Tensor, certificate: Certificate) -> None:
    """What follows from the windows of a certificate, by its definition; and the weaker methods."""
    if str(certificate.guarantee) != str(net.guarantee) or certificate.epsilon != net.epsilon:
        found.note("certificates of another guarantee or ε than the net's")
    for method in ("uniform", "floating"):
        weaker = net.certify(x, method=method)
        if bool((weaker.windows > certificate.windows).any()):
            found.note(f"radii by {method} that are larger than those by joint")
    for prefer in ("smallest", "largest"):
        shown = certificate.preferring(prefer)
        sizes = zip(shown.core.sum(dim=1).tolist(), shown.whole.sum(dim=1).tolist(), strict=True)
        for windows, size in zip(certificate.windows.tolist(), sizes, strict=True):
            if answer(windows, net.epsilon, prefer) != size:
                found.note(f"{prefer} answers that are not those of the windows")
                break


def _points(found: Rechecked, head: Head, net: FrozenNet, x: Tensor, logits: Tensor, certificate: Certificate) -> None:
    """Every point with a window: logits, ranking, eligible k, windows."""
    k, guarantee, layers = certificate.ranking.shape[1], str(net.guarantee), net.network
    some = _with_windows(certificate)
    for places in (some[start : start + AT_ONCE] for start in range(0, len(some), AT_ONCE)):
        with strict_arithmetic(), torch.no_grad():
            direct = layers(x[places]).cpu()  # by torch's modules, not by the program's operations
        for place, again in zip(places, direct, strict=True):
            head.deadline.check()
            row = logits[place].tolist()
            if not all(map(math.isfinite, (*row, *again.tolist()))):
                found.note("certified points whose logits are not finite")
                continue
            point = Point(head, x[place].cpu(), row, k)
            if not _near(point, row, again.tolist(), 2):
                found.note("logits that the network does not have")
            order = point.order.tolist()
            eligible = eligible_at(guarantee, order, k, len(row))
            if eligible is None:
                found.open.append(f"windows of {guarantee} cannot be recomputed")
                return
            if order[:k] != certificate.ranking[place].tolist():
                found.note("a ranking that is not that of the logits")
            if eligible != certificate.eligible[place].tolist():
                found.note("k that the guarantee does not allow, or not those that it allows")
            windows = certificate.windows[place].tolist()
            for a, b in false_windows(point, eligible, windows):
                found.false.append({"point": place, "window": [a, b], "radius": windows[a - 1][b - 1]})
            if found.points < TRIED_LARGER:
                found.smaller += _smaller(point, windows)
            found.points += 1
            found.windows += sum(radius > 0 for each in windows for radius in each)


def _smaller(point: Point, windows: Sequence[Sequence[float]]) -> int:
    """How many windows are proved to more than is stated, beyond rounding."""
    stated = ((a, b, windows[a - 1][b - 1]) for a in range(1, point.k + 1) for b in range(a, min(a + 5, point.k) + 1))
    return sum(point.proves(a, b, radius * LARGER) for a, b, radius in stated if 0 < radius < 2.0**900)


def _near(point: Point, one: Sequence[Any], two: Sequence[Any], times: int, error: Fraction = Fraction(0)) -> bool:
    """Whether the differences of the best logits and all agree but for the rounding of each pair.

    ``error`` is how far the numbers of the second may be from what they stand for.
    """
    head = point.head
    allowed = times * head.error(point.norm, point.order, point.k) + head.count(2 * error)
    first, second = (
        np.array([*(head.count(Fraction(each)) for each in row), None], dtype=object)[:-1][point.order]
        for row in (one, two)
    )
    apart = (first[: point.k, None] - first[None, :]) - (second[: point.k, None] - second[None, :])
    return bool((np.abs(apart) <= allowed + 4).all())
