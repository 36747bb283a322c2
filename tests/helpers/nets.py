"""A small network of many kinds of layers, and inputs for it."""

import torch
from torch import nn

from safeset import CertifiedNet
from safeset.layers import InvertibleDownsampling, MinMax, Normalize, Residual


def image_network():
    return nn.Sequential(
        Normalize([0.5, 0.4], [0.5, 0.25]),
        nn.Conv2d(2, 6, 3, padding=1),
        nn.BatchNorm2d(6),
        MinMax(),
        InvertibleDownsampling(2),
        Residual(nn.Sequential(nn.Conv2d(24, 24, 1), nn.ReLU())),
        nn.AvgPool2d(2),
        nn.Dropout(0.5),
        nn.Flatten(),
        nn.Sequential(nn.Linear(24, 8), nn.LeakyReLU(0.1)),
        nn.Linear(8, 5),
    )


def inputs(count=8, seed=1):
    return torch.rand(count, 2, 4, 4, generator=torch.Generator().manual_seed(seed))


def plain_net(guarantee="standard", epsilon=0.5, tighten=False):
    """A network as torch initialises it, with a batch norm that enlarges everything."""
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 16), nn.Linear(16, 4))
    network[1].running_var.fill_(0.01)
    return CertifiedNet(network.eval(), input_shape=(6,), guarantee=guarantee, epsilon=epsilon, tighten=tighten)
