"""Sets of classes in the plane as colours: a class has its own, the classes of a larger set take turns in stripes."""

from colorsys import hsv_to_rgb

import numpy as np
import torch
from torch import Tensor

# Each two of these and ⊥ are at least 33 apart in CIELAB, also for people who are colour-blind in any way.
CLASSES = ("#0b5fa5", "#f5d04e", "#c44e1c", "#66c2a5")
REJECTED = "#333333"
STRIPE = 9  # dots across


def class_colours(count: int) -> list[str]:
    """A colour for each class: the first four are told apart by everyone, more have hues by the golden ratio."""
    more = [((0.58 + place * 0.61803398875) % 1, (0.85, 0.55, 0.7)[place % 3]) for place in range(len(CLASSES), count)]
    others = ("#" + "".join(f"{round(255 * part):02x}" for part in hsv_to_rgb(hue, 0.8, light)) for hue, light in more)
    return [*CLASSES[:count], *others]


def plane(low: Tensor, high: Tensor, across: int) -> Tensor:
    """(rows, columns, 2) the middles of square cells that fill a rectangle, from its lower left corner."""
    side = (high[0] - low[0]) / across
    rows = max(1, round(float((high[1] - low[1]) / side)))
    x = low[0] + (torch.arange(across) + 0.5) * side
    y = low[1] + (torch.arange(rows) + 0.5) * (high[1] - low[1]) / rows
    return torch.stack([x.expand(rows, -1), y[:, None].expand(-1, across)], dim=2)


def stripe_sets(sets: Tensor, stripe: int = STRIPE) -> "np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]":
    """Colour sets of classes: (rows, columns, classes) booleans → (rows, columns, 3) bytes.

    A class has its colour, the empty set has its own; the classes of a larger set take turns in slanting stripes. There
    is a white line between different sets.
    """
    rows, columns, classes = sets.shape
    palette = torch.tensor([_rgb(colour) for colour in (*class_colours(classes), REJECTED)], dtype=torch.uint8)
    slant = torch.arange(rows)[:, None] + torch.arange(columns)  # (rows, columns)
    turn = slant // stripe % sets.sum(dim=2).clamp(min=1)
    mine = sets & (sets.cumsum(dim=2) == turn[..., None] + 1)
    picture = palette[torch.where(sets.any(dim=2), mine.long().argmax(dim=2), classes)]
    border = torch.zeros(rows, columns, dtype=torch.bool)
    border[1:] |= (sets[1:] != sets[:-1]).any(dim=2)
    border[:, 1:] |= (sets[:, 1:] != sets[:, :-1]).any(dim=2)
    picture[border] = 255
    return picture.numpy()


def distinct(sets: Tensor) -> list[list[int]]:
    """The sets that occur among (rows, columns, classes), each as its classes."""
    return [row.nonzero()[:, 0].tolist() for row in torch.unique(sets.flatten(0, 1), dim=0)]


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))
