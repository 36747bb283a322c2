"""Images turned by any angle and scaled, in other light, or mixed with one another: in batches, on their device."""

import torch
from torch import Tensor
from torch.nn import functional

ANGLE, FACTOR, BRIGHTNESS, CONTRAST, BLENDED, SIDE, ROW, COLUMN = range(8)  # columns of what is drawn for each image
DRAWN = 8
EDGES = {"mirror": "reflection", "grey": "zeros"}  # what comes in from outside, and torch's word for it


def warp_images(images: Tensor, moves: Tensor, drawn: Tensor, edges: str) -> Tensor:
    """Images turned, scaled, flipped and shifted by one bilinear interpolation; then brightness and contrast.

    Args:
        images: (batch, channels, height, width) in [0, 1].
        moves: (batch, 5), as `safeset.data.augmentation.move_images` takes them.
        drawn: (batch, 8): angle in radians, factor, what is added, factor of the contrast, and what `mix_images` takes.
        edges: ``mirror`` or ``grey``.

    Returns:
        The same shape, in [0, 1].
    """
    _, _, height, width = images.shape
    flip_rows, flip_columns, transpose, down, right = moves.to(images.dtype)[:, :, None, None].unbind(dim=1)
    angle, factor, brightness, contrast = drawn[:, :4, None, None].unbind(dim=1)  # (batch, 1, 1) each
    # Where each pixel comes from, in pixels from the middle: (batch, height, width).
    rows = torch.arange(height, device=images.device)[:, None] - (height - 1) / 2 - down
    columns = torch.arange(width, device=images.device) - (width - 1) / 2 - right
    row = factor * (angle.cos() * rows - angle.sin() * columns)
    column = factor * (angle.sin() * rows + angle.cos() * columns)
    row, column = torch.where(transpose == 1, column, row), torch.where(transpose == 1, row, column)
    grid = torch.stack(
        [
            (1 - 2 * flip_columns) * column * (2 / max(width - 1, 1)),
            (1 - 2 * flip_rows) * row * (2 / max(height - 1, 1)),
        ],
        dim=-1,
    )
    centred = images - 0.5  # so that zeros are grey
    found = functional.grid_sample(centred, grid, mode="bilinear", padding_mode=EDGES[edges], align_corners=True)
    return (found * contrast[:, None] + brightness[:, None] + 0.5).clamp(0, 1)


def mix_images(images: Tensor, drawn: Tensor) -> tuple[Tensor, Tensor]:
    """Each image with its neighbour in the batch: blended with it (mixup), or with a box of it (cutmix), as drawn.

    Args:
        images: (batch, channels, height, width).
        drawn: (batch, 8): the last four are the neighbour's share if it is blended, half the side of the box in parts
            of the image's, and its middle, in the same parts.

    Returns:
        The images, and each one's own share of itself, (batch,).
    """
    _, _, height, width = images.shape
    inside = [
        ((torch.arange(size, device=images.device) + 0.5) / size - drawn[:, axis, None]).abs() < drawn[:, SIDE, None]
        for size, axis in ((height, ROW), (width, COLUMN))
    ]
    box = (inside[0][:, :, None] & inside[1][:, None, :]).to(images.dtype)  # (batch, height, width)
    share = torch.maximum(box, drawn[:, BLENDED, None, None])  # of the neighbour, at each pixel
    return torch.lerp(images, images.roll(1, 0), share[:, None]), 1 - share.mean(dim=(1, 2))
