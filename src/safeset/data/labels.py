"""The labels of a user's points: numbers or texts, one for each point, or one-hot."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from safeset.data.columns import number_in
from safeset.errors import expected, nearest


def label_array(y: np.ndarray, what: str) -> tuple[np.ndarray, int | None]:
    """Labels (n,) of an array (n,), (n, 1), or one-hot (n, classes); for the last also the number of classes.

    >>> label_array(np.array([[0, 1], [1, 0]]), "y")
    (array([1, 0]), 2)
    """
    if y.ndim == 2 and y.shape[1] == 1:
        return y[:, 0], None
    if y.ndim == 2 and y.dtype.kind in "fiub":
        if len(y) and bool(((y == 0) | (y == 1)).all()) and bool((y.sum(axis=1) == 1).all()):
            return y.argmax(axis=1), y.shape[1]
        raise expected(f"{what} to be of shape (n,), or one-hot with a single 1 in each row", f"shape {y.shape}")
    if y.ndim != 1:
        raise expected(f"{what} to be of shape (n,)", f"shape {y.shape}")
    return y, None


def as_labels(
    labels: Sequence[object], names: Sequence[object] | None, *, numbered: bool = True
) -> tuple[tuple[str, ...], Tensor]:
    """Class names in order, and each label's place: by number where labels are integers and names are given."""
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
    number = number_in(str(label))
    return (0, number, "") if number is not None else (1, 0.0, str(label))
