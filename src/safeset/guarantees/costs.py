"""What confusions cost, as groups of classes: the largest in which every confusion is cheap, in both directions."""

from fractions import Fraction
from itertools import combinations
from typing import Any

from safeset.errors import expected
from safeset.guarantees.merging import sets_of
from safeset.inputs import as_written


def cheap_groups(matrix: Any, most: Any) -> list[tuple[int, ...]]:
    """The largest groups of rows in which c[j][i] ≤ most and c[i][j] ≤ most for each two; some are of one row.

    Args:
        matrix: (rows, rows) numbers ≥ 0 or ∞: what it costs to answer i (column) where j (row) is right. The diagonal
            is ignored.
        most: the largest cost that is accepted.

    >>> cheap_groups([[0, 1, 2], [1, 0, 1], [9, 1, 0]], most=1)
    [(0, 1), (1, 2)]
    """
    rows, limit = _rows(matrix), as_written(most)
    if limit is None or not limit >= 0:
        raise expected("`most`, the largest cost that is accepted, to be a number ≥ 0", repr(most))
    cheap = {
        (one, other)
        for one, other in combinations(range(len(rows)), 2)
        if rows[one][other] <= limit and rows[other][one] <= limit
    }
    if len(cheap) == len(rows) * (len(rows) - 1) // 2:
        got = f"none that costs more than {str(most)[:40]}"
        remedy = "All classes would be together, which would promise nothing: lower `most`."
        raise expected("some confusion that is too costly", got, remedy)
    alone = set(range(len(rows))) - {each for pair in cheap for each in pair}
    return sorted([*sets_of(cheap), *((each,) for each in alone)])


def _rows(matrix: Any) -> list[list[int | float | Fraction]]:
    """The numbers of a square matrix, those on the diagonal 0."""
    given = matrix.tolist() if hasattr(matrix, "tolist") else matrix
    listed = isinstance(given, list | tuple) and all(isinstance(row, list | tuple) for row in given)
    if not listed or len(given) < 2 or any(len(row) != len(given) for row in given):
        sizes = f"rows of {', '.join(str(len(row)) for row in given[:8])}" if listed and given else repr(matrix)
        raise expected("`matrix` of costs to be square, with a row for each of two classes or more", sizes)
    return [
        [0.0 if place == other else _cost(cost, place, other) for other, cost in enumerate(row)]
        for place, row in enumerate(given)
    ]


def _cost(given: Any, row: int, column: int) -> int | float | Fraction:
    cost = as_written(given)  # compared as it is: rounded, a cost just above the limit could be at it
    if cost is None or not cost >= 0:
        where = f"{given!r} in row {row}, column {column}"
        raise expected("costs to be numbers ≥ 0, `inf` for what must never happen", where)
    return cost
