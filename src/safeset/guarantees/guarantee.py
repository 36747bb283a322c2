"""Guarantees: small frozen values that say which k are eligible at a point.

A guarantee promises that at every x' with ‖x' − x‖₂ ≤ ε some eligible k has F^k(x') = F^k(x), where F^k is the set of
the k best classes. The guarantees differ only in the eligible k (the paper's Definitions 1 to 4):

===================  ==========================================  ====================
guarantee            eligible k at x                             text
===================  ==========================================  ====================
``Standard()``       1                                           ``standard``
``TopK(k)``          k                                           ``top3``
``RelaxedTopK(k)``   1, …, k                                     ``rt3``
``Affinity(sets)``   every k for which F^k(x) lies in one set    ``affinity:FILE`` or ``affinity:JSON``
===================  ==========================================  ====================

Nothing outside this file asks which guarantee it has: the rest of safeset asks what `contract.py` lists.
"""

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.guarantees import affinity
from safeset.guarantees.affinity import Class
from safeset.guarantees.contract import Guarantee as Guarantee
from safeset.guarantees.contract import same_everywhere
from safeset.guarantees.words import sets_in_words
from safeset.inputs import as_count, check_names
from safeset.numerics.strict import uncompiled


@dataclass(frozen=True)
class Standard(Guarantee):
    """Local robustness (Definition 1): the best class stays the best class.

    >>> Standard() == Standard(), str(Standard())
    (True, 'standard')
    """

    def largest_k(self, classes: int) -> int:
        """Always 1."""
        return _below(1, classes)

    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """Only 1, everywhere."""
        return torch.ones_like(ranking, dtype=torch.bool)

    tables = same_everywhere

    def in_words(self, class_names: Sequence[str]) -> str:
        """One class, so none is named."""
        return "the best class stays the best"

    def __str__(self) -> str:
        return "standard"


@dataclass(frozen=True, repr=False)
class _UpTo(Guarantee):
    """A guarantee with a number k, the largest that is eligible."""

    k: int

    def __post_init__(self) -> None:
        count = as_count(self.k)
        if count is None:
            raise expected("`k` to be an integer ≥ 1", repr(self.k))
        object.__setattr__(self, "k", count)

    def largest_k(self, classes: int) -> int:
        """The k of this guarantee."""
        return _below(self.k, classes)

    tables = same_everywhere

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.k})"


@dataclass(frozen=True, repr=False)
class TopK(_UpTo):
    """Top-k robustness (Definition 2): the set of the k best classes stays the same. Not a relaxation of `Standard`.

    >>> print(TopK(3))
    top3
    """

    has_one_size = True

    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """Only k, everywhere."""
        return (torch.arange(1, self.k + 1, device=ranking.device) == self.k).expand_as(ranking)

    def in_words(self, class_names: Sequence[str]) -> str:
        """The number of classes.

        >>> TopK(3).in_words("abcde")
        'the 3 best classes stay the 3 best, in any order'
        """
        if self.k == 1:
            return Standard().in_words(class_names)
        return f"the {self.k} best classes stay the {self.k} best, in any order"

    def __str__(self) -> str:
        return f"top{self.k}"


@dataclass(frozen=True, repr=False)
class RelaxedTopK(_UpTo):
    """Relaxed top-K robustness, RTK (Definition 3): at each x' the k best classes are the same for some k ≤ K.

    >>> RelaxedTopK(3)
    RelaxedTopK(3)
    >>> str(RelaxedTopK(3))
    'rt3'
    """

    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """All of 1, …, K, everywhere."""
        return torch.ones_like(ranking, dtype=torch.bool)

    def in_words(self, class_names: Sequence[str]) -> str:
        """The numbers of classes that may stay.

        >>> RelaxedTopK(3).in_words("abcde")
        'the 1, 2 or 3 best classes stay the same, in one place perhaps 1, in another 3'
        """
        if self.k == 1:
            return Standard().in_words(class_names)
        counts = {2: "1", 3: "1, 2"}.get(self.k, "1, 2, …")
        return f"the {counts} or {self.k} best classes stay the same, in one place perhaps 1, in another {self.k}"

    def __str__(self) -> str:
        return f"rt{self.k}"


@dataclass(frozen=True, init=False, repr=False)
class Affinity(Guarantee):
    """Affinity robustness (Definition 4): the k best classes are the same for some k, and lie in one affinity set.

    Sets may overlap; equal sets are one; a class in no set is alone in a set of its own.

    Args:
        sets: the affinity sets, each a collection of class indices or of class names.
        everyone_with: classes added to every set, those of single classes included: ``everyone_with=["river",
            "highway"]`` alone makes the paper's "highway+river", and with ``sets=[["annual crop", "permanent crop"]]``
            its "highway+river+agriculture".

    >>> Affinity([[0, 1], [3, 2]])
    Affinity([[0, 1], [2, 3]])
    >>> print(Affinity([["cat", "dog"]]).bind(["dog", "cow", "cat"]))
    affinity:{"sets":[[0,2]]}
    """

    sets: tuple[tuple[Class, ...], ...] = ()
    everyone_with: tuple[Class, ...] = ()
    _largest: dict[int, int] = field(default_factory=dict, compare=False)
    _tables: dict[tuple[int, torch.device], Tensor] = field(default_factory=dict, compare=False)

    def __init__(self, sets: Iterable[Iterable[Class]] = (), everyone_with: Iterable[Class] = ()) -> None:
        if isinstance(sets, str | Mapping) or not isinstance(sets, Iterable):
            raise expected(
                "`sets` to be a list of sets of classes",
                type(sets).__name__,
                "Affinity.from_groups takes a class → group map, Affinity.from_file a file.",
            )
        distinct = {affinity.members(one, "an affinity set") for one in sets}
        together = affinity.members(everyone_with, "`everyone_with`", empty=True)
        if not distinct and not together:
            raise expected("at least one affinity set", "none", "Without groups the guarantee is Standard().")
        kinds = {type(member) for one in (*distinct, together) for member in one}
        if len(kinds) > 1:
            raise expected("either class indices or class names in affinity sets", "both")
        object.__setattr__(self, "sets", tuple(sorted(distinct)))
        object.__setattr__(self, "everyone_with", together)
        object.__setattr__(self, "_largest", {})
        object.__setattr__(self, "_tables", {})

    @classmethod
    def from_groups(cls, groups: Mapping[Any, Hashable] | Sequence[Hashable]) -> "Affinity":
        """Classes of one group together; ``groups`` maps class → group (CIFAR-100's superclasses), or lists them.

        >>> Affinity.from_groups({"rose": "flowers", "orchid": "flowers", "bus": "vehicles"})
        Affinity([['bus'], ['orchid', 'rose']])
        """
        return cls(affinity.from_groups(groups))

    @classmethod
    def from_neighbours(cls, order: Sequence[Class]) -> "Affinity":
        """Neighbours of an ordering together (ACAS Xu's adjacent advisories).

        >>> Affinity.from_neighbours(["left", "straight", "right"])
        Affinity([['left', 'straight'], ['right', 'straight']])
        """
        return cls(affinity.from_neighbours(order))

    @classmethod
    def from_hierarchy(
        cls, edges: Iterable[tuple[Class, Class]], *, max_leaves: int | None = None, depth: int | None = None
    ) -> "Affinity":
        """The leaves below the chosen nodes of a DAG of (parent, child) edges; see `affinity.from_hierarchy`."""
        return cls(affinity.from_hierarchy(edges, max_leaves=max_leaves, depth=depth))

    @classmethod
    def from_costs(cls, matrix: Any, *, most: float, classes: Sequence[Class] | None = None) -> "Affinity":
        """Classes together where every confusion costs at most ``most``, in both directions; see `affinity.from_costs`.

        >>> Affinity.from_costs([[0, 1, 9], [1, 0, 9], [9, 9, 0]], most=1)
        Affinity([[0, 1], [2]])
        """
        return cls(affinity.from_costs(matrix, most=most, classes=classes))

    @classmethod
    def from_file(cls, path: str | Path) -> "Affinity":
        """The collection that a TOML or JSON file describes; see `affinity.from_description` for its keys."""
        if not isinstance(path, str | Path):
            raise expected("the path of an affinity file", repr(path))
        return cls(*affinity.read(Path(path)))

    def bind(self, class_names: Sequence[str]) -> "Affinity":
        """The same sets as indices into ``class_names``, ``everyone_with`` added to each."""
        names = check_names(class_names)
        *sets, together = affinity.as_indices([*self.sets, self.everyone_with], names)
        full = affinity.complete(sets, together, len(names))
        return Affinity(full) if together else Affinity(sets)

    def baseline(self, counts: Sequence[int]) -> int:
        """The labels in the most frequent of the sets."""
        sets = affinity.complete(self.sets, self.everyone_with, len(counts))
        return max(sum(counts[member] for member in one) for one in sets)

    def largest_k(self, classes: int) -> int:
        """Size of the largest set."""
        if classes not in self._largest:
            self.prepare(classes, "cpu")
        return self._largest[classes]

    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """Every k whose k best classes lie in one set: being inside a set is inherited by smaller k."""
        table = self._table(classes, ranking.device)
        common = table[ranking[:, 0]]  # (batch, words): the sets that hold all classes so far, a bit each
        inside = [(common != 0).any(dim=1)]
        for place in range(1, ranking.shape[1]):
            common = common & table[ranking[:, place]]
            inside.append((common != 0).any(dim=1))
        return torch.stack(inside, dim=1)

    def tables(self, classes: int) -> tuple[Tensor, Tensor]:
        """Every k, and the sets."""
        found = torch.zeros(len(sets := affinity.complete(self.sets, self.everyone_with, classes)), classes)
        for row, one in zip(found, sets, strict=True):
            row[list(one)] = 1
        return torch.ones(self.largest_k(classes), dtype=torch.bool), found.bool()

    def companions(self, labels: Tensor, logits: Tensor) -> Tensor:
        """The label's own set; where it is in several, the best rivals one by one, as long as one set holds them all.

        Other classes may lie between them: those are what a loss must keep out.
        """
        classes = logits.shape[1]
        table, order = self._table(classes, logits.device), logits.detach()
        common = table[labels]  # (batch, words): the sets that hold all that were chosen
        chosen = torch.zeros_like(order, dtype=torch.bool).scatter(1, labels[:, None], True)
        for _ in range(self.largest_k(classes) - 1):
            fits = ((common[:, None, :] & table) != 0).any(dim=2) & ~chosen  # (batch, classes)
            best = order.masked_fill(~fits, -torch.inf).argmax(dim=1, keepdim=True)
            found = fits.gather(1, best)  # (batch, 1): whether there is one
            common = torch.where(found, common & table[best[:, 0]], common)
            chosen = chosen | torch.zeros_like(chosen).scatter(1, best, found)
        return chosen

    def _table(self, classes: int, device: torch.device) -> Tensor:
        if (classes, device) not in self._tables:
            self.prepare(classes, device)
        return self._tables[classes, device]

    # A table that is built inside a compiled graph would become a constant of it, so tables are only looked up there.
    @uncompiled
    def prepare(self, classes: int, device: torch.device | str) -> None:
        """Make the (classes, words) table in which bit s of row c says whether class c is in set s."""
        sets = affinity.complete(self.sets, self.everyone_with, classes)
        bits = np.zeros((classes, -(-len(sets) // 64)), dtype=np.uint64)
        for place, one in enumerate(sets):
            bits[list(one), place // 64] |= np.uint64(1 << (place % 64))
        table = torch.from_numpy(bits.view(np.int64)).to(device)
        self._tables[classes, table.device] = table
        self._largest[classes] = max(map(len, sets))

    def in_words(self, class_names: Sequence[str]) -> str:
        """The sets, by name, as far as they are few.

        >>> Affinity([[0, 2]]).in_words(["cat", "cow", "dog"])
        'only classes that share a set may be confused: {cat, dog}'
        """
        sets = sets_in_words(self.bind(class_names).sets, class_names)
        return f"only classes that share a set may be confused: {sets}" if sets else Standard().in_words(class_names)

    def __str__(self) -> str:
        description: dict[str, Any] = {"sets": self.sets} if self.sets else {}
        if self.everyone_with:
            description["everyone_with"] = self.everyone_with
        return "affinity:" + json.dumps(description, ensure_ascii=False, separators=(",", ":"))

    def __repr__(self) -> str:
        shown = [str(list(one)) if len(one) <= 8 else f"[{len(one)} classes]" for one in self.sets[:6]]
        if len(self.sets) > 6:
            shown.append(f"… {len(self.sets)} sets")
        also = f", everyone_with={list(self.everyone_with)}" if self.everyone_with else ""
        return f"Affinity([{', '.join(shown)}]{also})"


def _below(k: int, classes: int) -> int:
    if k >= classes:
        raise expected(f"`k` to be an integer in 1..{classes - 1} (classes − 1)", k)
    return k
