"""ACAS Xu: advisories of a collision-avoidance network, learnt from the network itself, as in the paper's appendix."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from safeset.data.dataset import Dataset, Split, find
from safeset.data.source import Source
from safeset.errors import expected

ADVISORIES = ("clear of conflict", "weak left", "weak right", "strong left", "strong right")


@dataclass(frozen=True, eq=False)
class NnetNetwork:
    """A dense ReLU network from a ``.nnet`` file, in float64, with the ranges of its inputs."""

    weights: list[Tensor]
    biases: list[Tensor]
    low: Tensor
    high: Tensor
    mean: Tensor
    spread: Tensor

    def scale(self, x: Tensor) -> Tensor:
        """(x − mean) / range: the network's own input."""
        return (x - self.mean) / self.spread

    def costs(self, scaled: Tensor) -> Tensor:
        """The cost of each advisory at scaled inputs, up to a common scale: the least is the advice."""
        for weight, bias in zip(self.weights[:-1], self.biases[:-1], strict=True):
            scaled = (scaled @ weight.T + bias).relu()
        return scaled @ self.weights[-1].T + self.biases[-1]


def parse_nnet(text: str) -> NnetNetwork:
    """A network from the text of a ``.nnet`` file.

    Raises:
        ArgumentError: for text that is not of that form.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("//")]
    rows = iter(lines)

    def numbers(count: int, what: str) -> list[float]:
        line = next(rows, "")
        try:
            found = [float(part) for part in line.split(",") if part.strip()]
        except ValueError:
            found = []
        if len(found) < count or not all(map(math.isfinite, found)):
            raise expected(f"{count} numbers ({what}) in a .nnet file", repr(line[:60]))
        return found[:count]

    def table(count: int, width: int, what: str) -> Tensor:
        return torch.tensor([numbers(width, what) for _ in range(count)], dtype=torch.float64)

    layers, inputs, outputs = map(int, numbers(3, "layers, inputs, outputs"))
    if not (1 <= layers <= 1000 and 1 <= inputs <= 10**6 and 1 <= outputs <= 10**6):
        raise expected("a .nnet file with a few layers", f"{layers} layers, {inputs} inputs, {outputs} outputs")
    sizes = list(map(int, numbers(layers + 1, "sizes of layers")))
    if sizes[0] != inputs or sizes[-1] != outputs or not all(0 < size <= 10**6 for size in sizes):
        raise expected(f"sizes of layers from {inputs} to {outputs} in a .nnet file", sizes)
    next(rows, "")  # a flag that has no use
    low, high = table(1, inputs, "least inputs")[0], table(1, inputs, "largest inputs")[0]
    mean, spread = table(1, inputs, "means")[0], table(1, inputs, "ranges")[0]
    if not bool(((spread > 0) & (low <= high)).all()):
        raise expected("ranges above 0, and least inputs below the largest, in a .nnet file", "others")
    weights, biases = [], []
    for into, out in pairwise(sizes):
        weights.append(table(out, into, "weights"))
        biases.append(table(out, 1, "a bias")[:, 0])
    return NnetNetwork(weights, biases, low, high, mean, spread)


def acasxu(network: str = "1_1", points: int = 100_000, seed: int = 0) -> Dataset:
    """Uniform inputs in the range of one of the 45 networks, labelled with its advice; scaled as the network's own.

    Args:
        network: ``"<previous advisory>_<time index>"``, 1_1 to 5_9.
        points: to train on, and a quarter as many to test.
        seed: of the random numbers.
    """
    path = nnet_file(network)
    teacher = read_nnet(path)
    if len(teacher.biases[-1]) != len(ADVISORIES):
        raise expected(f"a network of {len(ADVISORIES)} advisories in {path}", f"{len(teacher.biases[-1])}")
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Split:
        share = torch.rand(count, len(teacher.low), generator=generator, dtype=torch.float64)
        scaled = teacher.scale(teacher.low + share * (teacher.high - teacher.low)).float()
        return Split(scaled, teacher.costs(scaled.double()).argmin(dim=1))

    units = "inputs scaled by the network's own means and ranges"
    return Dataset(f"acasxu-{network}", draw(points), draw(points // 4), ADVISORIES, units)


def nnet_file(network: str) -> Path:
    """Where the file of a network is."""
    if not re.fullmatch("[0-9]_[0-9]", network):
        raise expected("an ACAS Xu network 1_1 to 5_9", repr(network))
    return find(f"acasxu/ACASXU_run2a_{network}_batch_2000.nnet", what=f"the ACAS Xu network {network} as .nnet")


def read_nnet(path: Path) -> NnetNetwork:
    """A network from a ``.nnet`` file."""
    return parse_nnet(path.read_text(errors="replace"))


def smallest_distance(split: Split, *, at_once: int = 2000) -> float:
    """The least distance between two points with different labels: from it the paper takes ε. O(n²)."""
    x, y = split.inputs.double().flatten(1), split.y
    least = math.inf
    for place in range(0, len(x), at_once):
        some = slice(place, place + at_once)
        distances = torch.cdist(x[some], x, compute_mode="donot_use_mm_for_euclid_dist")
        distances[y[some, None] == y] = math.inf
        least = min(least, float(distances.amin()))
    return least


ACASXU = Source(
    "acasxu",
    "advisories of a collision-avoidance network, 5 numbers, 5 classes",
    acasxu,
    folders=("acasxu",),
    by_hand="the 45 .nnet files of Reluplex (github.com/guykatzz/ReluplexCav2017, folder nnet)",
    network_file=nnet_file,
)
