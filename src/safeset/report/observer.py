"""What an evaluation's own pass shows besides its rows: curves against ε, classes that go together, and examples."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.margins import METHODS
from safeset.evaluation import Metrics
from safeset.system.files import plain

STEPS = 40  # of ε along a curve
FARTHEST = 8  # times the run's own ε; farther out the interesting part of a curve would be a corner
ENDLESS = 1e100  # no change of an input is larger; radii stay finite because numbers overflow
EACH = 18  # examples of each kind
SHOWN = METHODS[-1]  # the method whose answers are shown one by one


@dataclass(frozen=True, eq=False)
class Example:
    """A test point that is shown: its place among the test points, its label, and its certificate, a batch of one."""

    place: int
    label: int
    certificate: Certificate


def choose_radii(certificate: Certificate, epsilon: float) -> list[float]:
    """Radii along which curves are drawn, from 0 to where few points are certified, with the run's own ε among them.

    Args:
        certificate: of some points.
        epsilon: the run's own.
    """
    radii = sorted(radius for radius in certificate.radius.tolist() if 0 < radius < ENDLESS)
    reach = radii[math.ceil(0.95 * len(radii)) - 1] if radii else 0.0
    longest = min(max(1.5 * epsilon, 1.1 * reach), FARTHEST * epsilon or math.inf) or 1.0
    return sorted({epsilon, *(float(f"{longest * place / STEPS:.3g}") for place in range(STEPS + 1))})


class Observer:
    """Watches the batches of `safeset.evaluation.evaluate`.

    Args:
        labels: (points,) of all points.
        classes: number of classes.
        epsilon: at which classes are counted and examples chosen.
        radii: along the curves.
    """

    def __init__(self, labels: Tensor, *, classes: int, epsilon: float, radii: Sequence[float]) -> None:
        self.radii = list(radii)
        self.together = torch.zeros(classes, classes, dtype=torch.int64)
        self.covers = ""
        self._labels, self._epsilon = labels.cpu(), epsilon
        self._metrics = {method: [Metrics() for _ in radii] for method in METHODS}
        # Examples are drawn at random, but always the same, whatever the batches are: those that come first in turn.
        self._turn = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        self._kept: list[dict[int, Example]] = [{}, {}, {}, {}]  # by turn, for each kind

    def watch(self, places: Tensor, found: Certificate) -> None:
        """Count a batch.

        Args:
            places: (batch,) of the points among all.
            found: their certificate by one method.
        """
        for radius, metrics in zip(self.radii, self._metrics[found.method], strict=True):
            metrics.update(found.at(radius), self._labels[places])
        if found.method == SHOWN:
            self.covers = found.covers
            answers = replace(found.at(self._epsilon), _source=None).to("cpu")
            whole = answers.whole.double()
            self.together += (whole.T @ whole).round().long()
            self._keep(places, answers)

    def curves(self) -> dict[str, list[dict[str, Any]]]:
        """For each method the metrics of `safeset.evaluation` at each of the radii, None where there is none."""
        return {
            method: [plain(each.compute()) for each in several]
            for method, several in self._metrics.items()
            if len(self._labels)
        }

    def examples(self) -> list[Example]:
        """Some points of each kind: any, without a certificate, of several classes, with a wrong answer."""
        every = {turn: example for kept in self._kept for turn, example in kept.items()}
        return [every[turn] for turn in sorted(every)]

    def _keep(self, places: Tensor, answers: Certificate) -> None:
        whole, labels, turns = answers.whole, self._labels[places], self._turn[places]
        holds = whole.gather(1, labels[:, None])[:, 0]
        certified = answers.certified
        kinds = (torch.ones_like(certified), ~certified, whole.sum(dim=1) > 1, certified & ~holds)
        for kept, qualifies in zip(self._kept, kinds, strict=True):
            indices = qualifies.nonzero()[:, 0]
            for index in indices[turns[indices].argsort()[:EACH]].tolist():
                kept[int(turns[index])] = Example(int(places[index]), int(labels[index]), answers[index])
            for turn in sorted(kept)[EACH:]:
                del kept[turn]
