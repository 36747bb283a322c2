"""The shares that the paper's text speaks of: what its networks answer at the same points, compared with each other.

Each function takes the answers of one seed's networks, by the last part of their rows' names; shares are by method.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.margins import METHODS
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee
from safeset.paper.predictions import Answers

Shares = dict[str, dict[str, float | None]]  # a share in words: by method, None where there is nothing to count
Networks = Mapping[str, Answers]

ROWS = {
    "eurosat": ("standard", "rt3", "highway-river", "highway-river-agriculture"),
    "cifar100": ("standard", "rt5", "superclass"),
    "tiny-imagenet": ("standard", "rt5"),
    "acasxu": ("targeted",),
}
MOST_PAIRS = 12
MOST_CLASSES = 20  # with more, classes are not reported one by one
STRONG = "points that standard rejects, certified top-1 by RT5"


def analysis(data: str, networks: Networks) -> dict[str, Any]:
    """All analyses of a data set: shares by method, membership, and the classes that go together.

    Args:
        data: one of `ROWS`.
        networks: the answers of each of its rows.
    """
    first, *others = networks.values()
    if not all(each.labels.equal(first.labels) for each in others):
        raise expected("answers of all networks at the same points", "others", "Train all of them on the same data.")
    relaxed = next((answers for row, answers in networks.items() if row.startswith("rt")), None)
    several = {row: answers for row, answers in networks.items() if row != "standard"}
    return {
        "shares": _SHARES[data](networks),
        "membership": membership(relaxed) if relaxed else None,
        "classes": {row: by_class(answers) for row, answers in networks.items()},
        "together": {
            row: {method: together(answers[method]) for method in METHODS} for row, answers in several.items()
        },
        "seconds_per_point": {row: dict(answers.seconds) for row, answers in networks.items()},
    }


def eurosat(networks: Networks) -> Shares:
    """Highways and rivers that standard robustness rejects, and what relaxing it recovers (Section 5.2)."""
    standard, relaxed = networks["standard"], networks["rt3"]
    names = relaxed["uniform"].names
    river, highway = names.index("River"), names.index("Highway")
    vra = {row: {way: answers.rates(way)["vra"] for way in METHODS} for row, answers in networks.items()}

    def of_class(name: str) -> Shares:
        some = relaxed.labels == names.index(name)
        return {
            f"{name} images that standard rejects": _by_method(lambda way: (~standard[way].certified, some)),
            f"of these, certified by RT3: {name}": _by_method(
                lambda way: (relaxed[way].certified, some & ~standard[way].certified)
            ),
        }

    def recovered(row: str) -> dict[str, float | None]:
        def gain(one: str, way: str) -> float:
            return vra[one][way] - vra["standard"][way]

        return {way: _ratio(gain(row, way), gain("rt3", way)) for way in METHODS}

    return {
        **of_class("Highway"),
        **of_class("River"),
        "River images certified by RT3, with Highway in the set": _by_method(
            lambda way: (relaxed[way].whole[:, highway], relaxed[way].certified & (relaxed.labels == river))
        ),
        **{
            f"of RT3's gain in VRA, recovered by {row}": recovered(row)
            for row in ("highway-river", "highway-river-agriculture")
        },
    }


def cifar100(networks: Networks) -> Shares:
    """Strong guarantees from a relaxed objective, and superclasses that appear without being asked for (5.1, 5.3)."""
    standard, relaxed, grouped = networks["standard"], networks["rt5"], networks["superclass"]
    matches = {way: inside(relaxed[way], grouped[way].guarantee) for way in METHODS}

    def more(rejected: Callable[[str], Tensor], *, relative: bool) -> dict[str, float | None]:
        risen = {way: _share(rejected(way)) - _share(~relaxed[way].certified) for way in METHODS}
        return {
            way: _ratio(value, _share(~relaxed[way].certified) if relative else 1.0) for way, value in risen.items()
        }

    found = {
        STRONG: _strong(standard, relaxed),
        "RT5's sets that lie in a superclass": _by_method(lambda way: (matches[way], relaxed[way].certified)),
    }
    for unit, relative in (("points", False), ("relative", True)):
        found[f"more rejected by RT5 if only such sets counted, {unit}"] = more(
            lambda way: ~matches[way], relative=relative
        )
        found[f"more rejected by superclass than by RT5, {unit}"] = more(
            lambda way: ~grouped[way].certified, relative=relative
        )
    found["RT5's sets that match no superclass, certified by superclass"] = _by_method(
        lambda way: (grouped[way].certified, relaxed[way].certified & ~matches[way])
    )
    found["the same, points that RT5 rejects counted too"] = _by_method(
        lambda way: (grouped[way].certified, ~matches[way])
    )
    return found


def tiny_imagenet(networks: Networks) -> Shares:
    """Strong guarantees from a relaxed objective (5.1)."""
    return {STRONG: _strong(networks["standard"], networks["rt5"])}


def acasxu(networks: Networks) -> Shares:
    """Targeted safe regions: the advisory changes at most to a neighbouring one (the appendix)."""
    targeted = networks["targeted"]
    return {
        "regions proved targeted safe": {way: _share(targeted[way].certified) for way in METHODS},
        "the label is in the core: affinity VRA": {way: targeted.rates(way)["vra"] for way in METHODS},
        "the best class is the label, and certified: the appendix's VRA": {
            way: targeted.rates(way)["vra_top1"] for way in METHODS
        },
    }


_SHARES: dict[str, Callable[[Networks], Shares]] = {
    "eurosat": eurosat,
    "cifar100": cifar100,
    "tiny-imagenet": tiny_imagenet,
    "acasxu": acasxu,
}


def membership(answers: Answers) -> dict[str, Any]:
    """The comparison with Jia et al. (the appendix), on a network of relaxed top-K: shares of the points at ε.

    ``label_stays``: the label stays among the k best, which needs the label. ``all_stay``: each of the k best does, the
    least of their radii; ``top_k``: top-k robust by the pairs. ``relaxed``: relaxed top-k robust, by method.
    ``not_next``: top-k robust, but not top-(k + 1) robust.
    """
    one = answers["uniform"]
    diagonal = one.windows.diagonal(dim1=1, dim2=2) > one.epsilon  # (n, K)
    sizes = range(1, one.windows.shape[1] + 1)
    return {
        "k": list(sizes),
        "label_stays": [_share(answers.stays[:, k - 1] > one.epsilon) for k in sizes],
        "all_stay": [_share(answers.all_stay[:, k - 1] > one.epsilon) for k in sizes],
        "top_k": [_share(diagonal[:, k - 1]) for k in sizes],
        "relaxed": {
            way: [_share((answers[way].windows[:, :k, :k] > one.epsilon).flatten(1).any(dim=1)) for k in sizes]
            for way in METHODS
        },
        "not_next": [_share(diagonal[:, k - 1] & ~diagonal[:, k]) for k in sizes[:-1]],
        "median_label_stays": [float(answers.stays[:, k - 1].median()) for k in sizes],
        "median_all_stay": [float(answers.all_stay[:, k - 1].median()) for k in sizes],
    }


def by_class(answers: Answers) -> dict[str, dict[str, float]]:
    """For each of a few classes: its share of the points, and the VRA on them by method."""
    names, found = answers["uniform"].names, {}
    verified = {way: answers[way].verified(answers.labels) for way in METHODS}
    for label, name in enumerate(names if len(names) <= MOST_CLASSES else ()):
        own = answers.labels == label
        if bool(own.any()):
            found[name] = {"share": _share(own), **{way: _share(each[own]) for way, each in verified.items()}}
    return found


def together(certificate: Certificate, most: int = MOST_PAIRS) -> list[list[Any]]:
    """The pairs of classes that certified sets hold most often: both names, and in how many sets."""
    names, count = certificate.names, Counter[tuple[str, str]]()
    for row in certificate.whole:
        count.update(combinations([names[place] for place in row.nonzero()[:, 0].tolist()], 2))
    return [[*pair, times] for pair, times in count.most_common(most)]


def inside(certificate: Certificate, sets: Guarantee) -> Tensor:
    """(n,) booleans: certified, and the whole answer lies in one of the sets."""
    size = certificate.whole.sum(dim=1)
    allowed = sets.eligible(certificate.ranking.clamp(min=0), certificate.classes)  # (n, K)
    return certificate.certified & allowed.gather(1, (size - 1).clamp(min=0)[:, None])[:, 0]


def _by_method(pick: Callable[[str], tuple[Tensor, Tensor]]) -> dict[str, float | None]:
    """By method, the share of points with the first property among those with the second."""
    found = {}
    for way in METHODS:
        has, among = pick(way)
        found[way] = _ratio(int((has & among).sum()), int(among.sum()))
    return found


def _strong(standard: Answers, relaxed: Answers) -> dict[str, float | None]:
    """Of the points that the first rejects, the share that the second certifies for k = 1."""
    return _by_method(lambda way: (relaxed[way].windows[:, 0, 0] > relaxed[way].epsilon, ~standard[way].certified))


def _share(points: Tensor) -> float:
    return int(points.sum()) / len(points)


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None
