"""The paper's decision surfaces in the plane: at each place the colour of the smallest safe set."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch

from safeset.certificates.promises import shown_epsilon
from safeset.data.dataset import Dataset
from safeset.drawing.sheet import BODY, DOTS, FAINT, LINE, MARGIN, SMALL, WIDTH, Sheet, wrap_caption
from safeset.drawing.stripes import CLASSES, distinct, plane, stripe_sets
from safeset.errors import expected
from safeset.evaluation import Metrics
from safeset.nets.net import CertifiedNet
from safeset.paper.drawing.choices import smallest_sets

if TYPE_CHECKING:
    from matplotlib.axes import Axes

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
        seen |= {tuple(members) for members in distinct(sets)}
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
