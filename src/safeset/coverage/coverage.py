"""Coverage: a network, calibrated on held-out points; how often its sets hold the true class, also under attack."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, NoReturn

import torch
from torch import Tensor

from safeset.coverage.checks import (
    check_confidence,
    check_flag,
    check_labels,
    check_net,
    coarse,
    geometry_of,
    radius_above,
)
from safeset.coverage.curve import Curve, curve
from safeset.coverage.logit_map import LogitMap
from safeset.coverage.ranks import as_level, fewest, rank
from safeset.coverage.record import MOST_POINTS, Stored, from_values, to_values
from safeset.coverage.scores import Geometry, Points, Score
from safeset.coverage.words import describe, promise_of
from safeset.errors import expected
from safeset.inputs import Numbers, as_count
from safeset.nets.certifying import Certifying
from safeset.nets.frozen import FrozenNet
from safeset.nets.points import Measured
from safeset.numerics.directed import up
from safeset.numerics.strict import strict_arithmetic, uncompiled
from safeset.program.program import Program
from safeset.system.provenance import provenance, weights_digest


@dataclass(frozen=True, eq=False, repr=False)
class Coverage:
    """Sets that hold the true class with probability ≥ 1 − α, also where an attacker has changed the input.

    Made by `Coverage.calibrate` or `Coverage.from_record`; it never changes. One calibration serves every ε.

    Attributes:
        alpha: how often the true class may be missing, exactly.
        score: which score, with its parameter.
        by_class: whether coverage holds for each true class by itself.
        confidence: of this calibration set; None: the probability is on average over calibration sets.
        poison: how many calibration points an attacker may have replaced, added or removed.
        scale: the features' Lipschitz constant that is part of the score: the one proved, rounded up to 20 bits.
        net: the frozen net.
    """

    alpha: Fraction
    score: Score
    by_class: bool
    confidence: Fraction | None
    poison: int
    scale: float
    net: FrozenNet
    _scores: Tensor = field(repr=False)  # (n,) float64 on the CPU: lower bounds of the labels' scores, largest first
    _labels: Tensor = field(repr=False)  # (n,)
    _program: Program = field(repr=False)
    _weights: str = field(repr=False)
    _geometry: Geometry = field(repr=False)
    _made_with: dict[str, str] | None = field(repr=False)  # None where it was made here

    @classmethod
    def calibrate(
        cls,
        net: Certifying,
        x: Numbers | Measured,
        y: Numbers,
        *,
        alpha: float | Fraction | str = 0.1,
        k: int | None = None,
        by_class: bool = False,
        score: str = "membership",
        tau: float | None = None,
        fit: LogitMap | None = None,
        confidence: float | Fraction | str | None = None,
    ) -> "Coverage":
        """Calibrate a net on labelled points.

        The points must be drawn at random from what the sets will be used for (not stratified), and neither the net nor
        the score, k, τ or fit may have been chosen with them: no test can see that, and without it nothing is covered.

        Args:
            net: a `CertifiedNet` or its frozen form; what is calibrated is the net as it is now.
            x: (n, *input_shape) inputs, or ``net.measure(x)``. Points with NaN lower the threshold.
            y: (n,) their labels.
            alpha: how often the true class may be missing; 0.1 counts as 1/10.
            k: of the score ``"membership"``; by default 1.
            by_class: coverage for each true class by itself; classes with too few points are then in every set.
            score: ``"membership"``: the signed radius within which a class stays among the k best; ``"soft-min"``:
                a soft minimum of the pairs' radii, which makes smaller sets where there are many classes; ``"fitted"``:
                log-odds of a map of the logits, the smallest sets of many classes.
            tau: of the score ``"soft-min"``, in the units of the input; by default 0.1.
            fit: of the score ``"fitted"``: `fit_logits` of training points.
            confidence: such as 0.95, that *this* calibration set covers 1 − α; by default it does on average.

        Raises:
            ArgumentError: for what is none of these.
        """
        if not isinstance(net, Certifying):
            raise expected("`net` to be a CertifiedNet", type(net).__name__)
        frozen = net.frozen()
        level, sure = as_level(alpha, "`alpha`"), check_confidence(confidence)
        own = fit.copied(frozen.classes) if isinstance(fit, LogitMap) else fit  # nobody else can write to it
        which = Score.of(score, frozen.classes, k, tau, own)
        points = x if isinstance(x, Measured) else frozen.measure(x)
        labels = check_labels(y, len(points), frozen.classes)
        if not 1 <= len(points) <= MOST_POINTS:
            raise expected(f"1..{MOST_POINTS:,} calibration points", len(points))
        check_flag(by_class, "`by_class`")
        enclosed = points.enclosed()
        check_net(enclosed.program, 0.0, frozen._proved()[0].program, 0.0)
        scale = coarse(enclosed.scale)
        geometry = geometry_of(enclosed.program, scale, which)
        with strict_arithmetic():
            found = which.below(Points(*enclosed[:3]), geometry).cpu()
            reached = found.gather(1, labels[:, None])[:, 0]
            order = reached.argsort(descending=True, stable=True)
        about = (frozen, reached[order], labels[order], enclosed.program, weights_digest(net.network.state_dict()))
        return cls(level, which, by_class, sure, 0, scale, *about, geometry, None)

    # -- sets ---------------------------------------------------------------------------------------------------------

    def sets(self, x: Numbers | Measured, epsilon: float = 0.0, *, allow_empty: bool = False) -> Tensor:
        """The classes that may be true of inputs which an attacker has changed by at most ε: (batch, classes) booleans.

        Args:
            x: (batch, *input_shape) inputs as they arrive, or ``coverage.net.measure(x)``, which runs the net once for
                many ε. All classes are in the set of an input with NaN.
            epsilon: how far they may have been changed in L2, in the units of the network's input.
            allow_empty: otherwise a set that would be empty holds the class with the largest score.
        """
        found = self.scores(x, epsilon=epsilon)
        member = ~(found < self.thresholds.to(found.device))  # in this form, so that nothing can drop out as NaN
        if allow_empty:
            return member
        best = torch.nn.functional.one_hot(found.argmax(dim=1), found.shape[1]).bool()
        return torch.where(member.any(dim=1, keepdim=True), member, best)

    @uncompiled
    def scores(self, x: Numbers | Measured, *, epsilon: float = 0.0, round: str = "up") -> Tensor:
        """Scores of every class: (batch, classes) float64, never NaN.

        Args:
            x: as for `sets`.
            epsilon: likewise.
            round: ``"up"``: no less than the score at any point within ε of x, what sets are made of; ``"down"``: no
                more than it, what the attacker cannot take away.
        """
        radius = radius_above(epsilon)
        if round not in ("up", "down"):
            raise expected("`round` to be one of down, up", repr(round)[:80])
        points = x if isinstance(x, Measured) else self.net.measure(x)
        enclosed = points.enclosed()
        check_net(enclosed.program, enclosed.scale, self._program, self.scale)
        with strict_arithmetic():
            if round == "up":
                return self.score.above(Points(*enclosed[:3]), self._geometry, radius)
            found = self.score.below(Points(*enclosed[:3]), self._geometry)
            return -up(-(found - radius)) if radius else found

    def plain_scores(self, logits: Tensor) -> Tensor:
        """Scores from logits of ``coverage.net``, with gradient, for attacks: rounded anyhow, they prove nothing.

        Args:
            logits: (batch, classes), as ``coverage.net(x)`` gives them.

        Returns:
            (batch, classes).
        """
        return self.score.plain(logits, self._geometry)

    def curve(
        self,
        x: Numbers | Measured,
        y: Numbers,
        epsilons: Sequence[float],
        *,
        rule: float = 0.0,
        delta: float = 0.05,
    ) -> Curve:
        """Guaranteed coverage of labelled points at every ε, where sets are made for one ε: ``sets(x, epsilon=rule)``.

        A label stays in the set, whatever the attacker does within ε, if its score at x is ≥ q + ε − rule (other scores
        than ``"membership"``: q + max(0, ε − rule)).

        Args:
            x: points that were not used for calibration, as for `sets`.
            y: (n,) their labels.
            epsilons: what the attacker may change.
            rule: the ε that the sets are made for.
            delta: of the bound for the population, √(ln(1/δ)/2n) below (Massart, 1990), for all ε at once; at most 1/2.
        """
        own = self.scores(x, round="down")
        labels = check_labels(y, len(own), own.shape[1]).to(own.device)
        reached, needed = own.gather(1, labels[:, None])[:, 0], self.thresholds.to(own.device)[labels]
        return curve(reached, needed, epsilons, rule=rule, delta=delta, is_concave=self.score.is_concave)

    # -- thresholds ---------------------------------------------------------------------------------------------------

    @property
    def thresholds(self) -> Tensor:
        """Least scores of a set, (classes,) float64: all the same unless by class; −∞ where points are too few."""
        classes = self._program.classes
        if not self.by_class:
            return torch.full((classes,), self._threshold(self._scores), dtype=torch.float64)
        own = [self._threshold(self._scores[self._labels == label]) for label in range(classes)]
        return torch.tensor(own, dtype=torch.float64)

    def _threshold(self, scores: Tensor) -> float:
        """The m-th largest of sorted scores."""
        place = rank(len(scores), self.alpha, self.confidence, self.poison)
        return float(scores[place - 1]) if place <= len(scores) else -math.inf

    @property
    def fewest(self) -> int:
        """How many calibration points are needed (by class: of each class) for sets with less than all classes."""
        return fewest(self.alpha, self.confidence, self.poison)

    @property
    def counts(self) -> Tensor:
        """How many calibration points each threshold is made of, (classes,)."""
        classes = self._program.classes
        return torch.bincount(self._labels, minlength=classes) if self.by_class else torch.full((classes,), len(self))

    def __len__(self) -> int:
        """How many calibration points there were."""
        return len(self._scores)

    def at(
        self,
        alpha: float | Fraction | str | None = None,
        *,
        confidence: float | Fraction | str | None = None,
        by_class: bool | None = None,
    ) -> "Coverage":
        """The same calibration at another level; what is not given stays.

        Args:
            alpha: how often the true class may be missing.
            confidence: of this calibration set; 0 for the average over calibration sets.
            by_class: whether coverage holds for each true class by itself.
        """
        level = self.alpha if alpha is None else as_level(alpha, "`alpha`")
        sure = self.confidence if confidence is None else check_confidence(confidence or None)
        each = self.by_class if by_class is None else check_flag(by_class, "`by_class`")
        return replace(self, alpha=level, confidence=sure, by_class=each)

    def poisoned(self, points: int) -> "Coverage":
        """The same where an attacker may have replaced, added or removed so many of the calibration points.

        The threshold is the (m + p)-th largest score: coverage stays ≥ 1 − α, and sets grow.
        """
        count = 0 if points == 0 and not isinstance(points, bool) else as_count(points)
        if count is None or count > MOST_POINTS:
            raise expected(f"a number of poisoned points in 0..{MOST_POINTS}", repr(points)[:80])
        return replace(self, poison=count)

    # -- words and records --------------------------------------------------------------------------------------------

    @property
    def promise(self) -> str:
        """What is promised, of what, and what is assumed, in words."""
        assumptions = (*self._program.assumptions, *self.score.assumptions)
        return promise_of(self, assumptions, self.net.device.type)

    def __repr__(self) -> str:
        return describe(self)

    def to_record(self) -> dict[str, Any]:
        """The calibration as plain values for JSON; `from_record` with the same network makes it again."""
        here = {key: str(value) for key, value in provenance(self.net.device).items()}
        return to_values(
            Stored(
                program=self._program.digest(),
                weights=self._weights,
                scale=self.scale,
                classes=self._program.classes,
                score=self.score,
                alpha=self.alpha,
                confidence=self.confidence,
                poisoned=self.poison,
                by_class=self.by_class,
                scores=self._scores.tolist(),
                labels=self._labels.tolist(),
                made_with=here if self._made_with is None else dict(self._made_with),
            )
        )

    @classmethod
    def from_record(cls, record: Any, net: Certifying) -> "Coverage":
        """A calibration from plain values, for the network that it was made with.

        Raises:
            ArgumentError: for a record that is damaged, a network with other weights, or a stored Lipschitz constant
                that is not proved here to be large enough: then the score might not be 1-Lipschitz.
        """
        if not isinstance(net, Certifying):
            raise expected("`net` to be a CertifiedNet", type(net).__name__)
        stored = from_values(record)
        frozen = net.frozen()
        sealed, proof = frozen._proved()
        if stored.classes != sealed.program.classes or stored.program != sealed.program.digest():
            same = stored.weights == weights_digest(net.network.state_dict())
            raise expected(
                "the network that was calibrated",
                "the same weights, folded into layers with other last bits"
                if same
                else "one with other weights or layers",
                "A calibration is about one network, number by number: calibrate again"
                + (" here, or use as many threads as there (torch.set_num_threads)." if same else "."),
            )
        check_net(sealed.program, float(proof.bounds.head.scale), sealed.program, stored.scale)
        scores = torch.tensor(stored.scores, dtype=torch.float64)
        order = scores.argsort(descending=True, stable=True)
        about = (frozen, scores[order], torch.tensor(stored.labels)[order], sealed.program, stored.weights)
        geometry = geometry_of(sealed.program, stored.scale, stored.score)
        level = (stored.alpha, stored.score, stored.by_class, stored.confidence, stored.poisoned, stored.scale)
        return cls(*level, *about, geometry, stored.made_with)

    def __getstate__(self) -> NoReturn:
        """Refuse: it holds proofs, which are trusted only in the process that made them."""
        raise expected("something to pickle or to copy", "a calibration with its proof", "Take coverage.to_record().")
