"""The metrics of the paper and of answers, as functions of certificates and labels, and an exact accumulator of them.

===================  ================================================================================================
vra                  share of points that are certified with the true label in the core of the largest answer: VRA, RTK
                     VRA or affinity VRA, by the guarantee; with the method ``uniform`` exactly the paper's
rejection_rate       share of points that are not certified
accuracy             clean accuracy of the guarantee: top-1, top-k, or affinity accuracy
top1                 share of points whose best class is the label
core_size            mean number of classes in the core of certified points, largest answers
set_size             mean number of classes in core and optional of certified points, largest answers
smallest_share       share of points with the label in the core of the smallest answer (it may rise with ε: never plot
                     it as robustness)
smallest_core_size   as core_size, smallest answers
smallest_set_size    as set_size, smallest answers
===================  ================================================================================================
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.margins import METHODS
from safeset.certificates.promises import shown_epsilon
from safeset.data.dataset import Progress, Split
from safeset.errors import expected, shown_rate
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import as_guarantee
from safeset.inputs import check_epsilon
from safeset.nets.certifying import Certifying
from safeset.numerics.threads import one_thread
from safeset.system.workers import Workers

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


def top1(certificate: Certificate, labels: Tensor) -> float:
    """The share of points whose best class is the label."""
    return int((certificate.ranking[:, 0] == certificate._check_labels(labels)).sum()) / _some(len(certificate))


def smallest_share(certificate: Certificate, labels: Tensor) -> float:
    """The share of points with the label in the core of the smallest answer."""
    return int(_in_core(certificate.preferring("smallest"), labels).sum()) / _some(len(certificate))


def core_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """Mean number of classes in the core of certified points, largest answers; NaN if none is certified."""
    return _mean_size(certificate.preferring("largest").core)


def set_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """Mean number of classes in core and optional of certified points, largest answers; NaN if none is certified."""
    return _mean_size(certificate.preferring("largest").whole)


def smallest_core_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """As `core_size`, of the smallest answers."""
    return _mean_size(certificate.preferring("smallest").core)


def smallest_set_size(certificate: Certificate, labels: Tensor | None = None) -> float:
    """As `set_size`, of the smallest answers."""
    return _mean_size(certificate.preferring("smallest").whole)


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
    >>> found = metrics.compute()
    >>> [round(found[name], 3) for name in ("vra", "rejection_rate", "top1", "set_size", "points")]
    [0.667, 0.0, 0.667, 1.0, 3]
    >>> metrics.curve()
    [0.6666666666666666, 0.3333333333333333]

    Args:
        epsilons: radii at which `curve` reports VRA.
    """

    def __init__(self, epsilons: Sequence[float] = ()) -> None:
        self.epsilons = tuple(check_epsilon(epsilon) for epsilon in epsilons)
        self.reset()

    def reset(self) -> None:
        """Start counting again."""
        # The points, the numbers that `_rates` divides, then the verified ones at each of the epsilons.
        self._counts = torch.zeros(_COUNTS + len(self.epsilons), dtype=torch.int64)

    def update(self, certificate: Certificate, labels: Tensor) -> "Metrics":
        """Count a batch.

        Args:
            certificate: of the batch.
            labels: (batch,) true classes.
        """
        with one_thread():
            radii = certificate.verified_radius(labels)
            largest, smallest = (certificate.preferring(which) for which in ("largest", "smallest"))
            counts = [
                torch.tensor(len(radii), device=radii.device),
                (radii > certificate.epsilon).sum(),
                certificate.certified.sum(),
                certificate.correct(labels).sum(),
                (certificate.ranking[:, 0] == labels.to(radii.device)).sum(),
                largest.core.sum(),
                largest.whole.sum(),
                _in_core(smallest, labels).sum(),
                smallest.core.sum(),
                smallest.whole.sum(),
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
        return [verified / _some(totals[0]) for verified in totals[_COUNTS:]]

    @staticmethod
    def totals(several: "Sequence[Metrics]") -> list[list[int]]:
        """The counts of several of the same epsilons, over all processes if torch.distributed runs."""
        counts = torch.stack([metrics._counts.cpu() for metrics in several])
        Workers.here().add([counts])
        found: list[list[int]] = counts.tolist()
        return found


_COUNTS = 10
SHARES = ("vra", "rejection_rate", "accuracy", "top1", "smallest_share")
SIZES = ("core_size", "set_size", "smallest_core_size", "smallest_set_size")


def _rates(counts: Sequence[int]) -> dict[str, float]:
    points, verified, certified, correct, best, core, whole, in_smallest, smallest_core, smallest = counts[:_COUNTS]
    of, with_answer = _some(points), certified or float("nan")
    return {
        "vra": verified / of,
        "rejection_rate": (points - certified) / of,
        "accuracy": correct / of,
        "top1": best / of,
        "core_size": core / with_answer,
        "set_size": whole / with_answer,
        "smallest_share": in_smallest / of,
        "smallest_core_size": smallest_core / with_answer,
        "smallest_set_size": smallest / with_answer,
        "points": points,
    }


def _mean_size(sets: Tensor) -> float:
    """The mean size of the sets that are not empty: those of certified points."""
    return int(sets.sum()) / (int(sets.any(dim=1).sum()) or float("nan"))


def _in_core(certificate: Certificate, labels: Tensor) -> Tensor:
    """(batch,) booleans: the label is in the core."""
    return certificate.core.gather(1, certificate._check_labels(labels)[:, None])[:, 0]


def evaluate(
    net: Certifying,
    split: Split,
    *,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    guarantee: Guarantee | str | None = None,
    per_class: bool = False,
    progress: Progress | None = None,
    watch: Callable[[Tensor, Certificate], None] | None = None,
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
        watch: is called with the places of each batch in ``split`` and its certificate, once for each method, so that
            more can be counted in the same pass.

    Returns:
        Rows with ``method``, ``epsilon``, the metrics, ``baseline`` (the share of labels in the best answer that is the
        same at every point), and ``classes`` if asked for.
    """
    radii = [net.epsilon] if epsilons is None else [check_epsilon(epsilon) for epsilon in epsilons]
    names = net.class_names or tuple(map(str, range(net.classes)))
    whole = {(method, epsilon): Metrics() for epsilon in radii for method in methods}
    parts = {key: [Metrics() for _ in names] for key in whole}
    device = net.device
    batches = torch.split(torch.arange(len(split))[Workers.here().share(len(split))], POINTS_AT_ONCE)
    for places in progress(batches, len(batches)) if progress else batches:
        if not len(places):
            continue
        part = split[places].to(device)
        points = net.measure(part.exact)
        for method in methods:
            found = points.certificate(guarantee=guarantee, method=method)
            if watch:
                watch(places, found)
            for epsilon in radii:
                certificate = found.at(epsilon)
                whole[method, epsilon].update(certificate, part.y)
                for label in sorted(set(part.y.tolist())) if per_class else ():
                    some = part.y == label
                    parts[method, epsilon][label].update(certificate[some], part.y[some])
    asked = net.guarantee if guarantee is None else as_guarantee(guarantee).bind(names)
    baseline = asked.baseline(torch.bincount(split.y.cpu(), minlength=net.classes).tolist()) / _some(len(split))
    rows = []
    for (method, epsilon), metrics in whole.items():
        total, *counts = Metrics.totals([metrics, *(parts[method, epsilon] if per_class else ())])
        row: dict[str, Any] = {"method": method, "epsilon": epsilon, **_rates(total), "baseline": baseline}
        if per_class:
            counted = zip(names, counts, strict=True)
            row["classes"] = {name: _rates(each) for name, each in counted if each[0]}
        rows.append(row)
    return rows


HARDLY = 0.02  # VRA no further above the baseline hardly beats it
NEAR = 0.95  # cores that fill so much of the largest allowed one say little


def remarks(rows: Sequence[Mapping[str, Any]], guarantee: Guarantee, classes: int) -> list[str]:
    """Sentences for the reader of an evaluation whose answers hardly beat a constant one, or are as large as allowed.

    Args:
        rows: those of `evaluate`.
        guarantee: that of the rows.
        classes: number of classes.
    """
    k, found = guarantee.largest_k(classes), dict[str, str]()
    for row in sorted(rows, key=lambda each: -each["vra"]):
        about = f"{row['method']} at ε = {shown_epsilon(row['epsilon'])}"
        if row["vra"] <= row["baseline"] + HARDLY:
            found.setdefault(
                "baseline",
                f"VRA {shown_rate(row['vra'])} ({about}) "
                f"{'is below' if row['vra'] < row['baseline'] else 'hardly beats'} {shown_rate(row['baseline'])}, "
                "the share of labels in the best answer that is the same at every point.",
            )
        size = row["core_size"]
        if k > 1 and not guarantee.has_one_size and size is not None and size >= NEAR * k:
            found.setdefault(
                "size",
                f"The mean core has {size:.2f} of at most {k} classes ({about}), so that VRA and accuracy say little. "
                f"Top-1 accuracy is {shown_rate(row['top1'])}; the cores of the smallest answers have "
                f"{row['smallest_core_size']:.2f} classes on average and hold {shown_rate(row['smallest_share'])} of "
                "the labels. Consider a smaller K.",
            )
    return list(found.values())


def _some(points: int) -> int:
    if points == 0:
        raise expected("at least one point", "none")
    return points
