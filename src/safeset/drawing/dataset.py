"""A data set as a network sees it: images of each class, or points by their principal components, and counts."""

import warnings
from collections.abc import Iterator
from textwrap import wrap

import numpy as np
import torch
from torch import Tensor

from safeset.data.dataset import Dataset
from safeset.drawing.sheet import FAINT, INK, MARGIN, SMALL, Sheet

MOST_CLASSES, ROWS, COLUMNS = 400, 25, 4  # on a page; rows in a column of few classes; columns
MOST_POINTS = 5000  # a scatter plot shows no more
LONGEST = 26  # characters of a name in one line
NAME_LINE, GAP, AIR = 0.15, 0.06, 0.4  # inches: from line to line, between rows, between columns
HEAD, BAR, THICK = 0.75, 1.1, 0.13  # inches: height of the title, length of the longest bar, thickness of bars
PLANE, AXIS = 5.2, 0.7  # inches: side of the scatter plot, room for its labels
TRAIN, TEST = "#2f6db3", "#a9c6e8"


def draw_dataset(data: Dataset) -> bytes:
    """Draw training points as a PNG file: images by class, or a scatter plot; beside them how many points a class has.

    Points that are no images are placed by their own two numbers, or by their first two principal components.
    """
    with warnings.catch_warnings(action="ignore"):  # a letter that the font lacks is drawn as a box
        return _images(data) if len(data.input_shape) == 3 and data.input_shape[0] in (1, 3) else _points(data)


class _Classes:
    """The classes of a page in columns: a row for each, with its name, something of its own, a bar and its counts."""

    def __init__(self, data: Dataset, least: float, own: float) -> None:
        """Measure rows of at least the height ``least``, with the width ``own`` for what each shows besides."""
        self.counts = data.counts()[:MOST_CLASSES]
        self.lines = [wrap(name, LONGEST) or [""] for name, _, _ in self.counts]
        self.heights = [max(least, len(lines) * NAME_LINE) for lines in self.lines]
        each = max(ROWS, -(-len(self.counts) // COLUMNS))
        self.columns = [range(len(self.counts))[start : start + each] for start in range(0, len(self.counts), each)]
        ruler = Sheet(1)
        texts = [f"{train:,} + {test:,}" for _, train, test in self.counts]
        self.name = max(ruler.width_of(line, SMALL) for lines in self.lines for line in lines) + 0.1
        self.bar = self.name + own
        self.column = self.bar + BAR + 0.08 + max(ruler.width_of(text, SMALL) for text in texts)
        self.width = len(self.columns) * (self.column + AIR) - AIR
        self.height = max(sum(self.heights[row] + GAP for row in rows) for rows in self.columns)

    def places(self, left: float, top: float) -> Iterator[tuple[int, float, float]]:
        """Each class with the left and upper edge of its row."""
        for place, rows in enumerate(self.columns):
            down = top
            for row in rows:
                yield row, left + place * (self.column + AIR), down
                down += self.heights[row] + GAP

    def draw(self, sheet: Sheet, row: int, left: float, top: float, colours: tuple[str, str]) -> None:
        """Draw a class: its name, a bar for its training and its test points, and how many they are."""
        middle = top + self.heights[row] / 2
        lines, (_, train, test) = self.lines[row], self.counts[row]
        for place, line in enumerate(lines):
            down = middle + (place - (len(lines) - 1) / 2) * NAME_LINE
            sheet.text(left, down, line, fontsize=SMALL, va="center_baseline")
        inch = BAR / max(1, *(a + b for _, a, b in self.counts))
        start = left + self.bar
        for count, colour in ((train, colours[0]), (test, colours[1])):
            if count:
                sheet.bar(start, middle - THICK / 2, count * inch, THICK, colour)
            start += count * inch
        sheet.text(start + 0.08, middle, f"{train:,} + {test:,}", fontsize=SMALL, color=FAINT, va="center_baseline")


def _page(data: Dataset, width: float, height: float, what: str) -> Sheet:
    """A page with its title, and what it shows in words."""
    shape = " × ".join(map(str, data.input_shape)) + (" numbers" if len(data.input_shape) == 1 else "")
    first = f", the first {MOST_CLASSES} of {data.classes:,} classes" if data.classes > MOST_CLASSES else ""
    title = f"{data.name}: {len(data.train):,} training + {len(data.test):,} test points, {data.classes:,} classes"
    lines = [f"{what}, as the network sees them{first}", f"{shape}, {data.units}; bars: training + test points"]
    ruler = Sheet(1)
    widest = max([ruler.width_of(title, 11), *(ruler.width_of(line, SMALL) for line in lines)])
    sheet = Sheet(HEAD + height + MARGIN, max(width, widest) + 2 * MARGIN)
    sheet.text(MARGIN, MARGIN, title, fontsize=11, fontweight="bold")
    sheet.lines(MARGIN + 0.22, lines)
    return sheet


def _images(data: Dataset) -> bytes:
    side, each = (0.5, 8) if data.classes <= 2 * ROWS else (0.34, 5)
    classes = _Classes(data, side, each * (side + GAP) + 0.1)
    sheet = _page(data, classes.width, classes.height, "Training images of each class")
    low, high = (float(end) for end in data.train.x.aminmax())
    for row, left, top in classes.places(MARGIN, HEAD):
        classes.draw(sheet, row, left, top, (TRAIN, TEST))
        for across, image in enumerate(data.train.x[(data.train.y == row).nonzero()[:each, 0]]):
            start = left + classes.name + across * (side + GAP)
            sheet.image(start, top + (classes.heights[row] - side) / 2, side, _as_bytes(image, low, high))
    return sheet.png()


def _as_bytes(image: Tensor, low: float, high: float) -> np.ndarray:
    """An image (height, width, 3) of bytes; numbers beyond [0, 1] are mapped to it by their range."""
    if image.dtype != torch.uint8:
        low, high = (0.0, 1.0) if low >= 0 and high <= 1 else (low, high)
        image = ((image.double() - low) / (high - low or 1.0) * 255).round().byte()
    return image.expand(3, -1, -1).permute(1, 2, 0).numpy()


def _points(data: Dataset) -> bytes:
    from matplotlib.ticker import MaxNLocator

    classes = _Classes(data, 0.2, 0.0)
    beside = AXIS + PLANE + AIR
    sheet = _page(data, beside + classes.width, max(PLANE + 0.5, classes.height), "Training points")
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))[:MOST_POINTS]
    places, labels = plane(data.train.x[order].flatten(1).double(), list(data.ranges or ()))
    hues = colours(data.classes)
    axes = sheet.axes(MARGIN + AXIS, HEAD, PLANE, PLANE)
    dots = [hues[label] for label in data.train.y[order].tolist()]
    axes.scatter(places[:, 0].tolist(), places[:, 1].tolist(), s=22 if len(order) < 1000 else 7, c=dots, linewidths=0)
    for axis, label in ((axes.xaxis, labels[0]), (axes.yaxis, labels[1])):
        axis.set_label_text("\n".join(wrap(label, 60)), fontsize=SMALL, color=INK, parse_math=False)
        axis.set_major_locator(MaxNLocator(6))
    axes.tick_params(labelsize=SMALL - 1, labelcolor=FAINT, color="#cccccc")
    axes.spines[:].set(color="#cccccc", linewidth=0.6)
    for row, left, top in classes.places(MARGIN + beside, HEAD):
        classes.draw(sheet, row, left, top, (hues[row], hues[row] + "66"))
    return sheet.png()


def plane(x: Tensor, names: list[str]) -> tuple[Tensor, tuple[str, str]]:
    """Points (n, numbers) as (n, 2), and what the two are: their own numbers, or the first two principal components."""
    if x.shape[1] <= 2:
        called = [*names, *(f"number {place + 1}" for place in range(len(names), 2))]
        return torch.cat([x, torch.zeros(len(x), 2 - x.shape[1])], dim=1), (called[0], called[1])
    centred = x - x.mean(dim=0)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _, spread, directions = torch.pca_lowrank(centred, q=min(8, *x.shape), center=False, niter=4)
    shares = (spread[:2] ** 2 / (centred**2).sum().clamp(min=1e-300)).tolist()
    first, second = (f"{which} principal component, {share:.0%} of the variance"
                     for which, share in zip(("first", "second"), [*shares, 0.0], strict=False))  # fmt: skip
    found = centred @ directions[:, :2]
    return torch.cat([found, torch.zeros(len(x), 2 - found.shape[1])], dim=1), (first, second)


def colours(count: int) -> list[str]:
    """Colours that are far apart: hues by the golden ratio, light and dark by turns."""
    from colorsys import hsv_to_rgb

    hues = [((0.58 + place * 0.61803398875) % 1, (0.85, 0.55, 0.7)[place % 3]) for place in range(count)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in hsv_to_rgb(hue, 0.8, light)) for hue, light in hues]
