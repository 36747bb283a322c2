"""What is written of a point beside its certificate: its name, the units of ε, and what became of an image."""

from typing import Any

from safeset.data.points import Point
from safeset.system.files import plain


def record_of_point(point: Point, answer: dict[str, Any], units: str) -> dict[str, Any]:
    """What is written of one point, as plain values."""
    return {
        "name": point.name,
        **plain(answer),
        "units": units,
        "resized_from": size_before(point),
        "composited": point.composited,
        "grey": point.grey,
    }


def size_before(point: Point) -> dict[str, int] | None:
    """The size of an image before it was resized, by name, so that nobody takes the width for the height."""
    if point.resized_from is None:
        return None
    height, width = point.resized_from
    return {"width": width, "height": height}
