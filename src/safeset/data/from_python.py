"""Inputs and labels that are given in Python, as a `Dataset`."""

from collections.abc import Sequence

from safeset.data.dataset import KINDS, TEST_SHARE, Dataset, Split
from safeset.data.given import Given, Points, read_given
from safeset.data.units import given_units
from safeset.errors import expected
from safeset.inputs import as_tensor, check_names


def as_dataset(data: Dataset | Given, class_names: Sequence[str] | None = None) -> Dataset:
    """A data set from inputs and labels: a fifth of each class is held out to test, unless test points are given."""
    if isinstance(data, Dataset):
        if class_names is not None:
            raise expected("class names in the Dataset", "`class_names` beside it")
        return data
    points, names = read_given(data)
    parts = [_split(*pair) for pair in points]
    classes = 1 + max(int(part.y.max()) for part in parts)
    chosen = class_names or names or tuple(map(str, range(classes)))
    train, test = parts if len(parts) == 2 else parts[0].held_out(TEST_SHARE)
    return Dataset("own", train, test, check_names(chosen), given_units(parts))


def _split(x: Points, y: Points) -> Split:
    """Inputs and labels, checked."""
    x, y = as_tensor(x, "the inputs"), as_tensor(y, "the labels")
    if y.is_floating_point() or y.ndim != 1 or not len(y) or len(x) != len(y) or int(y.min()) < 0:
        got = f"{tuple(x.shape)} inputs and {tuple(y.shape)} labels, {y.dtype}"
        raise expected("inputs and for each a label, an integer ≥ 0", got)
    if not bool(x.isfinite().all()):
        raise expected("finite inputs", "NaN or infinite ones")
    return Split(x if x.dtype in KINDS else x.double(), y.long())
