"""Rules of affine layers without windows: dense layers, and scale and shift for each channel."""

import math
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from safeset import layers
from safeset.errors import TrainingWarning, UnsupportedLayerError, callers_level
from safeset.lipschitz.dense import absolute_norm, spectral_proof
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.power_method import power_method
from safeset.lipschitz.rules import Bound, Estimate, LayerRule, Proved, Shape
from safeset.lipschitz.witness import Witness, claimed
from safeset.numerics.directed import Up, row_norms
from safeset.program import operations
from safeset.program.operations import Operation


class LinearRule(LayerRule):
    """Wx + b, on the last axis."""

    def freeze(self, layer: nn.Linear, shape: Shape) -> nn.Module:
        """A plain nn.Linear with the weights evaluated."""
        return filled(nn.Linear(layer.in_features, layer.out_features, layer.bias is not None, **meta()), layer)

    def vector_shape(self, layer: nn.Linear, shape: Shape) -> Shape:
        """(in,)."""
        return (layer.in_features,)

    def estimate(self, layer: nn.Linear, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """By the power method."""
        weight = layer.weight
        return power_method(weight.mv, weight.mT.mv, given_vector(vector, weight), steps)

    def bound(self, layer: nn.Linear, shape: Shape, convolutions: str) -> Bound:
        """By the Gram matrix."""
        return self.prove(layer, shape, convolutions, None)[:2]

    def prove(self, layer: nn.Linear, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """By the Gram matrix; a witness spares its eigenvalues."""

        def at(given: Witness) -> Up | None:
            found = spectral_proof(layer.weight, given.shift)
            return None if found is None else found[0]

        if witness is not None and witness.kind == "dense" and (bound := witness.confirmed(at)) is not None:
            return bound, "dense", witness
        found = spectral_proof(layer.weight)
        assert found is not None  # without a shift it is looked for until there is one
        bound = claimed(found[0])
        return bound, "dense", Witness("dense", float(bound), found[1])

    def operation(self, layer: nn.Linear, shape: Shape) -> Operation:
        """By ATen."""
        return operations.linear(layer)

    def work(self, layer: nn.Linear, shape: Shape, witness: Witness | None) -> float:
        """The Gram matrix, its eigenvalues, a factorisation and its check."""
        small, large = sorted(layer.weight.shape)
        return 2.0 * small**2 * large + (4.0 if witness else 20.0) * small**3

    def rounding(self, layer: nn.Linear, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """Sums of in_features products at each place."""
        places = math.prod(shape[:-1])
        return before.affine(
            sigma=bound,
            alpha=absolute_norm(layer.weight),
            fan_in=layer.in_features,
            bias=bias_norm(layer.bias) * Up(places).root(),
            outputs=places * layer.out_features,
        )


class ChannelAffineRule(LayerRule):
    """scale·x + shift, channel by channel; normalisation and batch norm are frozen into it."""

    def estimate(self, layer: layers.ChannelAffine, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|."""
        return self.scale_and_shift(layer)[0].abs().amax(), None

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        scale, shift = self.scale_and_shift(layer)
        if len(scale) != shape[0]:
            raise UnsupportedLayerError(f"Expected {len(scale)} channels, but got {shape[0]}.")
        return layers.ChannelAffine(scale.double(), shift.double())

    def scale_and_shift(self, layer: Any) -> tuple[Tensor, Tensor]:
        """(channels,) each."""
        return _floating(layer.scale), _floating(layer.shift)

    def operation(self, layer: layers.ChannelAffine, shape: Shape) -> Operation:
        """By ATen."""
        return operations.channel_affine(layer)

    def bound(self, layer: layers.ChannelAffine, shape: Shape, convolutions: str) -> Bound:
        """The largest |scale|."""
        return Up(float(layer.scale.double().abs().amax())), "closed form"

    def rounding(self, layer: layers.ChannelAffine, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """One product and one sum for each entry."""
        pixels = math.prod(shape[1:])
        bias = bias_norm(layer.shift) * Up(pixels).root()
        return before.affine(sigma=bound, alpha=bound, fan_in=1, bias=bias, outputs=math.prod(shape))


class NormalizeRule(ChannelAffineRule):
    """(x − mean) / std; one number may be for all channels."""

    def freeze(self, layer: layers.Normalize, shape: Shape) -> nn.Module:
        """The same as one product and one sum."""
        if len(layer.mean) == 1:
            layer.mean, layer.std = layer.mean.repeat(shape[0]), layer.std.repeat(shape[0])
        return super().freeze(layer, shape)

    def scale_and_shift(self, layer: layers.Normalize) -> tuple[Tensor, Tensor]:
        """1 / std and −mean / std."""
        mean, std = _floating(layer.mean), _floating(layer.std)
        return 1 / std, -mean / std


class BatchNormRule(ChannelAffineRule):
    """Batch norm in evaluation: (x − mean) / √(var + eps)·weight + bias, with the running mean and variance."""

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The largest |scale|, with the running variance."""
        if layer.training:
            warnings.warn(
                "Batch norm is certified with its running statistics, but the network is trained with those of the "
                "batch: the loss is about another network. Call net.eval() before the loop.",
                TrainingWarning,
                stacklevel=callers_level(),
            )
        return super().estimate(layer, shape, vector, steps)

    def scale_and_shift(self, layer: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
        """Scale = weight / √(var + eps), shift = bias − mean·scale."""
        if layer.running_var is None or layer.running_mean is None:
            raise UnsupportedLayerError("Expected batch norm with running statistics, but got none.")
        scale = (_floating(layer.running_var) + layer.eps).rsqrt()
        scale = scale if layer.weight is None else layer.weight * scale
        shift = -_floating(layer.running_mean) * scale
        return scale, shift if layer.bias is None else shift + layer.bias


def _floating(numbers: Tensor) -> Tensor:
    """Whole numbers as float64: of an int8, |−128| would be −128."""
    return numbers if numbers.is_floating_point() else numbers.double()


def bias_norm(bias: Tensor | None) -> Up:
    """‖b‖₂ from above; 0 without a bias."""
    return Up(0.0) if bias is None else Up(float(row_norms(bias.detach().double())))


def given_vector(vector: Tensor | None, weight: Tensor) -> Tensor:
    """The power method's vector, like the weights."""
    assert vector is not None  # `estimation` has looked
    return vector.to(weight)


def meta() -> dict[str, Any]:
    """For layers whose weights come later."""
    return {"device": "meta", "dtype": torch.float64}


def filled(empty: nn.Module, layer: nn.Linear | nn.Conv2d) -> nn.Module:
    """The empty layer with the weights of another, which is given up for it, parametrisations evaluated."""
    for name, tensor in list(empty.named_parameters()):
        value = getattr(layer, name)
        if value.shape != tensor.shape or type(value) not in (Tensor, nn.Parameter):
            raise UnsupportedLayerError(
                f"Expected a plain {name} of shape {tuple(tensor.shape)}, as the layer's attributes say, but got "
                f"{type(value).__name__} of shape {tuple(value.shape)}."
            )
        setattr(empty, name, nn.Parameter(value.detach().double().contiguous(), requires_grad=False))
    return empty
