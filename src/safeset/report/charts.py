"""Curves as inline SVG, whose colours are those of the page, light or dark; beneath them the numbers."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from safeset.report.html import Html, element, escape, join, table

WIDE, TALL = 420, 250  # units of the picture, about a dot each
LEFT, RIGHT, TOP, BOTTOM = 46, 12, 12, 42
KINDS = 6  # of lines that the style sheet tells apart, by colour and by dashes
Numbers = Sequence[float | None]


@dataclass(frozen=True)
class Line:
    """A curve with its name; None is a gap."""

    name: str
    x: Sequence[float]
    y: Numbers


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and how its numbers are written; the ends follow from the lines unless they are given.

    ``integers``: only they are written, such as of epochs and classes.
    """

    label: str
    shown: Callable[[float], str]
    low: float | None = None
    high: float | None = None
    integers: bool = False


def chart(title: str, lines: Sequence[Line], across: Axis, up: Axis, *, mark: tuple[float, str] | None = None) -> Html:
    """A figure with its curves, what each is called, and a table of the numbers to unfold.

    Args:
        title: above it.
        lines: the curves.
        across: the horizontal axis.
        up: the vertical axis.
        mark: a place on the horizontal axis to be marked, and what it is.
    """
    frame = _Frame(lines, across, up)
    parts = [*frame.grid(across, up)]
    if mark is not None:
        x = frame.x(mark[0])
        parts.append(element("line", class_="mark", x1=x, x2=x, y1=TOP, y2=TALL - BOTTOM))
    for place, line in enumerate(lines):
        parts += [
            element("polyline", class_=f"line k{place % KINDS}", points=" ".join(piece)) for piece in frame.pieces(line)
        ]
    label = f"{title}: {', '.join(line.name for line in lines)}, against {across.label}"
    picture = element("svg", *parts, viewBox=f"0 0 {WIDE} {TALL}", role="img", aria_label=label)
    keys = [element("li", _sample(place), line.name) for place, line in enumerate(lines)]
    if mark is not None:
        keys.append(element("li", _sample(None), mark[1]))
    return element(
        "figure",
        element("figcaption", title),
        picture,
        element("ul", *keys, class_="keys"),
        element("details", element("summary", "The numbers"), _numbers(title, lines, across, up)),
        class_="chart",
    )


class _Frame:
    """Where numbers lie in the picture."""

    def __init__(self, lines: Sequence[Line], across: Axis, up: Axis) -> None:
        every = [value for line in lines for value in line.x]
        values = [value for line in lines for value in line.y if value is not None]
        self.across = _ends(across, every)
        self.up = _ends(up, values)

    def x(self, value: float) -> float:
        low, high = self.across
        return round(LEFT + (value - low) / (high - low) * (WIDE - LEFT - RIGHT), 2)

    def y(self, value: float) -> float:
        low, high = self.up
        return round(TALL - BOTTOM - (value - low) / (high - low) * (TALL - TOP - BOTTOM), 2)

    def grid(self, across: Axis, up: Axis) -> list[Html]:
        """Lines across with their numbers, numbers below, and what the axis shows."""
        found = []
        for value in ticks(*self.up, integers=up.integers):
            y = self.y(value)
            found.append(element("line", class_="grid", x1=LEFT, x2=WIDE - RIGHT, y1=y, y2=y))
            found.append(element("text", up.shown(value), x=LEFT - 6, y=y + 4, class_="end"))
        found += [
            element("text", across.shown(value), x=self.x(value), y=TALL - BOTTOM + 17, class_="middle")
            for value in ticks(*self.across, integers=across.integers)
        ]
        middle = (LEFT + WIDE - RIGHT) / 2
        found.append(element("text", across.label, x=middle, y=TALL - 6, class_="middle label"))
        return found

    def pieces(self, line: Line) -> list[list[str]]:
        """A line as far as it has no gap, and again."""
        points = list(zip(line.x, line.y, strict=True))
        pieces = (list(piece) for there, piece in groupby(points, key=lambda point: point[1] is not None) if there)
        return [[f"{self.x(x)},{self.y(y)}" for x, y in piece if y is not None] for piece in pieces]


def ticks(low: float, high: float, most: int = 6, *, integers: bool = False) -> list[float]:
    """Round numbers from one end to the other, at most so many; only integers where asked.

    >>> ticks(0.0, 1.0), ticks(0.0, 0.37), ticks(1, 100)
    ([0.0, 0.2, 0.4, 0.6, 0.8, 1.0], [0.0, 0.1, 0.2, 0.3], [20.0, 40.0, 60.0, 80.0, 100.0])
    >>> ticks(1, 3), ticks(1, 3, integers=True)
    ([1.0, 1.5, 2.0, 2.5, 3.0], [1.0, 2.0, 3.0])
    """
    least = max((high - low) / (most - 1), 1.0 if integers else 0.0)
    power = 10.0 ** math.floor(math.log10(least))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{place * step:.12g}") for place in range(first, last + 1)]


def _ends(axis: Axis, values: Sequence[float]) -> tuple[float, float]:
    """The least and largest number that an axis shows: never the same."""
    low = axis.low if axis.low is not None else min(values, default=0.0)
    high = axis.high if axis.high is not None else max(values, default=1.0)
    return low, high if high > low else low + 1.0


def _sample(place: int | None) -> Html:
    """A short piece of a line, as a key."""
    kind = "mark" if place is None else f"line k{place % KINDS}"
    line = element("line", class_=kind, x1=0, x2=26, y1=5, y2=5)
    return element("svg", line, viewBox="0 0 26 10", class_="key", aria_hidden="true")


def _numbers(title: str, lines: Sequence[Line], across: Axis, up: Axis) -> Html:
    def shown(value: float | None) -> str:
        return "–" if value is None else up.shown(value)

    if all(line.x == lines[0].x for line in lines):
        header = [across.label, *(line.name for line in lines)]
        rows = [[across.shown(x), *(shown(line.y[place]) for line in lines)] for place, x in enumerate(lines[0].x)]
        return table(title, header, rows)
    return join(
        table(f"{title}, {line.name}", [across.label, escape(up.label)],
              [[across.shown(x), shown(y)] for x, y in zip(line.x, line.y, strict=True)])
        for line in lines
    )  # fmt: skip
