"""The columns of a CSV file: their names, numbers and texts, and what is wrong with which row."""

import csv
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeset.errors import counted, expected, nearest, repeated

UNNAMED = ("", "Unnamed: 0")  # what an index column is called, by pandas too
MOST_TEXTS = 1000  # a column with more is not encoded
FEW_TEXTS = 50  # encoding is proposed for a column with fewer
MARKS = (",", ";", "\t")  # between columns
DECIMAL_COMMA = re.compile(r"\s*[+-]?\d*,\d+(?:[eE][+-]?\d+)?\s*")
WITH_POINTS = "Write numbers with points, such as 1.5: replace the commas, or save the file so."
MISSING = {"", "na", "n/a", "nan", "none", "null", "?", "-", "inf", "-inf"}

Row = tuple[int, list[str]]  # the number of its line, and its cells
OneHot = Mapping[str, tuple[str, ...]]  # texts of columns; each becomes a column of 0 and 1


def parse_table(lines: Iterable[str], what: str, *, tabs: bool = False) -> tuple[list[str], list[Row]]:
    """Parse the text of a table: the names of the columns, and the rows that are not empty.

    Columns are between commas, tabs or semicolons: the usual mark, or the first by which all rows have as many columns.
    """
    usual, *others = sorted(MARKS, key=lambda mark: mark != "\t") if tabs else MARKS
    try:
        text = list(lines)
        rows = _split_at(usual, text)
        if not _is_even(rows):
            rows = next((found for mark in others if _is_even(found := _split_at(mark, text))), rows)
    except csv.Error as error:
        raise expected(f"{what} to be a CSV file", str(error)) from None
    except UnicodeDecodeError:
        raise expected(f"{what} to be text in UTF-8", "other bytes", "Save it as UTF-8.") from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    if _looks_like_data(header, rows[1:]):
        remedy = "Put a line with a name for each column before it, such as x1,x2,label."
        raise expected(
            f"{what} to start with a header, the names of its columns", f"data: {','.join(header)[:60]!r}", remedy
        )
    if not header or len(set(header)) < len(header):
        got = f"{repeated(header)!r} twice" if header else "nothing"
        raise expected(f"{what} to start with a header of different names", got)
    other = next((mark for mark in others if len(header) == 1 and mark in header[0]), None)
    if other:
        wanted = f"as many columns in every row of {what} as in its header"
        raise expected(wanted, f"{other!r} in {header[0][:40]!r}, but not as often in every row")
    return header, rows[1:]


def _split_at(mark: str, lines: list[str]) -> list[Row]:
    reader = csv.reader(lines, delimiter=mark)
    return [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]


def _is_even(rows: list[Row]) -> bool:
    """Whether all rows have the same number of columns, and more than one."""
    return bool(rows) and len(rows[0][1]) > 1 and len({len(row) for _, row in rows}) == 1


def _looks_like_data(header: list[str], rows: list[Row]) -> bool:
    """Whether a first line holds numbers, and at most one text, which is a label of other lines too.

    Names may be numbers that count: 0, 1, 2, or 2010, 2011, 2012.
    """
    numbers = [number_in(cell) for cell in header]
    values = [number for number in numbers if number is not None]
    if not values or len(values) < len(header) - 1:
        return False
    if len(values) < len(header):
        place = numbers.index(None)
        return any(row[place].strip() == header[place] for _, row in rows if len(row) > place)
    return not (all(value.is_integer() for value in values) and all(two - one == 1 for one, two in pairwise(values)))


def is_index(header: list[str], rows: list[Row]) -> bool:
    """Whether the first column only numbers the rows: without a name, and with integers that all differ."""
    if not header or header[0] not in UNNAMED:
        return False
    cells = [row[0].strip() for _, row in rows if row]
    return len(cells) > 1 and all(cell.isdecimal() for cell in cells) and len(set(cells)) == len(cells)


def check_no_texts(rows: list[Row], header: list[str], columns: Sequence[str], what: str) -> None:
    """Raise one error for columns in which most cells are texts, with a remedy."""
    texts: dict[str, set[str]] = {}
    for name in columns:
        place = header.index(name)
        cells = [row[place].strip() for _, row in rows if len(row) == len(header)]
        there = [cell for cell in cells if cell.lower() not in MISSING]
        strange = [cell for cell in there if number_in(cell) is None]
        commas = [cell for cell in strange if DECIMAL_COMMA.fullmatch(cell)]
        if commas and len(commas) == len(strange):
            raise expected(f"decimal points in {what}", f"a decimal comma, {commas[0]!r} for {name!r}", WITH_POINTS)
        if 2 * len(strange) > len(there):
            texts[name] = set(strange)
    if not texts:
        return
    few = [name for name, found in texts.items() if len(found) <= FEW_TEXTS and 2 * len(found) <= max(2, len(rows))]
    encode = f", --one-hot {','.join(few)} encodes {'them' if len(few) > 1 else 'it'}" if few else ""
    names = ", ".join(map(repr, texts))
    hold = f"column{'s' if len(texts) > 1 else ''} {names}, which hold{'' if len(texts) > 1 else 's'} text"
    remedy = f"--drop {','.join(texts)} leaves {'them' if len(texts) > 1 else 'it'} out{encode}."
    raise expected(f"numbers in {what}", f"the {hold}", f"{remedy} --label names the column of labels.")


def texts_of(rows: list[Row], header: list[str], columns: Sequence[str], what: str) -> dict[str, tuple[str, ...]]:
    """The texts of columns that are to be encoded, in order."""
    found = {}
    for name in columns:
        if name not in header:
            raise expected(f"columns of {what} to encode", repr(name), nearest(name, header))
        place = header.index(name)
        texts = sorted({row[place].strip() for _, row in rows if len(row) == len(header)} - {""})
        if not 0 < len(texts) <= MOST_TEXTS:
            remedy = "Leave it out with --drop."
            raise expected(f"1..{MOST_TEXTS} different texts in {name!r}, to encode it", f"{len(texts):,}", remedy)
        found[name] = tuple(texts)
    return found


def input_names(columns: Iterable[str], one_hot: OneHot) -> list[str]:
    """The names of the inputs that columns become: ``city=Rome`` for a text of one that is encoded.

    >>> input_names(["height", "city"], {"city": ("Bern", "Rome")})
    ['height', 'city=Bern', 'city=Rome']
    """
    each = ([f"{name}={text}" for text in one_hot[name]] if name in one_hot else [name] for name in columns)
    return [name for names in each for name in names]


def numbers_of(
    rows: Iterable[Row],
    header: list[str],
    inputs: Sequence[str],
    label: str | None = None,
    one_hot: OneHot | None = None,
) -> tuple[list[list[float]], list[str], dict[int, str]]:
    """Numbers and labels of the good rows, and what is wrong with the others, by line."""
    texts = {name: {f"{name}={text}" for text in known} for name, known in (one_hot or {}).items()}
    plain = [name for name in inputs if not any(name in known for known in texts.values())]
    numbers, labels, bad = [], [], {}
    for line, row in rows:
        if len(row) != len(header):
            bad[line] = f"line {line} has {counted(len(row), 'column')} instead of {len(header)}"
            continue
        cells = dict(zip(header, row, strict=True))
        values = {name: number_in(cells[name]) for name in plain}
        wrong = [name for name, value in values.items() if value is None]
        chosen = {name: f"{name}={cells[name].strip()}" for name in texts}
        unknown = [name for name, text in chosen.items() if text not in texts[name]]
        if label is not None and not cells[label].strip():
            wrong.append(label)
        if wrong or unknown:
            name = (wrong or unknown)[0]
            also = "" if wrong else f", which is none of the {len(texts[name])} texts of training"
            if wrong and DECIMAL_COMMA.fullmatch(cells[name]):
                also = f", with a decimal comma. {WITH_POINTS.removesuffix('.')}"
            bad[line] = f"line {line} has {cells[name]!r} for {name!r}{also}"
            continue
        ones = set(chosen.values())
        numbers.append([float(name in ones) if (value := values.get(name)) is None else value for name in inputs])
        labels.append(cells[label].strip() if label is not None else "")
    return numbers, labels, bad


def number_in(cell: str) -> float | None:
    """A finite number as a cell has it, or None.

    >>> number_in("1e-3"), number_in("1_000"), number_in("nan")
    (0.001, None, None)
    """
    try:
        value = float(cell) if "_" not in cell else math.nan  # Python would ignore the underscore
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def scaled(x: NDArray[Any], ranges: Mapping[str, tuple[float, ...]]) -> NDArray[np.float64]:
    """Columns from their (least, largest) to [0, 1], in float64; a column of one value becomes its distance from it."""
    low, high = np.array(list(ranges.values()), dtype=np.float64).T
    with np.errstate(over="ignore", invalid="ignore"):
        spread = np.where(high > low, high - low, 1.0)
        found: NDArray[np.float64] = (x.astype(np.float64) - low) / spread
    if not np.isfinite(found).all():
        raise expected("numbers that can be scaled to [0, 1]", "numbers too large for it")
    return found
