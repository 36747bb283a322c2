"""The paper's numbers, and ours beside them."""

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from safeset.certificates.margins import METHODS
from safeset.evaluation import SIZES
from safeset.paper.predictions import RATES, WAYS

SIZES_TOO = ("top1", "smallest_share", *SIZES)  # older results do not have these
# Table 1 of the paper: VRA, rejection rate and clean accuracy, each with its standard deviation over ten runs.
PAPER: dict[str, tuple[tuple[float, float | None], ...]] = {
    "eurosat/standard": ((0.749, 0.003), (0.204, 0.002), (0.862, 0.003)),
    "eurosat/rt3": ((0.908, 0.002), (0.073, 0.002), (0.987, 0.002)),
    "eurosat/highway-river": ((0.798, 0.002), (0.170, 0.002), (0.917, 0.003)),
    "eurosat/highway-river-agriculture": ((0.819, 0.003), (0.151, 0.003), (0.930, 0.003)),
    "cifar100/standard": ((0.281, 0.002), (0.640, 0.003), (0.473, 0.002)),
    "cifar100/rt5": ((0.360, 0.002), (0.562, 0.002), (0.706, 0.003)),
    "cifar100/superclass": ((0.323, 0.002), (0.599, 0.002), (0.520, 0.002)),
    "tiny-imagenet/standard": ((0.224, None), (0.639, None), (0.346, None)),
    "tiny-imagenet/rt5": ((0.277, 0.002), (0.447, 0.006), (0.537, 0.002)),
    "acasxu/targeted": ((0.749, 0.001), (0.195, 0.001), (0.858, 0.002)),
}
# What the paper's text says of a data set, by the same words; "more" are rises of a rejection rate relative to itself.
PAPER_SAYS = {
    "eurosat": {
        "Highway images that standard rejects": 0.39,
        "of these, certified by RT3: Highway": 0.72,
        "of RT3's gain in VRA, recovered by highway-river-agriculture": 0.5,
    },
    "cifar100": {
        "points that standard rejects, certified top-1 by RT5": 0.05,
        "RT5's sets that lie in a superclass": 0.78,
        "more rejected by RT5 if only such sets counted, relative": 0.16,
        "more rejected by superclass than by RT5, relative": 0.06,
        "RT5's sets that match no superclass, certified by superclass": 0.34,
    },
}


def seeds_of(row: str) -> int:
    """How many networks of a row are trained: ten, as in the paper; three of Tiny-ImageNet, and beyond its table.

    >>> seeds_of("cifar100/rt5"), seeds_of("tiny-imagenet/rt5"), seeds_of("acasxu/targeted-2-1")
    (10, 3, 3)
    """
    return 10 if row in PAPER and not row.startswith("tiny-imagenet/") else 3


def table_lines(records: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each row and number: the paper's, and ours in each way, mean ± standard deviation."""
    lines = []
    for row, group in groupby(records, key=lambda each: str(each["row"])):
        several = list(group)
        counted = [name for name in SIZES_TOO if any(name in one["uniform"] for one in several)]
        for place, name in enumerate([*RATES, *counted]):
            ours = [spread([one.get(way, {}).get(name) for one in several]) for way in WAYS]
            paper = plus_minus(*PAPER[row][place]) if row in PAPER and name in RATES else "–"
            lines.append([row if place == 0 else "", name, str(len(several)) if place == 0 else "", paper, *ours])
    return lines


def plus_minus(mean: float, deviation: float | None) -> str:
    """A number of the paper's table.

    >>> plus_minus(0.36, 0.002), plus_minus(0.224, None)
    ('0.360 ± 0.002', '0.224')
    """
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


def spread(values: Sequence[float | None]) -> str:
    """Mean ± standard deviation of what is known.

    >>> spread([0.25, None, 0.35])
    '0.300 ± 0.071'
    """
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    mean = f"{statistics.fmean(known):.3f}"
    return f"{mean} ± {statistics.stdev(known):.3f}" if len(known) > 1 else mean


def share_lines(analyses: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A line for each share: the paper's, where its text has one, and ours by method, mean ± standard deviation."""
    lines = []
    for data, group in groupby(analyses, key=lambda each: str(each["data"])):
        several = [one["shares"] for one in group]
        for place, name in enumerate(several[0]):
            ours = [spread([one.get(name, {}).get(method) for one in several]) for method in METHODS]
            says = PAPER_SAYS.get(data, {}).get(name)
            paper = "–" if says is None else f"{says:.2f}"
            lines.append([data if place == 0 else "", name, str(len(several)) if place == 0 else "", paper, *ours])
    return lines
