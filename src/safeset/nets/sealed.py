"""A network as it was at one moment: what is proved, and what runs. Nobody else has it, and it never changes."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from safeset.lipschitz.rules import Shape, rule_of
from safeset.lipschitz.witness import Witness
from safeset.nets.proof import Proof, prove
from safeset.numerics.strict import strict_arithmetic
from safeset.program.from_modules import Branch, Content, Steps, freeze, products
from safeset.program.operations import Operation


@dataclass(frozen=True, eq=False)
class Sealed:
    """Plain float64 layers, made from a copy of a network: later changes of that, by any thread, do not reach them.

    Attributes:
        source: the copy's content, by which it is known whether the network is still the same.
        content: that of the frozen layers, with the rules that they had.
        network: the frozen layers.
        steps: their order, the head last.
        classes: of the head.
        operation: what they compute of a batch, by ATen's own operations.
        proofs: what was proved of them, by the wish for convolutions.
    """

    source: Content
    content: Content
    network: nn.Module
    steps: Steps
    classes: int
    operation: Operation
    proofs: dict[str, Proof] = field(default_factory=dict)

    @classmethod
    def of(cls, network: nn.Module, input_shape: Shape) -> Self:
        """That of a network, as it is when it is copied; layers must have been looked at (`check_layers`)."""
        with torch.inference_mode(False), torch.no_grad():
            copied = copy.deepcopy(network)
        frozen, steps, classes = freeze(copied, input_shape)
        source, content = (Content.of(each, input_shape) for each in (copied, frozen))
        return cls(source, content, frozen, steps, classes, _operation(frozen, steps))

    def after(self, before: "Sealed | None") -> "Sealed":
        """This one, or that before if its frozen layers are the same: its proofs are proofs of these."""
        if before is None or not self.content.equals(before.content):
            return self
        return replace(before, source=self.source)

    def copied(self) -> tuple[nn.Module, "Sealed"]:
        """A copy of the frozen layers for others, and the sealed form of that: this one, as if it were its source."""
        with torch.inference_mode(False):
            return copy.deepcopy(self.network), replace(self, source=self.content)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return next(self.network.parameters()).device

    @property
    def products(self) -> int:
        """Multiplications of one point, about."""
        return products(self.network, self.steps)

    def logits(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) float64 → (batch, classes), in `strict_arithmetic`, where no mode looks on."""
        with torch._C.DisableTorchFunction():
            return self.operation(x)

    def proof(self, wish: str, witnesses: Mapping[str, Witness]) -> Proof:
        """Bounds and rounding; proved once for each wish."""
        if wish not in self.proofs:
            with torch.inference_mode(False), strict_arithmetic():
                self.proofs[wish] = prove(self.network, self.steps, wish, witnesses)
        return self.proofs[wish]


def _operation(network: nn.Module, steps: Steps) -> Operation:
    """The steps, one after another."""
    operations = []
    for step in steps:
        if isinstance(step, Branch):
            operations.append(_added(_operation(network, step.body)))
        else:
            layer = network.get_submodule(step.name)
            operations.append(rule_of(layer, step.name).operation(layer, step.shape))

    def run(x: Tensor) -> Tensor:
        for operation in operations:
            x = operation(x)
        return x

    return run


def _added(body: Operation) -> Operation:
    """The shortcut and the body, x + body(x)."""
    return lambda x: torch.ops.aten.add.Tensor(x, body(x))
