"""How training images are changed: flips, quarter turns and shifts here, all else in `safeset.data.warping`."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.data.warping import ANGLE, BLENDED, BRIGHTNESS, COLUMN, CONTRAST, DRAWN, EDGES, FACTOR, ROW, SIDE
from safeset.errors import expected, nearest

FLIPS = ("none", "horizontal", "vertical", "both")


@dataclass(frozen=True)
class Augmentation:
    """How training images are moved, drawn again in each epoch; each choice is as likely as any other.

    Attributes:
        flips: ``none``, ``horizontal`` (left and right swapped), ``vertical`` or ``both``.
        turns: quarter turns; with flips all eight ways to lay a square.
        shift: up to so many pixels up or down, and to either side; what moves in is mirrored.
        rotation: by up to so many degrees either way.
        scale: by a factor between e^−scale and e^scale.
        moved: the share of images that are rotated and scaled.
        edges: what comes in from outside where images are rotated or scaled: ``mirror`` or ``grey``.
        brightness: up to so much is added or taken, of a range of 1.
        contrast: differences from grey are multiplied by a factor between 1 − contrast and 1 + contrast.
        mixup: the share of images that are blended with another one, which has up to half of the weight.
        cutmix: the share of images of which a box is another one's.
    """

    flips: str = "none"
    turns: bool = False
    shift: int = 0
    rotation: float = 0.0
    scale: float = 0.0
    moved: float = 1.0
    edges: str = "mirror"
    brightness: float = 0.0
    contrast: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self) -> None:
        if self.flips not in FLIPS:
            raise expected(f"`flips` to be one of {', '.join(FLIPS)}", repr(self.flips), nearest(self.flips, FLIPS))
        if not isinstance(self.turns, bool):
            raise expected("`turns` to be true or false", repr(self.turns))
        if isinstance(self.shift, bool) or not isinstance(self.shift, int) or self.shift < 0:
            raise expected("`shift` to be a number of pixels ≥ 0", repr(self.shift))
        for name, most in (("rotation", 180), ("scale", 1), ("moved", 1), ("brightness", 1), ("contrast", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise expected(f"`{name}` to be a number in [0, {most}]", getattr(self, name))
        if self.edges not in EDGES:
            raise expected(f"`edges` to be one of {', '.join(EDGES)}", repr(self.edges), nearest(self.edges, EDGES))
        if not (min(self.mixup, self.cutmix) >= 0 and self.mixup + self.cutmix <= 1):
            got = f"{self.mixup} and {self.cutmix}"
            raise expected("`mixup` and `cutmix` to be shares of the images, together at most 1", got)

    def __bool__(self) -> bool:
        return self.flips != "none" or self.turns or self.shift > 0 or self.draws

    @property
    def warps(self) -> bool:
        """Whether images are interpolated or seen in another light."""
        return max(self.rotation, self.scale, self.brightness, self.contrast) > 0 or self.edges != "mirror"

    @property
    def mixes(self) -> bool:
        """Whether images are mixed with one another, so that labels are soft."""
        return self.mixup + self.cutmix > 0

    @property
    def draws(self) -> bool:
        """Whether more than a move is drawn for each image."""
        return self.warps or self.mixes

    def check(self, input_shape: tuple[int, ...]) -> None:
        """Raise an error if points of this shape cannot be moved so."""
        if not self:
            return
        if len(input_shape) != 3:
            raise expected("images to augment", f"points of shape {input_shape}")
        if self.turns and input_shape[1] != input_shape[2]:
            raise expected("square images for quarter turns", f"{input_shape[1]} × {input_shape[2]} pixels")
        if self.shift >= min(input_shape[1:]):
            raise expected(f"`shift` to be below the {min(input_shape[1:])} pixels of a side", self.shift)

    def draw(self, count: int, generator: torch.Generator) -> Tensor:
        """A move for each of ``count`` images: (count, 5) integers for `move_images`."""
        moves = torch.zeros(count, 5, dtype=torch.int64)

        def coin() -> Tensor:
            return torch.randint(2, (count,), generator=generator)

        if self.flips in ("vertical", "both"):
            moves[:, 0] = coin()
        if self.flips in ("horizontal", "both"):
            moves[:, 1] = coin()
        if self.turns:  # a quarter turn is a transposition and a flip, a half turn both flips
            quarter, half = coin(), coin()
            moves[:, 0] = (moves[:, 0] + half) % 2
            moves[:, 1] = (moves[:, 1] + half + quarter) % 2
            moves[:, 2] = quarter
        if self.shift:
            moves[:, 3:] = torch.randint(-self.shift, self.shift + 1, (count, 2), generator=generator)
        return moves

    def draw_more(self, count: int, generator: torch.Generator) -> Tensor:
        """What `warp_images` and `mix_images` take for each of ``count`` images: (count, 8)."""

        def uniform(low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(count, generator=generator)

        drawn = torch.zeros(count, DRAWN)
        moved = (uniform(0, 1) < self.moved).float()
        angle = math.radians(self.rotation)
        drawn[:, ANGLE] = moved * uniform(-angle, angle)
        drawn[:, FACTOR] = torch.exp(moved * uniform(-self.scale, self.scale))
        drawn[:, BRIGHTNESS] = uniform(-self.brightness, self.brightness)
        drawn[:, CONTRAST] = uniform(1 - self.contrast, 1 + self.contrast)
        kind, side = uniform(0, 1), uniform(0, 1).sqrt() / 2  # the area of a box is any as likely as any other
        drawn[:, BLENDED] = (kind < self.mixup) * uniform(0, 0.5)
        drawn[:, SIDE] = ((kind >= self.mixup) & (kind < self.mixup + self.cutmix)) * side
        drawn[:, ROW], drawn[:, COLUMN] = uniform(0, 1), uniform(0, 1)
        return drawn


def move_images(images: Tensor, places: Tensor, moves: Tensor) -> Tensor:
    """Some of the images, each moved its own way: one gather.

    Args:
        images: (n, channels, height, width).
        places: (batch,) which.
        moves: (batch, 5): flip rows, flip columns, transpose (0 or 1), shift of rows and of columns in pixels.

    >>> image = torch.arange(6).view(1, 1, 2, 3)
    >>> move_images(image, torch.tensor([0]), torch.tensor([[0, 1, 0, 0, 0]]))[0, 0]
    tensor([[2, 1, 0],
            [5, 4, 3]])
    """
    _, channels, height, width = images.shape
    flip_rows, flip_columns, transpose, down, right = moves[:, :, None, None].unbind(dim=1)
    rows = torch.arange(height, device=images.device)[:, None]  # (height, 1)
    columns = torch.arange(width, device=images.device)  # (width,)
    # Where each pixel comes from, (batch, height, width).
    row, column = _mirror(rows - down, height), _mirror(columns - right, width)
    row, column = torch.where(transpose == 1, column, row), torch.where(transpose == 1, row, column)
    row = torch.where(flip_rows == 1, height - 1 - row, row)
    column = torch.where(flip_columns == 1, width - 1 - column, column)
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return images[places[:, None, None, None], channel, row[:, None], column[:, None]]


def _mirror(place: Tensor, size: int) -> Tensor:
    """Places beyond an edge, mirrored at it: −1 is 1, and size is size − 2."""
    last = size - 1
    return last - (last - place.abs()).abs()
