"""Certificates: what is promised at each point, and how a label scores against it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_FLOOR, Context
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.guarantees import Guarantee
from safeset.inputs import as_tensor, check_epsilon, check_names


@dataclass(frozen=True, eq=False, repr=False)
class Certificate:
    """Certified prediction sets of a batch of points.

    At each certified point there are two numbers a ≤ b such that at every x' with ‖x' − x‖₂ ≤ ε some k in a..b has
    F^k(x') = F^k(x), each such k being one that the guarantee allows. `core` is F^a(x), `optional` is F^b(x) ∖ F^a(x),
    with the largest a that is proved and the smallest b for it. Hence, whatever happens in the ball:

    - every class of the core stays among the b best classes, and
    - no class outside core and optional ever enters the a best: none outranks the whole core.

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

    def at(self, epsilon: float) -> "Certificate":
        """The certificate at another ε, without a new forward pass."""
        return replace(self, epsilon=check_epsilon(epsilon))

    # -- labels -------------------------------------------------------------------------------------------------------

    def verified_radius(self, labels: Tensor) -> Tensor:
        """(batch,): the label is in the core for every ε below it; 0 if for none.

        Args:
            labels: (batch,) true classes.
        """
        matches = self.ranking == self._check_labels(labels)[:, None]  # (batch, K)
        return torch.where(matches, self.radii, 0.0).amax(dim=1)

    def verified(self, labels: Tensor) -> Tensor:
        """(batch,) booleans: certified, and the label is in the core. Their share is the VRA."""
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
        return replace(self, windows=self.windows[index], ranking=self.ranking[index], eligible=self.eligible[index])

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

        ``radius`` is that of the guarantee, ``core_radius`` that of the promise about core and optional; either may be
        ``math.inf``, where no perturbation can break it.
        """
        names: Sequence[Any] = self.class_names or range(self.classes)
        start, end = (place.tolist() for place in self._window)
        rows = zip(self.ranking.tolist(), start, end, self.radius.tolist(), self.core_radius.tolist(), strict=True)
        return [
            {
                "certified": a >= 0,
                "core": [names[index] for index in best[: a + 1]] if a >= 0 else [],
                "optional": [names[index] for index in best[a + 1 : b + 1]] if a >= 0 else [],
                "radius": radius,
                "core_radius": core_radius,
                "epsilon": self.epsilon,
                "guarantee": str(self.guarantee),
                "method": self.method,
            }
            for best, a, b, radius, core_radius in rows
        ]

    def __repr__(self) -> str:
        return (
            f"Certificate({int(self.certified.sum())} of {len(self)} points certified, {self.guarantee!r}, "
            f"epsilon={self.epsilon:g}, method={self.method!r})"
        )

    def __str__(self) -> str:
        lines = [repr(self)]
        for place, record in enumerate(self[:20].records()):
            answer = "rejected"
            if record["certified"]:
                optional = f" [+ {', '.join(map(str, record['optional']))}]" if record["optional"] else ""
                answer = f"{{{', '.join(map(str, record['core']))}}}{optional} up to {shown(record['core_radius'])}"
            lines.append(f"  {place}: {answer}")
        return "\n".join([*lines, f"  … {len(self) - 20} more"] if len(self) > 20 else lines)

    # -- inside -------------------------------------------------------------------------------------------------------

    @cached_property
    def _window(self) -> tuple[Tensor, Tensor]:
        """(batch,) places a and b of the answer, counted from 0; −1 where rejected."""
        proved = self.windows > self.epsilon  # (batch, K, K)
        places = torch.arange(proved.shape[1], device=proved.device)
        start = torch.where(proved.any(dim=2), places, -1).amax(dim=1)
        row = proved[torch.arange(len(proved), device=proved.device), start.clamp(min=0)]
        return start, torch.where(start >= 0, row.long().argmax(dim=1), -1)

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


def shown(radius: float | None) -> str:
    """A radius in four digits, rounded down: what is printed is proved too. None is ∞.

    >>> shown(2.4999999999), shown(0.42186), shown(math.inf)
    ('2.499', '0.4218', '∞')
    """
    if radius is None or radius == math.inf:
        return "∞"
    return f"{Context(prec=4, rounding=ROUND_FLOOR).create_decimal(radius):g}"
