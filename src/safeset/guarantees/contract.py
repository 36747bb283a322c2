"""What everything else asks of a guarantee: the largest k that can occur, the eligible k of a ranking, and its text."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.inputs import check_names


class Guarantee(ABC):
    """Which k are eligible at a point. A hashable value, for which ``parse(str(guarantee)) == guarantee``."""

    @abstractmethod
    def largest_k(self, classes: int) -> int:
        """The largest k that can be eligible among ``classes`` classes; always below ``classes`` (k = C is vacuous).

        Raises:
            ArgumentError: if the guarantee does not make sense for so many classes.
        """

    @abstractmethod
    def eligible(self, ranking: Tensor, classes: int) -> Tensor:
        """Whether each k = 1, …, K is eligible, K = ``largest_k(classes)``; ties are ignored.

        Args:
            ranking: (batch, K) integers, the K best classes, best first.
            classes: number of classes.

        Returns:
            (batch, K) booleans; column k − 1 is about k.
        """

    def companions(self, labels: Tensor, logits: Tensor) -> Tensor:
        """The classes that may stay together with each label, itself among them: what losses need not keep out.

        The label is taken as the best class, with its best rivals behind it: as many of them as can be eligible.

        Args:
            labels: (batch,) classes.
            logits: (batch, classes).

        Returns:
            (batch, classes) booleans, without gradient.
        """
        classes = logits.shape[1]
        ranking = rank_behind(labels, logits, self.largest_k(classes))
        counts = torch.arange(1, ranking.shape[1] + 1, device=logits.device)  # (K,)
        most = (self.eligible(ranking, classes) * counts).amax(dim=1, keepdim=True)
        return torch.zeros_like(logits, dtype=torch.bool).scatter(1, ranking, (counts <= most) | (counts == 1))

    def tables(self, classes: int) -> tuple[Tensor, Tensor]:
        """The eligible k as plain tables, for programs elsewhere: such as graphs in ONNX files.

        Returns:
            (K,) and (sets, classes) booleans: k is eligible at a point if the first says so and one of the sets holds
            all of its k best classes.

        Raises:
            ArgumentError: for a guarantee that does not say it.
        """
        raise expected("a guarantee with `tables`, which says its eligible k elsewhere", type(self).__name__)

    @abstractmethod
    def __str__(self) -> str: ...

    def in_words(self, class_names: Sequence[str]) -> str:
        """What is promised for the whole ball, for people, to go on after "it is proved that".

        Args:
            class_names: of all classes.
        """
        return f"the guarantee {self} holds"

    has_one_size = False  # whether every core has `largest_k` classes, so that its size says nothing

    def baseline(self, counts: Sequence[int]) -> int:
        """How many labels the best constant answer holds: the K most frequent classes at every point.

        Args:
            counts: the number of labels of each class.
        """
        return sum(sorted(counts, reverse=True)[: self.largest_k(len(counts))])

    def prepare(self, classes: int, device: torch.device | str) -> None:
        """Put what `eligible` looks up on a device. Needed only before a graph is compiled whole or captured."""
        self.largest_k(classes)

    def bind(self, class_names: Sequence[str]) -> Self:
        """The same guarantee about the classes of a data set: names become indices, unknown names are an error."""
        self.largest_k(len(check_names(class_names)))
        return self


def same_everywhere(guarantee: Guarantee, classes: int) -> tuple[Tensor, Tensor]:
    """`tables` of a guarantee whose eligible k are the same for every ranking."""
    ranking = torch.arange(guarantee.largest_k(classes))[None]
    return guarantee.eligible(ranking, classes)[0], torch.ones(1, classes, dtype=torch.bool)


def rank_behind(labels: Tensor, logits: Tensor, k: int) -> Tensor:
    """Each label, then its best rivals, k classes in all: (batch,) and (batch, classes) → (batch, k).

    >>> rank_behind(torch.tensor([2]), torch.tensor([[1.0, 5.0, 0.0, 3.0]]), 3)
    tensor([[2, 1, 3]])
    """
    return logits.detach().scatter(1, labels[:, None], torch.inf).topk(k, dim=1).indices
