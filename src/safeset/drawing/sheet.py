"""A white page that the figures are painted on with matplotlib, which is imported only here, and late."""

import io
import re
from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from safeset.errors import SafesetError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

DOTS = 144  # per inch
WIDTH = 7.0  # inches: on a telephone, text of 10 points stays legible at this width
MARGIN = 0.15
INK, FAINT = "#222222", "#6a6a6a"
BODY, SMALL = 10.0, 8.5  # points
LINE = 0.165  # inches between lines


class Sheet:
    """A page; places are in inches from its upper left corner.

    Args:
        height: in inches.
        width: in inches.
    """

    def __init__(self, height: float, width: float = WIDTH) -> None:
        from matplotlib.figure import Figure

        self.height, self.width = height, width
        self.figure = Figure(figsize=(width, height), dpi=DOTS, facecolor="white")

    def axes(self, left: float, top: float, width: float, height: float) -> "Axes":
        """Add axes without ticks."""
        axes = self.figure.add_axes(
            (left / self.width, 1 - (top + height) / self.height, width / self.width, height / self.height)
        )
        axes.set_xticks([])
        axes.set_yticks([])
        return axes

    def text(self, left: float, top: float, text: str, **style: Any) -> None:
        """Add a line of text whose upper edge is at ``top``."""
        given = {"fontsize": BODY, "color": INK, "va": "top", "ha": "left", "parse_math": False, **style}
        self.figure.text(left / self.width, 1 - top / self.height, text, **given)

    def bar(self, left: float, top: float, width: float, height: float, colour: str) -> None:
        """Add a rectangle of one colour."""
        from matplotlib.patches import Rectangle

        corner, size = (left / self.width, 1 - (top + height) / self.height), (width / self.width, height / self.height)
        self.figure.add_artist(Rectangle(corner, *size, color=colour, linewidth=0))

    def image(self, left: float, top: float, side: float, pixels: "np.ndarray") -> None:
        """Add pixels (height, width, 3) as a square with an edge; quicker than axes for each."""
        import numpy as np
        from PIL import Image, ImageOps

        dots = round(side * DOTS) - 2
        square = Image.fromarray(pixels).resize((dots, dots), Image.Resampling.NEAREST)
        down = round((self.height - top) * DOTS) - dots - 2
        edged = np.asarray(ImageOps.expand(square, 1, "#cccccc"))  # white images have an edge too
        self.figure.figimage(edged, round(left * DOTS), down)

    def width_of(self, text: str, size: float) -> float:
        """The width in inches of a line of text, in letters of ``size`` points."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg

        drawn = self.figure.text(0, 0, text, fontsize=size, parse_math=False)
        extent = drawn.get_window_extent(FigureCanvasAgg(self.figure).get_renderer())  # type: ignore[no-untyped-call]
        drawn.remove()
        return float(extent.width) / DOTS

    def lines(self, top: float, lines: Sequence[str], **style: Any) -> None:
        """Add small faint lines of text beneath each other."""
        for place, line in enumerate(lines):
            self.text(MARGIN, top + place * LINE, line, **{"fontsize": SMALL, "color": FAINT, **style})

    def png(self) -> bytes:
        """The page as a PNG file."""
        from PIL import Image

        drawn, content = io.BytesIO(), io.BytesIO()
        self.figure.savefig(drawn, format="png", dpi=DOTS)
        Image.open(drawn).convert("RGB").save(content, "PNG", optimize=True)  # a file without transparency is smaller
        return content.getvalue()


def check_matplotlib() -> None:
    """Raise an error where nothing can be drawn.

    Raises:
        SafesetError: if there is no matplotlib, with the remedy.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        remedy = "pip install 'safeset[report]' brings it."
        raise SafesetError(f"Expected matplotlib, which draws the figures, but got none. {remedy}") from None


def wrap_caption(text: str) -> list[str]:
    """Break a caption into lines as wide as the page; numbers stay with their names."""
    return wrap(re.sub(r"(ε|=|seed) (?=[=\d])", "\\1\xa0", text), 112)


def words(name: str) -> str:
    """A class name as plain words.

    >>> words("AnnualCrop"), words("maple_tree"), words("clear of conflict")
    ('Annual Crop', 'maple tree', 'clear of conflict')
    """
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).replace("_", " ")
