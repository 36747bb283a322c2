"""Which classes certified sets hold together: a map of shares, and the most frequent pairs."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shown_epsilon
from safeset.drawing.sheet import BODY, FAINT, INK, LINE, MARGIN, SMALL, WIDTH, Sheet, words, wrap_caption
from safeset.paper.drawing.choices import counts, shares, side_by_side
from safeset.paper.shares import together

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FEW = 20  # classes, each with a name at its row and at its column
PAIRS = 20
MAP = "Blues"
INSIDE, ACROSS = "#0072b2", "#d55e00"  # pairs of one superclass, and of two
BAR = 0.2  # inches from a bar to the next


def draw_groups(certificate: Certificate, *, title: str, superclasses: Sequence[str] | None = None) -> bytes:
    """How often the certified sets that hold one class hold another too, as a PNG file.

    A map: each row a class, each column another one. With few classes their shares are written in it, and classes that
    go together stand together. With many they are ordered by superclass where there are superclasses, and the most
    frequent pairs stand beneath.

    Args:
        certificate: of test points.
        title: which network.
        superclasses: one for each class, if there are any.
    """
    sets, points = int(certificate.certified.sum()), len(certificate)
    certified = f"{sets:,} of {points:,} test points certified"
    about = f"Method {certificate.method}, ε = {shown_epsilon(certificate.epsilon)}, {certified}."
    if certificate.classes <= FEW:
        return _few(certificate, title, about).png()
    return _many(certificate, title, about, superclasses).png()


def _few(certificate: Certificate, title: str, about: str) -> Sheet:
    """A map with names and numbers."""
    table = counts(certificate)
    order = side_by_side(table)
    names = [words(certificate.names[place]) for place in order]
    found = shares(table)[order][:, order]
    own = table.diagonal()[order].tolist()
    caption = wrap_caption(
        "Of 100 certified sets that hold the row's class, so many hold the column's too. Grey: how many sets "
        f"hold the row's class. {about}"
    )
    longest = max(map(len, names)) * 0.078
    left = MARGIN + longest + 0.08
    side = min(WIDTH - MARGIN - left - 0.35, 0.75 * len(names))
    top = MARGIN + 0.35
    foot = longest * 0.72 + 0.25
    sheet = Sheet(top + side + foot + len(caption) * LINE + MARGIN)
    sheet.text(MARGIN, MARGIN, title, fontweight="bold")
    axes = sheet.axes(left, top, side, side)
    shown = found.clone().fill_diagonal_(torch.nan)
    axes.imshow(shown.numpy(), cmap=MAP, vmin=0, vmax=1)
    axes.set_facecolor("#eeeeee")
    size = min(BODY, 62 * side / len(names) / 3.2)
    for row in range(len(names)):
        for column in range(len(names)):
            share = found[row, column].item()
            if row == column:
                axes.text(column, row, f"{own[row]:,}", ha="center", va="center", fontsize=size * 0.85, color=FAINT)
            elif share >= 0.005:  # not NaN, and not rounded to 0
                colour = "white" if share > 0.55 else INK
                axes.text(column, row, f"{100 * share:.0f}", ha="center", va="center", fontsize=size, color=colour)
    axes.set_yticks(range(len(names)), names, fontsize=BODY, color=INK)
    axes.set_xticks(range(len(names)), names, fontsize=BODY, color=INK, rotation=45, ha="right", rotation_mode="anchor")
    axes.tick_params(length=0, pad=4)
    axes.set_xticks([place - 0.5 for place in range(1, len(names))], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, len(names))], minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    axes.spines[:].set_visible(False)
    sheet.lines(top + side + foot, caption)
    return sheet


def _many(certificate: Certificate, title: str, about: str, superclasses: Sequence[str] | None) -> Sheet:
    """A map without names of classes, and bars with them."""
    from matplotlib.colors import PowerNorm

    table, names = counts(certificate), certificate.names
    if superclasses is None:
        order = side_by_side(table)
    else:
        order = sorted(range(certificate.classes), key=lambda place: (superclasses[place], names[place]))
    found = shares(table)[order][:, order].fill_diagonal_(torch.nan)
    pairs = together(certificate, PAIRS)
    how = "by superclass" if superclasses else "so that classes which go together stand together"
    bars_are = f"Bars: certified sets that hold both classes, the {len(pairs)} most frequent pairs. " if pairs else ""
    caption = wrap_caption(
        f"Map: of the certified sets that hold the row's class, the share that hold the column's too; rows and columns "
        f"are ordered {how}. {bars_are}{about}"
    )
    left = MARGIN + (2.1 if superclasses else 0.0)
    side = WIDTH - MARGIN - left - 0.75
    top = MARGIN + 0.35
    bars = top + side + 0.6
    sheet = Sheet(bars + len(pairs) * BAR + 0.15 + len(caption) * LINE + MARGIN)
    sheet.text(MARGIN, MARGIN, title, fontweight="bold")
    axes = sheet.axes(left, top, side, side)
    drawn = axes.imshow(found.numpy(), cmap=MAP, norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    axes.set_facecolor("#eeeeee")
    axes.spines[:].set_color("#bbbbbb")
    if superclasses:
        _mark_superclasses(axes, [superclasses[place] for place in order])
    scale = sheet.axes(left + side + 0.12, top, 0.14, side)
    bar = sheet.figure.colorbar(drawn, cax=scale, ticks=[0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.set_yticklabels(["0", "1 %", "5 %", "10 %", "25 %", "50 %", "100 %"], fontsize=SMALL, color=INK)
    bar.ax.tick_params(length=0)
    bar.outline.set_visible(False)
    if pairs:
        _bars(sheet, bars, pairs, dict(zip(names, superclasses, strict=True)) if superclasses else None)
    sheet.lines(bars + len(pairs) * BAR + 0.15, caption)
    return sheet


def _mark_superclasses(axes: "Axes", ordered: Sequence[str]) -> None:
    """Lines between superclasses, and their names beside the map."""
    starts = [place for place in range(len(ordered)) if place == 0 or ordered[place] != ordered[place - 1]]
    ends = [*starts[1:], len(ordered)]
    for edge in starts[1:]:
        axes.axhline(edge - 0.5, color="#cccccc", linewidth=0.5)
        axes.axvline(edge - 0.5, color="#cccccc", linewidth=0.5)
    middles = [(start + end - 1) / 2 for start, end in zip(starts, ends, strict=True)]
    axes.set_yticks(middles, [words(ordered[start]) for start in starts], fontsize=SMALL, color=INK)
    axes.tick_params(length=0, pad=4)


def _bars(sheet: Sheet, top: float, pairs: Sequence[Sequence[str | int]], above: dict[str, str] | None) -> None:
    """A bar for each pair, as long as its number of sets."""
    same = [above is None or above[str(one)] == above[str(other)] for one, other, _ in pairs]
    labels = [f"{words(str(one))} · {words(str(other))}" for one, other, _ in pairs]
    left = MARGIN + max(map(len, labels)) * 0.068 + 0.1
    axes = sheet.axes(left, top, WIDTH - MARGIN - left - 0.4, len(pairs) * BAR)
    if above is not None:
        sheet.text(left, top - 0.25, "■ of one superclass", fontsize=SMALL, color=INSIDE)
        sheet.text(left + 1.6, top - 0.25, "■ of two superclasses", fontsize=SMALL, color=ACROSS)
    numbers = [int(times) for *_, times in pairs]
    axes.barh(range(len(pairs)), numbers, color=[INSIDE if one else ACROSS for one in same], height=0.7)
    axes.set_ylim(len(pairs) - 0.5, -0.5)
    axes.set_yticks(range(len(pairs)), labels, fontsize=SMALL, color=INK)
    axes.tick_params(length=0, pad=4)
    axes.spines[:].set_visible(False)
    for place, number in enumerate(numbers):
        axes.annotate(f"{number:,}", (number, place), (4, 0), textcoords="offset points", va="center", fontsize=SMALL)
