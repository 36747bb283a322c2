"""VRA, points without a certificate, sizes of answers and coverage against ε, for a paper: the curves of the report."""

import io
import warnings
from typing import TYPE_CHECKING, Any

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.drawing.sheet import FAINT, MARGIN, SMALL, WIDTH, Sheet, wrap_caption
from safeset.report.coverage import SHARES
from safeset.report.findings import Findings
from safeset.report.observer import SHOWN
from safeset.report.sections import SIZES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".png", ".svg")
STYLES = (("#1b5fa8", "-"), ("#b8541a", "--"), ("#1d7a4c", ":"), ("#7a3fb0", "-."))
LEGEND: dict[str, Any] = {  # white behind it: the line of ε goes through no word
    "fontsize": SMALL - 1.5, "edgecolor": "none", "framealpha": 1.0, "handlelength": 1.6, "handletextpad": 0.5,
    "borderaxespad": 0.2,
}  # fmt: skip
GAP, TALL, HEAD = 0.5, 2.2, 0.45  # inches
ROW = TALL + 0.85  # from one row of panels to the next


def draw_plot(found: Findings, suffix: str) -> bytes:
    """Draw three panels with matplotlib, and two below them about the sets of a calibrated run.

    Args:
        found: a run.
        suffix: of the file, .png or .svg.
    """
    text = (
        f"{found.points.name}, {found.evaluation['split']} points: {found.evaluation['points']:,}; a network trained "
        f"for {shorten(found.evaluation['guarantee'], 30)} at ε = {shown_epsilon(found.epsilon)} (the dashed line). "
        f"Proved bounds, ε: {found.units}. Sizes: means over certified points, {SHOWN}."
    )
    if found.coverage is not None:
        text += f" Second row: {found.coverage['words'].partition(';')[0]}."
    caption, rows = wrap_caption(text), 1 if found.coverage is None else 2
    sheet = Sheet(HEAD + ROW * (rows - 1) + TALL + 0.75 + 0.17 * len(caption))
    panels = (("VRA", "vra"), ("without a certificate", "rejection_rate"))
    for place, (title, metric) in enumerate(panels):
        axes = _panel(sheet, place, title, found)
        for (colour, dashes), (method, points) in zip(STYLES, found.curves.items(), strict=False):
            axes.plot(found.radii, [row[metric] for row in points], dashes, color=colour, label=method, linewidth=1.4)
        axes.set_ylim(0.0, 1.02)
    axes = _panel(sheet, 2, "classes in an answer", found)
    for (colour, dashes), (name, metric) in zip(STYLES, SIZES.items(), strict=True):
        sizes = [float("nan") if row[metric] is None else row[metric] for row in found.curves[SHOWN]]
        axes.plot(found.radii, sizes, dashes, color=colour, label=name, linewidth=1.4)
    _count_classes(axes)
    for axes in (sheet.figure.axes[0], sheet.figure.axes[2]):
        axes.legend(**LEGEND)
    if found.coverage is not None:
        _draw_coverage(sheet, found, found.coverage)
    sheet.lines(HEAD + ROW * (rows - 1) + TALL + 0.6, caption)
    with warnings.catch_warnings(action="ignore"):  # of letters in the data's name that no font has
        return _svg(sheet) if suffix == ".svg" else sheet.png()


def _draw_coverage(sheet: Sheet, found: Findings, coverage: dict[str, Any]) -> None:
    """How often the sets of a calibrated run hold the true class, and how large they are."""
    radii = [row["epsilon"] for row in coverage["rows"]]
    axes = _panel(sheet, 0, "true classes in their sets", found, row=1)
    for (colour, dashes), (name, key) in zip(STYLES, SHARES.items(), strict=False):
        axes.plot(radii, [row[key] for row in coverage["rows"]], dashes, color=colour, label=name, linewidth=1.4)
    axes.axhline(1 - coverage["alpha"], color=FAINT, linewidth=0.8, label="promised, 1 − α")
    axes.set_ylim(0.0, 1.02)
    axes.legend(**LEGEND, loc="lower left")
    axes = _panel(sheet, 1, "classes in such a set", found, row=1)
    axes.plot(radii, [row["size"] for row in coverage["rows"]], color=STYLES[0][0], linewidth=1.4)
    _count_classes(axes)


def _count_classes(axes: "Axes") -> None:
    """An axis from 0 upwards on which only integers are written."""
    from matplotlib.ticker import MaxNLocator

    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_ylim(0.0, None)


def _panel(sheet: Sheet, place: int, title: str, found: Findings, *, row: int = 0) -> "Axes":
    from matplotlib.ticker import MaxNLocator

    width = (WIDTH - MARGIN - GAP * 3) / 3
    axes = sheet.axes(GAP + place * (width + GAP), HEAD - 0.1 + ROW * row, width, TALL)
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
