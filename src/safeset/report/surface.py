"""The decision surface of data in the plane: at each place the colour of the smallest certified answer."""

from dataclasses import dataclass

import numpy as np
import torch

from safeset.data.dataset import Dataset
from safeset.drawing.stripes import distinct, plane, stripe_sets
from safeset.nets.net import CertifiedNet

ACROSS, STRIPE = 240, 5  # cells from left to right; of a stripe
ROOM = 0.06  # around the test points, of their extent
POINTS_AT_ONCE = 8192


@dataclass(frozen=True, eq=False)
class Surface:
    """A picture of the plane.

    Attributes:
        pixels: (rows, columns, 3) bytes, the upper row first.
        low: the lower left corner.
        high: the upper right corner.
        sets: the answers that occur, each as its classes; empty for no certificate.
        axes: what the two numbers are called.
    """

    pixels: "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]"
    low: tuple[float, float]
    high: tuple[float, float]
    sets: list[list[int]]
    axes: tuple[str, str]


def draw_surface(net: CertifiedNet, points: Dataset, *, across: int = ACROSS) -> Surface:
    """Certify a grid of points at the net's own ε.

    Args:
        net: of inputs of two numbers.
        points: whose test points the picture shows.
        across: points of the grid from left to right.
    """
    x = points.test.exact
    extent = (x.amax(dim=0) - x.amin(dim=0)).clamp(min=1e-9)
    extent = torch.maximum(extent, extent.max() / 4)  # a picture of points on a line is not a line
    middle = (x.amax(dim=0) + x.amin(dim=0)) / 2
    low, high = middle - (0.5 + ROOM) * extent, middle + (0.5 + ROOM) * extent
    grid = plane(low, high, across)
    parts = [net.certify(part.to(net.device)).whole.cpu() for part in torch.split(grid.flatten(0, 1), POINTS_AT_ONCE)]
    sets = torch.cat(parts).view(*grid.shape[:2], -1)
    names = [*(points.ranges or ())]
    axes = (names[0], names[1]) if len(names) == 2 else ("the first number", "the second number")
    pixels = stripe_sets(sets, STRIPE)[::-1].copy()
    corners = [(float(corner[0]), float(corner[1])) for corner in (low, high)]
    return Surface(
        pixels, corners[0], corners[1], sorted(distinct(sets), key=lambda one: (len(one) or 9**9, one)), axes
    )
