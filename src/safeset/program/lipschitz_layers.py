"""The rules of safeset's own layers: what each becomes when it is frozen, and what training estimates of it.

Most are frozen into a plain layer with their weights evaluated: bound, rounding and second proof are then that layer's.
"""

from typing import Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.errors import UnsupportedLayerError
from safeset.program.known_rule import KnownRule, PlainRule, filled, meta
from safeset.program.operation import Operation, Shape
from safeset.program.pointwise import HalfAbsolute
from safeset.program.reorder import ChannelShift
from safeset.program.rules import Estimate, register_layer
from safeset.program.torch_layers import ChannelAffineRule, LinearRule, floating


class MaterialisedRule(KnownRule):
    """A layer that is frozen into another, which has a rule of its own; its norm is 1 but for rounding."""

    def value(self, layer: Any, shape: Shape) -> Operation:
        """Nobody asks: what is frozen is another layer."""
        raise UnsupportedLayerError(f"Expected a frozen layer, but got {type(layer).__name__}.")

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """1: none is needed."""
        return 1.0, None


class OrthogonalLinearRule(MaterialisedRule):
    """A dense layer whose weight has orthonormal rows or columns."""

    def freeze(self, layer: layers.OrthogonalLinear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weight as it is."""
        return dense(layer)


class OrthogonalConv1x1Rule(MaterialisedRule):
    """The same at every pixel."""

    def freeze(self, layer: layers.OrthogonalConv1x1, shape: Shape) -> nn.Module:
        """A plain nn.Conv2d with kernels of one pixel."""
        out, into = layer.weight.shape
        plain = nn.Conv2d(into, out, 1, bias=layer.bias is not None, **meta())
        return filled(plain, layer, weight=layer.weight[:, :, None, None])


class UnitRowLinearRule(LinearRule):
    """A dense layer whose rows are divided by their norms; its own norm is estimated like any other's."""

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the rows divided."""
        return dense(layer)


class CentreRule(ChannelAffineRule):
    """x − mean; one number may be for all channels."""

    def freeze(self, layer: layers.Centre, shape: Shape) -> nn.Module:
        """One product by 1, which is exact, and one sum."""
        if len(layer.mean) == 1:
            layer.mean = layer.mean.repeat(shape[0])
        return super().freeze(layer, shape)

    def scale_and_shift(self, layer: layers.Centre) -> tuple[Tensor, Tensor]:
        """1 and −mean."""
        mean = floating(layer.mean)
        return torch.ones_like(mean), -mean


def dense(layer: Any) -> nn.Module:
    """A plain nn.Linear with the weight that a layer makes."""
    out, into = layer.weight.shape
    return filled(nn.Linear(into, out, layer.bias is not None, **meta()), layer)


_KNOWN: dict[type[nn.Module], KnownRule] = {
    layers.OrthogonalLinear: OrthogonalLinearRule(),
    layers.OrthogonalConv1x1: OrthogonalConv1x1Rule(),
    layers.UnitRowLinear: UnitRowLinearRule(),
    layers.Centre: CentreRule(),
    layers.ChannelShift: PlainRule(lambda layer: ChannelShift(int(layer.part))),
    layers.HalfAbs: PlainRule(lambda layer: HalfAbsolute(layer.which == "even")),
}
for _kind, _rule in _KNOWN.items():
    register_layer(_kind, _rule)
