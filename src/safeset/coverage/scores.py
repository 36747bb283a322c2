"""Scores of classes at points: 1-Lipschitz in the input, so that an attacker can lower them by ε at most."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.certificates.constants import HeadConstants
from safeset.certificates.radii import ClassError
from safeset.certificates.signed_radii import EnclosedConstants, chunks, signed_pairs, smallest
from safeset.certificates.soft_min import ASSUMPTION, Directions, soft_min, tangent
from safeset.coverage.logit_map import LogitMap, Mapped
from safeset.errors import expected, nearest
from safeset.guarantees.guarantee import TopK
from safeset.inputs import as_number, check_subnormals
from safeset.numerics.directed import up
from safeset.numerics.threads import few_logits, one_thread

SCORES = ("membership", "soft-min", "fitted")
TAU = 0.1
LEAST_TAU, LARGEST_TAU = 2.0**-200, 2.0**200


class Geometry(NamedTuple):
    """What scores need of a head: enclosed constants, and the directions of its rows."""

    constants: EnclosedConstants
    directions: Directions

    @classmethod
    def of(cls, rows: Tensor, biases: Tensor | None, scale: float) -> "Geometry":
        """That of a head's rows (classes, features) on features whose Lipschitz constant is at most scale."""
        head = HeadConstants(rows, scale).remembered()
        return cls(EnclosedConstants.of(head, biases), Directions.of(head))

    @classmethod
    def mapped(cls, head: Mapped, constant: float, scale: float) -> "Geometry":
        """That of a map of logits: one constant for all pairs."""
        exact = torch.full((len(head.rows), len(head.rows)), constant, dtype=torch.float64, device=head.rows.device)
        return cls(EnclosedConstants(exact, exact), Directions.by_one(head.rows, head.error, constant, scale))


class Points(NamedTuple):
    """Points as the scores see them.

    Attributes:
        logits: (batch, classes) float64 as computed.
        error: of their differences.
        is_known: (batch,) whether the error is proved: nothing overflowed.
    """

    logits: Tensor
    error: ClassError
    is_known: Tensor


@dataclass(frozen=True)
class Score:
    """Which score, with its parameter.

    Attributes:
        kind: ``membership``, the k-th smallest of {r_yj : j ≠ y}; ``soft-min``, −τ ln Σ_{j≠y} exp(−r_yj/τ); or
            ``fitted``, the same of r_yj = (g_y − g_j)·τ for a map g of the logits, 1/τ its constant.
        k: of ``membership``.
        tau: of ``soft-min``.
        fit: the map of ``fitted``.
    """

    kind: str
    k: int | None
    tau: float | None
    fit: LogitMap | None = None

    @classmethod
    def of(
        cls, kind: object, classes: int, k: int | None = None, tau: object = None, fit: LogitMap | None = None
    ) -> "Score":
        """A score, if it is one of so many classes.

        Raises:
            ArgumentError: for an unknown kind, a k that is no integer below the classes, a τ that is no number > 0.
        """
        if not isinstance(kind, str) or kind not in SCORES:
            raise expected(f"`score` to be one of {', '.join(SCORES)}", repr(kind)[:80], nearest(kind, SCORES))
        belongs = isinstance(fit, LogitMap) and len(fit.shift) == classes if kind == "fitted" else fit is None
        if not belongs:
            remedy = "Make it with safeset.fit_logits(net, x, y), from points that are not calibrated with."
            raise expected(f"`fit`, a map of {classes} logits, for the score 'fitted' alone", repr(fit)[:80], remedy)
        if fit is not None:
            if k is not None or tau is not None:
                raise expected("neither `k` nor `tau` for the score 'fitted'", f"k={k!r}, tau={tau!r}"[:200])
            return cls(kind, None, None, fit)
        if kind == "membership":
            if tau is not None:
                raise expected("`tau` only for the score 'soft-min'", f"tau={tau!r} for 'membership'"[:200])
            return cls(kind, TopK(1 if k is None else k).largest_k(classes), None)
        if k not in (None, 1):
            raise expected("`k` only for the score 'membership'", f"k={k!r} for 'soft-min'"[:200])
        number = as_number(TAU if tau is None else tau)
        if number is None or not LEAST_TAU <= number <= LARGEST_TAU:
            wanted = f"`tau` to be a number in {LEAST_TAU:.0e}..{LARGEST_TAU:.0e}, in the units of the network's input"
            raise expected(wanted, repr(tau)[:80])
        return cls(kind, None, number)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is believed of the library."""
        return (ASSUMPTION,) if self.is_concave else ()

    @property
    def is_concave(self) -> bool:
        """Whether it is concave in the features: then sets are made by tangents, not by score + ε."""
        return self.kind != "membership"

    @property
    def softness(self) -> float:
        """The τ of the soft minimum; for ``fitted`` so that r/τ are the differences of g."""
        return 1 / self.fit.constant if self.fit is not None else self.tau or 1.0

    def __str__(self) -> str:
        if self.fit is not None:
            return "fitted"
        return f"membership, k = {self.k}" if self.kind == "membership" else f"soft-min, tau = {self.tau:g}"

    def below(self, points: Points, geometry: Geometry) -> Tensor:
        """Lower bounds of the score of every class, (batch, classes); −∞ where nothing is known."""
        return torch.where(points.is_known[:, None], self._rounded(points, geometry, "down", 0.0), -math.inf)

    def above(self, points: Points, geometry: Geometry, epsilon: float = 0.0) -> Tensor:
        """Upper bounds of the score anywhere within ε, (batch, classes); +∞ where nothing is known."""
        return torch.where(points.is_known[:, None], self._rounded(points, geometry, "up", epsilon), math.inf)

    def plain(self, logits: Tensor, geometry: Geometry) -> Tensor:
        """The score of every class with gradient, (batch, classes): for attacks. Rounded anyhow, it proves nothing."""
        if self.fit is not None:
            logits = self.fit.logits(logits)
        constants = geometry.constants.high.clamp(min=torch.finfo(torch.float64).tiny)
        own = torch.eye(constants.shape[0], dtype=torch.bool, device=logits.device)
        radii = ((logits[:, :, None] - logits[:, None, :]) / constants).masked_fill(own, math.inf)
        if not self.is_concave:
            return radii.kthvalue(self.k or 1, dim=2).values
        return -self.softness * torch.logsumexp(-radii / self.softness, dim=2)

    def _rounded(self, points: Points, geometry: Geometry, rounded: str, epsilon: float) -> Tensor:
        constants, logits, error = geometry.constants, points.logits, points.error
        if self.fit is not None:
            logits, error = self.fit.enclosed(logits, error)
        if self.kind == "membership":
            assert self.k is not None
            found = smallest(logits, constants, self.k, rounded=rounded, error=error)
            return up(found + epsilon) if epsilon else found
        parts = [logits.new_zeros(logits.shape)[:0]]
        with one_thread(few_logits(logits)):
            check_subnormals(logits.device)
            for some in chunks(logits):
                pairs = signed_pairs(logits, constants, some, rounded=rounded, error=error)
                if rounded == "up" and epsilon:
                    parts.append(tangent(pairs, self.softness, geometry.directions, epsilon))
                else:
                    parts.append(soft_min(pairs, self.softness, rounded=rounded))
        return torch.cat(parts)
