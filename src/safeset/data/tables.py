"""A user's own table: a CSV file with a header and a column of labels."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from safeset.data.columns import (
    OneHot,
    Row,
    check_no_texts,
    input_names,
    is_index,
    numbers_of,
    parse_table,
    scaled,
    texts_of,
)
from safeset.data.dataset import TEST_SHARE, Dataset, Split, draw_apart, stratify
from safeset.data.labels import as_labels
from safeset.data.units import OWN
from safeset.errors import DataWarning, counted, expected, first_few, nearest
from safeset.inputs import SCALED

LABELS = ("class", "label", "labels", "target", "y")  # usual names of the column of labels
UNCHANGED = (0.0, 1.0)  # the range that scales nothing
LARGEST = float(torch.finfo(torch.float32).max)  # training computes in float32


def read_table(
    path: Path,
    *,
    label: str | None = None,
    ranges: Mapping[str, tuple[float, ...]] | None = None,
    drop: Sequence[str] = (),
    one_hot: OneHot | Sequence[str] = (),
    units: str | None = None,
    skip_bad: bool = False,
    calibration: float = 0.0,
) -> Dataset:
    """Read a CSV file with a header: numbers in every column but that of the label, a fifth of each class to test.

    Args:
        path: the file. A first column without a name that numbers the rows is left out.
        label: name of the label's column; by default the last one.
        ranges: (least, largest) for columns that are to be scaled to [0, 1]; ε is then in scaled units. By default each
            column's own range in the training rows.
        drop: columns to leave out.
        one_hot: columns of texts, each of which becomes a column of 0 and 1; or the texts of each such column.
        units: ``raw`` for numbers as they are.
        skip_bad: leave out rows that cannot be used, instead of stopping.
        calibration: the share of the training rows that will be drawn for calibration (`Dataset.for_calibration`); they
            do not count for the ranges either.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, rows = parse_table(file, str(path), tabs=path.suffix.lower() == ".tsv")
    if len(header) < 2:
        raise expected(f"{path} to have a column of numbers and one of labels", counted(len(header), "column"))
    fixed, notes = dict(ranges or {}), list[str]()
    label = _choose_label(label, header, {*fixed, *drop, *one_hot}, notes, quiet=bool(fixed), path=path)
    columns = _choose_columns(header, rows, label, drop, fixed, notes, path)
    texts = dict(one_hot) if isinstance(one_hot, Mapping) else texts_of(rows, header, one_hot, str(path))
    inputs = _order_inputs(input_names(columns, texts), fixed, path)
    check_no_texts(rows, header, [name for name in columns if name not in texts], str(path))
    numbers, labels, bad = numbers_of(rows, header, inputs, label, texts)
    _check_rows(numbers, list(bad.values()), skip_bad, path)
    names, y = as_labels(labels, None)
    x = torch.tensor(numbers, dtype=torch.float64)
    stay, held = stratify(y, TEST_SHARE, seed=0)
    seen = stay[draw_apart(len(stay), calibration)[0]] if calibration else stay
    chosen = _ranges(x[seen], inputs, fixed, texts, raw=units is not None)
    points = torch.from_numpy(scaled(x.numpy(), chosen))
    if not bool((points.abs() <= LARGEST).all()):
        raise expected(f"numbers of {path} that fit into float32", "numbers too large for it", "Scale them.")
    good = [f"line {line}" for line, _ in rows if line not in bad]
    return Dataset(
        path.stem,
        Split(points[stay], y[stay]),
        Split(points[held], y[held]),
        names,
        OWN if units is not None else SCALED,
        ranges=chosen,
        one_hot=texts or None,
        names=(tuple(good[place] for place in stay.tolist()), tuple(good[place] for place in held.tolist())),
        notes=tuple(notes),
    )


def _choose_label(
    label: str | None, header: list[str], others: set[str], notes: list[str], *, quiet: bool, path: Path
) -> str:
    """Choose the column of labels; a note is added where another column has a usual name for it, unless ``quiet``."""
    if label is None:
        label = _label_column(header, others)
        named = [name for name in header if name.lower() in LABELS and name != label]
        if named and label.lower() not in LABELS and not quiet:
            notes.append(f"The labels are taken from the last column, {label!r}. For another: --label {named[0]}")
    if label not in header:
        raise expected(f"a column of labels in {path}", repr(label), nearest(label, header))
    return label


def _label_column(header: list[str], known: set[str]) -> str:
    """The last column; or, where that is an input of a run, the only column that is not."""
    others = [name for name in header if name not in known]
    return others[0] if header[-1] in known and len(others) == 1 else header[-1]


def _choose_columns(
    header: list[str],
    rows: list[Row],
    label: str,
    drop: Sequence[str],
    fixed: Mapping[str, tuple[float, ...]],
    notes: list[str],
    path: Path,
) -> list[str]:
    """Choose the inputs: all columns but the label, those to drop, and a first one that only numbers the rows."""
    unknown = next((name for name in drop if name not in header and not fixed), None)
    if unknown is not None:
        raise expected(f"columns of {path} to leave out", repr(unknown), nearest(unknown, header))
    columns = [name for name in header if name != label and name not in drop]
    if columns[:1] == header[:1] and header[0] not in fixed and is_index(header, rows):
        notes.append("The first column has no name and only numbers the rows: it was left out.")
        return columns[1:]
    return columns


def _order_inputs(inputs: list[str], fixed: Mapping[str, tuple[float, ...]], path: Path) -> list[str]:
    """Put the inputs in the order of the ranges: a run has those of its network, and another file may differ."""
    for name in fixed:
        if name not in inputs:
            raise expected(f"a column {name!r} in {path}, for which there is a range", "none", nearest(name, inputs))
    if not inputs or len(set(inputs)) < len(inputs):
        raise expected(f"columns of different names in {path}", "none" if not inputs else "the name of an encoded text")
    return [*fixed, *(name for name in inputs if name not in fixed)]


def _check_rows(numbers: list[list[float]], bad: list[str], skip_bad: bool, path: Path) -> None:
    """Raise an error for bad rows, or warn of those that are left out."""
    if bad and not skip_bad:
        got = f"{len(bad)} bad: {first_few(bad)}"
        remedy = "Mend them, or leave them out: train --skip-bad; --label there names the column of labels."
        raise expected(f"numbers in every row of {path}", got, remedy)
    if bad:
        warnings.warn(f"{counted(len(bad), 'row')} of {path} left out: {first_few(bad)}.", DataWarning, stacklevel=3)
    if not numbers:
        raise expected(f"rows of numbers in {path}", "none")


def _ranges(
    x: Tensor, inputs: list[str], fixed: Mapping[str, tuple[float, ...]], texts: OneHot, *, raw: bool
) -> dict[str, tuple[float, float]]:
    """The range that scales each input: a fixed one, or its own in the training rows; texts are 0 and 1 already."""
    if raw:
        return dict.fromkeys(inputs, UNCHANGED)
    own = zip(x.amin(dim=0).tolist(), x.amax(dim=0).tolist(), strict=True)
    found = {name: _pair(fixed.get(name, pair)) for name, pair in zip(inputs, own, strict=True)}
    return found | {name: UNCHANGED for name in input_names(texts, texts) if name not in fixed}


def _pair(ends: tuple[float, ...]) -> tuple[float, float]:
    low, high = ends
    return low, high
