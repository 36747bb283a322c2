"""FrozenNet: a program with its proof, which nothing can change."""

import copy
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.lipschitz.witness import Witness
from safeset.nets.certifying import Certifying
from safeset.nets.sealed import Sealed
from safeset.numerics.strict import strict_arithmetic
from safeset.program.operation import Shape
from safeset.program.program import Program
from safeset.proofs.prove import Proof


class FrozenNet(Certifying):
    """A network as it was at one moment: a program in float64, proved once. Made by `CertifiedNet.frozen`.

    Calling it gives plain logits in float64, with gradients for whoever attacks it.
    """

    def __init__(self, net: Certifying, sealed: Sealed, wish: str, witnesses: Mapping[str, Witness]) -> None:
        super().__init__()
        self.guarantee, self.epsilon, self.class_names = net.guarantee, net.epsilon, net.class_names
        self.units, self.trained_for = net.units, net.trained_for
        self._sealed, self._wish, self._witnesses = sealed, wish, witnesses
        self._lock = threading.RLock()
        self.eval()

    @property
    def program(self) -> Program:
        """What it computes, for other tools: a copy, whose changes do not reach this net."""
        with torch.inference_mode(False), strict_arithmetic():
            return copy.deepcopy(self._sealed.program)

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self._sealed.program.device

    @property
    def input_shape(self) -> Shape:  # type: ignore[override]
        """Of one input."""
        return self._sealed.program.input_shape

    @property
    def classes(self) -> int:  # type: ignore[override]
        """Of the head."""
        return self._sealed.program.classes

    @property
    def network(self) -> nn.Module:  # type: ignore[override]
        """The same as plain float64 layers, for other tools: a copy, whose changes do not reach this net."""
        with torch.inference_mode(False):
            return copy.deepcopy(self._sealed.layers)

    def forward(self, x: Tensor) -> Tensor:
        """Plain logits in float64, (batch, *input_shape) → (batch, classes)."""
        return self._sealed.program.run(x.double())

    def frozen(self) -> "FrozenNet":
        """Itself."""
        return self

    def proof(self, convolutions: str | None = None) -> Proof:
        """What is proved of the program; proved again if the wish is another."""
        with strict_arithmetic():
            return self._proved(convolutions)[1].copied()

    def train(self, mode: bool = True) -> "FrozenNet":
        """Stays in evaluation mode."""
        return super().train(False)

    def named_parameters(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """Copies of the weights, by their names in ``network``; it has none of its own."""
        inside = f"{prefix}.network" if prefix else "network"
        return self.network.named_parameters(inside, True, remove_duplicate) if recurse else iter(())

    def named_buffers(self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True) -> Iterator[Any]:
        """Copies of the buffers, likewise."""
        inside = f"{prefix}.network" if prefix else "network"
        return self.network.named_buffers(inside, True, remove_duplicate) if recurse else iter(())

    def _apply(self, fn: Any, recurse: bool = True) -> "FrozenNet":
        """Stays in float64; to be elsewhere, it must be frozen there."""
        here = torch.zeros(1, dtype=torch.float64, device=self.device)
        if fn(here).device != here.device:
            raise expected(f"a frozen net to stay on {here.device}", "another device", "Give net.to(device).frozen().")
        return self

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """Copies of the weights, by their names in ``network``."""
        destination.update({f"{prefix}network.{name}": tensor for name, tensor in self._weights().items()})

    def _proved(self, convolutions: str | None = None) -> tuple[Sealed, Proof]:
        """The program, and what is proved of it: once, unless the wish is another."""
        self._check_itself(FrozenNet)
        with self._lock:
            self._sealed = self._sealed.with_current_rules()
            wish = self._wish if convolutions is None else convolutions
            proof = self._sealed.proof(wish, self._witnesses)
            self._wish = wish
            return self._sealed, proof

    def _weights(self) -> Mapping[str, Tensor]:
        """Those of its plain layers."""
        return self.network.state_dict()

    def __getstate__(self) -> dict[str, Any]:
        """Plain layers without proofs: those are trusted only in the process that made them."""
        return {
            **self.__dict__,
            "_sealed": (self.network, self.input_shape, self._sealed.is_tight),
            "_lock": None,
            "_witnesses": {},
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        """With a program made again from the layers, and a lock of its own."""
        super().__setstate__({**state, "_sealed": Sealed.of(*state["_sealed"])})  # type: ignore[no-untyped-call]
        self._lock = threading.RLock()
