"""The search for factors of channels that make the bound of a whole program small. It proves nothing.

The factors T are found as logarithms, by descent: with u and v the singular vectors of a layer D_out W D_in⁻¹ to its
largest singular value σ, ∂ log σ/∂ log T is u² at what leaves it and −v² at what enters, summed over the pixels of a
channel; and a layer counts as much as the whole bound depends on it. Singular vectors follow by subspace iteration.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.lipschitz.convolution import Axis, convolve, convolve_transposed
from safeset.lipschitz.dense import unit_scaled
from safeset.numerics.directed import Up
from safeset.program.entries import Scale
from safeset.program.factors import ONE, Factors
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.program import INPUT, Node, Program
from safeset.program.sliding import Conv2d

VECTORS = 8  # followed for each layer: singular values near the largest one count too
MOST_PIXELS = (
    12  # of an axis of an image on which a convolution is looked at: what is best there is good on larger ones
)
STEPS, LEAST_STEPS = 80, 30
DEAR = 3e11  # floating-point operations of the shortest search above which there is none: about ten seconds
PASSES = 50  # operations on each weight in one look, beside its products: large matrices are slow to read
CHEAP = 2e10  # floating-point operations that a search may always take: about a second
RATE = 0.1  # by how much a logarithm changes in a step, at first
SHARP = (8.0, 64.0)  # singular values count by these powers, in the first step and in the last
FOLLOWED, QUICK = 20, 5  # iterations of a final estimate, of a first one
ROUGH_STEPS = 40
TINY = 1e-6  # relative change by which dependence is seen
MOST = 20.0  # a factor's logarithm is at most so large


class Look(NamedTuple):
    """The logarithm of a norm, and how it rises with those of what leaves, and falls with those of what enters."""

    norm: float
    leaving: Tensor
    entering: Tensor


@dataclass
class LinearMap:
    """A linear layer with factors before and after it, and singular vectors that follow them.

    ``entering`` and ``leaving`` have the number of the factor of each channel.
    """

    weight: Tensor  # (out, in / groups, height, width), its largest entry in [1, 2)
    exponent: int
    groups: int
    axes: tuple[Axis, Axis]
    entering: Tensor
    leaving: Tensor
    is_head: bool = False
    vectors: Tensor = field(init=False)  # (k, in, height, width)

    def __post_init__(self) -> None:
        """Start with vectors that are always the same."""
        self.weight = self.weight.float()
        shape = (len(self.entering), self.axes[0].size, self.axes[1].size)
        generator = torch.Generator().manual_seed(0)
        start = torch.randn(math.prod(shape), min(VECTORS, math.prod(shape)), generator=generator)
        self.vectors = torch.linalg.qr(start).Q.mT.reshape(-1, *shape)

    @property
    def products(self) -> int:
        """Multiplications of one look at it."""
        pixels = self.axes[0].outputs * self.axes[1].outputs
        return (len(self.vectors) * pixels + PASSES) * self.weight.numel()

    def look(self, logs: Tensor, power: float) -> Look:
        """The logarithm of its norm, about, and how that depends on those of the factors."""
        if self.is_head:
            return self.glance(logs)
        weight = self._weight(logs)
        image = convolve(self.vectors, weight, *self.axes, self.groups)
        wide = image.flatten(1).double()  # of numbers near the least float32, eigenvalues in float32 may be NaN
        values, turn = (each.float() for each in torch.linalg.eigh(wide @ wide.mT))
        image, vectors = (torch.tensordot(turn.mT, each, dims=1) for each in (image, self.vectors))
        values = values.clamp(min=1e-30)
        shares = (values / values[-1]) ** (power / 2)
        shares = shares / shares.sum()
        left = (shares / values) @ image.square().sum(dim=(2, 3))
        right = shares @ vectors.square().sum(dim=(2, 3))
        following = convolve_transposed(image, weight, *self.axes, self.groups).flatten(1)
        following = following / following.abs().amax(dim=1, keepdim=True).clamp(min=1e-30)
        self.vectors = torch.linalg.qr(following.mT).Q.mT.reshape(self.vectors.shape)
        return Look(0.5 * math.log(float(values[-1])) + self.exponent * math.log(2), left, right)

    def glance(self, logs: Tensor) -> Look:
        """The same of the root of the sum of all squares, which is quick."""
        weight = self._weight(logs)
        if self.is_head:  # differences of rows count, of all pairs alike
            weight = weight - weight.mean(dim=0)
        squares = weight.square().sum(dim=(2, 3))
        total = max(float(squares.sum()), 1e-30)
        parts = squares.chunk(self.groups)
        entering = torch.cat([part.sum(dim=0) for part in parts]) / total
        return Look(0.5 * math.log(total) + self.exponent * math.log(2), squares.sum(dim=1) / total, entering)

    def _weight(self, logs: Tensor) -> Tensor:
        """D_out W D_in⁻¹."""
        after, before = logs[self.leaving].exp(), (-logs[self.entering]).exp()
        parts = zip(self.weight.chunk(self.groups), before.chunk(self.groups), strict=True)
        return torch.cat([part * own.view(-1, 1, 1) for part, own in parts]) * after.view(-1, 1, 1, 1)


@dataclass(frozen=True)
class DiagonalMap:
    """A factor for each channel, with others before and after it."""

    sizes: Tensor  # (channels,) logarithms of |scale|
    entering: Tensor
    leaving: Tensor
    products: int = 0

    def look(self, logs: Tensor, power: float) -> Look:
        """As of a `LinearMap`."""
        sizes = self.sizes + logs[self.leaving] - logs[self.entering]
        shares = (power * sizes).softmax(dim=0).float()
        return Look(float(sizes.amax()), shares, shares)

    def glance(self, logs: Tensor) -> Look:
        """The same, where larger sizes count more, but not alone."""
        return self.look(logs, 2.0)


class Balance:
    """A program's linear layers, and the bound of the whole by theirs."""

    def __init__(self, program: Program, factors: Factors) -> None:
        self.program, self.count = program, factors.count
        self.maps = dict(_maps(program, factors))
        self._others = {
            number: math.log(max(float(node.operation.prove(node.shape, "torus", None)[0]), 1e-300))
            for number, node in enumerate(program.nodes)
            if number not in self.maps
        }

    def search(self) -> Tensor:
        """Logarithms of factors, (count,); that of `ONE` is 0."""
        starts = (torch.zeros(self.count), self._roughly())
        start = min(starts, key=lambda each: self.estimate(each, QUICK))
        return self._descended(start, torch.arange(self.count) != ONE, self._steps)

    def _roughly(self) -> Tensor:
        """Where sums of squares, instead of norms, are least: there what enters and leaves a factor is equal."""
        logs = torch.zeros(self.count)
        for _ in range(ROUGH_STEPS):
            leaving, entering = self._sums({number: each.glance(logs) for number, each in self.maps.items()})
            change = (entering / leaving).clamp(1e-9, 1e9).log().where((entering > 0) & (leaving > 0), 0.0) / 8
            change[ONE] = 0.0
            logs = (logs + change).clamp(-MOST, MOST)
        return logs

    def towards_integers(self, logs: Tensor, rounds: int = 4) -> Tensor:
        """Logarithms to base 2 that are integers: those next to one first, while the others still give way."""
        unit, free = math.log(2), torch.arange(self.count) != ONE
        for past in range(1, rounds + 1):
            away = (logs / unit - (logs / unit).round()).abs().where(free, -1.0)
            chosen = away.argsort(stable=True)[: -(-self.count * past // rounds)]
            logs = logs.clone()
            logs[chosen] = (logs[chosen] / unit).round() * unit
            free[chosen] = False
            if past < rounds:
                logs = self._descended(logs, free, self._steps // rounds, SHARP[1:])
        return (logs / unit).round()

    def estimate(self, logs: Tensor, iterations: int = FOLLOWED) -> float:
        """The logarithm of the bound, about: pairs of logits count by the mean of their squares."""
        for _ in range(iterations):
            found = {number: each.look(logs, SHARP[1]).norm for number, each in self.maps.items()}
        return self._whole(found)[0]

    @property
    def is_dear(self) -> bool:
        """Whether even the shortest search would take long."""
        return 4 * LEAST_STEPS * sum(each.products for each in self.maps.values()) > DEAR

    @property
    def _steps(self) -> int:
        """As many as cost no more than half of the proof, and no fewer than are of use."""
        work = sum(node.operation.work(node.shape, None) for node in self.program.nodes)
        products = 4 * sum(each.products for each in self.maps.values())  # there and back, and a sum with each
        return int(min(max(max(CHEAP, work / 2) / max(1, products), LEAST_STEPS), STEPS))

    def _descended(self, logs: Tensor, free: Tensor, steps: int, sharp: tuple[float, ...] = SHARP) -> Tensor:
        """Steps of descent whose sizes fall to 0; entries take steps of about the same size, as Adam does."""
        mean, square = torch.zeros_like(logs), torch.zeros_like(logs)
        for step in range(steps):
            done = step / steps
            slopes = self._slopes(logs, sharp[0] ** (1 - done) * sharp[-1] ** done).where(free, 0.0)
            mean, square = 0.9 * mean + 0.1 * slopes, 0.99 * square + 0.01 * slopes.square()
            typical = (square / (1 - 0.99 ** (step + 1))).sqrt()
            change = mean / (1 - 0.9 ** (step + 1)) / (typical + 1e-3 * typical.mean() + 1e-30)
            logs = (logs - RATE * (1 - done) * change).clamp(-MOST, MOST)
        return logs

    def _slopes(self, logs: Tensor, power: float) -> Tensor:
        """How the logarithm of the whole bound depends on those of the factors."""
        leaving, entering = self._sums({number: each.look(logs, power) for number, each in self.maps.items()})
        return leaving - entering

    def _sums(self, looks: dict[int, Look]) -> tuple[Tensor, Tensor]:
        """How much the whole depends on each factor where it leaves a layer, and where it enters one: (count,) each."""
        counts = self._whole({number: look.norm for number, look in looks.items()})[1]
        leaving, entering = torch.zeros(self.count), torch.zeros(self.count)
        for number, look in looks.items():
            leaving.index_add_(0, self.maps[number].leaving, counts[number] * look.leaving)
            entering.index_add_(0, self.maps[number].entering, counts[number] * look.entering)
        return leaving, entering

    def _whole(self, norms: dict[int, float]) -> tuple[float, list[float]]:
        """The logarithm of the whole bound, and how much it depends on that of each node: 1 in a chain."""
        nodes, reaches = self.program.nodes, {INPUT: 0.0}
        shares: list[tuple[float, ...]] = []  # how much that of a node depends on those of its inputs
        for number, node in enumerate(nodes):
            before = [reaches[read] for read in node.inputs]
            if len(before) == 1:
                reaches[number] = before[0] + norms.get(number, self._others.get(number, 0.0))
                shares.append((1.0,))
                continue
            largest = max(before)
            parts = [math.exp(each - largest) for each in before]

            def joined(parts: list[float], node: Node = node) -> float:
                return float(node.operation.reach(Up(1.0), *map(Up, parts)))

            value = joined(parts)
            reaches[number] = largest + math.log(value)
            moved = (joined([*parts[:at], each * (1 + TINY), *parts[at + 1 :]]) for at, each in enumerate(parts))
            shares.append(tuple((each - value) / (TINY * value) for each in moved))
        counts = [0.0] * len(nodes)
        counts[-1] = 1.0
        for number in range(len(nodes) - 1, -1, -1):
            for read, share in zip(nodes[number].inputs, shares[number], strict=True):
                if read != INPUT:
                    counts[read] += counts[number] * share
        return reaches[len(nodes) - 1], counts


def _maps(program: Program, factors: Factors) -> Iterator[tuple[int, LinearMap | DiagonalMap]]:
    """Of all linear layers that have factors."""
    for number, node in enumerate(program.nodes):
        operation = node.operation
        entering, leaving = (torch.from_numpy(factors.of[at]) for at in (node.inputs[0], number))
        if isinstance(operation, ChannelAffine | Scale):
            sizes = operation.scale.detach().cpu().abs().reshape(len(operation.scale), -1).amax(dim=1)
            yield number, DiagonalMap(sizes.clamp(min=1e-300).log().expand(len(leaving)), entering, leaving)
        if isinstance(operation, Linear) and len(node.shape) == 1:
            weight, exponent = unit_scaled(operation.weight.detach().cpu())
            one, is_head = Axis(1, 1, 1, 1, 0, 0), number == len(program.nodes) - 1
            yield number, LinearMap(weight[:, :, None, None], exponent, 1, (one, one), entering, leaving, is_head)
        if isinstance(operation, Conv2d):
            weight, exponent = unit_scaled(operation.weight.detach().cpu())
            rows, columns = (_smaller(axis) for axis in operation.axes(node.shape))
            yield number, LinearMap(weight, exponent, operation.groups, (rows, columns), entering, leaving)


def _smaller(axis: Axis) -> Axis:
    """The same on fewer pixels, but on as many as the kernel is wide."""
    return replace(axis, size=min(axis.size, max(MOST_PIXELS, axis.extent)))
