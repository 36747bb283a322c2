"""Tables of any width: whole, in order, and never wider than the terminal."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from safeset.terminal.layout import fold, fold_prose, table_lines

LETTERS = "abz019 .{},±ε≈–日本語한국e\u0301\u00a0🙂"  # wide ones, and one that takes no cell of its own
CELLS = st.text(LETTERS, max_size=30) | st.text(LETTERS, min_size=40, max_size=120) | st.just("")


@st.composite
def tables(draw):
    columns = draw(st.integers(1, 12))
    line = st.lists(CELLS, min_size=columns, max_size=columns)
    return draw(line), draw(st.lists(line, min_size=0, max_size=4)), draw(st.integers(0, columns))


def letters(text):
    """What is to be read, wherever the lines break."""
    return "".join(text.split())


@given(tables(), st.integers(40, 220))
def test_nothing_is_lost_added_or_moved_and_no_line_is_too_wide(table, width):
    header, rows, texts = table
    lines = [line.plain for line in table_lines(header, rows, width, texts=texts)]
    assert all(cell_len(line) <= width for line in lines)
    columns = [*header, *(cell for row in rows for cell in row)]
    pairs = [
        part
        for title, *cells in rows
        for part in (
            title,
            *(f"{name}:{cell}" if name else cell for name, cell in zip(header[1:], cells, strict=True) if cell),
        )
    ]
    expected = [letters("".join(columns)), letters("".join(pairs))]
    assert letters("".join(lines)) in expected


@given(tables())
def test_without_a_width_every_row_is_a_line(table):
    header, rows, texts = table
    lines = [line.plain for line in table_lines(header, rows, texts=texts)]
    assert len(lines) - len(rows) == (1 if any(letters(name) for name in header) else 0)
    for line, row in zip(lines[::-1], rows[::-1], strict=False):
        assert letters(line) == letters("".join(row))


@given(st.text(LETTERS), st.integers(2, 60))
def test_a_folded_text_is_whole(text, width):
    lines = fold(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert letters("".join(lines)) == letters(text)
    if all(cell_len(word) <= width for word in text.split(" ")):
        assert " ".join(lines) == text  # broken at spaces only


@given(st.text(LETTERS), st.integers(2, 60))
def test_folded_prose_has_every_word_whole_and_leaves_lines_that_fit(text, width):
    lines = fold_prose(text, width)
    assert " ".join(lines).split() == text.split()
    if cell_len(text) <= width:
        assert lines == [text]
    for line, following in pairwise(lines):
        assert cell_len(line) <= width or " " not in line.strip(" -")
        next_word = following.strip(" ").split(" ")[0]
        assert cell_len(f"{line} {next_word}") > width


def test_a_command_is_never_broken():
    command = "safeset train --resume --out runs/photos"
    told = f"Nothing is saved here; go on with: {command} (or not), and again: {command}."
    for width in range(20, 100):
        lines = fold_prose(told, width)
        assert " ".join(lines) == told
        assert sum(command in line for line in lines) == 2 or any(line.count(command) == 2 for line in lines)


HEADER = ["method", "ε", "VRA", "rejected", "core + optional"]
ROWS = [["uniform", "0.05", "0.653 ± 0.004", "0.347", "1.04"], ["joint", "0.5", "0.8", "0.2", "–"]]


def shown(width, header=HEADER, rows=ROWS, **options):
    return [line.plain for line in table_lines(header, rows, width, **options)]


def test_columns_where_they_fit():
    whole = [
        "method      ε            VRA  rejected  core + optional",
        "uniform  0.05  0.653 ± 0.004     0.347             1.04",
        "joint     0.5            0.8       0.2                –",
    ]
    assert shown(None) == shown(200) == shown(len(whole[0])) == whole
    assert shown(len(whole[0]) - 1) != whole


def test_blocks_line_up_with_a_short_title_beside_them():
    assert shown(50) == [
        "uniform  ε: 0.05   VRA: 0.653 ± 0.004",
        "         rejected: 0.347   core + optional: 1.04",
        "joint    ε:  0.5   VRA:           0.8",
        "         rejected:   0.2   core + optional:    –",
    ]


def test_blocks_with_a_long_title_and_cells_that_are_empty_or_long():
    header, rows = ["point", "core", "may join", "holds for ε", ""], []
    rows.append(["photos/日本語の写真.png", "{dusk}", "", "{dusk} < 0.0231, {dusk, dark room} < 0.4412", "by joint"])
    rows.append(["a.png", "⊥", "noon", "exactly as wide as it can", ""])
    assert shown(40, header, rows, texts=5) == [
        "photos/日本語の写真.png",
        "  core: {dusk}",
        "  holds for ε: {dusk} < 0.0231, {dusk,",
        "    dark room} < 0.4412",
        "  by joint",
        "a.png",
        "  core: ⊥        may join: noon",
        "  holds for ε: exactly as wide as it can",
    ]


@pytest.mark.parametrize("width", [-1, 0, 1, 19])
def test_a_terminal_without_room_gets_lines_all_the_same(width):
    lines = shown(width)
    assert lines == shown(20)
    assert max(map(cell_len, lines)) <= 20
