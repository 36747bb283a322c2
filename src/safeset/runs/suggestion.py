"""Choosing ε and K for one's own data: what each costs, from one forward pass over points that were not trained on."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shorten, shown, shown_epsilon
from safeset.data.dataset import Dataset, Progress, Split
from safeset.errors import shown_rate
from safeset.evaluation import Metrics
from safeset.guarantees.guarantee import Guarantee, RelaxedTopK, Standard
from safeset.inputs import as_device
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.data import load_run_data
from safeset.runs.load import load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain

MOST_CLASSES = 10  # of the largest K that is tried
ENOUGH = 0.8  # of the answers are certified at a good ε
GAIN = 0.01  # of the labels, which a larger K must bring
ENDLESS = 1e100  # no change of an input is larger; radii stay finite because numbers overflow
SHOWN = (1, 2, 3, 4, 5, 7, 10)  # of many K
POINTS_AT_ONCE = 2048
Certificates = Mapping[str, Certificate]


@dataclass(frozen=True, eq=False)
class Suggestion:
    """What ε and K cost on some points, and which to start from.

    Attributes:
        certificates: of all points, by the guarantee's text: standard, rt2, …, and the run's own if it is another.
        labels: (points,) true classes.
        own: the run's guarantee as text.
        epsilon: the run's own.
        on: which points these are, in words.
        chosen_on_test: whether they are the test points.
        units: what ε is measured in.
        unfinished: where the training stands if it has not ended, such as ``epoch 12 of 100``.
    """

    certificates: Certificates
    labels: Tensor
    own: str
    epsilon: float
    on: str
    chosen_on_test: bool
    units: str
    unfinished: str = ""

    @property
    def method(self) -> str:
        """By which all of it is proved."""
        return next(iter(self.certificates.values())).method

    def rows(self, epsilons: Sequence[float], guarantees: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """The metrics of `evaluation` for each guarantee, or some of them, and each ε."""
        return [
            {"guarantee": name, "epsilon": epsilon, **self._metrics(name, epsilon)}
            for name in (self.certificates if guarantees is None else guarantees)
            for epsilon in epsilons
        ]

    def _metrics(self, guarantee: str, epsilon: float) -> dict[str, float]:
        return Metrics().update(self.certificates[guarantee].at(epsilon), self.labels).compute()

    @property
    def grid(self) -> list[float]:
        """Radii at which most, half and few of the answers are certified, in two digits, and the run's own."""
        first, last = self._relaxed[0], self._relaxed[-1]
        levels = [(last, 0.95), (last, ENOUGH), (last, 0.5), (last, 0.2), (first, ENOUGH), (first, 0.5)]
        found = {float(f"{self.reach(name, share):.1e}") for name, share in levels}
        return sorted({self.epsilon, *(radius for radius in found if 0 < radius < ENDLESS)})

    def reach(self, guarantee: str, share: float = ENOUGH) -> float:
        """The radius below which so large a share of the points is certified."""
        radii = self.certificates[guarantee].radius.sort(descending=True).values
        return float(radii[math.ceil(share * len(radii)) - 1])

    @property
    def names(self) -> list[str]:
        """The guarantees that are shown: of many K some, and the run's own."""
        return [name for place, name in enumerate(self.certificates, 1) if place in SHOWN or name == self.own]

    @property
    def _relaxed(self) -> list[str]:
        """The guarantees of rising K, as far as an answer of K classes says something: up to half of them."""
        classes = next(iter(self.certificates.values())).classes
        return list(_guarantees(classes))[: math.ceil(classes / 2)]

    @property
    def at(self) -> float:
        """The ε at which K is chosen: the run's own, or a smaller one at which the largest K certifies enough.

        It is 0 where there is none to choose: too few answers are certified, or a run of ε = 0 has answers that no
        change can alter.
        """
        most = self.reach(self._relaxed[-1])
        return min((radius for radius in (self.epsilon, most) if 0 < radius < ENDLESS), default=0.0) if most else 0.0

    @property
    def start(self) -> float:
        """The ε to start from with `guarantee`: the largest at which it certifies enough, if that is finite."""
        reach = self.reach(self.guarantee)
        return reach if 0 < reach < ENDLESS else self.at

    @property
    def guarantee(self) -> str:
        """The one of least K after which no step to the next puts more labels into the cores of the smallest answers.

        Those answers do not depend on K, where there is one, so that every gain is one of certified points.
        """
        shares = [self._metrics(name, self.at)["smallest_share"] for name in self._relaxed]
        gains = [later - sooner >= GAIN for sooner, later in pairwise(shares)]
        return self._relaxed[max((place for place, gain in enumerate(gains, 1) if gain), default=0)]

    @property
    def sentences(self) -> list[str]:
        """What follows for a choice, and what each choice costs."""
        found = [f"{100 * ENOUGH:.0f} % of the answers are certified {self._below}."]
        if self.at == 0 and self.reach(self._relaxed[-1]) > 0:
            found.append("No change of the input alters most answers: no ε is to be chosen here.")
        elif self.at == 0:
            found.append("At no ε so many are certified: train longer, or see why with net.diagnose(x).")
        else:
            name = self.guarantee
            radius = float(shown(self.start))
            there = self._metrics(name, radius)
            found.append(
                f"To start from: {name} at ε = {shown_epsilon(radius)}. There {name} has VRA "
                f"{shown_rate(there['vra'])}, {shown_rate(there['rejection_rate'])} of the points without a "
                f"certificate, and answers of {there['smallest_set_size']:.2f} classes on average where the smallest "
                "are taken, "
                f"{there['set_size']:.2f} where the largest are. At ε = {shown_epsilon(self.at)} no larger K, up to "
                f"half of the classes, puts {100 * GAIN:.0f} % more of the labels into certified cores."
            )
        found.append(
            "A larger ε promises more and certifies fewer points. A larger K certifies more points, with larger "
            "answers; VRA counts a label in the core of the largest answer and rises with K by itself, so look at the "
            f"sizes beside it. All of this is one network, trained for {shorten(self.own, 0)} at ε = "
            f"{shown_epsilon(self.epsilon)}: one that is trained for your choice does better there."
        )
        if self.chosen_on_test:
            found.append(
                "These are the test points: what is chosen on them is no longer a fair test of it. To choose on other "
                "points, train with --validation, or name others with --data."
            )
        return found

    @property
    def _below(self) -> str:
        """At which ε enough is certified, by guarantee."""
        reaches = {shorten(name, 0): self.reach(name) for name in self.names}
        some = ", ".join(f"{shown(reach)} for {name}" for name, reach in reaches.items() if 0 < reach < ENDLESS)
        every = ", ".join(name for name, reach in reaches.items() if reach >= ENDLESS)
        none = ", ".join(name for name, reach in reaches.items() if reach == 0)
        parts = [
            some and f"at every ε below {some}",
            every and f"at every ε for {every}",
            none and f"at no ε for {none}",
        ]
        return "; ".join(filter(None, parts))

    def record(self) -> dict[str, Any]:
        """All of it as plain values."""
        found: dict[str, Any] = plain(
            {
                "on": self.on,
                "points": len(self.labels),
                "chosen_on_test": self.chosen_on_test,
                "units": self.units,
                "trained_for": {"guarantee": self.own, "epsilon": self.epsilon},
                "method": self.method,
                "rows": self.rows(self.grid),
                "certified_share": ENOUGH,
                "certified_below": {name: self.reach(name) for name in self.certificates},
                "suggested": {"guarantee": self.guarantee, "epsilon": self.start or None},
                "sentences": self.sentences,
                **({"unfinished": self.unfinished} if self.unfinished else {}),
            }
        )
        return found


def suggest(
    net: CertifiedNet, split: Split, *, method: str | None = None, progress: Progress | None = None
) -> tuple[dict[str, Certificate], Tensor]:
    """Certificates of labelled points for relaxed top-K with K = 1, 2, …, and for the net's own guarantee.

    Args:
        net: a net; it runs once over the points.
        split: points and labels.
        method: ``uniform``, ``floating`` or ``joint`` (the default).
        progress: wraps the batches.

    Returns:
        A certificate of all points by each guarantee's text, and the labels, on the CPU.
    """
    asked: dict[str, Guarantee] = {**_guarantees(net.classes)}
    if net.guarantee not in (*asked.values(), RelaxedTopK(1)):
        asked[str(net.guarantee)] = net.guarantee
    device = net.device
    batches = torch.split(torch.arange(len(split)), POINTS_AT_ONCE)
    parts: dict[str, list[Certificate]] = {name: [] for name in asked}
    for places in progress(batches, len(batches)) if progress else batches:
        points = net.measure(split[places].to(device).exact)
        for name, guarantee in asked.items():
            parts[name].append(points.certificate(guarantee=guarantee, method=method).to("cpu"))
    return {name: concatenate(several) for name, several in parts.items()}, split.y.cpu()


def suggest_for_run(
    run: Run,
    *,
    source: str | None = None,
    method: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> Suggestion:
    """What ε and K cost on points that a run was not trained on: held out, of other data, or else its test points."""
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    net = net.to(as_device(device))
    points = load_run_data(recipe, source, progress)
    split, on = held_out_points(recipe, points, other=source is not None) or (points.test, "test")
    certificates, labels = suggest(net, split, method=method, progress=progress)
    own = "standard" if net.guarantee == RelaxedTopK(1) else str(net.guarantee)
    on_test = source is None and on == "test"
    on = f"{points.name}, {on} points"
    return Suggestion(certificates, labels, own, net.epsilon, on, on_test, points.units, unfinished)


def held_out_points(recipe: FittedRecipe, points: Dataset, *, other: bool) -> tuple[Split, str] | None:
    """Points that a run was neither trained nor tested on, and what they are; None where nothing was held out."""
    if recipe.hold_out and not other and not recipe.validation:
        return points.train.held_out(recipe.hold_out)[1], "held-out"
    return (points.test, recipe.split) if other or recipe.validation else None


def _guarantees(classes: int) -> dict[str, Guarantee]:
    """Relaxed top-K for the K that are tried; K = 1 is standard robustness."""
    relaxed = (RelaxedTopK(k) for k in range(2, min(MOST_CLASSES, classes - 1) + 1))
    return {str(each): each for each in (Standard(), *relaxed)}


def concatenate(parts: Sequence[Certificate]) -> Certificate:
    """One certificate of several batches."""
    return replace(
        parts[0],
        windows=torch.cat([part.windows for part in parts]),
        ranking=torch.cat([part.ranking for part in parts]),
        eligible=torch.cat([part.eligible for part in parts]),
    )
