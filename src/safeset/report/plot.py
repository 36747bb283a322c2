"""VRA, points without a certificate and sizes of answers against ε, for a paper: the curves of the report."""

import io
import warnings
from typing import TYPE_CHECKING

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.drawing.sheet import FAINT, MARGIN, SMALL, WIDTH, Sheet, wrap_caption
from safeset.report.findings import Findings
from safeset.report.observer import SHOWN
from safeset.report.sections import SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
STYLES = (("#1b5fa8", "-"), ("#b8541a", "--"), ("#1d7a4c", ":"), ("#7a3fb0", "-."))
GAP, TALL, HEAD = 0.5, 2.2, 0.45  # inches


def draw_plot(found: Findings, suffix: str) -> bytes:
    """Draw three panels with matplotlib.

    Args:
        found: a run.
        suffix: of the file, .png or .svg.
    """
    caption = wrap_caption(
        f"{found.points.name}, {found.evaluation['split']} points: {found.evaluation['points']:,}; a network trained "
        f"for {shorten(found.evaluation['guarantee'], 30)} at ε = {shown_epsilon(found.epsilon)} (the dashed line). "
        f"Proved bounds, ε: {found.units}. Sizes: means over certified points, {SHOWN}."
    )
    sheet = Sheet(HEAD + TALL + 0.75 + 0.17 * len(caption))
    width = (WIDTH - MARGIN - GAP * 3) / 3
    panels = (("VRA", "vra"), ("without a certificate", "rejection_rate"))
    for place, (title, metric) in enumerate(panels):
        axes = _panel(sheet, place, width, title, found)
        for (colour, dashes), (method, rows) in zip(STYLES, found.curves.items(), strict=False):
            axes.plot(found.radii, [row[metric] for row in rows], dashes, color=colour, label=method, linewidth=1.4)
        axes.set_ylim(0.0, 1.02)
    axes = _panel(sheet, 2, width, "classes in an answer", found)
    for (colour, dashes), (name, metric) in zip(STYLES, SIZES.items(), strict=True):
        sizes = [float("nan") if row[metric] is None else row[metric] for row in found.curves[SHOWN]]
        axes.plot(found.radii, sizes, dashes, color=colour, label=name, linewidth=1.4)
    axes.set_ylim(0.0, None)
    for axes in (sheet.figure.axes[0], sheet.figure.axes[2]):
        axes.legend(fontsize=SMALL - 1.5, frameon=False)
    sheet.lines(HEAD + TALL + 0.6, caption)
    with warnings.catch_warnings(action="ignore"):  # of letters in the data's name that no font has
        return _svg(sheet) if suffix == ".svg" else sheet.png()


def _panel(sheet: Sheet, place: int, width: float, title: str, found: Findings) -> "Axes":
    from matplotlib.ticker import MaxNLocator

    axes = sheet.axes(GAP + place * (width + GAP), HEAD - 0.1, width, TALL)
    axes.axvline(found.epsilon, color=FAINT, linestyle="--", linewidth=0.8)
    axes.set_title(title, fontsize=SMALL)
    axes.set_xlabel("ε", fontsize=SMALL)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(5))
    axes.tick_params(labelsize=SMALL - 1)
    axes.set_xlim(0, found.radii[-1])
    axes.spines[["top", "right"]].set_visible(False)
    return axes


def _svg(sheet: Sheet) -> bytes:
    """The page as an SVG file, the same for the same numbers."""
    from matplotlib import rc_context

    content = io.BytesIO()
    with rc_context({"svg.hashsalt": "safeset"}):
        sheet.figure.savefig(content, format="svg", metadata={"Date": None})
    return content.getvalue()
