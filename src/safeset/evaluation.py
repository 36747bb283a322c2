"""The metrics of the paper, as functions of certificates and labels, and an accumulator that sums them exactly.

=================  ==================================================================================================
vra                share of points that are certified with the true label in the core: VRA, RTK VRA or affinity VRA,
                   by the guarantee; with the method ``uniform`` exactly the paper's
rejection_rate     share of points that are not certified
accuracy           clean accuracy of the guarantee: top-1, top-k, or affinity accuracy
core_size          mean number of classes in the core of certified points
set_size           mean number of classes in core and optional of certified points
=================  ==================================================================================================
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from safeset.certificates import Certificate
from safeset.data.dataset import Progress, Split
from safeset.errors import expected
from safeset.guarantees import Guarantee
from safeset.inputs import check_epsilon
from safeset.margins import METHODS
from safeset.net import CertifiedNet
from safeset.workers import Workers

POINTS_AT_ONCE = 2048


def vra(certificate: Certificate, labels: Tensor) -> float:
    """Verified-robust accuracy: the share of points certified with the label in the core."""
    return int(certificate.verified(labels).sum()) / _some(len(certificate))


def rejection_rate(certificate: Certificate, labels: Tensor | None = None) -> float:
    """The share of points that are not certified; it needs no labels."""
    return int((~certificate.certified).sum()) / _some(len(certificate))


def accuracy(certificate: Certificate, labels: Tensor) -> float:
    """Clean accuracy of the guarantee: the share of points with the label in F^k for the largest eligible k."""
    return int(certificate.correct(labels).sum()) / _some(len(certificate))


def core_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """Mean number of classes in the core of certified points, NaN if none is certified; it needs no labels."""
    return int(certificate.core.sum()) / (int(certificate.certified.sum()) or float("nan"))


def set_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """Mean number of classes in core and optional of certified points, NaN if there are none; it needs no labels."""
    return int(certificate.whole.sum()) / (int(certificate.certified.sum()) or float("nan"))


def vra_curve(certificate: Certificate, labels: Tensor, epsilons: Sequence[float]) -> list[float]:
    """VRA at each of several ε, from one certificate's radii."""
    radii = certificate.verified_radius(labels)
    return [int((radii > check_epsilon(epsilon)).sum()) / _some(len(radii)) for epsilon in epsilons]


class Metrics:
    """Sums the metrics over batches, and over the processes of a distributed run, in integers: exactly.

    >>> from safeset import certify_logits
    >>> metrics = Metrics(epsilons=[0.5, 1.5])
    >>> for logits, label in [([2.0, 0.0], 0), ([1.0, 0.0], 0), ([0.0, 1.0], 0)]:
    ...     certificate = certify_logits([logits], [[0, 1], [1, 0]], 0.9, "standard")
    ...     _ = metrics.update(certificate, torch.tensor([label]))
    >>> {name: round(value, 3) for name, value in metrics.compute().items()}
    {'vra': 0.667, 'rejection_rate': 0.0, 'accuracy': 0.667, 'core_size': 1.0, 'set_size': 1.0, 'points': 3}
    >>> metrics.curve()
    [0.6666666666666666, 0.3333333333333333]

    Args:
        epsilons: radii at which `curve` reports VRA.
    """

    def __init__(self, epsilons: Sequence[float] = ()) -> None:
        self.epsilons = tuple(check_epsilon(epsilon) for epsilon in epsilons)
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        # points, verified, certified, correct, sizes of cores, sizes of sets, then verified at each of the epsilons
        self._counts = torch.zeros(6 + len(self.epsilons), dtype=torch.int64)

    def update(self, certificate: Certificate, labels: Tensor) -> "Metrics":
        """Count a batch.

        Args:
            certificate: of the batch.
            labels: (batch,) true classes.
        """
        radii = certificate.verified_radius(labels)
        counts = [
            torch.tensor(len(radii), device=radii.device),
            (radii > certificate.epsilon).sum(),
            certificate.certified.sum(),
            certificate.correct(labels).sum(),
            certificate.core.sum(),
            certificate.whole.sum(),
            *((radii > epsilon).sum() for epsilon in self.epsilons),
        ]
        self._counts = self._counts.to(radii.device) + torch.stack(counts)
        return self

    def compute(self) -> dict[str, float]:
        """The metrics over all points so far, of all processes if torch.distributed runs; ``points`` counts them."""
        return _rates(self.totals([self])[0])

    def curve(self) -> list[float]:
        """VRA at each of the epsilons, over all points so far, of all processes if torch.distributed runs."""
        totals = self.totals([self])[0]
        return [verified / _some(totals[0]) for verified in totals[6:]]

    @staticmethod
    def totals(several: "Sequence[Metrics]") -> list[list[int]]:
        """The counts of several of the same epsilons, over all processes if torch.distributed runs."""
        counts = torch.stack([metrics._counts.cpu() for metrics in several])
        Workers.here().add([counts])
        found: list[list[int]] = counts.tolist()
        return found


def _rates(counts: Sequence[int]) -> dict[str, float]:
    points, verified, certified, correct, core, whole = counts[:6]
    return {
        "vra": verified / _some(points),
        "rejection_rate": (points - certified) / points,
        "accuracy": correct / points,
        "core_size": core / (certified or float("nan")),
        "set_size": whole / (certified or float("nan")),
        "points": points,
    }


def evaluate(
    net: CertifiedNet,
    split: Split,
    *,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    guarantee: Guarantee | str | None = None,
    per_class: bool = False,
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """The metrics of a net on labelled points, by proved bounds: a row for each method and ε.

    Where torch.distributed runs, all processes call it with the same points, share the work, and get the same rows.

    Args:
        net: a net.
        split: points and labels.
        epsilons: radii; by default the net's own.
        methods: ``uniform``, ``floating``, ``joint``.
        guarantee: if not the net's own.
        per_class: add the metrics of the points of each class, by its name.
        progress: wraps the batches to show how far it is.

    Returns:
        Rows with ``method``, ``epsilon``, the metrics, and ``classes`` if asked for.
    """
    radii = [net.epsilon] if epsilons is None else [check_epsilon(epsilon) for epsilon in epsilons]
    names = net.class_names or tuple(map(str, range(net.classes)))
    whole = {(method, epsilon): Metrics() for epsilon in radii for method in methods}
    parts = {key: [Metrics() for _ in names] for key in whole}
    device = next(net.parameters()).device
    batches = torch.split(torch.arange(len(split))[Workers.here().share(len(split))], POINTS_AT_ONCE)
    for places in progress(batches, len(batches)) if progress else batches:
        if not len(places):
            continue
        part = split[places].to(device)
        points = net.measure(part.inputs)
        for method in methods:
            found = points.certificate(guarantee=guarantee, method=method)
            for epsilon in radii:
                certificate = found.at(epsilon)
                whole[method, epsilon].update(certificate, part.y)
                for label in sorted(set(part.y.tolist())) if per_class else ():
                    some = part.y == label
                    parts[method, epsilon][label].update(certificate[some], part.y[some])
    rows = []
    for (method, epsilon), metrics in whole.items():
        total, *counts = Metrics.totals([metrics, *(parts[method, epsilon] if per_class else ())])
        row: dict[str, Any] = {"method": method, "epsilon": epsilon, **_rates(total)}
        if per_class:
            counted = zip(names, counts, strict=True)
            row["classes"] = {name: _rates(each) for name, each in counted if each[0]}
        rows.append(row)
    return rows


def _some(points: int) -> int:
    if points == 0:
        raise expected("at least one point", "none")
    return points
