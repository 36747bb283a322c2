"""A layer of a user's own, with the rule that was registered for it: what is known of it is known to the rule alone."""

import copy
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.program.content import Content
from safeset.program.operation import Operation, Proved, Shape

if TYPE_CHECKING:
    from safeset.program.rules import Computation, LayerRule


@dataclass(frozen=True, eq=False)
class OwnLayer(Operation):
    """A private copy of a frozen layer, its rule, the shape that it takes, and what it was when its rule was found."""

    kind = "own layer"
    layer: nn.Module
    rule: "LayerRule"
    shape: Shape
    content: Content

    def constants(self) -> dict[str, Tensor]:
        """Parameters and buffers."""
        return self.content.tensors

    def settings(self) -> dict[str, Any]:
        """How the layer is put together, the number of its rule, and its code."""
        return {"structure": self.content.structure, "shape": self.shape, "code": self.content.code}

    def __deepcopy__(self, memo: Any) -> "OwnLayer":
        """A copy with a layer of its own."""
        layer = copy.deepcopy(self.layer, memo)
        return OwnLayer(layer, self.rule, self.shape, self.content.kept())

    @property
    def is_current(self) -> bool:
        """Whether the layers' rules are still those that were found."""
        return self.content.has_rules_of(Content.of(self.layer))

    @cached_property
    def computation(self) -> "Computation":
        """What the rule says that it computes."""
        return self.rule.operation(self.layer, self.shape)

    def run(self, *inputs: Tensor) -> Tensor:
        """By its rule, which gets a copy: if it works in place, a shortcut still has its x."""
        return self.computation(*(each.clone() for each in inputs))

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """By its rule."""
        return self.rule.prove(self.layer, shape, convolutions, witness)

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """By its rule."""
        return self.rule.work(self.layer, shape, witness)

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """By its rule."""
        return self.rule.rounding(self.layer, shape, bound, before[0])
