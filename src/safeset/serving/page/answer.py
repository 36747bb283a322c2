"""What the page says of an input, its certificate, and a change of it: every number and every sentence."""

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, NamedTuple

import torch
from torch import Tensor

from safeset.audit.attacks import Windows, window_gaps
from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import DIGITS, Answer, answers, listed, shown, shown_epsilon
from safeset.nets.points import Measured
from safeset.numerics.directed import row_norms, up
from safeset.report.gallery import answer_lines
from safeset.report.html import printable

MOST_BARS = 12  # classes beside the answer that are drawn, the nearest ones
PLACE = "How large a change must be, at the least, for a class to leave its place"
PASS = "How large a change must be, at the least, for a class to pass the best one"
ROLES = {"core": "in the core", "optional": "may join", "out": "kept out"}
WITHOUT = {"core": "best here", "optional": "may pass it", "out": "cannot pass it"}  # where nothing is certified


class Promised(NamedTuple):
    """What is promised at a point: at ε, or, where nothing is, what reaches farthest.

    Attributes:
        answer: the places a and b in the ranking, and the radius below which it is proved.
        core: names of classes.
        optional: likewise.
        certified: whether it is proved at ε.
    """

    answer: Answer
    core: list[str]
    optional: list[str]
    certified: bool

    def best(self, k: int) -> list[str]:
        """The k best classes at the input."""
        return [*self.core, *self.optional][:k]

    @property
    def exact(self) -> str:
        """What is proved, to the letter, where that is more than the answer says: which sets of best classes stay."""
        if not self.optional:
            return ""
        sets = "; ".join(f"{{{', '.join(self.best(k))}}}" for k in self.answer_k)
        return f"To the letter: everywhere in the ball, one of these is the set of the best classes: {sets}."

    @property
    def answer_k(self) -> range:
        """How many classes are the best ones, as far as the promise leaves that open."""
        return range(self.answer.start + 1, self.answer.end + 2)

    def seen(self, kept: Sequence[int]) -> str:
        """What is seen of the promise at a place: some k best classes that are the same, or that none are."""
        if kept:
            return f"{listed(self.best(kept[0]), 'and')} {_stay(kept[0], 'still')}"
        if len(self.answer_k) == 1:
            return f"{listed(self.best(self.answer_k[0]), 'and')} {_stay(self.answer_k[0], 'no longer')}"
        sets = [f"{self.best(1)[0]} alone" if k == 1 else listed(self.best(k), "and") for k in self.answer_k]
        return f"neither {', nor '.join(sets)} are the best classes"


def promised_at(certificate: Certificate) -> Promised | None:
    """What a certificate of one point promises at its ε; None where nothing holds, not even without a change."""
    ladder = answers(certificate.windows[0].tolist(), certificate.prefer)
    if not ladder:
        return None
    answer = next((each for each in ladder if each.radius > certificate.epsilon), ladder[-1])
    best = [printable(certificate.names[index]) for index in certificate.ranking[0].tolist() if index >= 0]
    return Promised(answer, *answer.split(best), answer.radius > certificate.epsilon)


def answer_at(points: Measured, certificate: Certificate, constants: Tensor, units: str) -> dict[str, Any]:
    """The answer at the first of the points: in words, and as bars.

    Args:
        points: with the logits of the certificate's point first.
        certificate: of one point.
        constants: (classes, classes) proved Lipschitz constants of differences of logits.
        units: of radii.
    """
    promised = promised_at(certificate)
    return {
        "certified": bool(promised and promised.certified),
        "lines": answer_lines(certificate, units),
        "exact": promised.exact if promised and promised.certified else "",
        "epsilon": certificate.epsilon,
        "epsilon_text": shown_epsilon(certificate.epsilon),
        "radius": _finite(promised.answer.radius) if promised else 0.0,
        "radius_text": shown(promised.answer.radius) if promised else "0",
        "reach": _finite(float(certificate.radius[0])),
        "covers": certificate.covers,
        **bars(points, certificate, constants, promised),
    }


def bars(points: Measured, certificate: Certificate, constants: Tensor, promised: Promised | None) -> dict[str, Any]:
    """A bar for each class: how far it is from breaking the answer, in the units of the input, and why.

    Below ``reach`` a class of the core stays above all that are kept out, and a class that is kept out stays below all
    of the core: the gap of two logits, divided by its Lipschitz constant, rounding accounted for. The allowance is what
    a change of norm ε can take away of the gap. Where nothing is certified, all are compared with the best class.
    """
    logits, epsilon = points.logits[0], certificate.epsilon
    if not bool(logits.isfinite().all()):
        more = "the network's answer is not a number"
        return {"caption": PASS, "keys": WITHOUT, "bars": [], "more": more, "scale": 1.0}
    order: list[int] = logits.argsort(descending=True, stable=True).tolist()
    holds = promised is not None and promised.certified
    few, many = (promised.answer.start + 1, promised.answer.end + 1) if promised and holds else (1, 1)
    core, outside = order[:few], order[many:]
    table = points.target_table()[0]
    least = promised.answer.radius if promised and holds else 0.0
    rows: list[dict[str, Any]] = []
    for place, index in enumerate(order):
        role = "core" if place < few else "optional" if place < many else "out"
        pairs = [(index, other) for other in outside] if role == "core" else [(other, index) for other in core]
        radii = table[[pair[0] for pair in pairs], [pair[1] for pair in pairs]]
        nearest = int(radii.argmin())
        above, below = pairs[nearest]
        reach = float(radii[nearest]) if role == "optional" else max(float(radii[nearest]), least)
        if not holds and role == "out" and not reach > epsilon:
            role = "optional"
        gap, allowance = float(logits[above] - logits[below]), float(up(constants[above, below] * epsilon))
        rows.append(
            {
                "name": printable(certificate.names[index]),
                "role": role,
                "said": (ROLES if holds else WITHOUT)[role],
                "reach": _finite(reach),
                "reach_text": shown(reach),
                "margin": _margin(reach, epsilon),
                "other": printable(certificate.names[below if role == "core" else above]),
                "logit": f"{float(logits[index]):.4g}",
                "gap": _floor(gap),
                "allowance": ceiling(allowance),
                "left": _floor(gap - allowance),
            }
        )
    inside, others = (
        rows[:many],
        sorted(rows[many:], key=lambda row: math.inf if row["reach"] is None else row["reach"]),
    )
    drawn, rest = [*inside, *others[:MOST_BARS]], others[MOST_BARS:]
    finite = [row["reach"] for row in drawn if row["reach"] is not None]
    more = f"and {len(rest)} more classes, all farther away" if rest else ""
    about = {"caption": PLACE, "keys": ROLES} if holds else {"caption": PASS, "keys": WITHOUT}
    return {**about, "bars": drawn, "more": more, "scale": max([*finite, 1.25 * epsilon, 1e-12]) * 1.02}


def change_at(points: Measured, certificate: Certificate, x: Tensor, changed: Tensor, units: str) -> dict[str, Any]:
    """What a change of the input does: its norm, the network's answer there, and whether the promise holds.

    Args:
        points: the original first and the changed input last; one point where nothing is changed.
        certificate: of the original.
        x: the original.
        changed: the changed input.
        units: of norms.
    """
    norm = norm_of(changed - x)
    both = points.logits
    order = both[-1].argsort(descending=True, stable=True).tolist()
    promised = promised_at(certificate)
    few = 3 if promised is None else max(3, promised.answer.end + 1)
    inside = [] if promised is None else [*promised.core, *promised.optional]
    names = [printable(certificate.names[index]) for index in order[:few]]
    kept = [] if promised is None else kept_at(both, promised.answer)
    kind, words = verdict(norm, certificate.epsilon, promised, kept)
    if len(points) == 1 and kind != "false":
        kind, words = "unchanged", "Nothing is changed yet."
    return {
        "norm": _finite(norm),
        "norm_text": f"{ceiling(norm)} ({units})" if norm else f"0 ({units})",
        "best": [{"name": name, "in": name in inside} for name in names],
        "kind": kind,
        "words": words,
    }


def norm_of(change: Tensor) -> float:
    """‖x' − x‖₂ from above, of a difference that was rounded once."""
    norm = row_norms(change.double().flatten())
    return float(up(norm * (1 + 2.0**-51))) if norm else 0.0


def kept_at(logits: Tensor, answer: Answer) -> list[int]:
    """For which k of a window the k best classes at the last of some points are those at the first; none: broken."""
    ranking = logits[:1].argsort(dim=1, descending=True, stable=True)
    one = torch.ones(1, dtype=torch.long, device=logits.device)
    window = Windows(logits[:1], ranking, one * (answer.start + 1), one * (answer.end + 1), one.double())
    return [k + 1 for k, gap in enumerate(window_gaps(logits[-1:], window)[0].tolist()) if gap > 0]


def verdict(norm: float, epsilon: float, promised: Promised | None, kept: Sequence[int]) -> tuple[str, str]:
    """Which of the cases it is, and what is said of it: proved, beyond the proof, or a certificate that is false.

    >>> cat = Promised(Answer(0, 0, 0.5), ["cat"], [], True)
    >>> verdict(0.2, 0.3, cat, [1])[0], verdict(0.4, 0.3, cat, [1])[0], verdict(0.6, 0.3, cat, [])[0]
    ('inside', 'reached', 'broken')
    >>> verdict(0.6, 0.3, cat, [])[1]
    'Beyond the proved radius, 0.5, the promise may break, and here it does: cat is no longer the best class.'
    """
    if promised is None:
        return "nothing", "No certificate, not even without a change: nothing is promised that could break."
    radius = promised.answer.radius
    edge, seen = f"the proved radius, {shown(radius)}", promised.seen(kept)
    if norm < radius and not kept:
        return "false", "Broken inside of what is proved. This must never happen: please keep this input and report it."
    if norm <= epsilon and norm < radius:
        return "inside", f"Inside the ball: the promise holds, as proved for every change of this size. Here, {seen}."
    if norm < radius:
        return "reached", f"Beyond ε, but below {edge}: the promise holds, as proved. Here, {seen}."
    start = "Beyond" if promised.certified else "No certificate at ε, and this is beyond"
    if kept:
        return "open", f"{start} {edge}, nothing is promised. Here it still holds: {seen}."
    return "broken", f"{start} {edge}, the promise may break, and here it does: {seen}."


def _stay(k: int, word: str) -> str:
    return f"is {word} the best class" if k == 1 else f"are {word} the {k} best classes"


def _finite(radius: float) -> float | None:
    """JSON has no ∞."""
    return radius if radius < math.inf else None


def _margin(reach: float, epsilon: float) -> str:
    """How far a radius is beyond ε, or short of it."""
    if reach == math.inf:
        return "whatever the change"
    return f"{_floor(reach - epsilon)} beyond ε" if reach > epsilon else f"{ceiling(epsilon - reach)} short of ε"


def _floor(number: float) -> str:
    return f"{Context(prec=DIGITS, rounding=ROUND_FLOOR).create_decimal(number):g}"


def ceiling(number: float) -> str:
    """A norm in four digits, rounded up: what is printed is never less than it.

    >>> ceiling(0.42181), ceiling(2.0)
    ('0.4219', '2')
    """
    return f"{Context(prec=DIGITS, rounding=ROUND_CEILING).create_decimal(number):g}"
