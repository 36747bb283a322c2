"""VRA, rejections and sizes of answers against ε, a line for each guarantee."""

import warnings
from typing import TYPE_CHECKING

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.drawing.sheet import FAINT, MARGIN, SMALL, WIDTH, Sheet, wrap_caption

if TYPE_CHECKING:
    from matplotlib.ticker import MaxNLocator

    from safeset.runs.suggestion import Suggestion

PANELS = (
    ("VRA", "vra"),
    ("without a certificate", "rejection_rate"),
    ("classes in the smallest answers", "smallest_set_size"),
)
RADII = 40  # along a line
GAP, TALL, HEAD = 0.5, 2.2, 0.45  # inches
COLOURS = "viridis"


def tradeoffs(found: "Suggestion") -> bytes:
    """The page as a PNG file."""
    from matplotlib import colormaps

    longest = 1.1 * found.grid[-1] or 1.0
    radii = [longest * place / RADII for place in range(RADII + 1)]
    names = found.names
    rows = found.rows(radii, names)
    caption = wrap_caption(
        f"{found.on}: {len(found.labels):,}, one network trained for {shorten(found.own, 0)} at ε = "
        f"{shown_epsilon(found.epsilon)} "
        f"(the dashed line); method {found.method}, proved bounds, ε in {found.units}."
    )
    sheet = Sheet(HEAD + TALL + 0.75 + 0.17 * len(caption))
    sheet.text(MARGIN, MARGIN, "What ε and K cost", fontweight="bold")
    width = (WIDTH - MARGIN - GAP * len(PANELS)) / len(PANELS)
    colours = colormaps[COLOURS]
    for place, (title, metric) in enumerate(PANELS):
        axes = sheet.axes(GAP + place * (width + GAP), HEAD + 0.15, width, TALL)
        for number, name in enumerate(names):
            values = [row[metric] for row in rows if row["guarantee"] == name]  # NaN where nothing is certified: a gap
            colour = colours(0.9 * number / max(1, len(names) - 1))
            axes.plot(radii, values, color=colour, label=shorten(name, 0), linewidth=1.4)
        axes.axvline(found.epsilon, color=FAINT, linestyle="--", linewidth=0.8)
        axes.set_title(title, fontsize=SMALL)
        axes.set_xlabel("ε", fontsize=SMALL)
        axes.xaxis.set_major_locator(_few_ticks())
        axes.yaxis.set_major_locator(_few_ticks())
        axes.tick_params(labelsize=SMALL - 1)
        axes.set_xlim(0, longest)
        largest = max((row[metric] for row in rows if row[metric] == row[metric]), default=1.0)
        axes.set_ylim(*((1.0, max(2.0, 1.05 * largest)) if metric.endswith("_size") else (0.0, 1.02)))
        axes.spines[["top", "right"]].set_visible(False)
    axes = sheet.figure.axes[0]
    axes.legend(fontsize=SMALL - 1, frameon=False)
    sheet.lines(HEAD + TALL + 0.7, caption)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of letters in the data's name that no font has
        return sheet.png()


def _few_ticks() -> "MaxNLocator":
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(5)
