"""Weights that stay orthogonal: their gradients are turned along the manifold, and each step ends on it again."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from safeset.layers.orthogonal import Orthogonal, polish, retract, riemannian


def orthogonal_weights(net: nn.Module, parameters: Mapping[str, Tensor]) -> list[Tensor]:
    """Those of the parameters, by name, that are weights of orthogonal layers; stacked where there are several nets."""
    return [parameters[f"{name}.weight"] for name, layer in net.named_modules() if isinstance(layer, Orthogonal)]


@torch.no_grad()
def turn_gradients(weights: list[Tensor]) -> None:
    """Leave of each gradient what lies along the manifold, before the optimiser sees it."""
    for weight in weights:
        if weight.grad is not None:
            weight.grad.copy_(riemannian(weight, weight.grad))


@torch.no_grad()
def return_to_manifold(weights: list[Tensor]) -> None:
    """One Newton–Schulz step for each, after the optimiser's: nothing waits for the device."""
    for weight in weights:
        weight.copy_(retract(weight))


@torch.no_grad()
def polish_weights(net: nn.Module) -> None:
    """Make orthogonal weights so to the last bits of float64, in which they stay: the norm of 36 is then 1 + 1e-10."""
    for layer in net.modules():
        if isinstance(layer, Orthogonal):
            layer.weight = nn.Parameter(polish(layer.weight))
