"""Layers of deel-torchlip and orthogonium as they are installed, and what each is said to be Lipschitz with."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from safeset.numerics.directed import Up
from safeset.proofs.prove import prove

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # both were written for earlier Pythons
    import orthogonium.layers as ortho
    from deel import torchlip
    from orthogonium.layers.conv.AOL import AOLConv2D
    from orthogonium.layers.conv.SLL import AOCLipschitzResBlock, SDPBasedLipschitzDense, SDPBasedLipschitzResBlock
    from orthogonium.layers.custom_activations import SoftHuber
    from orthogonium.layers.residual import AdditiveResidual, ConcatResidual, L2NormResidual, PrescaledAdditiveResidual

CHANNELS, PIXELS, FEATURES = 4, 8, 16
IMAGE, VECTOR = (CHANNELS, PIXELS, PIXELS), (FEATURES,)
AROUND = {"kernel_size": 3, "padding": 1}
EACH = "1 for each output"


@dataclass(frozen=True)
class Layer:
    """How a layer is made, and the shape of what enters it."""

    library: str
    claim: str
    make: Any
    shape: tuple[int, ...] = IMAGE


def _orthogonal() -> nn.Module:
    return ortho.AdaptiveOrthoConv2d(CHANNELS, CHANNELS, **AROUND)


def _layers(library: str, *layers: tuple[Any, ...]) -> dict[str, Layer]:
    return {name: Layer(library, claim, make, *shape) for name, claim, make, *shape in layers}


LAYERS = {
    **_layers(
        "deel-torchlip",
        ("SpectralLinear", "1", lambda: torchlip.SpectralLinear(FEATURES, 8), VECTOR),
        ("FrobeniusLinear", EACH, lambda: torchlip.FrobeniusLinear(FEATURES, 8), VECTOR),
        ("SpectralConv2d", "1", lambda: torchlip.SpectralConv2d(CHANNELS, CHANNELS, **AROUND)),
        (
            "SpectralConv2d, circular",
            "1",
            lambda: torchlip.SpectralConv2d(CHANNELS, CHANNELS, **AROUND, padding_mode="circular"),
        ),
        ("SpectralConv1d", "1", lambda: torchlip.SpectralConv1d(CHANNELS, CHANNELS, **AROUND), (CHANNELS, PIXELS)),
        ("FrobeniusConv2d", "1", lambda: torchlip.FrobeniusConv2d(CHANNELS, CHANNELS, **AROUND)),
        ("SpectralConvTranspose2d", "1", lambda: torchlip.SpectralConvTranspose2d(CHANNELS, CHANNELS, 2, stride=2)),
        ("GroupSort(4)", "1", lambda: torchlip.GroupSort(4)),
        ("GroupSort2", "1", torchlip.GroupSort2),
        ("FullSort", "1", torchlip.FullSort, VECTOR),
        ("MaxMin (ReLU of x and −x)", "1", torchlip.MaxMin, VECTOR),
        ("LPReLU", "1", torchlip.LPReLU),
        ("ScaledAvgPool2d", "1", lambda: torchlip.ScaledAvgPool2d(2)),
        ("ScaledAdaptiveAvgPool2d", "1", lambda: torchlip.ScaledAdaptiveAvgPool2d((1, 1))),
        ("ScaledL2NormPool2d", "1", lambda: torchlip.ScaledL2NormPool2d(2)),
        ("ScaledAdaptativeL2NormPool2d", "1", lambda: torchlip.ScaledAdaptativeL2NormPool2d((1, 1))),
        ("InvertibleDownSampling", "1", lambda: torchlip.InvertibleDownSampling(2)),
        ("InvertibleUpSampling", "1", lambda: torchlip.InvertibleUpSampling(2)),
        ("LayerCentering", "1", lambda: torchlip.LayerCentering(CHANNELS)),
    ),
    **_layers(
        "orthogonium",
        ("OrthoLinear", "1", lambda: ortho.OrthoLinear(FEATURES, 8), VECTOR),
        ("UnitNormLinear", EACH, lambda: ortho.UnitNormLinear(FEATURES, 8), VECTOR),
        ("AdaptiveOrthoConv2d", "1", _orthogonal),
        (
            "AdaptiveOrthoConv2d, stride 2",
            "1",
            lambda: ortho.AdaptiveOrthoConv2d(CHANNELS, 2 * CHANNELS, 4, stride=2, padding=1),
        ),
        ("AOLConv2D", "1", lambda: AOLConv2D(CHANNELS, CHANNELS, **AROUND)),
        ("MaxMin", "1", ortho.MaxMin),
        ("Abs", "1", ortho.Abs),
        ("SoftHuber", "1", SoftHuber),
        ("LayerCentering2D", "1", lambda: ortho.LayerCentering2D(CHANNELS)),
        ("BatchCentering2D", "1", lambda: ortho.BatchCentering2D(CHANNELS)),
        ("ChannelShuffle", "1", lambda: ortho.ChannelShuffle(2, 2)),
        (
            "ConcatResidual of AdaptiveOrthoConv2d",
            "1",
            lambda: ConcatResidual(ortho.AdaptiveOrthoConv2d(2, 2, **AROUND)),
        ),
        ("L2NormResidual of AdaptiveOrthoConv2d", "1", lambda: L2NormResidual(_orthogonal())),
        ("AdditiveResidual of AdaptiveOrthoConv2d", "1", lambda: AdditiveResidual(_orthogonal())),
        ("PrescaledAdditiveResidual of Abs", "1", lambda: PrescaledAdditiveResidual(ortho.Abs())),
        ("SDPBasedLipschitzDense", "1", lambda: SDPBasedLipschitzDense(FEATURES, FEATURES, 24), VECTOR),
        ("SDPBasedLipschitzResBlock", "1", lambda: SDPBasedLipschitzResBlock(CHANNELS, 2)),
        ("AOCLipschitzResBlock", "1", lambda: AOCLipschitzResBlock(CHANNELS, 2, 3)),
    ),
}
REFUSED = {  # and what is said
    "HouseHolder": (lambda: ortho.HouseHolder(CHANNELS), "`a = x * (selector <= 0) + a_2 * (selector > 0)`"),
    "HouseHolder, deel-torchlip": (lambda: torchlip.HouseHolder(CHANNELS), "a choice that depends on the input jumps"),
    "HouseHolder_Order_2": (lambda: ortho.HouseHolder_Order_2(CHANNELS), "atan2"),
    "BatchCentering": (lambda: torchlip.BatchCentering(CHANNELS), "normalization.py"),
    "BatchLipNorm": (lambda: torchlip.BatchLipNorm(CHANNELS), "normalization.py"),
}


class Flat(nn.Module):
    """A layer as a network whose logits are all that it gives."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x).flatten(1)


def lived_in(layer, shape):
    """A network of one layer, with weights as after some training: moved, and passed through a few times."""
    network = Flat(layer)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        network.train()
        for _ in range(3):
            network(torch.randn(8, *shape))
    return network.eval()


def proved(program):
    """The bound of a whole program, its head included."""
    bounds = prove(program).bounds
    return float(Up(bounds.head.scale) * Up(bounds.layers[-1].bound))


def steepest(program, points):
    """The largest norm of a program's Jacobian at some points: no bound can be below."""
    found = 0.0
    for point in points:
        jacobian = torch.func.jacrev(lambda x: program.run(x[None])[0])(point).flatten(1)
        found = max(found, float(torch.linalg.matrix_norm(jacobian, 2)))
    return found
