"""The section about classes that go together: a matrix, and affinity sets to copy; and the surface in the plane."""

import torch
from torch import Tensor

from safeset.certificates.promises import shown_epsilon
from safeset.drawing.stripes import REJECTED, class_colours
from safeset.errors import counted
from safeset.report.findings import Findings
from safeset.report.html import Html, element, join, paragraph, png_address, table
from safeset.report.observer import SHOWN
from safeset.report.surface import Surface

MOST = 24  # classes of a matrix that can be read
DOT = 0.008  # of the width, the radius of a point


def groups(found: Findings) -> Html:
    """Which classes are in one answer, and which sets are proposed."""
    return join([_matrix(found), _proposal(found)])


def most_grouped(together: Tensor, most: int = MOST) -> list[int]:
    """The classes that are most often in one answer with others, in their own order.

    >>> most_grouped(torch.tensor([[5, 0, 1], [0, 3, 0], [1, 0, 4]]), 2)
    [0, 2]
    """
    others = together.sum(dim=1) - together.diagonal()
    return sorted(others.argsort(descending=True, stable=True)[:most].tolist())


def _matrix(found: Findings) -> Html:
    together = found.together
    if int(together.sum()) == int(together.diagonal().sum()):
        text = "No certified answer has two classes: none are grouped."
        return element("p", text if together.any() else "Nothing is certified: none are grouped.")
    shown = most_grouped(together)
    own = together.diagonal()

    def cell(row: int, column: int) -> Html:
        if row == column:
            return element("td", f"{int(own[row]):,}", class_="number own")
        share = int(together[row, column]) / max(1, int(own[row]))
        text = "" if not share else "<1" if share < 0.01 else f"{100 * share:.0f}"
        return element("td", text, class_="number warm", style=f"--warm:{share:.3f}")

    rows = [[found.names[row], *(cell(row, column) for column in shown)] for row in shown]
    some = f", the {len(shown)} of {len(own)} classes that are grouped most" if len(shown) < len(own) else ""
    caption = (
        f"Of the certified answers that hold the class of a row, the percentage that holds that of a column too{some}; "
        f"on the diagonal how many answers hold the class. Smallest answers, {SHOWN}, "
        f"ε = {shown_epsilon(found.epsilon)} ({found.units})"
    )
    return table(caption, ["class", *(found.names[column] for column in shown)], rows)


def _proposal(found: Findings) -> Html:
    proposed = found.suggestion
    if proposed is None:
        return Html("")
    at = f"ε = {shown_epsilon(proposed.certificate.epsilon)} ({found.units})"
    parts = [
        element("h4", "Suggested affinity sets"),
        element("p", f"From {counted(len(proposed.labels), 'point')} ({proposed.on}), never test points, at {at}."),
        *map(paragraph, proposed.sentences),
    ]
    if proposed.sets:
        button = element("button", "Copy", type="button", class_="copy")
        text = element("pre", proposed.text(), tabindex="0", aria_label="Suggested affinity sets, a TOML file")
        use = "Save them as sets.toml, and train with --guarantee affinity:sets.toml."
        parts += [element("div", button, text, class_="copied"), paragraph(use, class_="dim")]
    return join(parts)


def surface_figure(found: Findings, surface: Surface) -> Html:
    """The plane with its answers as colours, some test points, and a disc of radius ε."""
    (left, bottom), (right, top) = surface.low, surface.high
    wide, tall = right - left, top - bottom
    hues = class_colours(len(found.names))
    dot = DOT * wide
    points = [(found.points.test[torch.tensor([each.place])].exact[0].tolist(), each.label) for each in found.examples]
    circles = [
        element("circle", cx=f"{x - left:.6g}", cy=f"{top - y:.6g}", r=f"{dot:.6g}", fill=hues[label], class_="dot",
                stroke_width=f"{dot / 2:.6g}")
        for (x, y), label in points
    ]  # fmt: skip
    ball = min(found.epsilon, wide / 4)
    edge = [] if found.epsilon > ball else [
        element("circle", cx=f"{wide - ball - 2 * dot:.6g}", cy=f"{tall - ball - 2 * dot:.6g}", r=f"{ball:.6g}",
                class_="ball", stroke_width=f"{dot / 2:.6g}")
    ]  # fmt: skip
    picture = element(
        "svg",
        element("image", href=png_address(surface.pixels), width=f"{wide:.6g}", height=f"{tall:.6g}",
                preserveAspectRatio="none"),
        *circles, *edge,
        viewBox=f"0 0 {wide:.6g} {tall:.6g}", role="img",
        aria_label="The plane, coloured by the smallest certified answer at each place",
    )  # fmt: skip
    keys = [
        element("li", *(element("i", class_="swatch", style=f"background:{hue}") for hue in (
            [hues[member] for member in members] or [REJECTED])), _set(members, found.names))
        for members in surface.sets
    ]  # fmt: skip
    caption = (
        f"Colour: the smallest certified answer at ε = {shown_epsilon(found.epsilon)} ({found.units}), {SHOWN}; "
        "stripes: an answer of several classes; dark: no certificate. Dots: the inputs above, by their label. "
        f"{'The circle has the radius ε. ' if edge else ''}Across {surface.axes[0]} from {left:.3g} to {right:.3g}, "
        f"upwards {surface.axes[1]} from {bottom:.3g} to {top:.3g}."
    )
    return element("figure", picture, element("ul", *keys, class_="keys"), element("figcaption", caption),
                   class_="surface")  # fmt: skip


def _set(members: list[int], names: tuple[str, ...]) -> str:
    return f" {{{', '.join(names[member] for member in members)}}}" if members else " ⊥ no certificate"
