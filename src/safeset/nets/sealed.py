"""A network as it was at one moment: what is proved, and what runs. Nobody else has it, and it never changes."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from safeset.capture.capture import capture
from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.witness import Witness
from safeset.numerics.strict import strict_arithmetic
from safeset.program.content import Content
from safeset.program.operation import Shape
from safeset.program.own import OwnLayer
from safeset.program.program import Program
from safeset.proofs.prove import Proof, prove


@dataclass(frozen=True, eq=False)
class Sealed:
    """A program, made from a copy of a network: later changes of that, by any thread, do not reach it.

    Attributes:
        source: the copy's content, by which it is known whether the network is still the same.
        layers: the plain float64 layers that the program was made of, from which copies are made for others.
        program: what is proved, and what runs.
        proofs: what was proved of it, by the wish for convolutions.
    """

    source: Content
    layers: nn.Module
    program: Program
    proofs: dict[str, Proof] = field(default_factory=dict)

    @classmethod
    def of(cls, network: nn.Module, input_shape: Shape) -> Self:
        """That of a network, as it is when it is copied; layers must have been looked at (`check_layers`)."""
        with torch.inference_mode(False), strict_arithmetic():
            copied = copy.deepcopy(network)
            _check_copy(copied, network)
            return cls(Content.of(copied), *capture(copied, input_shape))

    def after(self, before: "Sealed | None") -> "Sealed":
        """This one, or that before if its program is the same: its proofs are proofs of this."""
        if before is None or not self.program.equals(before.program):
            return self
        return replace(before, source=self.source)

    def with_current_rules(self) -> "Sealed":
        """This one, or one made again if a rule of a user's own layers has been corrected since."""
        own = (node.operation for node in self.program.nodes if isinstance(node.operation, OwnLayer))
        return self if all(each.is_current for each in own) else Sealed.of(self.layers, self.program.input_shape)

    def logits(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) float64 → (batch, classes), in `strict_arithmetic`, where no mode looks on."""
        with torch._C.DisableTorchFunction():
            return self.program.run(x)

    def proof(self, wish: str, witnesses: Mapping[str, Witness]) -> Proof:
        """Bounds and rounding; proved once for each wish."""
        if wish not in self.proofs:
            with torch.inference_mode(False), strict_arithmetic():
                self.proofs[wish] = prove(self.program, wish, witnesses)
        return self.proofs[wish]


def _check_copy(copied: nn.Module, network: nn.Module) -> None:
    """Refuse a copy that shares modules or memory with its original: later changes would reach it."""

    def parts(module: nn.Module) -> set[int]:
        tensors = (*module.parameters(), *module.buffers())
        memory = (each.untyped_storage().data_ptr() for each in tensors if each.numel() and not each.is_meta)
        return {*map(id, module.modules()), *memory}

    if parts(copied) & parts(network):
        raise UnsupportedLayerError("Expected a network that can be copied, but got one whose copy shares its memory.")
