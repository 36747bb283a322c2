"""A picture of a data set: images by class, or points by their first two directions."""

import io
from typing import TYPE_CHECKING

import torch

from safeset.data.dataset import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

MOST_CLASSES, EACH, SIDE, GAP = 20, 10, 48, 4
PLANE, DOT = 480, 2


def draw_picture(data: Dataset, suffix: str) -> bytes:
    """Draw a data set: as `safeset.drawing.dataset` does, or plainly where there is no matplotlib.

    Args:
        data: its training points are shown.
        suffix: of the file: .png, .webp or .jpg.
    """
    from PIL import Image

    try:
        import matplotlib  # noqa: F401
    except ImportError:
        image = draw_plainly(data)
    else:
        from safeset.drawing.dataset import draw_dataset

        image = Image.open(io.BytesIO(draw_dataset(data)))
    content = io.BytesIO()
    image.save(content, format={".png": "PNG", ".webp": "WEBP"}.get(suffix, "JPEG"))
    return content.getvalue()


def draw_plainly(data: Dataset) -> "Image":
    """A row of training images for each of the first classes with its name; for tables a dot for each point.

    The dots' places are the first two principal components of the training points, or the points themselves in 2-D.
    """
    return _sheet(data) if len(data.input_shape) == 3 and data.input_shape[0] in (1, 3) else _plane(data)


def _sheet(data: Dataset) -> "Image":
    from PIL import Image, ImageDraw

    names, margin = data.class_names[:MOST_CLASSES], 150
    cell = SIDE + GAP
    sheet = Image.new("RGB", (margin + EACH * cell + GAP, len(names) * cell + GAP), "white")
    pen = ImageDraw.Draw(sheet)
    for row, name in enumerate(names):
        pen.text((GAP, row * cell + GAP + SIDE // 2 - 6), name[:22], fill="black")
        for place, index in enumerate((data.train.y == row).nonzero()[:EACH, 0].tolist()):
            pixels = data.train[torch.tensor([index])].inputs[0].mul(255).round().clamp(0, 255).byte()
            image = Image.fromarray(pixels.expand(3, -1, -1).permute(1, 2, 0).numpy())
            sheet.paste(image.resize((SIDE, SIDE), Image.Resampling.NEAREST), (margin + place * cell, row * cell + GAP))
    return sheet


def _plane(data: Dataset) -> "Image":
    from PIL import Image, ImageDraw

    x, y = data.train.inputs.flatten(1).double()[:5000], data.train.y[:5000]
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    x, y = x[order], y[order]
    if x.shape[1] > 2:
        centred = x - x.mean(dim=0)
        x = centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:2].T
    elif x.shape[1] == 1:
        x = torch.cat([x, torch.zeros_like(x)], dim=1)
    low, high = x.amin(dim=0), x.amax(dim=0)
    places = ((x - low) / (high - low).clamp(min=1e-12) * (PLANE - 40) + 20).round().int().tolist()
    sheet = Image.new("RGB", (PLANE + 160, PLANE), "white")
    pen = ImageDraw.Draw(sheet)
    colours = _colours(data.classes)
    for (across, up), label in zip(places, y.tolist(), strict=True):
        pen.ellipse((across - DOT, PLANE - up - DOT, across + DOT, PLANE - up + DOT), fill=colours[label])
    for row, name in enumerate(data.class_names[:MOST_CLASSES]):
        pen.rectangle((PLANE, 20 + 20 * row, PLANE + 10, 30 + 20 * row), fill=colours[row])
        pen.text((PLANE + 18, 19 + 20 * row), name[:22], fill="black")
    return sheet


def _colours(count: int) -> list[str]:
    """Colours that are far apart: hues by the golden ratio."""
    from colorsys import hsv_to_rgb

    hues = [(0.58 + place * 0.61803398875) % 1 for place in range(count)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hsv_to_rgb(hue, 0.75, 0.8)) for hue in hues]
