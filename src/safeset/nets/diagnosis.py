"""Why a network certifies what it certifies: how large its radii are, what they cost, and what can be done."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shown, shown_epsilon
from safeset.errors import counted, expected
from safeset.guarantees.guarantee import RelaxedTopK
from safeset.layers import ChannelAffine
from safeset.proofs.prove import Bounds, LayerBound

NORM = ChannelAffine.__name__  # what batch norm is in a frozen network
HARDLY = 0.05  # a smaller share of certified points asks for an explanation
MOST_CLASSES = 5  # of the relaxed guarantee that is tried


@dataclass(frozen=True)
class Diagnosis:
    """What decides how many points are certified; printing it explains it in words.

    Attributes:
        points: how many were looked at.
        certified: how many of them are certified at ``epsilon``.
        epsilon: radius of the ball, in the units of the network's input.
        guarantee: what was asked for, as text.
        method: by which it was proved.
        median_radius: at every smaller ε at least half of the points are certified.
        gap: median difference of the two best logits, which the Lipschitz bound divides.
        lipschitz: largest proved bound of the Lipschitz constant of a difference of two logits.
        layers: the proved bound of each layer; their product, with the head's differences, is ``lipschitz``.
        relaxed: a weaker guarantee, and how many points it certifies at ``epsilon``.
        trained_for: the ε that safeset trained it for, if it did.
    """

    points: int
    certified: int
    epsilon: float
    guarantee: str
    method: str
    median_radius: float
    gap: float
    lipschitz: float
    layers: tuple[LayerBound, ...]
    relaxed: tuple[str, int]
    trained_for: float | None = None

    @property
    def costliest(self) -> LayerBound:
        """The layer with the largest bound."""
        return max(self.layers, key=lambda layer: layer.bound)

    @property
    def share(self) -> float:
        """The costliest layer's share of what multiplies up: log of its bound over those of all layers above 1."""
        growth = sum(math.log(layer.bound) for layer in self.layers if layer.bound > 1)
        return math.log(self.costliest.bound) / growth if growth else 0.0

    @property
    def advice(self) -> tuple[str, ...]:
        """What to do about it, in sentences."""
        return tuple(self._advice())

    def _advice(self) -> Iterator[str]:
        if self.median_radius > self.epsilon:
            return  # most points are certified
        if self.median_radius > 0:
            yield f"Ask for less: half of the points are certified at ε < {shown(self.median_radius)}."
        else:
            yield "Look at the logits: at half of the points they tie, or differ by less than rounding can move them."
        name, count = self.relaxed
        if count > self.certified:
            yield f"Relax the guarantee: {name} certifies {_share(count, self.points)} at this ε."
        fold = [layer.name for layer in self.layers[1:] if layer.type == NORM and layer.bound > 1]
        if fold:
            yield (
                f"Fold batch norm into the layer before it ({', '.join(map(repr, fold))}), by CertifiedNet(…, "
                "tighten=True): the bound of both together is never larger than the product of two, often much smaller."
            )
        if self.trained_for is not None:
            yield self._for_trained(self.trained_for)
            return
        yield (
            "Train with the Lipschitz bound in the loss, at this ε: safeset.train does, and net.estimate with "
            "net.instrument does in a loop of your own. Without it few networks certify anything, however accurate."
        )

    def _for_trained(self, own: float) -> str:
        """What helps a network that has learnt with the Lipschitz bound in its loss already."""
        if self.epsilon > own:
            return f"Train for this ε or a larger one: the network was trained for less, ε = {shown_epsilon(own)}."
        return (
            f"Train longer (more epochs), for a larger ε than {shown_epsilon(own)}, which the network was trained for, "
            "or for a larger K; otherwise ask for a smaller ε. What each ε and K costs, of a run: safeset suggest RUN"
        )

    def __str__(self) -> str:
        some = "Nothing is" if not self.certified else f"{_share(self.certified, self.points)} of the points are"
        about, layer = f"{self.guarantee}, {self.method}, {counted(self.points, 'point')}", self.costliest
        kind = f"{layer.type}, once batch norm or normalisation" if layer.type == NORM else layer.type
        part = f", {100 * self.share:.0f} % of the bound (in logarithms)" if self.share else ""
        facts = {
            "median radius": f"{shown(self.median_radius)}: half of the points would be certified at smaller ε",
            "Lipschitz bound": f"{self.lipschitz:.4g} for logit differences; the best two differ by {self.gap:.4g}",
            "costliest layer": f"{layer.name!r} ({kind}) enlarges distances up to {layer.bound:.4g} times{part}",
        }
        lines = [
            f"{some} certified at ε = {shown_epsilon(self.epsilon)}: {about}.",
            *(f"  {name + ':':17}{text}" for name, text in facts.items()),
        ]
        if self.advice:
            lines += ["What can be done:", *(f"  - {sentence}" for sentence in self.advice)]
        return "\n".join(lines)


def diagnosis(
    found: Certificate, gap: float, bounds: Bounds, relaxed: Certificate, trained_for: float | None = None
) -> Diagnosis:
    """The diagnosis of certified points from what was proved of them."""
    if not len(found):
        raise expected("at least one point", "none")
    radii = found.radius.sort(descending=True).values
    return Diagnosis(
        points=len(found),
        certified=int(found.certified.sum()),
        epsilon=found.epsilon,
        guarantee=str(found.guarantee),
        method=found.method,
        median_radius=float(radii[(len(radii) - 1) // 2]),  # of the better half the last
        gap=gap,
        lipschitz=float(bounds.pairs.amax()),
        layers=bounds.layers,
        relaxed=(str(relaxed.guarantee), int(relaxed.certified.sum())),
        trained_for=trained_for,
    )


def most_relaxed(classes: int) -> RelaxedTopK:
    """A guarantee weaker than most that are asked for."""
    return RelaxedTopK(min(MOST_CLASSES, classes - 1))


def _share(count: int, of: int) -> str:
    """A share as people say it.

    >>> _share(3, 8), _share(1, 3000), _share(0, 10)
    ('38 %', '0.033 %', '0 %')
    """
    percent = 100 * count / of
    return f"{percent:.0f} %" if percent >= 1 or not count else f"{percent:.2g} %"
