"""Affinity sets found, not given: which few classes to put together, so that most of what a relaxed top-K gains stays.

One certificate of relaxed top-K tells all. A label of rank q is verified by an affinity guarantee iff some window
[a, b] with a ≥ q is proved whose F^b lies in one set. So each point has one group of classes that it needs together:
F^b for the least such b. Choosing sets is then counting groups (`guarantees/merging.py`), and what a choice certifies
follows from the same table of windows.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shown_epsilon
from safeset.data.dataset import Dataset, Progress, Split
from safeset.errors import counted, expected, shown_rate
from safeset.evaluation import Metrics
from safeset.guarantees.guarantee import Affinity, RelaxedTopK
from safeset.guarantees.merging import Group, Pair, Step, choose_pairs, sets_of
from safeset.inputs import as_device
from safeset.nets.net import CertifiedNet
from safeset.recipes import toml
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.data import load_run_data, same_source
from safeset.runs.load import load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.runs.suggestion import MOST_CLASSES, POINTS_AT_ONCE, concatenate, held_out_points
from safeset.system.files import plain

ENOUGH = 0.8  # of the gain, after which no more pairs are proposed unless they are asked for
USUAL_K = 3  # of the relaxed guarantee, where the run's own answers have one class


@dataclass(frozen=True, eq=False)
class AffinitySuggestion:
    """Pairs of classes to put together, and what each choice certifies on some points.

    Attributes:
        certificate: of all points, for relaxed top-K, at the ε that is looked at.
        labels: (points,) true classes.
        most: pairs that may be proposed; None for as many as recover enough, up to one for each class.
        on: which points these are, in words.
        trained_on: whether the network was trained on them.
        units: what ε is measured in.
        unfinished: where the training stands if it has not ended.
    """

    certificate: Certificate
    labels: Tensor
    most: int | None
    on: str
    trained_on: bool
    units: str
    unfinished: str = ""

    @cached_property
    def steps(self) -> list[Step]:
        """The proposed pairs, in the order in which they are worth most."""
        k, classes = self.certificate.ranking.shape[1], self.certificate.classes
        groups = needed_groups(self.certificate, self.labels)
        found = choose_pairs(groups, most=self.most or classes, largest=k)
        if self.most is not None or not found:
            return found
        none, every = groups_satisfied(groups)
        enough = (place for place, step in enumerate(found, 1) if step.satisfied - none >= ENOUGH * (every - none))
        return found[: next(enough, len(found))]

    @property
    def sets(self) -> list[tuple[int, ...]]:
        """The proposed affinity sets."""
        return sets_of(self._pairs(len(self.steps)))

    @property
    def named_sets(self) -> list[list[str]]:
        """The same with names of classes."""
        return [[self.certificate.names[member] for member in one] for one in self.sets]

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """The metrics of `evaluation` with no pair, after each step, and for relaxed top-K, with the share of its gain.

        ``recovered`` is None where relaxed top-K gains nothing.
        """
        k, classes = self.certificate.ranking.shape[1], self.certificate.classes
        found: list[dict[str, Any]] = []
        for place in range(len(self.steps) + 1):
            pairs = self._pairs(place)
            sets = Affinity(sets_of(pairs) or [[index] for index in range(classes)])
            added = self._named(self.steps[place - 1].pairs if place else ())
            found.append({"added": added, "pairs": len(pairs), **self._metrics(narrowed(self.certificate, sets))})
        found.append({"added": [], "pairs": None, **self._metrics(self.certificate)})
        for row, name in zip(found, ("standard", *["affinity"] * len(self.steps), f"rt{k}"), strict=True):
            gain = found[-1]["vra"] - found[0]["vra"]
            row |= {"guarantee": name, "recovered": (row["vra"] - found[0]["vra"]) / gain if gain else None}
        return found

    @property
    def sentences(self) -> list[str]:
        """What was found, on which points, and what is left to the reader."""
        first, *_, last = self.rows
        at = f"at ε = {shown_epsilon(self.certificate.epsilon)}"
        found = []
        if self.steps:
            best = self.rows[-2]
            found.append(
                f"{counted(best['pairs'], 'pair recovers', 'pairs recover')} {100 * best['recovered']:.0f} % of what "
                f"{last['guarantee']} gains over standard {at}: VRA {shown_rate(first['vra'])} becomes "
                f"{shown_rate(best['vra'])}, {last['guarantee']} has {shown_rate(last['vra'])}. Whether these classes "
                "may be confused is yours to say: read the sets before you use them."
            )
        else:
            found.append(
                f"No two classes are worth putting together: {last['guarantee']} gains nothing over standard {at}."
                if last["recovered"] is None
                else f"No proposal of {counted(self.most or 0, 'pair')} recovers anything; more may."
            )
        if self.trained_on:
            found.append(
                "These are the points that the network was trained on, because the run held out none: more is "
                "certified on them than on new ones, and other pairs may matter there. Train with --validation or "
                "--hold-out 0.1, or take other points: safeset suggest-affinity RUN --data FILE"
            )
        return found

    def text(self) -> str:
        """The sets as a TOML file that `Affinity.from_file` reads, with where they come from."""
        about = (
            f"Proposed by safeset from {counted(len(self.labels), 'point')} ({self.on}), "
            f"{self.certificate.method} at ε = {shown_epsilon(self.certificate.epsilon)}."
        )
        comment = "".join(each if each.isprintable() else " " for each in about)  # the name of data may be a path
        return f"# {comment}\n{toml.write({'sets': self.named_sets})}"

    def record(self) -> dict[str, Any]:
        """All of it as plain values."""
        found: dict[str, Any] = plain(
            {
                "on": self.on,
                "points": len(self.labels),
                "trained_on": self.trained_on,
                "units": self.units,
                "epsilon": self.certificate.epsilon,
                "method": self.certificate.method,
                "rows": self.rows,
                "sets": self.named_sets,
                "sentences": self.sentences,
                **({"unfinished": self.unfinished} if self.unfinished else {}),
            }
        )
        return found

    def _pairs(self, steps: int) -> frozenset[Pair]:
        return frozenset(pair for step in self.steps[:steps] for pair in step.pairs)

    def _named(self, pairs: Sequence[Pair]) -> list[list[str]]:
        return [[self.certificate.names[member] for member in pair] for pair in pairs]

    def _metrics(self, certificate: Certificate) -> dict[str, float]:
        return Metrics().update(certificate, self.labels).compute()


def needed_groups(certificate: Certificate, labels: Tensor) -> Counter[Group]:
    """How many points need each group of classes in one set for their label to be verified at ε.

    Args:
        certificate: for relaxed top-K.
        labels: (batch,) true classes.
    """
    rank = (certificate.ranking == labels[:, None].to(certificate.ranking.device)).long()  # (batch, K)
    behind = rank.cummax(dim=1).values.bool()  # a ≥ q; none where the label is not among the K best
    proved = ((certificate.windows > certificate.epsilon) & behind[:, :, None]).any(dim=1)  # (batch, b)
    last = torch.where(proved.any(dim=1), proved.long().argmax(dim=1), -1)
    chosen = zip(certificate.ranking.tolist(), last.tolist(), strict=True)
    return Counter(frozenset(best[: end + 1]) for best, end in chosen if end >= 0)


def groups_satisfied(groups: Counter[Group]) -> tuple[int, int]:
    """How many points are satisfied without any set, and how many can be at all."""
    return sum(count for group, count in groups.items() if len(group) == 1), groups.total()


def narrowed(certificate: Certificate, sets: Affinity) -> Certificate:
    """A certificate for relaxed top-K as one for affinity sets of at most K classes: fewer of its k are eligible.

    Being inside a set is inherited by smaller k, so that a window is admissible iff its last k is eligible, and the
    windows inside of it, which may prove it, then are too.
    """
    eligible = sets.eligible(certificate.ranking.clamp(min=0), certificate.classes)
    windows = torch.where(eligible[:, None, :], certificate.windows, 0.0)
    return replace(certificate, windows=windows, eligible=eligible, guarantee=sets)


def certify_relaxed(
    net: CertifiedNet,
    split: Split,
    k: int,
    *,
    epsilon: float | None = None,
    method: str | None = None,
    progress: Progress | None = None,
) -> Certificate:
    """The certificate of all points for relaxed top-k, on the CPU."""
    parts = []
    batches = torch.split(torch.arange(len(split)), POINTS_AT_ONCE)
    for places in progress(batches, len(batches)) if progress else batches:
        points = net.measure(split[places].to(net.device).exact)
        found = points.certificate(guarantee=RelaxedTopK(k), epsilon=epsilon, method=method)
        parts.append(found.to("cpu"))
    return concatenate(parts)


def suggest_affinity(
    run: Run,
    *,
    pairs: int | None = None,
    k: int | None = None,
    epsilon: float | None = None,
    source: str | None = None,
    method: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> AffinitySuggestion:
    """Affinity sets for a run, from points that it held out; never from its test points.

    Args:
        run: whose network is looked at.
        pairs: to propose at the most; by default as many as recover 80 % of the gain, up to one for each class.
        k: of the relaxed top-k whose gain is to be recovered, and the most classes of a set; by default as many as
            the run's own answers may have, up to 10, or 3 where that is one.
        epsilon: by default the run's own.
        source: other data, whose test part is taken.
        method: ``uniform``, ``floating`` or ``joint`` (the default).
        network: as for `load`.
        device: such as ``"cuda"``.
        progress: wraps the batches.
    """
    if pairs is not None and pairs < 1:
        raise expected("at least one pair to propose", pairs)
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    if source is not None and not recipe.validation and same_source(source, recipe.data.source):
        raise expected(
            "data whose test part may be looked at", f"{source}: the test points of the run", "Leave out --data."
        )
    _check_k(net, k)
    points = load_run_data(recipe, source, progress)
    asked: dict[str, Any] = {"pairs": pairs, "k": k, "epsilon": epsilon, "method": method, "progress": progress}
    found = suggest_for_net(net.to(as_device(device)), recipe, points, other=source is not None, **asked)
    return replace(found, unfinished=unfinished)


def suggest_for_net(
    net: CertifiedNet,
    recipe: FittedRecipe,
    points: Dataset,
    *,
    other: bool,
    pairs: int | None = None,
    k: int | None = None,
    epsilon: float | None = None,
    method: str | None = None,
    at_most: int | None = None,
    progress: Progress | None = None,
) -> AffinitySuggestion:
    """What `suggest_affinity` gives, of a net and data that are loaded already.

    Args:
        net: trained.
        recipe: by which.
        points: the data of the run, or other data.
        other: whether it is other data, whose test part is taken.
        pairs: as for `suggest_affinity`, and so are those that are not explained here.
        k: likewise.
        epsilon: likewise.
        method: likewise.
        at_most: points to look at; of more some are drawn, always the same.
        progress: wraps the batches.
    """
    k = _check_k(net, k)
    held = held_out_points(recipe, points, other=other)
    split, on = held or (points.train, "training")  # never the test points: sets chosen on them would pass by chance
    if at_most is not None and len(split) > at_most:
        on = f"{at_most:,} of {len(split):,} {on}"
        split = split[torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:at_most]]
    certificate = certify_relaxed(net, split, k, epsilon=epsilon, method=method, progress=progress)
    return AffinitySuggestion(
        certificate, split.y.cpu(), pairs, f"{points.name}, {on} points", held is None, points.units
    )


def _check_k(net: CertifiedNet, k: int | None) -> int:
    """The K of the relaxed guarantee whose gain is to be recovered, by default or as asked for."""
    if net.classes < 3:
        raise expected("a network of at least 3 classes, so that two can be put together", net.classes)
    own = net.guarantee.largest_k(net.classes)
    k = min(own if own > 1 else USUAL_K, MOST_CLASSES, net.classes - 1) if k is None else k
    if k < 2:
        raise expected("`k` to be at least 2, so that an answer can have two classes", k)
    RelaxedTopK(k).largest_k(net.classes)  # raises for too many
    return k
