"""One step of training as a pure function of parameters, power vectors and a batch."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from safeset.losses import cross_entropy, trades
from safeset.nets.net import CertifiedNet
from safeset.numerics.threads import few_logits, one_thread
from safeset.recipes.sections import Loss
from safeset.system.streams import side_by_side
from safeset.training.gpu.blocks import InBlocks
from safeset.training.gpu.convolutions import halves

Tensors = Mapping[str, Tensor]
Objective = Callable[[Tensors, Tensors, Tensor, Tensor, float | Tensor], tuple[Tensor, dict[str, Tensor]]]


def objective(net: CertifiedNet, loss: Loss, *, half: bool = False, fused: bool = False) -> Objective:
    """The function (parameters, vectors, x, y, λ) ↦ (loss, next vectors) of a net: pure, with gradient.

    Args:
        net: its layers, guarantee and ε are used, its own parameters are not.
        loss: name, margins of ⊥, power steps.
        half: whether convolutions of the forward pass are computed in bfloat16.
        fused: whether layers are computed in blocks, as a GPU likes it.
    """
    logits_of = InBlocks(net.network, half=half) if fused else net

    def forward(parameters: Tensors, x: Tensor) -> Tensor:
        with halves() if half else nullcontext():
            return call_with(logits_of, parameters, x)

    def value(
        parameters: Tensors, vectors: Tensors, x: Tensor, y: Tensor, weight: float | Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        logits, (constants, following) = side_by_side(
            lambda: forward(parameters, x), lambda: net.estimate(parameters, vectors, loss.power_steps)
        )
        with one_thread(few_logits(logits)):
            instrumented = net.instrument(logits, constants, method=loss.margins)
            if loss.name == "trades":
                return trades(instrumented, y, weight), following
            return cross_entropy(instrumented, y), following

    return value


def call_with(net: nn.Module, parameters: Tensors, x: Tensor) -> Tensor:
    """The logits of a network with other parameters; with its own it is simply called."""
    if all(parameters.get(name) is own for name, own in net.named_parameters()):
        return net(x)  # type: ignore[no-any-return]
    return torch.func.functional_call(net, dict(parameters), (x,))  # type: ignore[no-any-return]
