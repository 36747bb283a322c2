"""Networks of rotations and shifts: no layer stretches anything, so the Lipschitz constant is 1 whatever is learned.

After LipNeXt (2026): orthogonal matrices at every pixel, circular shifts of channels between pixels, absolute values.
"""

from torch import nn

from safeset.errors import expected
from safeset.layers import (
    Centre,
    ChannelShift,
    HalfAbs,
    InvertibleDownsampling,
    L2Pool,
    OrthogonalConv1x1,
    OrthogonalLinear,
    PositionBias,
    UnitRowLinear,
)
from safeset.models.architecture import Layers, check_width, image

PIXELS = 8  # along a side, after the patches have become channels, if the patch is chosen here


def shift_net(
    shape: tuple[int, ...],
    classes: int,
    *,
    depth: int = 12,
    width: int = 256,
    patch: int | None = None,
    dense: int = 2,
    part: int = 8,
    pool: int | None = None,
) -> Layers:
    """Centred patches as channels, an orthonormal stem, ``depth`` layers σ(S(Qz) + b + p), L2 pooling, dense, head.

    Q is orthogonal, S moves one in ``part`` channels a pixel in each of four directions, p is a number for each pixel
    and channel, σ is |·| on every other channel, so on half of those that move and half of those that stay. The dense
    layers are orthogonal, with σ; the head has rows of norm 1. With ``pool`` the dense layers are told where in an
    image a channel is strong.

    Args:
        shape: of one image.
        classes: of the head.
        depth: layers at every pixel.
        width: channels.
        patch: side of the squares of pixels that become channels; by default such that about 8 × 8 pixels are left.
        dense: orthogonal dense layers after the pooling.
        part: see `safeset.layers.ChannelShift`.
        pool: side of the squares of pixels whose lengths become features; by default all pixels are one.
    """
    size = suited_patch(shape) if patch is None else patch
    channels, height, across = image(shape, size)
    height, across = height // size, across // size
    check_width(width, part)
    layers: Layers = [Centre(), *([InvertibleDownsampling(size)] if size > 1 else [])]
    layers += [OrthogonalConv1x1(size**2 * channels, width)]
    for _ in range(depth):
        layers += [OrthogonalConv1x1(width, width), ChannelShift(part)]
        layers += [PositionBias(height, across, width), HalfAbs("even")]
    if pool and (height % pool or across % pool):
        raise expected(f"`pool` to divide the {height} × {across} pixels that are left", pool)
    features = width * (height // pool) * (across // pool) if pool else width
    layers += [L2Pool(pool), nn.Flatten()]
    for _ in range(dense):
        layers += [OrthogonalLinear(features, width), HalfAbs("even")]
        features = width
    return [*layers, UnitRowLinear(features, classes)]


def suited_patch(shape: tuple[int, ...]) -> int:
    """The largest power of two that divides an image and leaves 8 pixels or more along its shorter side.

    >>> suited_patch((3, 32, 32)), suited_patch((3, 64, 64)), suited_patch((1, 28, 28)), suited_patch((1, 8, 8))
    (4, 8, 2, 1)
    """
    if len(shape) != 3:
        raise expected("images (channels, height, width)", shape)
    size = 1
    while min(shape[1:]) >= 2 * size * PIXELS and not any(side % (2 * size) for side in shape[1:]):
        size *= 2
    return size
