"""Points that a net has seen: logits, rounding errors and proved bounds, and all that follows from them."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import certificate, membership, memberships, targets
from safeset.certificates.radii import ClassError
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import Numbers, as_tensor, one_epsilon
from safeset.nets.diagnosis import Diagnosis, diagnosis, most_relaxed
from safeset.nets.explanation import Explanation, Looked, explanation
from safeset.numerics.strict import plain_arithmetic, strict_arithmetic, uncompiled
from safeset.numerics.threads import few_logits, one_thread
from safeset.program.program import Program
from safeset.proofs.portable import Seen
from safeset.proofs.prove import Bounds


class Enclosed(NamedTuple):
    """The exact network at points, as far as it is known from what was computed there.

    Attributes:
        logits: (batch, classes) as computed.
        error: how far differences of the exact network's logits at the points may be from that; no slope.
        is_known: (batch,) whether that is proved: where something may have overflowed, or is NaN, it is not.
        scale: the proved Lipschitz constant of the features.
        program: what ran.
    """

    logits: Tensor
    error: ClassError
    is_known: Tensor
    scale: float
    program: Program


@dataclass(frozen=True, eq=False)
class Measured:
    """What `CertifiedNet.measure` returns: points, and what was proved of the net that saw them, as it was then."""

    _logits: Tensor = field(repr=False)  # (batch, classes) float64
    _bounds: Bounds = field(repr=False)
    _error: ClassError = field(repr=False)  # of differences of logits, by rounding
    _room: Tensor = field(repr=False)  # (batch,) the radii below which nothing can overflow
    _epsilon: float
    _guarantee: Guarantee
    _class_names: tuple[str, ...] | None = field(repr=False)
    _seen: Seen = field(repr=False)
    _trained_for: float | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self._logits)

    def __getitem__(self, places: slice) -> "Measured":
        """Some of the points, which were seen together with others."""
        if not isinstance(places, slice):
            raise expected("a slice of the points", repr(places)[:80])
        error = self._error._replace(offset=self._error.offset[places])
        seen = self._seen.at(torch.arange(len(self))[places])
        return replace(self, _logits=self._logits[places], _error=error, _room=self._room[places], _seen=seen)

    @property
    def logits(self) -> Tensor:
        """As the frozen network computes them, (batch, classes) float64; a copy."""
        return self._logits.clone()

    @uncompiled
    def certificate(
        self,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
        prefer: str = "smallest",
    ) -> Certificate:
        """The answers at the points; arguments as for `CertifiedNet.certify`."""
        with plain_arithmetic():
            found = certificate(
                self._logits,
                self._bounds.head,
                one_epsilon(epsilon, eps, self._epsilon),
                self._guarantee if guarantee is None else guarantee,
                method=method,
                error=self._error,
                class_names=self._class_names,
            )
            windows = self._within(found.windows)
        covers = f"the frozen network in exact arithmetic, and its float64 program as run on {windows.device.type}"
        if self._seen.program.assumptions:
            covers += f", assuming that {'; that '.join(self._seen.program.assumptions)}"
        found = replace(found, covers=covers, layers=self._bounds.layers, _source=self._seen)
        return replace(found, windows=windows, prefer=prefer)

    def diagnose(
        self,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Diagnosis:
        """Why the points are certified or not; arguments as for `CertifiedNet.certify`."""
        found = self.certificate(epsilon=epsilon, eps=eps, guarantee=guarantee, method=method)
        weaker = most_relaxed(found.classes)
        relaxed = self.certificate(epsilon=found.epsilon, guarantee=weaker, method=method)
        best = self._logits.topk(2, dim=1).values
        gap = float((best[:, 0] - best[:, 1]).nanmedian())
        return diagnosis(found, gap, self._bounds, relaxed, self._trained_for)

    @uncompiled
    def explain(
        self,
        y: Numbers | None = None,
        *,
        epsilon: float | None = None,
        eps: float | None = None,
        guarantee: Guarantee | str | None = None,
        method: str | None = None,
    ) -> Explanation:
        """Where the bound comes from, and what it costs at the points; arguments as for `CertifiedNet.explain`."""
        found = self.certificate(epsilon=epsilon, eps=eps, guarantee=guarantee, method=method)
        if not len(found):
            raise expected("at least one point", "none")
        labels = None if y is None else found._check_labels(as_tensor(y, "`y`"))
        with strict_arithmetic():
            looked = Looked(self._seen.x, self._logits, found, labels)
            return explanation(self._seen.program, self._bounds, looked)

    @uncompiled
    def membership_radii(self, k: int) -> Tensor:
        """`CertifiedNet.membership_radii` at the points: (batch, classes)."""
        with plain_arithmetic():
            found = membership(self._logits, self._bounds.head, k, error=self._error)
            return self._within(found[:, None])[:, 0]

    @uncompiled
    def membership_table(self, k: int) -> Tensor:
        """The same for 1, 2, …, k at once: (batch, k, classes)."""
        with plain_arithmetic():
            return self._within(memberships(self._logits, self._bounds.head, k, error=self._error))

    @uncompiled
    def target_table(self) -> Tensor:
        """`CertifiedNet.target_table` at the points: (batch, classes, classes)."""
        with plain_arithmetic():
            found = self._within(targets(self._logits, self._bounds.head, error=self._error))
        found.diagonal(dim1=1, dim2=2).fill_(torch.inf)
        return found

    def enclosed(self) -> Enclosed:
        """Where the exact network's logits are, at the points themselves: what needs no ball, such as a score."""
        with plain_arithmetic():
            once = ClassError(self._error.offset / 2, torch.zeros_like(self._error.slope))  # not at x' as well
            scale = float(self._bounds.head.scale)
            return Enclosed(self._logits.clone(), once, self._room > 0, scale, self._seen.program)

    def _within(self, radii: Tensor) -> Tensor:
        """Radii (batch, n, m) as far as nothing can overflow; 0 where it can at x itself."""
        with one_thread(few_logits(self._logits)):
            room = self._room[:, None, None]
            return torch.where(room > 0, torch.minimum(radii, room), 0.0)

    def __getstate__(self) -> NoReturn:
        """Refuse: proofs are trusted only in the process that made them."""
        raise expected("something to pickle or to copy", "points with their proof", "Take points.certificate().")
