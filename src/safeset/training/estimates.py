"""Metrics after each epoch, on some points and from the power method's constants: estimates, nothing proved."""

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from safeset.certificates.certify_logits import certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.data.dataset import Split
from safeset.evaluation import Metrics
from safeset.nets.net import CertifiedNet
from safeset.recipes.sections import Loss
from safeset.system.workers import Workers
from safeset.training.step import call_with

WATCHED = 1000  # points on which an epoch's metrics are estimated
RATES = ("vra", "rejection_rate", "accuracy", "top1")


@torch.no_grad()
def estimate_rates(
    net: CertifiedNet, parameters: dict[str, Tensor], vectors: dict[str, Tensor], split: Split, loss: Loss
) -> dict[str, float]:
    """VRA, rejection rate, accuracy and top-1 on some points.

    Args:
        net: in training; its layers, guarantee and ε are used.
        parameters: of the network now.
        vectors: of the power method now.
        split: the points, shared by all workers.
        loss: its margins, and how often the power method iterates.
    """
    net.eval()
    constants, _ = net.estimate(parameters, vectors, max(2, loss.power_steps))
    constants = HeadConstants(constants.rows.detach().double(), float(constants.scale))
    metrics = Metrics()
    part = split[torch.arange(len(split), device=split.y.device)[Workers.here().share(len(split))]]
    if len(part):
        logits = call_with(net, parameters, part.inputs).double()
        found = certify_logits(logits, constants, net.epsilon, net.guarantee, method=loss.margins)
        metrics.update(found, part.y)
    set_training_mode(net)
    rates = metrics.compute()
    return {name: rates[name] for name in RATES}


def set_training_mode(net: CertifiedNet) -> None:
    """Training mode, but for batch norm: it is certified with its running statistics, so it trains with them."""
    net.train()
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()


def choose_points(split: Split) -> Split:
    """Points for the metrics of each epoch, always the same."""
    return split[torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:WATCHED]]
