"""Rules of torch's activations beside ReLU and LeakyReLU."""

import math
from typing import Any

from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError
from safeset.program.activations import ELU, GELU, Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.entries import Clamp
from safeset.program.known_rule import KnownRule, PlainRule, filled, meta
from safeset.program.operation import Shape
from safeset.program.piecewise import Hardsigmoid, Hardswish, PReLU
from safeset.program.rules import Estimate

SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)  # torch's alpha and scale


class PReLURule(KnownRule):
    """nn.PReLU, with one slope or one for each channel."""

    def freeze(self, layer: nn.PReLU, shape: Shape) -> nn.Module:
        """A plain nn.PReLU with the slopes evaluated."""
        if layer.num_parameters not in (1, shape[0]):
            raise UnsupportedLayerError(f"Expected {layer.num_parameters} channels, but got {shape[0]}.")
        return filled(nn.PReLU(layer.num_parameters, **meta()), layer)

    def value(self, layer: nn.PReLU, shape: Shape) -> PReLU:
        """Its slopes."""
        return PReLU(layer.weight.detach().double())

    def estimate(self, layer: nn.PReLU, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The steepest of all slopes."""
        return layer.weight.abs().amax().clamp(min=1.0), None


def _clamp(layer: Any, shape: Shape) -> Clamp:
    """What nn.Hardtanh is; an infinite end is none."""
    low, high = float(layer.min_val), float(layer.max_val)
    return Clamp(None if low == -math.inf else low, None if high == math.inf else high)


ACTIVATIONS: dict[type[nn.Module], KnownRule] = {
    nn.Tanh: PlainRule(lambda layer, shape: Tanh()),
    nn.Sigmoid: PlainRule(lambda layer, shape: Sigmoid()),
    nn.SiLU: PlainRule(lambda layer, shape: SiLU()),
    nn.GELU: PlainRule(lambda layer, shape: GELU(layer.approximate)),
    nn.Mish: PlainRule(lambda layer, shape: Mish()),
    nn.Softplus: PlainRule(lambda layer, shape: Softplus(float(layer.beta), float(layer.threshold))),
    nn.ELU: PlainRule(lambda layer, shape: ELU(float(layer.alpha))),
    nn.SELU: PlainRule(lambda layer, shape: ELU(*SELU)),
    nn.CELU: PlainRule(lambda layer, shape: ELU(float(layer.alpha), 1.0, 1.0 / float(layer.alpha))),
    nn.Hardtanh: PlainRule(_clamp),
    nn.ReLU6: PlainRule(_clamp),
    nn.Hardswish: PlainRule(lambda layer, shape: Hardswish()),
    nn.Hardsigmoid: PlainRule(lambda layer, shape: Hardsigmoid()),
    nn.PReLU: PReLURule(),
}
