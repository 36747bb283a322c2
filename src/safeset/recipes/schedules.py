"""Numbers that change over training, in the words of the paper's table."""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from safeset.errors import expected, nearest

_SHAPES: dict[str, Callable[[float, float, float, float], float]] = {
    # from start a to end b; t and h run from 0 to 1, t over all epochs, h over the first half of them
    "": lambda a, b, t, h: a + (b - a) * t,
    "half": lambda a, b, t, h: a + (b - a) * h,
    "log half": lambda a, b, t, h: math.log(math.exp(a) + (math.exp(b) - math.exp(a)) * h),
    "after half": lambda a, b, t, h: a if t <= 0.5 else a * (b / a) ** (2 * t - 1),
}


@dataclass(frozen=True)
class Schedule:
    """A number for each epoch, from ``start`` in the first to ``end``.

    - ``""``: linear, to ``end`` in the last epoch.
    - ``"half"``: linear, to ``end`` at half of the training, then constant.
    - ``"log half"``: ln(eᵃ + (eᵇ − eᵃ)·h), h from 0 to 1 at half: fast first, slowly later; then constant.
    - ``"after half"``: constant until half, then exponential to ``end`` in the last epoch.

    >>> Schedule.parse("1e-3 -> 1e-6 after half")(200 - 1, 200)
    1e-06
    >>> str(Schedule.parse("0.01 → 1.2 log half"))
    '0.01 -> 1.2 log half'
    """

    start: float
    end: float
    shape: str = ""

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES:
            raise expected(
                "a schedule such as '1.0 -> 1.2', '0.01 -> 1.2 log half', '1 -> 10 half' or '1e-3 -> 1e-6 after half'",
                repr(self.shape),
                nearest(self.shape, _SHAPES),
            )
        if not all(math.isfinite(value) and value >= 0 for value in (self.start, self.end)):
            raise expected("a schedule between finite numbers ≥ 0", f"{self.start} -> {self.end}")
        if self.shape == "after half" and not (self.start > 0 and self.end > 0):
            raise expected("an exponential schedule between numbers above 0", f"{self.start} -> {self.end}")
        if self.shape == "log half" and max(self.start, self.end) > 700:
            raise expected("a logarithmic schedule between numbers of at most 700", f"{self.start} -> {self.end}")
        if self.start == self.end:
            object.__setattr__(self, "shape", "")  # a constant has none

    def __call__(self, epoch: float, epochs: int) -> float:
        """The value in epoch 0, 1, …, epochs − 1."""
        t = epoch / (epochs - 1) if epochs > 1 else 0.0
        value = _SHAPES[self.shape](self.start, self.end, t, min(1.0, 2 * t))
        return min(max(value, min(self.start, self.end)), max(self.start, self.end))  # no rounding beyond the ends

    @staticmethod
    def parse(text: "str | float | Schedule") -> "Schedule":
        """A schedule from its text, or from a number: a constant."""
        if isinstance(text, Schedule):
            return text
        number = r"([-+0-9.eE]+)"
        found = re.fullmatch(rf"\s*{number}\s*(?:(?:->|→)\s*{number}\s*([a-z ]*?)\s*)?", str(text))
        try:
            if not found or isinstance(text, bool):
                raise ValueError
            start = float(found[1])
            end = start if found[2] is None else float(found[2])
        except ValueError:
            raise expected("a schedule such as '1e-3 -> 1e-6 after half', or a number", repr(text)[:80]) from None
        return Schedule(start, end, found[3] or "")

    def __str__(self) -> str:
        if self.start == self.end:
            return f"{self.start!r}"
        return f"{self.start!r} -> {self.end!r} {self.shape}".rstrip()
