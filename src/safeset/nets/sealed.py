"""A network as it was at one moment: what is proved, and what runs. Nobody else has it, and it never changes."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

import torch
from torch import Tensor, nn

from safeset.capture.capture import capture, copy_of
from safeset.capture.from_export import Exported
from safeset.capture.tightening import has_batch_norm, tighten_layers
from safeset.capture.tightening import tighten as tightened
from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.witness import Witness
from safeset.nets.estimate import Part, parts_of
from safeset.numerics.strict import strict_arithmetic
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.program.content import Content
from safeset.program.from_modules import is_plain
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
        parts: what an estimate must know of it.
        exported: what torch.export saw, where layers are not in plain sequences.
        is_tight: whether smaller bounds were looked for, as it was asked for.
        proofs: what was proved of it, by the wish for convolutions.
    """

    source: Content
    layers: nn.Module
    program: Program
    parts: tuple[Part, ...]
    exported: Exported | None
    is_tight: bool | None
    proofs: dict[str, Proof] = field(default_factory=dict)

    @classmethod
    def of(
        cls, network: nn.Module, input_shape: Shape, tighten: bool | None = None, exported: Exported | None = None
    ) -> Self:
        """That of a network, as it is when it is copied; layers must have been looked at (`check_layers`).

        Args:
            network: to be sealed.
            input_shape: of one input.
            tighten: whether to look for smaller bounds; None: of batch norm, and of what is no plain sequence.
            exported: what torch.export saw before; if only weights have changed since, it need not look again.
        """
        with torch.inference_mode(False), strict_arithmetic():
            copied = copy_of(network)
            _check_copy(copied, network)
            found = capture(copied, input_shape, exported)
            layers, program, exported = found
            plain = is_plain(copied)
            wanted = tighten if tighten is not None else not plain or has_batch_norm(program)
            with one_thread(program.products <= FEW_PRODUCTS):  # the same numbers, however many threads there are
                if wanted and plain:
                    layers, program = tighten_layers(layers, program)
                elif wanted:
                    program = tightened(program)
            weights = {} if exported is None else exported.factors
            parts = parts_of(copied, found.program, weights)
            return cls(Content.of(copied), layers, program, parts, exported, tighten)

    def after(self, before: "Sealed | None") -> "Sealed":
        """This one, or that before if its program is the same: its proofs are proofs of this."""
        if before is None or not self.program.equals(before.program):
            return self
        return replace(before, source=self.source, parts=self.parts)

    def with_current_rules(self) -> "Sealed":
        """This one, or one made again if a rule of a user's own layers has been corrected since."""
        own = (node.operation for node in self.program.nodes if isinstance(node.operation, OwnLayer))
        return self if all(each.is_current for each in own) else self.again()

    def again(self) -> "Sealed":
        """Made again from its layers."""
        return Sealed.of(self.layers, self.program.input_shape, self.is_tight, self.exported)

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
