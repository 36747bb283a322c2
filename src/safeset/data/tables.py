"""A user's own numbers: ``.npz`` files with arrays x and y, and CSV files with a label column."""

import csv
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from safeset.data.arrays import read_arrays
from safeset.data.dataset import PIXELS, TEST_SHARE, Dataset, Split, stratified
from safeset.errors import DataWarning, expected, first_few, nearest, repeated


def npz(path: Path) -> Dataset:
    """Arrays ``x`` (n, …) and ``y`` (n,) of a ``.npz`` file; ``x_test`` and ``y_test`` if it has them, else a fifth.

    Bytes are images, (n, height, width) or (n, channels, height, width); other numbers are taken as they are, ε is in
    their units. ``class_names`` may name the classes.
    """
    arrays = read_arrays(path, str(path))
    for name in ("x", "y"):
        if name not in arrays:
            raise expected(f"an array {name!r} in {path}", ", ".join(arrays) or "none", nearest(name, arrays))
    for name in ("y", "y_test", "class_names"):
        if name in arrays and arrays[name].ndim != 1:
            raise expected(f"{name} of {path} to be of shape (n,)", f"shape {arrays[name].shape}")
    given = arrays["class_names"].tolist() if "class_names" in arrays else None
    names, y = _labels(arrays["y"].tolist(), given)
    train = _split(arrays["x"], y, f"x of {path}")
    if "x_test" in arrays and "y_test" in arrays:
        _, y_test = _labels(arrays["y_test"].tolist(), names, numbered=given is not None)
        test = _split(arrays["x_test"], y_test, f"x_test of {path}")
    else:
        train, test = train.held_out(TEST_SHARE)
    units = PIXELS if train.x.dtype == torch.uint8 else "the units of x"
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
    with path.open(newline="", encoding="utf-8-sig") as file:
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
    # In the order of the ranges: a run's own are those of its network's inputs, whatever the order in another file.
    columns = [*(ranges or {}), *(name for name in columns if name not in (ranges or {}))]
    numbers, labels, lines = numbers_of(rows, header, columns, label)
    bad = list(lines.values())
    if bad and not skip_bad:
        got = f"{len(bad)} bad: {first_few(bad)}"
        remedy = "Use --skip-bad to leave them out; --label names the column of labels."
        raise expected(f"numbers in every row of {path}", got, remedy)
    if bad:
        warnings.warn(f"{len(bad)} rows of {path} were left out: {first_few(bad)}.", DataWarning, stacklevel=2)
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
    found = ((x - low) / spread).float()
    if not bool(found.isfinite().all()):
        raise expected("numbers that can be scaled to [0, 1]", "numbers too large for it")
    return found


def read_table(lines: Iterable[str], what: str, *, tabs: bool = False) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and each row that is not empty with the number of its line."""
    try:
        reader = csv.reader(lines, delimiter="\t" if tabs else ",")
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise expected(f"{what} to be a CSV file", str(error)) from None
    except UnicodeDecodeError:
        raise expected(f"{what} to be text in UTF-8", "other bytes", "Save it as UTF-8.") from None
    header = [name.strip() for name in rows[0][1]] if rows else []
    if not header or len(set(header)) < len(header):
        got = f"{repeated(header)!r} twice" if header else "nothing"
        raise expected(f"{what} to start with a header of different names", got)
    other = next((mark for mark in (";", "\t", ",") if len(header) == 1 and mark in header[0]), None)
    if other:
        wanted = "tabs" if tabs else "commas"
        raise expected(f"{what} to have columns between {wanted}", f"{other!r} in {header[0][:40]!r}", "Save it so.")
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
        value = float(cell) if "_" not in cell else math.nan  # which Python would read over
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _labels(
    labels: Sequence[object], names: Sequence[object] | None, *, numbered: bool = True
) -> tuple[tuple[str, ...], Tensor]:
    """Class names in order, and each label's place: by number where labels are whole numbers and names are given."""
    labels = [label.decode(errors="replace") if isinstance(label, bytes) else label for label in labels]
    names = names and [name.decode(errors="replace") if isinstance(name, bytes) else name for name in names]
    missing = [place for place, label in enumerate(labels) if label != label or not str(label).strip()]
    if missing:
        raise expected("a label for each point", f"none for {len(missing)}: the first is point {missing[0]}")
    if names is not None and numbered and all(isinstance(label, int) for label in labels):
        strange = next((label for label in labels if not 0 <= label < len(names)), None)  # type: ignore[operator]
        if strange is not None:
            raise expected(f"labels in 0..{len(names) - 1}", strange)
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


def _split(x: np.ndarray, y: Tensor, what: str) -> Split:
    points = _points(x, what)
    if len(points) != len(y) or not len(y):
        raise expected(f"a label for each point of {what}, and at least one", f"{len(points)} points, {len(y)} labels")
    return Split(points, y)


def _points(array: np.ndarray, what: str) -> Tensor:
    if array.ndim > 4 or (array.ndim == 4 and array.shape[-1] in (1, 3) and array.shape[1] > 4):
        remedy = "Channels come first: np.moveaxis(x, -1, 1)." if array.ndim == 4 else ""
        raise expected(f"{what} to be (n, features) or (n, channels, height, width)", f"shape {array.shape}", remedy)
    if array.dtype == np.uint8 and array.ndim in (3, 4):
        return torch.from_numpy(array if array.ndim == 4 else array[:, None])
    if array.dtype.kind not in "fiu" or array.ndim < 2:
        raise expected(f"{what} to be numbers of shape (n, …)", f"{array.dtype}, shape {array.shape}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).sum())
        raise expected(f"{what} to be finite", f"NaN or infinite numbers in {bad} of {len(array)} points")
    with np.errstate(over="ignore"):
        plain = array.astype(np.float32)
    if not np.isfinite(plain).all():
        raise expected(f"{what} to fit into float32", "larger numbers", "Scale them.")
    return torch.from_numpy(plain)
