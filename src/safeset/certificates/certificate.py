"""Certificates: what is promised at each point, and how a label scores against it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Integral
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from safeset.certificates.promises import check_preference, shown, shown_epsilon
from safeset.certificates.records import record_of
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import as_tensor, check_names, one_epsilon


class Source(Protocol):
    """The network and the inputs that a certificate is about; it knows how to prove it to others."""

    def at(self, places: Tensor) -> "Source":
        """Some of the points."""

    def proof(self, certificate: "Certificate") -> dict[str, Any]:
        """`Certificate.proof`."""


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Certified prediction sets of a batch of points.

    At each certified point there are two numbers a ≤ b such that at every x' with ‖x' − x‖₂ ≤ ε some k in a..b has
    F^k(x') = F^k(x), each such k being one that the guarantee allows. `core` is F^a(x), `optional` is F^b(x) ∖ F^a(x).
    Hence, whatever happens in the ball:

    - every class of the core stays among the b best classes, and
    - no class outside core and optional ever enters the a best: none outranks the whole core.

    Where several such pairs are proved, the *smallest* answer has the least b, and for it the largest a; the *largest*
    answer has the largest a, and for it the least b. `prefer` says which of them is shown; `verified` always counts the
    core of the largest, as the paper's VRA does.

    The promise is about the network's best classes at x', not about the certificate that x' itself would get.

    Everything derives from one table, `windows`: entry [a, b] (counted from 0, for the k from a + 1 to b + 1) is the
    radius below which that window is proved.

    Attributes:
        windows: (batch, K, K) float64 radii; 0 where nothing is proved, ∞ where no perturbation can break it.
        ranking: (batch, K) the K best classes, best first; −1 in a row whose logits hold NaN.
        eligible: (batch, K) booleans, the k that the guarantee allows there.
        classes: number of classes.
        epsilon: radius of the ball, in the units of the network's input.
        guarantee: what is certified.
        method: ``uniform``, ``floating`` or ``joint``.
        prefer: which answer is shown, ``smallest`` or ``largest``.
        covers: what the proof is about, in words.
        layers: the proved bound of each layer and its method, where a network was certified.
        class_names: names of the classes, for printing and records.
    """

    windows: Tensor
    ranking: Tensor
    eligible: Tensor
    classes: int
    epsilon: float
    guarantee: Guarantee
    method: str
    covers: str = "the function with the given logits and Lipschitz constants"
    class_names: tuple[str, ...] | None = None
    layers: tuple[Any, ...] = ()
    prefer: str = "smallest"
    _source: Source | None = None

    def __post_init__(self) -> None:
        check_preference(self.prefer)

    # -- radii --------------------------------------------------------------------------------------------------------

    @cached_property
    def radii(self) -> Tensor:
        """(batch, K): radii[a] is the largest radius of a window that starts at a or later.

        The class of rank a + 1 stays in an answer of the guarantee for every ε below radii[a].
        """
        return self.windows.amax(dim=2).flip(1).cummax(dim=1).values.flip(1)

    @property
    def radius(self) -> Tensor:
        """(batch,): the guarantee holds for every ε below it."""
        return self.radii[:, 0]

    @property
    def core_radius(self) -> Tensor:
        """(batch,): what `core` and `optional` promise holds for every ε below it; 0 where rejected."""
        start, end = self._window
        radius = self.windows[torch.arange(len(self), device=start.device), start.clamp(min=0), end.clamp(min=0)]
        return torch.where(self.certified, radius, 0.0)

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def certified(self) -> Tensor:
        """(batch,) booleans: whether the guarantee is proved at ε."""
        return self.radius > self.epsilon

    @cached_property
    def core(self) -> Tensor:
        """(batch, classes) booleans, F^a: these stay in the answer, whatever happens in the ball. Empty if rejected."""
        return self._members(self._window[0])

    @cached_property
    def optional(self) -> Tensor:
        """(batch, classes) booleans, F^b ∖ F^a: these may or may not join the core. Empty if rejected."""
        return self._members(self._window[1]) & ~self.core

    @property
    def whole(self) -> Tensor:
        """(batch, classes) booleans, F^b: core and optional together. Empty if rejected."""
        return self.core | self.optional

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each class: its own, or its number."""
        return self.class_names or tuple(map(str, range(self.classes)))

    def at(self, epsilon: float | None = None, *, eps: float | None = None) -> "Certificate":
        """The certificate at another ε, without a new forward pass."""
        return replace(self, epsilon=one_epsilon(epsilon, eps))

    def preferring(self, prefer: str) -> "Certificate":
        """The same certificate with the other view of it: ``smallest`` or ``largest`` answers."""
        return replace(self, prefer=prefer)

    # -- labels -------------------------------------------------------------------------------------------------------

    def verified_radius(self, labels: Tensor) -> Tensor:
        """(batch,): the label is in the core of the largest answer for every ε below it; 0 if for none.

        Args:
            labels: (batch,) true classes.
        """
        matches = self.ranking == self._check_labels(labels)[:, None]  # (batch, K)
        return torch.where(matches, self.radii, 0.0).amax(dim=1)

    def verified(self, labels: Tensor) -> Tensor:
        """(batch,) booleans: certified, and the label is in the core of the largest answer. Their share is the VRA."""
        return self.verified_radius(labels) > self.epsilon

    def correct(self, labels: Tensor) -> Tensor:
        """(batch,) booleans: right by the guarantee's own accuracy, no robustness asked.

        The label is in F^k for the largest eligible k: top-1 accuracy for `Standard`, top-k for `TopK` and
        `RelaxedTopK`; for `Affinity` the label and all classes above it lie in one set.
        """
        matches = self.ranking == self._check_labels(labels)[:, None]
        return (matches & self.eligible.flip(1).cummax(dim=1).values.flip(1)).any(dim=1)

    # -- a batch ------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self.windows)

    def __getitem__(self, index: Any) -> "Certificate":
        """Some of the points: a number (a batch of one), a slice, a mask or indices."""
        if isinstance(index, slice):
            index = range(*index.indices(len(self)))
        elif isinstance(index, Integral) and not isinstance(index, bool):
            if not -len(self) <= int(index) < len(self):
                raise IndexError(f"Expected a point in 0..{len(self) - 1}, but got {index}.")
            index = [int(index)]
        elif isinstance(index, Tensor | np.ndarray) and index.ndim == 0 and index.dtype not in (torch.bool, np.bool_):
            return self[index.item()]
        places = index if isinstance(index, Tensor) else np.asarray(index)
        if isinstance(places, np.ndarray) and (places.dtype.kind in "iub" or not places.size):
            places = torch.as_tensor(places if places.dtype.kind == "b" else places.astype(np.int64))
        if not isinstance(places, Tensor) or places.ndim != 1 or places.is_floating_point() or places.is_complex():
            raise expected("a number, a slice, a mask or a list of points", repr(index)[:80])
        index = places if places.dtype == torch.bool else places.long()
        index = index.to(self.windows.device)
        if index.dtype == torch.bool and len(index) == len(self):
            index = index.nonzero()[:, 0]
        return replace(
            self,
            windows=self.windows[index],
            ranking=self.ranking[index],
            eligible=self.eligible[index],
            _source=self._source and self._source.at(index),
        )

    def __iter__(self) -> Iterator["Certificate"]:
        return (self[place] for place in range(len(self)))

    def to(self, device: torch.device | str) -> "Certificate":
        """The same on another device."""
        return replace(
            self, windows=self.windows.to(device), ranking=self.ranking.to(device), eligible=self.eligible.to(device)
        )

    def named(self, class_names: Sequence[str]) -> "Certificate":
        """The same with names for the classes."""
        return replace(self, class_names=check_names(class_names, self.classes))

    def records(self) -> list[dict[str, Any]]:
        """One dictionary of plain values for each point; classes as names if there are names, best first.

        ``radius`` is that of the guarantee, ``core_radius`` that of the promise about core and optional, which
        ``promise`` says in words. ``answers`` are the answers as ε grows from 0, each with the radius up to which it is
        the answer. A radius may be ``math.inf``, where no perturbation can break it.
        """
        names: Sequence[Any] = self.class_names or range(self.classes)
        about: dict[str, Any] = {
            "epsilon": self.epsilon,
            "guarantee": str(self.guarantee),
            "method": self.method,
            "prefer": self.prefer,
        }
        return [
            record_of([names[index] for index in best if index >= 0], windows, **about)
            for best, windows in zip(self.ranking.tolist(), self.windows.tolist(), strict=True)
        ]

    def proof(self) -> dict[str, Any]:
        """The proof as plain values, to be written as JSON: whoever has the weights can check it without safeset.

        `safeset check`, or the one file `safeset/proofs/check.py` alone, verifies it in exact arithmetic
        (docs/check.md).

        Raises:
            ArgumentError: if not all points are certified, or it was not a network that was certified.
            UnsupportedLayerError: for layers that the checker does not know.
        """
        if self._source is None:
            remedy = "Logits and constants alone, copies and pickles have none: take net.certify(x).proof()."
            raise expected("a certificate that a network made, with the network and the input", "one without", remedy)
        return self._source.proof(self)

    def __getstate__(self) -> dict[str, Any]:
        """Without the network: what is sent elsewhere, or kept, is the certificate alone."""
        return {**self.__dict__, "_source": None}

    def __repr__(self) -> str:
        return (
            f"Certificate({int(self.certified.sum())} of {len(self)} points certified, {self.guarantee!r}, "
            f"epsilon={shown_epsilon(self.epsilon)}, method={self.method!r}, prefer={self.prefer!r})"
        )

    def __str__(self) -> str:
        lines = [repr(self)]
        for place, record in enumerate(self[:20].records()):
            answer = "⊥ no certificate"
            if record["certified"]:
                optional = (
                    f" (may also include {', '.join(map(str, record['optional']))})" if record["optional"] else ""
                )
                answer = f"{{{', '.join(map(str, record['core']))}}}{optional} below {shown(record['core_radius'])}"
            lines.append(f"  {place}: {answer}")
        if len(self) > 20:
            lines.append(f"  … {len(self) - 20} more")
        if self.layers and len(self) and not bool(self.certified.any()):
            lines.append("  Nothing is certified: net.diagnose(x) says why.")
        return "\n".join(lines)

    # -- inside -------------------------------------------------------------------------------------------------------

    @cached_property
    def _window(self) -> tuple[Tensor, Tensor]:
        """(batch,) places a and b of the answer, counted from 0; −1 where rejected."""
        proved = self.windows > self.epsilon  # (batch, a, b)
        if self.prefer == "smallest":
            end = _first(proved.any(dim=1))
            return _last(_picked(proved.mT, end)), end
        start = _last(proved.any(dim=2))
        return start, _first(_picked(proved, start))

    def _members(self, last: Tensor) -> Tensor:
        """The classes of ranks up to ``last`` as booleans: (batch,) → (batch, classes)."""
        places = torch.arange(self.ranking.shape[1], device=last.device)
        table = torch.zeros(len(self), self.classes, dtype=torch.bool, device=last.device)
        return table.scatter_(1, self.ranking.clamp(min=0), places <= last[:, None])

    def _check_labels(self, labels: Tensor) -> Tensor:
        labels = as_tensor(labels, "`labels`").to(self.ranking.device)
        if labels.shape != (len(self),) or labels.is_floating_point():
            raise expected(
                f"`labels` to be integers of shape ({len(self)},)", f"shape {tuple(labels.shape)}, {labels.dtype}"
            )
        labels = labels.long()
        if len(self) and not bool(((labels >= 0) & (labels < self.classes)).all()):
            raise expected(f"labels in 0..{self.classes - 1}", f"{labels.min().item()}..{labels.max().item()}")
        return labels


def _first(flags: Tensor) -> Tensor:
    """The place of the first True of each row, −1 where there is none: (batch, K) → (batch,)."""
    return torch.where(flags.any(dim=1), flags.long().argmax(dim=1), -1)


def _last(flags: Tensor) -> Tensor:
    """The place of the last True of each row, −1 where there is none: (batch, K) → (batch,)."""
    return torch.where(flags, torch.arange(flags.shape[1], device=flags.device), -1).amax(dim=1)


def _picked(flags: Tensor, row: Tensor) -> Tensor:
    """One row of each table: (batch, K, K) and (batch,) → (batch, K); a table without any True has none to pick."""
    return flags[torch.arange(len(flags), device=flags.device), row.clamp(min=0)]
