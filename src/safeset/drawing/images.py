"""Images with their certified sets beneath, in blocks with headings."""

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from safeset.drawing.sheet import BODY, DOTS, FAINT, INK, LINE, MARGIN, SMALL, WIDTH, Sheet, wrap_caption

SIDE = 192 / DOTS  # inches; images of 32 × 32 and of 64 × 64 are enlarged by an integer
SPACING = 0.19  # inches between names
HEADING, TITLE, GAP = 0.32, 0.2, 0.22  # inches
STRANGE = "#c2410c"


@dataclass(frozen=True)
class Name:
    """The name of a class in a set, and how it is written."""

    text: str
    bold: bool = False
    optional: bool = False
    strange: bool = False


@dataclass(frozen=True, eq=False)
class Sample:
    """An image (channels, height, width), a title above it if any, and sets beneath, each with a title if any."""

    image: Tensor
    sets: Sequence[Sequence[Name]]
    title: str = ""
    titles: Sequence[str] = ()

    @property
    def tall(self) -> float:
        """Inches from the upper edge to the last name."""
        names = max((len(names) for names in self.sets), default=0)
        return (TITLE if self.title else 0) + SIDE + 0.08 + (names + bool(self.titles)) * SPACING


@dataclass(frozen=True, eq=False)
class Block:
    """Images under a heading."""

    heading: str
    samples: Sequence[Sample]


def paint(blocks: Sequence[Block], *, columns: int, caption: str) -> bytes:
    """Paint a page of blocks, ``columns`` images in a row, with a caption at its foot, as a PNG file."""
    lines = wrap_caption(caption)
    rows = [
        (block, [block.samples[place : place + columns] for place in range(0, max(1, len(block.samples)), columns)])
        for block in blocks
    ]
    tall = sum(
        HEADING * bool(block.heading) + sum(max((one.tall for one in row), default=SPACING) + GAP for row in several)
        for block, several in rows
    )
    sheet = Sheet(MARGIN + tall + len(lines) * LINE + MARGIN)
    top, wide = MARGIN, (WIDTH - 2 * MARGIN) / columns
    for block, several in rows:
        if block.heading:
            sheet.text(MARGIN, top, block.heading, fontweight="bold")
            top += HEADING
        for row in several:
            if not row:
                sheet.text(MARGIN, top, "none", color=FAINT)
            for place, sample in enumerate(row):
                _one(sheet, sample, MARGIN + place * wide, top, wide)
            top += max((sample.tall for sample in row), default=SPACING) + GAP
    sheet.lines(top, lines)
    return sheet.png()


def _one(sheet: Sheet, sample: Sample, left: float, top: float, wide: float) -> None:
    """Paint an image in the middle of its column, its title above and its sets beneath."""
    middle = left + wide / 2
    if sample.title:
        sheet.text(middle, top, sample.title, fontsize=SMALL, color=FAINT, ha="center")
        top += TITLE
    axes = sheet.axes(round((middle - SIDE / 2) * DOTS) / DOTS, round(top * DOTS) / DOTS, SIDE, SIDE)
    pixels = sample.image.expand(3, -1, -1).permute(1, 2, 0)
    axes.imshow(pixels.numpy(), interpolation="nearest")
    axes.spines[:].set(color="#cccccc", linewidth=0.6)  # white images have an edge too
    top += SIDE + 0.08
    each = wide / max(1, len(sample.sets))
    for place, names in enumerate(sample.sets):
        across, down = left + (place + 0.5) * each, top
        if sample.titles:
            sheet.text(across, down, sample.titles[place], fontsize=SMALL, color=FAINT, ha="center")
            down += SPACING
        for name in names:
            style = {
                "fontweight": "bold" if name.bold else "normal",
                "fontstyle": "italic" if name.optional else "normal",
                "color": STRANGE if name.strange else INK,
                "fontsize": BODY if len(sample.sets) == 1 else BODY - 1,
            }
            sheet.text(across, down, f"+ {name.text}" if name.optional else name.text, ha="center", **style)
            down += SPACING
