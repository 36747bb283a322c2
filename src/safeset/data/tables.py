"""A user's own numbers: ``.npz`` files with arrays x and y, and CSV files with a label column."""

import csv
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from safeset.data.dataset import TEST_SHARE, Dataset, Split, stratified
from safeset.errors import expected, first_few, nearest, repeated


def npz(path: Path) -> Dataset:
    """Arrays ``x`` (n, …) and ``y`` (n,) of a ``.npz`` file; ``x_test`` and ``y_test`` if it has them, else a fifth.

    Bytes are images, (n, height, width) or (n, channels, height, width); other numbers are taken as they are, ε is in
    their units. ``class_names`` may name the classes.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise expected(f"{path} to be a .npz file of plain arrays", str(error).partition("\n")[0]) from None
    for name in ("x", "y"):
        if name not in arrays:
            raise expected(f"an array {name!r} in {path}", ", ".join(arrays) or "none", nearest(name, arrays))
    names, y = _labels(arrays["y"].tolist(), arrays["class_names"].tolist() if "class_names" in arrays else None)
    train = Split(_points(arrays["x"], f"x of {path}"), y)
    if "x_test" in arrays and "y_test" in arrays:
        _, y_test = _labels(arrays["y_test"].tolist(), list(names))
        test = Split(_points(arrays["x_test"], f"x_test of {path}"), y_test)
    else:
        train, test = train.held_out(TEST_SHARE)
    units = "pixels in [0, 1]" if train.x.dtype == torch.uint8 else "the units of x"
    return Dataset(path.stem, train, test, names, units)


def table(
    path: Path,
    *,
    label: str | None = None,
    ranges: dict[str, tuple[float, float]] | None = None,
    skip_bad: bool = False,
) -> Dataset:
    """A CSV file with a header: numbers in every column but that of the label, a fifth of each class to test.

    Args:
        path: the file.
        label: name of the label's column; by default the last one.
        ranges: (least, largest) for columns that are to be scaled to [0, 1]; ε is then in scaled units. By default each
            column's own range in the training rows.
        skip_bad: leave out rows that cannot be used, instead of stopping.
    """
    with path.open(newline="", encoding="utf-8-sig", errors="replace") as file:
        header, rows = read_table(file, str(path), tabs=path.suffix.lower() == ".tsv")
    if len(header) < 2:
        raise expected(f"{path} to have a column of numbers and one of labels", f"{len(header)} columns")
    label = header[-1] if label is None else label
    if label not in header:
        raise expected(f"a column of labels in {path}", repr(label), nearest(label, header))
    columns = [name for name in header if name != label]
    for name in ranges or {}:
        if name not in columns:
            raise expected(f"ranges for columns of {path}", repr(name), nearest(name, columns))
    numbers, labels, lines = numbers_of(rows, header, columns, label)
    bad = list(lines.values())
    if bad and not skip_bad:
        got = f"{len(bad)} bad: {first_few(bad)}"
        raise expected(f"numbers in every row of {path}", got, "Use --skip-bad to leave them out.")
    if not numbers:
        raise expected(f"rows of numbers in {path}", "none")
    names, y = _labels(labels, None)
    x = torch.tensor(numbers, dtype=torch.float64)
    stay, _ = stratified(y, TEST_SHARE, seed=0)
    own = zip(x[stay].amin(dim=0).tolist(), x[stay].amax(dim=0).tolist(), strict=True)
    chosen = {name: (ranges or {}).get(name, pair) for name, pair in zip(columns, own, strict=True)}
    told = ", ".join(f"{name} {low:g}..{high:g}" for name, (low, high) in chosen.items())
    split = Split(scaled(x, chosen), y).held_out(TEST_SHARE)
    return Dataset(path.stem, *split, names, f"columns scaled to [0, 1] ({told})", ranges=chosen)


def scaled(x: Tensor, ranges: Mapping[str, tuple[float, ...]]) -> Tensor:
    """Columns from their (least, largest) to [0, 1], as float32; a column of one value becomes its distance from it."""
    low, high = torch.tensor(list(ranges.values()), dtype=torch.float64).unbind(dim=1)
    spread = torch.where(high > low, high - low, torch.ones_like(low))
    return ((x - low) / spread).float()


def read_table(lines: Iterable[str], what: str, *, tabs: bool = False) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and each row that is not empty with the number of its line."""
    try:
        reader = csv.reader(lines, delimiter="\t" if tabs else ",")
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise expected(f"{what} to be a CSV file", str(error)) from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    if not header or len(set(header)) < len(header):
        got = f"{repeated(header)!r} twice" if header else "nothing"
        raise expected(f"{what} to start with a header of different names", got)
    return header, rows[1:]


def numbers_of(
    rows: Iterable[tuple[int, list[str]]], header: list[str], columns: list[str], label: str | None = None
) -> tuple[list[list[float]], list[str], dict[int, str]]:
    """Numbers and labels of the good rows, and what is wrong with the others, by line."""
    numbers, labels, bad = [], [], {}
    for line, row in rows:
        if len(row) != len(header):
            bad[line] = f"line {line} has {len(row)} columns instead of {len(header)}"
            continue
        cells = dict(zip(header, row, strict=True))
        values = {name: _number(cells[name]) for name in columns}
        wrong = [name for name, value in values.items() if value is None]
        if label is not None and not cells[label].strip():
            wrong.append(label)
        if wrong:
            bad[line] = f"line {line} has {cells[wrong[0]]!r} for {wrong[0]!r}"
            continue
        numbers.append([value for value in values.values() if value is not None])
        labels.append(cells[label].strip() if label is not None else "")
    return numbers, labels, bad


def _number(cell: str) -> float | None:
    try:
        value = float(cell)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _labels(labels: Sequence[object], names: Sequence[object] | None) -> tuple[tuple[str, ...], Tensor]:
    """Class names in order, and each label's place: by number where labels are whole numbers and names are given."""
    if names is not None and all(isinstance(label, int) for label in labels):
        return tuple(map(str, names)), torch.tensor(labels, dtype=torch.int64)
    found = sorted(set(labels), key=_natural) if names is None else names
    texts = tuple(map(str, found))
    place = {text: number for number, text in enumerate(texts)}
    unknown = next((label for label in labels if str(label) not in place), None)
    if unknown is not None:
        raise expected("labels among the classes", repr(unknown), nearest(unknown, texts))
    if len(texts) < 2:
        raise expected("labels of at least two classes", f"{len(texts)}")
    return texts, torch.tensor([place[str(label)] for label in labels], dtype=torch.int64)


def _natural(label: object) -> tuple[int, float, str]:
    """Numbers by value, before texts by letter."""
    number = _number(str(label))
    return (0, number, "") if number is not None else (1, 0.0, str(label))


def _points(array: np.ndarray, what: str) -> Tensor:
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return torch.from_numpy(array if array.ndim == 4 else array[:, None])
    if array.dtype.kind not in "fiu" or array.ndim < 2:
        raise expected(f"{what} to be numbers of shape (n, …)", f"{array.dtype}, shape {array.shape}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).sum())
        raise expected(f"{what} to be finite", f"NaN or infinite numbers in {bad} of {len(array)} points")
    return torch.from_numpy(array.astype(np.float32))
