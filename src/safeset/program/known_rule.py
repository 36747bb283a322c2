"""What the rules of known layers share: all that is asked of a layer, its operation answers."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.program.operation import Operation, Proved, Shape
from safeset.program.rules import Bound, Computation, Estimate, LayerRule


class KnownRule(LayerRule):
    """A layer that becomes an operation, which knows all that is asked of it."""

    @abstractmethod
    def value(self, layer: Any, shape: Shape) -> Operation:
        """The operation that a frozen layer becomes."""

    def operation(self, layer: Any, shape: Shape) -> Computation:
        """By ATen."""
        return self.value(layer, shape).run

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The bound itself."""
        return float(self.bound(layer, shape, "auto")[0]), None

    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """That of the operation."""
        return self.prove(layer, shape, convolutions, None)[:2]

    def prove(self, layer: Any, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """That of the operation."""
        return self.value(layer, shape).prove(shape, convolutions, witness)

    def work(self, layer: Any, shape: Shape, witness: Witness | None) -> float:
        """That of the operation."""
        return self.value(layer, shape).work(shape, witness)

    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """That of the operation."""
        return self.value(layer, shape).rounding(shape, bound, before)


@dataclass(frozen=True)
class PlainRule(KnownRule):
    """A layer without weights: the operation that it becomes, and what it is frozen into, if not itself."""

    makes: Callable[[Any, Shape], Operation]
    frozen: Callable[[Any, Shape], nn.Module] = lambda layer, shape: layer

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself, or another; refused if its settings are none for the operation."""
        frozen = self.frozen(layer, shape)
        try:
            self.makes(frozen, shape)
        except (ArithmeticError, TypeError, ValueError) as error:
            raise UnsupportedLayerError(str(error)) from None
        return frozen

    def value(self, layer: Any, shape: Shape) -> Operation:
        """As it was given."""
        return self.makes(layer, shape)


def weight_and_bias(layer: nn.Linear | nn.Conv2d) -> tuple[Tensor, Tensor | None]:
    """Weight and bias in float64; of a frozen layer, which nobody else has, they are not copied once more."""
    bias = layer.bias
    return layer.weight.detach().double(), None if bias is None else bias.detach().double()


def given_vector(vector: Tensor | None, weight: Tensor) -> Tensor:
    """The power method's vector, like the weights."""
    assert vector is not None  # `estimate` has looked
    return vector.to(weight)


def meta() -> dict[str, Any]:
    """For layers whose weights come later."""
    return {"device": "meta", "dtype": torch.float64}


def filled(empty: nn.Module, layer: nn.Module, **made: Tensor) -> nn.Module:
    """The empty layer with the weights of another, which is given up for it: as they were made, or its attributes.

    Parametrisations are evaluated.
    """
    for name, tensor in list(empty.named_parameters()):
        value = made[name] if name in made else getattr(layer, name)
        if value.shape != tensor.shape or type(value) not in (Tensor, nn.Parameter):
            raise UnsupportedLayerError(
                f"Expected a plain {name} of shape {tuple(tensor.shape)}, as the layer's attributes say, but got "
                f"{type(value).__name__} of shape {tuple(value.shape)}."
            )
        setattr(empty, name, nn.Parameter(value.detach().double().contiguous(), requires_grad=False))
    return empty
