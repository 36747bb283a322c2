"""Tables as lines of text of a given width: columns where they fit, else a block for each row. Nothing is ever cut."""

import re
from collections.abc import Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

GAP = "  "  # between columns, and before the pairs of a block
PAIRS = "   "  # between two pairs of a block
NARROWEST = 20  # cells: lines are no shorter, even if a terminal says that it is narrower
NAME, TITLE = "dim", "bold"
_COMMAND_OR_WORD = re.compile(r"(?<=: )safeset [a-z][^ ]*(?:(?<![,;:.)…]) (?!\()[^ ]+)*|[^ ]+")


def table_lines(
    header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None = None, *, texts: int = 1
) -> list[Text]:
    """A table as lines, none of which is wider than ``width`` cells of a terminal.

    Where the columns do not fit, each row becomes a block: the first cell is its title, the others follow as pairs
    ``name: value``, as many in a line as fit, and at the same places in every block. Empty cells are left out there.

    Args:
        header: names of the columns; a column without a name has "".
        rows: cells, one line each.
        width: in cells; None for no limit.
        texts: how many of the first columns are texts; the others are numbers.

    >>> for line in table_lines(["method", "ε", "VRA"], [["uniform", "0.5", "0.653"], ["joint", "0.05", "0.8"]]):
    ...     print(line)
    method      ε    VRA
    uniform   0.5  0.653
    joint    0.05    0.8
    >>> for line in table_lines(["method", "what it is", "VRA"], [["uniform", "the paper's own", "0.653"]], 24):
    ...     print(line)
    uniform
      what it is: the
        paper's own
      VRA: 0.653
    """
    widths = _widths([header, *rows])
    if width is None or sum(widths) + len(GAP) * (len(widths) - 1) <= width:
        return list(_columns(header, rows, widths, texts))
    if not rows:
        return [Text(line, style=NAME) for line in fold(GAP.join(header), max(width, NARROWEST))]
    return list(_blocks(header, rows, _widths(rows), texts, max(width, NARROWEST)))


def fold(text: str, width: int) -> list[str]:
    """A text in lines of at most ``width`` cells: broken at spaces, and inside words that are wider.

    >>> fold("no certificate, incomprehensible", 10)
    ['no', 'certificat', 'e,', 'incomprehe', 'nsible']
    """
    first, *words = text.split(" ")
    *lines, line = _chop(first, width)
    for word in words:
        if cell_len(longer := f"{line} {word}") <= width:
            line = longer
        else:
            *more, last = _chop(word, width)
            lines += [line, *more]
            line = last
    return [*lines, line]


def fold_prose(text: str, width: int) -> list[str]:
    """Prose in lines of at most ``width`` cells. Words and commands are left whole, so that they can be copied.

    A command stands behind a colon and reaches to the next mark or the end. Lines that fit are left as they are; those
    that follow from one are indented as it is.

    >>> for line in fold_prose("  Nothing is saved here; go on with: safeset train --resume --out runs/a", 30):
    ...     print(line)
      Nothing is saved here; go on
      with:
      safeset train --resume --out runs/a
    """
    lines = []
    for paragraph in text.split("\n"):
        if cell_len(paragraph) <= width:
            lines.append(paragraph)
            continue
        start = re.match(r" *(- )?", paragraph)
        assert start is not None  # it matches nothing too
        first, *pieces = _COMMAND_OR_WORD.findall(paragraph[start.end() :]) or [""]
        indent, line = " " * start.end(), start.group() + first
        for piece in pieces:
            if cell_len(line) + 1 + cell_len(piece) <= width:
                line += f" {piece}"
            else:
                lines.append(line)
                line = indent + piece
        lines.append(line)
    return lines


def _chop(word: str, width: int) -> list[str]:
    pieces = [""]
    for letter in word:
        if cell_len(pieces[-1] + letter) > width:
            pieces.append("")
        pieces[-1] += letter
    return pieces


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """How many cells each column takes."""
    return [max(map(cell_len, column)) for column in zip(*rows, strict=True)]


def _columns(header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], texts: int) -> Iterator[Text]:
    for place, row in enumerate((header, *rows)):
        line = GAP.join(_align(cell, widths[column], column < texts) for column, cell in enumerate(row)).rstrip()
        if place or line:
            yield Text(line, style="" if place else NAME)


def _blocks(
    header: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], texts: int, width: int
) -> Iterator[Text]:
    aside = widths[0] + len(GAP) <= width // 4  # a short title stands beside its pairs
    indent = widths[0] + len(GAP) if aside else len(GAP)
    names = [f"{name}: " if name else "" for name in header]
    rooms = [cell_len(name) + room for name, room in zip(names, widths, strict=True)]
    for row in rows:
        body = []
        for columns in _pack(rooms, width - indent):
            if any(row[column] for column in columns):
                if rooms[columns[0]] > width - indent:
                    body += _folded_pair(names[columns[0]], row[columns[0]], width - indent)
                else:
                    pairs = [_pair(names[each], row[each], widths[each], each < texts) for each in columns]
                    line = Text(PAIRS).join(pairs)
                    line.rstrip()
                    body.append(line)
        titles = [Text(part, style=TITLE) for part in fold(row[0], width)] if row[0] else []
        if aside and body:
            first = titles[0] if titles else Text()
            yield Text.assemble(first, " " * (indent - first.cell_len), body.pop(0))
        else:
            yield from titles
        yield from (Text.assemble(" " * indent, line) for line in body)


def _pack(rooms: Sequence[int], width: int) -> list[list[int]]:
    """Put all columns but the first into lines, as many into each as fit, and at least one."""
    lines: list[list[int]] = []
    taken = width + 1
    for column in range(1, len(rooms)):
        if taken + len(PAIRS) + rooms[column] <= width:
            lines[-1].append(column)
            taken += len(PAIRS) + rooms[column]
        else:
            lines.append([column])
            taken = rooms[column]
    return lines


def _pair(name: str, value: str, width: int, text: bool) -> Text:
    """A name and its value, as wide as the column; blanks where there is no value."""
    return Text.assemble((name if value else " " * cell_len(name), NAME), _align(value, width, text))


def _folded_pair(name: str, value: str, width: int) -> list[Text]:
    """A pair in as many lines as it needs; all but the first are indented."""
    text = name + value
    first, *others = [text] if cell_len(text) <= width else fold(text, width - len(GAP))
    line = Text(first)
    line.stylize(NAME, 0, len(name))
    return [line, *(Text(GAP + other) for other in others)]


def _align(cell: str, width: int, text: bool) -> str:
    space = " " * (width - cell_len(cell))
    return cell + space if text else space + cell
