"""One step of training as a pure function of parameters, power vectors and a batch."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn

from safeset.certificates.constants import HeadConstants
from safeset.lipschitz.power_method import iterated_by
from safeset.losses import cross_entropy, emma, trades
from safeset.nets.net import CertifiedNet
from safeset.numerics.threads import few_logits, one_thread
from safeset.recipes.sections import Loss
from safeset.system.streams import side_by_side
from safeset.training.gpu.blocks import InBlocks
from safeset.training.gpu.convolutions import halves
from safeset.training.gpu.head import is_right, one_pass
from safeset.training.gpu.lengths import few_kernels

Tensors = Mapping[str, Tensor]
Objective = Callable[..., tuple[Tensor, dict[str, Tensor]]]


def objective(
    net: CertifiedNet, loss: Loss, *, half: bool = False, fused: bool = False, alone: bool = True
) -> Objective:
    """The function (parameters, vectors, x, y, λ, ε_t/ε, soft labels) ↦ (loss, next vectors): pure, with gradient.

    Soft labels, (batch, classes), may be None: then y is all that is known.

    Args:
        net: its layers, guarantee and ε are used, its own parameters are not.
        loss: its name and settings.
        half: whether convolutions of the forward pass are computed in bfloat16.
        fused: whether layers are computed in blocks, as a GPU likes it.
        alone: whether it is called for one network, not under vmap for several.
    """
    logits_of = InBlocks(net.network, half=half, shifts=alone) if fused else net
    head = None
    if fused and alone and net.device.type == "cuda":
        head = one_pass(net.guarantee, net.epsilon, net.classes, loss, net.device)
        head = head if head and is_right(net.device, loss) else None

    def forward(parameters: Tensors, x: Tensor) -> Tensor:
        with halves() if half else nullcontext():
            return call_with(logits_of, parameters, x)

    def value(
        parameters: Tensors,
        vectors: Tensors,
        x: Tensor,
        y: Tensor,
        weight: float | Tensor,
        radius: float | Tensor = 1.0,
        target: Tensor | None = None,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        def estimate() -> tuple[HeadConstants, dict[str, Tensor], Tensor | None]:
            with iterated_by(few_kernels) if fused else nullcontext():
                found, following = net.estimate(parameters, vectors, loss.power_steps)
            return found, following, head.table(found) if head and head.takes(target) else None

        # What is estimated needs no points: it need not wait until they are gathered and moved.
        parts = side_by_side(lambda: forward(parameters, x), estimate, early=True)
        logits, (constants, following, table) = parts
        if head and table is not None:
            return head(logits, table, y, weight, radius, target), following
        with one_thread(few_logits(logits)):
            if loss.name == "emma":
                epsilon, settings = radius * net.epsilon, loss.settings()
                return emma(logits, constants, y, epsilon, net.guarantee, target=target, **settings), following
            instrumented, labels = (
                net.instrument(logits, constants, method=loss.margins),
                y if target is None else target,
            )
            if loss.name == "trades":
                return trades(instrumented, labels, weight), following
            return cross_entropy(instrumented, labels), following

    return value


def call_with(net: nn.Module, parameters: Tensors, x: Tensor) -> Tensor:
    """The logits of a network with other parameters; with its own it is simply called."""
    if all(parameters.get(name) is own for name, own in net.named_parameters()):
        return net(x)  # type: ignore[no-any-return]
    return torch.func.functional_call(net, dict(parameters), (x,))  # type: ignore[no-any-return]
