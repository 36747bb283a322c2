"""What makes a bound quick to prove again in another process: a hint, which is never believed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.numerics.directed import Up

CLOSE = 1e-9  # relative: how much larger a claim may be than what is proved of it


@dataclass(frozen=True, eq=False)
class Witness:
    """With what a layer's bound was proved, so that nothing need be searched for.

    A proof with it is as complete as one without: it fails where the witness is wrong, and may find a larger bound,
    but no bound that is too small.

    Attributes:
        kind: of proof: ``dense``, ``blocks`` or ``torus``.
        claim: the bound that was proved.
        shift: c of the proof.
        gap: the exponent of the torus's proof.
        vectors: singular vectors of the torus's proof, in float32.
    """

    kind: str
    claim: float
    shift: float
    gap: int = 0
    vectors: Tensor | None = None

    def confirmed(self, prove: Callable[["Witness"], Up | None]) -> Up | None:
        """The claimed bound, if a proof with this witness finds as little and hardly less; else None."""
        if not (math.isfinite(self.claim) and math.isfinite(self.shift) and abs(self.gap) <= 500):
            return None
        if self.vectors is not None and not _is_usable(self.vectors):
            return None
        proved = prove(self)
        return Up(self.claim) if proved is not None and proved <= self.claim <= proved * (1 + CLOSE) else None


def _is_usable(vectors: Tensor) -> bool:
    return vectors.dtype in (torch.float32, torch.float64) and vectors.numel() > 0 and bool(vectors.isfinite().all())


def claimed(proved: Up) -> Up:
    """A bound with room for another order of sums, so that other machines and threads can confirm it bit for bit."""
    return proved * (1 + 2.0**-44)
