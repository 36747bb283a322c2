"""Small trained networks, and how much of the truth about them each method certifies."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from helpers.reference import eligible_ks, ranking
from helpers.region_truth import nearest_violations
from safeset import Affinity, CertifiedNet, Guarantee, RelaxedTopK, Standard, TopK, train
from safeset.certificates.margins import METHODS
from safeset.data.dataset import Dataset, Split
from safeset.data.embedded import blobs2d
from safeset.layers import Abs, MinMax

POINTS, EPSILON, SEED, LARGEST = 500, 0.3, 0, 3


@dataclass(frozen=True)
class Small:
    """A network of two hidden layers to train: its activations, and the guarantee and radius of its training."""

    inputs: int
    width: int
    activations: tuple[nn.Module, nn.Module]
    guarantee: str
    epsilon: float = EPSILON

    @property
    def recipe(self) -> dict[str, Any]:
        """Everything that decides the training, besides the layers."""
        return {
            "data": {"source": "blobs2d", "points": 250} if self.inputs == 2 else {"source": "blobs5d in this file"},
            "guarantee": self.guarantee,
            "epsilon": self.epsilon,
            "epochs": 10,
            "batch": 64,
            "seed": SEED,
            "optimiser": {"rate": "1e-2 -> 1e-3 after half"},
        }

    def network(self) -> nn.Sequential:
        """The layers before training."""
        first, second = self.activations
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            start, middle = nn.Linear(self.inputs, self.width), nn.Linear(self.width, self.width)
            return nn.Sequential(start, first, middle, second, nn.Linear(self.width, 4 if self.inputs == 2 else 5))


NETWORKS = {
    "2 inputs, MinMax, standard": Small(2, 16, (MinMax(), MinMax()), "standard"),
    "2 inputs, ReLU, rt3": Small(2, 16, (nn.ReLU(), nn.ReLU()), "rt3"),
    "2 inputs, LeakyReLU and Abs, rt2": Small(2, 16, (nn.LeakyReLU(0.2), Abs()), "rt2"),
    "2 inputs, MinMax, plain": Small(2, 32, (MinMax(), MinMax()), "standard", 0.0),
    "5 inputs, MinMax, standard": Small(5, 10, (MinMax(), MinMax()), "standard"),
    "5 inputs, ReLU, rt3": Small(5, 8, (nn.ReLU(), nn.ReLU()), "rt3"),
    "5 inputs, LeakyReLU and Abs, rt2": Small(5, 8, (nn.LeakyReLU(0.2), Abs()), "rt2"),
    "5 inputs, ReLU, plain": Small(5, 8, (nn.ReLU(), nn.ReLU()), "standard", 0.0),
}


def blobs5d() -> Dataset:
    """Five overlapping classes in five dimensions: 1,000 points to train on, 500 to test."""
    generator = torch.Generator().manual_seed(SEED)
    centres = 0.5 * torch.randn(5, 5, generator=generator)
    y = torch.arange(5).repeat(300)
    x = centres[y] + 0.35 * torch.randn(len(y), 5, generator=generator)
    names = ("a", "b", "c", "d", "e")
    return Dataset("blobs5d", Split(x[:1000], y[:1000]), Split(x[1000:], y[1000:]), names, "units of the space")


def trained(small: Small) -> tuple[CertifiedNet, Tensor]:
    """The trained net, and test points, shuffled."""
    data = blobs2d(250) if small.inputs == 2 else blobs5d()
    net = train(small.recipe, network=small.network(), data=data, device="cpu")
    return net, data.test.x[torch.randperm(len(data.test), generator=torch.Generator().manual_seed(SEED))]


def guarantees(classes: int) -> dict[str, tuple[Guarantee, tuple[Any, ...]]]:
    """Guarantees, and what helpers/reference.py calls them."""
    sets: Sequence[Sequence[int]] = [[0, 1], [1, 2, 3]] if classes == 4 else [[0, 1, 2], [2, 3, 4], [0, 4]]
    return {
        "standard": (Standard(), ("standard",)),
        "top2": (TopK(2), ("top", 2)),
        "rt2": (RelaxedTopK(2), ("rt", 2)),
        "rt3": (RelaxedTopK(3), ("rt", 3)),
        "affinity": (Affinity(sets), ("affinity", sets)),
    }


def compare(net: CertifiedNet, x: Tensor, epsilon: float = EPSILON) -> dict[str, Any]:
    """For each guarantee: the points truly robust at ε, and by method those certified, their share, and what is false.

    False is a window whose radius is above the distance to its nearest violation, and a certified point that is not
    robust. Violations are looked for farther than anything is certified, and at least up to 2ε.
    """
    frozen = net.frozen()
    with torch.no_grad():
        orders = [ranking(row) for row in frozen(x).tolist()]
    every = frozen.certify(x, guarantee=RelaxedTopK(LARGEST)).windows.amax(dim=(1, 2))
    reach = torch.clamp(1.01 * every, min=2 * epsilon).tolist()
    windows = [(a, b) for a in range(1, LARGEST + 1) for b in range(a, LARGEST + 1)]
    truths = [
        nearest_violations(frozen.network, point, windows, radius)
        for point, radius in zip(x.double().numpy(), reach, strict=True)
    ]
    rows: dict[str, Any] = {}
    for name, (guarantee, kind) in guarantees(net.classes).items():
        allowed = [eligible_ks(kind, order) for order in orders]
        distances = [truth[min(ks), max(ks)][0] for truth, ks in zip(truths, allowed, strict=True)]
        robust = torch.tensor(distances) > epsilon
        row: dict[str, Any] = {"robust": int(robust.sum()), "certified": {}, "share": {}, "false": {}}
        row["windows"] = sum(len(ks) * (len(ks) + 1) // 2 for ks in allowed)  # compared, for each method
        for method in METHODS:
            found = frozen.certify(x, epsilon=epsilon, guarantee=guarantee, method=method)
            false = int((found.certified & ~robust).sum())
            for table, truth, ks in zip(found.windows.tolist(), truths, allowed, strict=True):
                for a, b in windows:
                    if b <= len(table):
                        distance = truth[a, b][0] if {*range(a, b + 1)} <= {*ks} else 0.0
                        false += not table[a - 1][b - 1] <= distance * (1 + 1e-9)
            certified = int(found.certified.sum())
            row["certified"][method], row["false"][method] = certified, false
            row["share"][method] = certified / row["robust"] if row["robust"] else None
        rows[name] = row
    return rows
