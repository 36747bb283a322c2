"""The paper's decision surfaces in the plane: at each place the colour of the smallest safe set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from safeset.certificates.promises import shown_epsilon
from safeset.data.dataset import Dataset
from safeset.drawing.sheet import BODY, DOTS, FAINT, LINE, MARGIN, SMALL, WIDTH, Sheet, wrap_caption
from safeset.errors import expected
from safeset.evaluation import Metrics
from safeset.nets.net import CertifiedNet
from safeset.paper.drawing.choices import smallest_sets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Each two of these and ⊥ are at least 33 apart in CIELAB, also for people who are colour-blind in any way.
CLASSES = ("#0b5fa5", "#f5d04e", "#c44e1c", "#66c2a5")
REJECTED = "#333333"
STRIPE = 9  # dots across
PANELS = (  # the network, the method, the title
    ("plain", "uniform", "An ordinary network"),
    ("standard", "uniform", "GloRo: the best class stays the best"),
    ("rt2", "uniform", "Relaxed top-2, uniform (the paper)"),
    ("rt2", "joint", "Relaxed top-2, joint, same weights"),
)
GAP, TITLE, ROOM = 0.2, 0.47, 0.05  # inches, and units of the plane around the points


def draw_surfaces(nets: Mapping[str, CertifiedNet], data: Dataset, *, across: int | None = None) -> bytes:
    """Draw five panels, the data and what each network safely predicts in the plane, as a PNG file.

    Args:
        nets: ``plain``, ``standard`` and ``rt2``.
        data: points in the plane.
        across: points of the grid from left to right; as many as dots by default.
    """
    epsilon = nets["rt2"].epsilon
    if nets["standard"].epsilon != epsilon:
        got = f"{nets['standard'].epsilon} and {epsilon}"
        raise expected("networks of one ε to compare", got, "Train them by the same recipe, in other --runs.")
    page = _Page(data, epsilon)
    _points(page.panel(0, "The data", f"{len(data.train):,} points of {data.classes} classes"), data, epsilon)
    grid = plane(page.low, page.high, across or round(page.wide * DOTS))
    seen, rejected = set(), torch.zeros(0)
    for place, (name, method, title) in enumerate(PANELS, start=1):
        net = nets[name].frozen()
        sets = smallest_sets(net.certify(grid.flatten(0, 1), method=method)).view(*grid.shape[:2], -1)
        rates = Metrics().update(net.certify(data.test.exact, method=method), data.test.y).compute()
        proved = f"VRA {rates['vra']:.3f}, rejected {rates['rejection_rate']:.3f}"
        axes = page.panel(place, title, f"accuracy {rates['accuracy']:.3f}" if net.epsilon == 0 else proved)
        axes.imshow(stripe_sets(sets), extent=page.extent, origin="lower", interpolation="nearest", aspect="auto")
        seen |= {tuple(members) for members in _distinct(sets)}
        if method == "uniform":
            rejected = ~sets.any(dim=2)
        elif bool(rejected.any()):  # by uniform, which came before
            axes.contour(rejected.double(), [0.5], colors="white", linewidths=1.7, extent=page.extent)
    _legend(page, sorted(seen, key=lambda one: (len(one) or 9, one)), data.class_names)
    return page.sheet.png()


class _Page:
    """A page with room for six panels, two in a row, and its caption.

    Attributes:
        sheet: to paint on.
        low: the lower left corner of the plane that panels show.
        high: its upper right corner.
        extent: both corners in matplotlib's order.
        wide: a panel's width in inches.
        tall: its height.
    """

    def __init__(self, data: Dataset, epsilon: float) -> None:
        self.low, self.high = data.test.inputs.amin(dim=0) - ROOM, data.test.inputs.amax(dim=0) + ROOM
        self.extent = (float(self.low[0]), float(self.high[0]), float(self.low[1]), float(self.high[1]))
        self.wide = (WIDTH - 2 * MARGIN - GAP) / 2
        self.tall = float(self.wide * (self.high[1] - self.low[1]) / (self.high[0] - self.low[0]))
        caption = wrap_caption(
            "Colour: the smallest set of classes that is safe to predict, whatever moves the point by at most "
            f"ε = {shown_epsilon(epsilon)} (L2). Stripes: a set of two. Dark, ⊥: nothing is safe, the point is "
            "rejected. White "
            f"outline, last panel: what uniform rejects. Numbers are of {len(data.test):,} test points; proved bounds."
        )
        panels = 3 * (TITLE + self.tall + GAP)
        self.sheet = Sheet(MARGIN + panels + len(caption) * LINE + MARGIN)
        self.sheet.lines(MARGIN + panels, caption)

    def corner(self, place: int) -> tuple[float, float]:
        """The left and upper edge of a panel, below its title."""
        row, column = divmod(place, 2)
        return MARGIN + column * (self.wide + GAP), MARGIN + row * (TITLE + self.tall + GAP) + TITLE

    def panel(self, place: int, title: str, numbers: str) -> "Axes":
        """Add the axes of a panel, with a title and numbers above them."""
        left, top = self.corner(place)
        self.sheet.text(left, top - TITLE + 0.05, title, fontsize=BODY, fontweight="bold")
        self.sheet.text(left, top - TITLE + 0.24, numbers, fontsize=SMALL, color=FAINT)
        axes = self.sheet.axes(left, top, self.wide, self.tall)
        axes.set_xlim(self.extent[0], self.extent[1])
        axes.set_ylim(self.extent[2], self.extent[3])
        axes.spines[:].set_visible(False)
        return axes


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
    palette = torch.tensor([_rgb(colour) for colour in (*CLASSES[:classes], REJECTED)], dtype=torch.uint8)
    slant = torch.arange(rows)[:, None] + torch.arange(columns)  # (rows, columns)
    turn = slant // stripe % sets.sum(dim=2).clamp(min=1)
    mine = sets & (sets.cumsum(dim=2) == turn[..., None] + 1)
    picture = palette[torch.where(sets.any(dim=2), mine.long().argmax(dim=2), classes)]
    border = torch.zeros(rows, columns, dtype=torch.bool)
    border[1:] |= (sets[1:] != sets[:-1]).any(dim=2)
    border[:, 1:] |= (sets[:, 1:] != sets[:, :-1]).any(dim=2)
    picture[border] = 255
    return picture.numpy()


def _points(axes: "Axes", data: Dataset, epsilon: float) -> None:
    """Draw the training points, the names of classes in their midst, and a disc of radius ε."""
    from matplotlib.patches import Circle
    from matplotlib.patheffects import withStroke

    # In random order, no class covers the others.
    order = torch.randperm(len(data.train), generator=torch.Generator().manual_seed(0))
    x, y = data.train.inputs[order], data.train.y[order]
    axes.set_facecolor("#f4f4f4")
    axes.scatter(x[:, 0], x[:, 1], s=3, c=[CLASSES[label] for label in y.tolist()], linewidths=0)
    for label, name in enumerate(data.class_names):
        across, up = x[y == label].mean(dim=0).tolist()
        halo = [withStroke(linewidth=3, foreground="white")]
        axes.annotate(name, (across, up), ha="center", va="center", fontsize=14, fontweight="bold", path_effects=halo)
    low, high = axes.get_xlim()[1] - epsilon - 0.06, axes.get_ylim()[0] + epsilon + 0.06
    axes.add_patch(Circle((low, high), epsilon, fill=False, color="#333333", linewidth=1))
    axes.plot([low, low + epsilon], [high, high], color="#333333", linewidth=1)
    axes.annotate("ε", (low + epsilon / 2, high), (0, 2), textcoords="offset points", ha="center", fontsize=BODY)


def _legend(page: _Page, seen: list[tuple[int, ...]], class_names: tuple[str, ...]) -> None:
    """Draw a swatch for each set that occurs, in place of the last panel."""
    swatch, columns = (0.42, 0.28), 2
    per = -(-len(seen) // columns)
    corner, down = page.corner(5), min(0.4, page.tall / per)
    for place, members in enumerate(seen):
        left = corner[0] + 0.25 + place // per * page.wide / columns
        top = corner[1] + place % per * down
        axes = page.sheet.axes(left, top, *swatch)
        sets = torch.zeros(round(swatch[1] * DOTS), round(swatch[0] * DOTS), len(class_names), dtype=torch.bool)
        sets[..., list(members)] = True
        axes.imshow(stripe_sets(sets), origin="lower", interpolation="nearest", aspect="auto")
        axes.spines[:].set_visible(False)
        name = "{" + ", ".join(class_names[member] for member in members) + "}" if members else "⊥ rejected"
        page.sheet.text(left + swatch[0] + 0.12, top + swatch[1] / 2, name, va="center_baseline")


def _distinct(sets: Tensor) -> list[list[int]]:
    """The sets that occur, each as its classes."""
    codes = (sets << torch.arange(sets.shape[2])).sum(dim=2)
    return [[place for place in range(sets.shape[2]) if code >> place & 1] for code in set(codes.flatten().tolist())]


def _rgb(colour: str) -> list[int]:
    return list(bytes.fromhex(colour[1:]))
