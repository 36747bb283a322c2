"""The units of inputs: pixels in [0, 1], scaled columns, or a user's own; and whether other data has the same."""

import warnings
from collections.abc import Sequence

import torch

from safeset.data.arrays import AS_PIXELS, are_pixels
from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.errors import ArgumentError, DataWarning, UnitsWarning, expected, some_of
from safeset.values import SCALED, far_outside

OWN = "the units of x"
RAW = "raw"  # the option to take numbers as they are
NEAR = (-0.5, 1.5)  # pixels in [0, 1] with noise lie here; images beyond it are normalised, or in 0..255
NARROW = 1 / 20  # data that fills less of the range of training is in other units
POINTS_AT_ONCE = 1024


def own_units(low: float, high: float) -> str:
    """Numbers that are taken as they are.

    >>> own_units(-1, 254.3)
    'the units of x (from -1 to 254.3)'
    """
    return f"{OWN} (from {low:g} to {high:g})"


def image_units(low: float, high: float, what: str) -> str:
    """The units of images of other numbers than bytes, by their range.

    Raises:
        ArgumentError: if they are neither pixels in [0, 1] nor near them: ε would be in unexpected units.
    """
    if low >= 0 and high <= 1:
        return PIXELS
    if low >= NEAR[0] and high <= NEAR[1]:
        return own_units(low, high)
    remedy = (
        f"{AS_PIXELS}; images that were normalised go back to [0, 1], normalisation is a layer of the network. "
        "`safeset train --units raw` takes the numbers as they are, and ε in their units."
    )
    raise expected(f"images in {what} to be {PIXELS}", f"numbers from {low:g} to {high:g}", remedy)


def given_units(splits: Sequence[Split]) -> str:
    """The units of points that were given in Python: images far outside [0, 1] cause a warning."""
    if all(split.x.dtype == torch.uint8 for split in splits):
        return PIXELS
    low, high = min(split.range[0] for split in splits), max(split.range[1] for split in splits)
    if splits[0].x.ndim < 4:
        return own_units(low, high)
    try:
        return image_units(low, high, "the data")
    except ArgumentError as error:
        warnings.warn(f"{error} They are taken as they are now.", UnitsWarning, stacklevel=3)
        return own_units(low, high)


def kind(units: str) -> str:
    """Units without the range in them.

    >>> kind("the units of x (from 0 to 16)"), kind(PIXELS)
    ('the units of x', 'pixels in [0, 1]')
    """
    found = units.partition(" (")[0]
    return OWN if found == "the units of the inputs" else found  # the name in runs of older versions


def check_fits(data: Dataset, units: str, seen: tuple[float, ...] | None, *, columns: bool) -> None:
    """Raise an error for data in other units than a run's.

    Args:
        data: to be evaluated on.
        units: the run's.
        seen: the least and the largest number of its training, if it has kept them.
        columns: look at each column of a table too.

    Raises:
        ArgumentError: if the kind differs, or the range: most points far outside it, or all in a small part of it.
    """
    if kind(data.units) != kind(units):
        remedy = f"{AS_PIXELS}." if units == PIXELS else "Give the numbers as they were in training."
        raise expected(f"data in {units}, as trained on", data.units, remedy)
    if seen is None:
        return
    low, high = data.range
    width = seen[1] - seen[0]
    remedy = "Give the numbers in the units of training."
    trained = f"numbers in the units of training, which were from {seen[0]:g} to {seen[1]:g}"
    splits = [split for split in (data.train, data.test) if len(split)]
    pixels = kind(units) == OWN and all(are_pixels(split.x.numpy(), seen) for split in splits)
    if pixels or (high - low) < NARROW * width or (columns and _narrow_columns(data)):
        raise expected(trained, f"numbers from {low:g} to {high:g} only", remedy)
    if data.train.x.dtype == torch.uint8:
        return
    parts = [part for split in (data.train, data.test) for part in torch.split(split.x, POINTS_AT_ONCE) if len(part)]
    strange = sum(int(far_outside(part.double().numpy(), seen).sum()) for part in parts)
    count = len(data.train) + len(data.test)
    if 2 * strange >= count:
        raise expected(trained, f"{strange:,} of {count:,} points far outside, from {low:g} to {high:g}", remedy)
    if strange:
        warnings.warn(
            f"{some_of(strange, count, 'points', 'lies', 'lie')} far outside the range of training, {seen[0]:g} to "
            f"{seen[1]:g}.",
            DataWarning,
            stacklevel=2,
        )


def _narrow_columns(data: Dataset) -> bool:
    """Whether most columns that were scaled to [0, 1] lie in a small part of it, as if scaled twice."""
    if not data.ranges or kind(data.units) != SCALED or len(data.train) + len(data.test) < 1 / NARROW:
        return False
    x = torch.cat([data.train.x, data.test.x])
    spread = x.amax(dim=0) - x.amin(dim=0)
    varies = torch.tensor([high > low for low, high in data.ranges.values()])
    return bool(((spread < NARROW) & varies).sum() > 0.5 * len(varies))
