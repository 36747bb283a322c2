"""Layers that Lipschitz networks are built of, beside torch's own: each trains, and each is known to every proof."""

from safeset.layers.absolute import Abs, HalfAbs
from safeset.layers.affine import Centre, ChannelAffine, Normalize, PositionBias
from safeset.layers.min_max import MinMax
from safeset.layers.orthogonal import Orthogonal, OrthogonalConv1x1, OrthogonalLinear
from safeset.layers.permutations import ChannelShift, InvertibleDownsampling
from safeset.layers.residual import Residual
from safeset.layers.unit_rows import UnitRowLinear

__all__ = [
    "Abs",
    "Centre",
    "ChannelAffine",
    "ChannelShift",
    "HalfAbs",
    "InvertibleDownsampling",
    "MinMax",
    "Normalize",
    "Orthogonal",
    "OrthogonalConv1x1",
    "OrthogonalLinear",
    "PositionBias",
    "Residual",
    "UnitRowLinear",
]
