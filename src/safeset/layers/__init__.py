"""Layers that Lipschitz networks are built of, beside torch's own: each trains, and each is known to every proof."""

from safeset.layers.absolute import Abs, HalfAbs
from safeset.layers.affine import Centre, ChannelAffine, Normalize, PositionBias
from safeset.layers.almost_orthogonal import AOLConv2d, AOLLinear
from safeset.layers.min_max import MinMax
from safeset.layers.orthogonal import Orthogonal, OrthogonalConv1x1, OrthogonalLinear
from safeset.layers.permutations import ChannelShift, InvertibleDownsampling
from safeset.layers.pooling import L2Pool
from safeset.layers.potential import CPLConv2d, CPLLinear, PotentialConv2d, PotentialLinear, SLLConv2d, SLLLinear
from safeset.layers.residual import LinearResidualConv2d, Residual
from safeset.layers.unit_rows import UnitRowLinear

__all__ = [
    "AOLConv2d",
    "AOLLinear",
    "Abs",
    "CPLConv2d",
    "CPLLinear",
    "Centre",
    "ChannelAffine",
    "ChannelShift",
    "HalfAbs",
    "InvertibleDownsampling",
    "L2Pool",
    "LinearResidualConv2d",
    "MinMax",
    "Normalize",
    "Orthogonal",
    "OrthogonalConv1x1",
    "OrthogonalLinear",
    "PositionBias",
    "PotentialConv2d",
    "PotentialLinear",
    "Residual",
    "SLLConv2d",
    "SLLLinear",
    "UnitRowLinear",
]
