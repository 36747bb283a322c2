"""Where a network's Lipschitz bound comes from, layer by layer, and what a better proof could gain at most."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.certify_logits import certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.certificates.promises import shown_epsilon
from safeset.errors import counted
from safeset.nets.steepest import steepest
from safeset.numerics.directed import Up
from safeset.numerics.integers import NEVER
from safeset.program.operation import ClosedForm
from safeset.program.program import INPUT, Node, Program
from safeset.program.stretch import power_method
from safeset.proofs.prove import Bounds

WIDTH = 80  # of what is printed
SEARCH_STEPS, CLOSE = 200, 1e-8  # of the power method, which is slow where singular values are close
RANDOM_POINTS = 32


@dataclass(frozen=True)
class ExplainedLayer:
    """A layer's bound beside what its constant is at least.

    Attributes:
        name: of the layer.
        type: of the layer.
        bound: proved.
        lower: what it stretches at least, found by search, in float64; None where nothing is known of the layer.
        so_far: the proved bound of all up to here; of the head that of the largest difference of two logits.
    """

    name: str
    type: str
    bound: float
    lower: float | None
    so_far: float

    @property
    def gives_away(self) -> float | None:
        """The bound over the lower bound: 1 where nothing can be gained."""
        if self.lower is None:
            return None
        return self.bound / self.lower if self.lower else 1.0 if not self.bound else float("inf")


@dataclass(frozen=True)
class Certified:
    """What is certified of some points: the share with the label in the core (VRA), or without labels of certified.

    Attributes:
        points: how many there are.
        epsilon: radius of the ball, in the units of the network's input.
        proved: by the proved bounds.
        by_layers: if each layer's lower bound were its bound: no proof layer by layer certifies more.
        by_network: if all pairs of logits were as much less steep than proved as the steepest that was found.
        has_labels: whether these are VRAs.
    """

    points: int
    epsilon: float
    proved: float
    by_layers: float
    by_network: float
    has_labels: bool


@dataclass(frozen=True)
class Explanation:
    """Where the Lipschitz bound of a network comes from; printing it gives a table.

    Attributes:
        layers: one for each of ``net.bounds().layers``.
        lipschitz: largest proved bound of the Lipschitz constant of a difference of two logits.
        by_layers: the same from the layers' lower bounds: where proofs layer by layer end.
        lower: what it is at least: the steepest difference of two logits that was found, in float64.
        certified: what that costs at the given points, if any were given.
    """

    layers: tuple[ExplainedLayer, ...]
    lipschitz: float
    by_layers: float
    lower: float
    certified: Certified | None = None

    def __str__(self) -> str:
        from safeset.terminal.layout import fold, table_lines  # rich is imported only where something is shown

        header = ["layer", "type", "bound", "at least", "gives away", "so far"]
        rows = [
            [each.name, each.type, *map(_shown, (each.bound, each.lower, each.gives_away, each.so_far))]
            for each in self.layers
        ]
        lines = [str(line) for line in table_lines(header, rows, WIDTH, texts=2)]
        for sentence in self.sentences():
            lines += fold(sentence, WIDTH)
        return "\n".join(lines)

    def sentences(self) -> Iterator[str]:
        """What the whole gives away, and what that costs at points."""
        yield (
            f"Differences of logits: at most {_shown(self.lipschitz)} (proved), at least {_shown(self.lower)} (found). "
            f"A proof of these layers one by one cannot give less than {_shown(self.by_layers)}."
        )
        if self.certified is not None:
            found = self.certified
            what = "VRA" if found.has_labels else "certified"
            yield (
                f"{what} at ε = {shown_epsilon(found.epsilon)}, of {counted(found.points, 'point')}: "
                f"{found.proved:.4f} proved; at most {found.by_layers:.4f} by any proof of these layers one by one; "
                f"{found.by_network:.4f} if the network were nowhere steeper than was found."
            )


@dataclass(frozen=True, eq=False)
class Looked:
    """Points that were certified: inputs, (batch, classes) logits, and labels if there are any."""

    x: Tensor
    logits: Tensor
    found: Certificate
    labels: Tensor | None


def explanation(program: Program, bounds: Bounds, looked: Looked | None = None) -> Explanation:
    """The explanation of a proved program, and what its bounds cost at points."""
    lowers = [_lower(node) for node in program.layers]
    steep = [line.bound if lower is None else lower for line, lower in zip(bounds.layers, lowers, strict=True)]
    scale, pairs = float(bounds.head.scale), float(bounds.pairs.amax())
    reaches = [*_reaches(program, [line.bound for line in bounds.layers])[:-1], pairs]
    numbers = (number for number, node in enumerate(program.nodes) if node.place.is_layer)
    layers = tuple(
        ExplainedLayer(line.name, line.type, line.bound, lower, reaches[number])
        for line, lower, number in zip(bounds.layers, lowers, numbers, strict=True)
    )
    read = program.nodes[-1].inputs[0]
    least = min(scale, 1.0 if read == INPUT else _reaches(program, steep)[read])
    lower = min(pairs, steepest(program, _starts(program, None if looked is None else looked.x)))
    certified = None if looked is None else _certified(bounds.head, looked, least, scale * lower / (pairs or 1.0))
    return Explanation(layers, pairs, pairs * least / (scale or 1.0), lower, certified)


def _certified(head: HeadConstants, looked: Looked, by_layers: float, by_network: float) -> Certified:
    """What is certified of points, and would be if all before the head had other constants."""
    found = looked.found

    def share(constant: float) -> float:
        constants = HeadConstants(head.rows, constant)
        other = certify_logits(looked.logits, constants, found.epsilon, found.guarantee, method=found.method)
        return _share(other, looked.labels)

    proved = _share(found, looked.labels)
    return Certified(
        points=len(found),
        epsilon=found.epsilon,
        proved=proved,
        by_layers=max(proved, share(by_layers)),
        by_network=max(proved, share(by_network)),
        has_labels=looked.labels is not None,
    )


def _lower(node: Node) -> float | None:
    """What a layer's constant is at least."""
    known = node.operation.second_bound(node.shape)
    if known is None or isinstance(known, ClosedForm):
        return None if known is None else known.constant
    return power_method(node.operation, node.shape, NEVER, SEARCH_STEPS, CLOSE)[0]


def _reaches(program: Program, numbers: list[float]) -> list[float]:
    """The constant of all up to each node, from those of its layers."""
    following, reaches = iter(numbers), {INPUT: Up(1.0)}
    for number, node in enumerate(program.nodes):
        bound = Up(next(following)) if node.place.is_layer else Up(1.0)
        reaches[number] = node.operation.reach(bound, *(reaches[read] for read in node.inputs))
    return [float(reaches[number]) for number in range(len(program.nodes))]


def _starts(program: Program, given: Tensor | None) -> Tensor:
    """Points of which some are given and the others are in [0, 1], always the same, in turn."""
    generator = torch.Generator().manual_seed(0)
    random = torch.rand(RANDOM_POINTS, *program.input_shape, generator=generator, dtype=torch.float64)
    if given is None:
        return random
    some = given[: len(random)].double().cpu()
    return torch.cat([torch.stack([some, random[: len(some)]], dim=1).flatten(0, 1), random[len(some) :]])


def _share(certificate: Certificate, labels: Tensor | None) -> float:
    some = certificate.certified if labels is None else certificate.verified(labels)
    return int(some.sum()) / max(1, len(certificate))


def _shown(number: float | None) -> str:
    return "" if number is None else f"{number:.4g}"
