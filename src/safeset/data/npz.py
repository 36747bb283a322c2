"""A user's own arrays: an ``.npz`` file with x and y, as numpy and Keras write them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from safeset.data.arrays import NAMES, channels_first, is_exact, read_arrays
from safeset.data.dataset import PIXELS, TEST_SHARE, Dataset, Split
from safeset.data.decoding import BACKGROUND
from safeset.data.labels import as_labels, label_array
from safeset.data.units import RAW, image_units, own_units
from safeset.errors import counted, expected, nearest


def read_npz(path: Path, *, units: str | None = None, background: str | None = None) -> Dataset:
    """Read ``x`` (n, …) and ``y`` (n,) from a ``.npz`` file; the test is ``x_test`` and ``y_test``, or a fifth of x.

    Images are (n, height, width), (n, channels, height, width), or with the channels last: bytes, or floats in [0, 1].
    Rows (n, features) are taken as they are, ε is in their units. ``class_names`` may name the classes. Other
    names of x and y are understood: ``x_train``, ``train_images``, ``images``, ``y_train``, ``train_labels``,
    ``labels``; ``test_images`` and ``test_labels``. y may be of shape (n, 1), or one-hot.

    Args:
        path: the file.
        units: ``raw`` for numbers as they are, also those of images.
        background: the colour that transparent parts of images (n, height, width, 4) are composited on.
    """
    found = read_arrays(path, str(path))
    arrays = {
        name: found[other] for name, others in NAMES.items() for other in reversed(others) if other in found
    } | found
    for name in ("x", "y"):
        if name not in arrays:
            raise expected(f"an array {name!r} in {path}", ", ".join(found) or "none", nearest(name, found))
    if "class_names" in arrays and arrays["class_names"].ndim != 1:
        raise expected(f"class_names of {path} to be of shape (n,)", f"shape {arrays['class_names'].shape}")
    tested = "x_test" in arrays and "y_test" in arrays
    xs = {name: arrays[name] for name in ("x", "x_test")[: 1 + tested]}
    ys = {name: label_array(arrays[name], f"{name} of {path}") for name in ("y", "y_test")[: 1 + tested]}
    classes = next((count for _, count in ys.values() if count is not None), None)
    given = arrays["class_names"].tolist() if "class_names" in arrays else list(range(classes)) if classes else None
    names, y = as_labels(ys["y"][0].tolist(), given)
    notes: list[str] = []
    for name, array in xs.items():
        what = f"{name} of {path}"
        _check_numbers(array, what)
        xs[name], said = channels_first(array, what, None if units == RAW else background or BACKGROUND)
        notes += [each for each in said if each not in notes]
    meaning = _units(xs, path, units == RAW)
    train = _split(xs["x"], y, f"x of {path}", meaning)
    if tested:
        _, y_test = as_labels(ys["y_test"][0].tolist(), names, numbered=given is not None)
        test = _split(xs["x_test"], y_test, f"x_test of {path}", meaning)
    else:
        train, test = train.held_out(TEST_SHARE)
    return Dataset(path.stem, train, test, names, meaning, notes=tuple(notes))


def _units(xs: Mapping[str, np.ndarray], path: Path, raw: bool) -> str:
    """What the numbers are, by their type, shape and range."""
    image = all(array.ndim in (3, 4) for array in xs.values())
    if image and not raw and all(array.dtype == np.uint8 for array in xs.values()):
        return PIXELS
    ends = [(float(array.min()), float(array.max())) for array in xs.values() if array.size] or [(0.0, 0.0)]
    low, high = min(low for low, _ in ends), max(high for _, high in ends)
    return image_units(low, high, str(path)) if image and not raw else own_units(low, high)


def _split(x: np.ndarray, y: Tensor, what: str, meaning: str) -> Split:
    if len(x) != len(y) or not len(y):
        raise expected(
            f"a label for each point of {what}, and at least one",
            f"{counted(len(x), 'point')}, {counted(len(y), 'label')}",
        )
    if x.dtype == np.uint8 and meaning == PIXELS:
        return Split(torch.from_numpy(np.ascontiguousarray(x)), y)
    with np.errstate(over="ignore"):
        if not np.isfinite(x.astype(np.float32)).all():
            raise expected(f"{what} to fit into float32", "larger numbers", "Scale them.")
    return Split(torch.from_numpy(as_floats(x)), y)


def _check_numbers(array: np.ndarray, what: str) -> None:
    if array.ndim > 4:
        shape = f"shape {array.shape}"
        raise expected(f"{what} to be (n, features) or (n, channels, height, width)", shape)
    if array.dtype.kind not in "fiu" or array.ndim < 2:
        raise expected(f"{what} to be numbers of shape (n, …)", f"{array.dtype}, shape {array.shape}")
    if not np.isfinite(array).all():
        bad = int((~np.isfinite(array.reshape(len(array), -1)).all(axis=1)).sum())
        raise expected(f"{what} to be finite", f"NaN or infinite numbers in {bad} of {len(array)} points")
    if not is_exact(array):
        raise expected(f"{what} to be numbers that float64 holds", "numbers with more digits")


def as_floats(array: np.ndarray) -> np.ndarray:
    """The same numbers in float32 where that holds all of its type, else in float64."""
    small = array.dtype.itemsize <= (4 if array.dtype.kind == "f" else 2)
    return np.ascontiguousarray(array.astype(np.float32 if small else np.float64))
