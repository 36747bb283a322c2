"""One step of training as a pure function of parameters, power vectors and a batch."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from safeset.data.augmentation import Augmentation, moved
from safeset.data.dataset import Split
from safeset.losses import cross_entropy, trades
from safeset.net import CertifiedNet
from safeset.training.recipe import Loss

Tensors = Mapping[str, Tensor]
Objective = Callable[[Tensors, Tensors, Tensor, Tensor, float | Tensor], tuple[Tensor, dict[str, Tensor]]]


def objective(net: CertifiedNet, loss: Loss) -> Objective:
    """The function (parameters, vectors, x, y, λ) ↦ (loss, next vectors) of a net: pure, with gradient.

    Args:
        net: its layers, guarantee and ε are used, its own parameters are not.
        loss: name, margins of ⊥, power steps.
    """

    def value(
        parameters: Tensors, vectors: Tensors, x: Tensor, y: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits = _called(net, parameters, x)
        constants, following = net.estimate(parameters, vectors, loss.power_steps)
        instrumented = net.instrument(logits, constants, method=loss.margins)
        if loss.name == "trades":
            return trades(instrumented, y, weight), following
        return cross_entropy(instrumented, y), following

    return value


def _called(net: CertifiedNet, parameters: Tensors, x: Tensor) -> Tensor:
    """The logits with other parameters, or simply with its own."""
    if all(parameters.get(name) is own for name, own in net.named_parameters()):
        return net(x)  # type: ignore[no-any-return]
    return torch.func.functional_call(net, dict(parameters), (x,))  # type: ignore[no-any-return]


class Epoch(NamedTuple):
    """What an epoch does with each point: the order in which they come, and how each is moved."""

    order: Tensor  # (n,)
    moves: Tensor  # (n, 5), by place in the order


@dataclass(frozen=True, eq=False)
class Batches:
    """A split that lies on a device, dealt out in batches; epoch and step say which, and nothing else does."""

    split: Split
    augmentation: Augmentation
    batch: int
    seed: int

    @property
    def steps(self) -> int:
        """Steps in an epoch: a last batch that is not full is left out."""
        return max(1, len(self.split) // self.batch)

    def epoch(self, number: int) -> Epoch:
        """Order and moves of an epoch, drawn on the CPU, so that every device sees the same."""
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + number)
        order = torch.randperm(len(self.split), generator=generator)
        moves = self.augmentation.draw(len(order), generator)
        return Epoch(order.to(self.split.x.device), moves.to(self.split.x.device))

    def get(self, epoch: Epoch, step: int) -> tuple[Tensor, Tensor]:
        """The inputs and labels of one step."""
        some = slice(step * self.batch, (step + 1) * self.batch)
        places = epoch.order[some]
        if self.augmentation:
            images = moved(self.split.x, places, epoch.moves[some])
            return Split(images, self.split.y[places]).inputs, self.split.y[places]
        chosen = self.split[places]
        return chosen.inputs, chosen.y
