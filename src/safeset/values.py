"""What users hand over as plain values and arrays, and the words for units: none of it needs torch."""

import math
import operator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeset.errors import expected, repeated

PIXELS = "pixels in [0, 1]"  # the units of ε for images
SCALED = "columns scaled to [0, 1]"  # the units of ε for tables
FAR = 10.0  # times the whole range of training: no outlier of a table lies so far outside
Array = NDArray[Any]


def check_names(class_names: object, classes: int | None = None) -> tuple[str, ...]:
    """Distinct class names, as many as there are classes."""
    if isinstance(class_names, str) or not hasattr(class_names, "__iter__"):
        raise expected("class names to be a list of names", repr(class_names)[:80])
    names = tuple(map(str, class_names))
    if classes is not None and len(names) != classes:
        raise expected(f"a name for each of the {classes} classes", f"{len(names)} names")
    if len(set(names)) < len(names):
        raise expected("distinct class names", f"{repeated(names)!r} twice")
    strange = next((name for name in names if not is_text(name)), None)
    if strange is not None:
        raise expected("class names in UTF-8", repr(strange), "Rename the folder or the label.")
    return names


def is_text(name: str) -> bool:
    r"""Whether a name can be written down: the name of a file may be any bytes.

    >>> is_text("café"), is_text("caf\udce9")
    (True, False)
    """
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def as_count(value: Any) -> int | None:
    """An integer ≥ 1, also of numpy's; None if it is none."""
    try:
        count = operator.index(value)
    except TypeError:
        return None
    return count if count > 0 and not isinstance(value, bool) else None


def far_outside(x: Array, seen: tuple[float, ...]) -> NDArray[np.bool_]:
    """Which points (n, …) can only be in other units than those that were seen to lie between two numbers.

    An image with any number, or a row with most of its numbers, outside by more than the whole range; or a row with
    any that is outside by ten times the range: outliers of a table are no mistake.
    """
    low, high = seen
    width = high - low if high > low else max(abs(high), 1.0)
    outside = np.maximum(low - x, x - high).reshape(len(x), math.prod(x.shape[1:])) / width
    worst = outside.max(axis=1)
    if x.ndim > 2:
        found: NDArray[np.bool_] = worst > 1
    else:
        found = (worst > FAR) | ((outside > 1).mean(axis=1) > 0.5)
    return found
