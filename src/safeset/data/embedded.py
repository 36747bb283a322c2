"""Data that needs no files: scikit-learn's digits, and the paper's points in the plane."""

import torch

from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.data.source import Source


def digits() -> Dataset:
    """Handwritten digits, 8 × 8 pixels (Alpaydin & Kaynak, 1998): 1,797 images, a third of each class to test.

    Their 17 grey levels are bytes here: v ↦ round(255·v/16).
    """
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = (torch.tensor(images) * 255 / 16).round().to(torch.uint8).view(-1, 1, 8, 8)
    y = torch.tensor(labels, dtype=torch.int64)
    return Dataset("digits", *Split(x, y).held_out(1 / 3), tuple("0123456789"), PIXELS)


def blobs2d(points: int = 1000, seed: int = 0) -> Dataset:
    """Four overlapping classes in the plane, as in the paper's illustration of decision surfaces.

    Args:
        points: of each class, and half as many again to test.
        seed: of the random numbers.
    """
    centres = torch.tensor([[-0.9, 0.0], [-0.3, 0.1], [0.3, -0.1], [0.9, 0.0]])
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> Split:
        y = torch.arange(4).repeat_interleave(count)
        return Split(centres[y] + 0.2 * torch.randn(4 * count, 2, generator=generator), y)

    return Dataset("blobs2d", draw(points), draw(points // 2), ("a", "b", "c", "d"), "units of the plane")


DIGITS = Source("digits", "handwritten digits, 8 × 8 pixels, 10 classes; comes with scikit-learn", digits)
BLOBS2D = Source("blobs2d", "four overlapping classes in the plane; made here", blobs2d)
