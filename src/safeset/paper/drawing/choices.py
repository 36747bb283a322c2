"""What the figures show, chosen from certificates: pure functions, no colours."""

from collections.abc import Sequence

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.paper.shares import inside


def smallest_sets(certificate: Certificate) -> Tensor:
    """(n, classes) the smallest safe set at each point, empty where rejected: what the paper's decision surfaces show.

    Deep inside a class the best class is safe to predict alone, and so is the set of the two best.
    """
    return certificate.preferring("smallest").whole


def some_of(points: Tensor, count: int, seed: int) -> list[int]:
    """Draw ``count`` of the points that qualify at random, or all if there are fewer.

    Args:
        points: (n,) booleans, which qualify.
        count: how many.
        seed: of the draw.

    >>> some_of(torch.tensor([False, True, True, False]), 3, seed=0)
    [1, 2]
    """
    places = points.nonzero()[:, 0]
    order = torch.randperm(len(places), generator=torch.Generator().manual_seed(seed))
    return sorted(places[order[:count]].tolist())


def is_recovered(strict: Certificate, relaxed: Certificate) -> Tensor:
    """(n,) booleans: rejected by one, certified by the other."""
    return ~strict.certified & relaxed.certified


def has_label(labels: Tensor, class_names: Sequence[str], chosen: Sequence[str]) -> Tensor:
    """(n,) booleans: the label is one of the chosen classes."""
    return torch.isin(labels, torch.tensor([class_names.index(name) for name in chosen]))


def has_several_classes(certificate: Certificate, labels: Tensor) -> Tensor:
    """(n,) booleans: the best class is the label, and the certified core has more than one class."""
    return (certificate.ranking[:, 0] == labels) & (certificate.core.sum(dim=1) > 1)


def is_gathered(relaxed: Certificate, grouped: Certificate) -> Tensor:
    """(n,) booleans: the first certifies a set that lies in no affinity set of the second, which certifies too."""
    return relaxed.certified & ~inside(relaxed, grouped.guarantee) & grouped.certified


def counts(certificate: Certificate) -> Tensor:
    """(classes, classes) the number of certified answers that hold both classes, as optional ones too."""
    sets = certificate.whole.double()
    return (sets.T @ sets).round().long()


def shares(table: Tensor) -> Tensor:
    """(classes, classes) of the answers that hold the row's class, the share that hold the column's too; NaN if none.

    Args:
        table: what `counts` gives.
    """
    return table.double() / torch.where(table.diagonal() > 0, table.diagonal().double(), torch.nan)[:, None]


def side_by_side(table: Tensor) -> list[int]:
    """An order of the classes in which those that often share an answer stand together.

    Pairs are taken by |both| / |either|, the largest first; each joins the two rows in which its classes stand so far,
    turned so that the two come near.

    Args:
        table: what `counts` gives.
    """
    own = table.diagonal()
    alike = table.double() / (own[:, None] + own[None, :] - table).clamp(min=1)
    pairs = torch.triu_indices(len(table), len(table), offset=1)
    strength = alike[pairs[0], pairs[1]]
    order = strength.argsort(descending=True, stable=True)
    rows = {place: [place] for place in range(len(table))}  # by class: the row in which it stands
    for left, right in pairs[:, order[strength[order] > 0]].T.tolist():
        first, second = rows[left], rows[right]
        if first is second:
            continue
        if 2 * first.index(left) < len(first) - 1:
            first.reverse()
        if 2 * second.index(right) > len(second) - 1:
            second.reverse()
        first += second
        rows |= dict.fromkeys(second, first)
    return [place for start, row in rows.items() if start == min(row) for place in row]
