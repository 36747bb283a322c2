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
    "cosine": lambda a, b, t, h: b + (a - b) * (1 + math.cos(math.pi * t)) / 2,
}
WARM_UP = "warm-up"


@dataclass(frozen=True)
class Schedule:
    """A number for each epoch, from ``start`` in the first to ``end``; by cosine or with a warm-up, for each step.

    - ``""``: linear, to ``end`` in the last epoch.
    - ``"half"``: linear, to ``end`` at half of the training, then constant.
    - ``"log half"``: ln(eᵃ + (eᵇ − eᵃ)·h), h from 0 to 1 at half: fast first, slowly later; then constant.
    - ``"after half"``: constant until half, then exponential to ``end`` in the last epoch.
    - ``"cosine"``: half a cosine, flat at both ends.

    ``warm_up`` is the share of the training in which it rises from 0, before all of that.

    >>> Schedule.parse("1e-3 -> 1e-6 after half")(200 - 1, 200)
    1e-06
    >>> str(Schedule.parse("0.01 → 1.2 log half"))
    '0.01 -> 1.2 log half'
    >>> [round(Schedule.parse("1 -> 0 cosine, warm-up 0.2").at(done), 6) for done in (0, 0.1, 0.2, 0.6, 1)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    start: float
    end: float
    shape: str = ""
    warm_up: float = 0.0

    def __post_init__(self) -> None:
        if self.shape not in _SHAPES:
            raise expected(
                "a schedule such as '1.0 -> 1.2', '0.01 -> 1.2 log half', '1 -> 10 half', '1e-3 -> 1e-6 after half' or "
                "'1e-3 -> 0 cosine, warm-up 0.1'",
                repr(self.shape),
                nearest(self.shape, _SHAPES),
            )
        if not all(math.isfinite(value) and value >= 0 for value in (self.start, self.end)):
            raise expected("a schedule between finite numbers ≥ 0", f"{self.start} -> {self.end}")
        if self.shape == "after half" and not (self.start > 0 and self.end > 0):
            raise expected("an exponential schedule between numbers above 0", f"{self.start} -> {self.end}")
        if self.shape == "log half" and max(self.start, self.end) > 700:
            raise expected("a logarithmic schedule between numbers of at most 700", f"{self.start} -> {self.end}")
        if not 0 <= self.warm_up < 1:
            raise expected("a warm-up over a share of the training in [0, 1)", self.warm_up)
        if self.start == self.end:
            object.__setattr__(self, "shape", "")  # a constant has none

    def __call__(self, epoch: float, epochs: int) -> float:
        """The value in epoch 0, 1, …, epochs − 1."""
        return self.at(epoch / (epochs - 1) if epochs > 1 else 0.0)

    def at(self, done: float) -> float:
        """The value when this share of the training is done, in [0, 1]."""
        t = max(0.0, (done - self.warm_up) / (1 - self.warm_up)) if self.warm_up else done
        value = _SHAPES[self.shape](self.start, self.end, t, min(1.0, 2 * t))
        value = min(max(value, min(self.start, self.end)), max(self.start, self.end))  # no rounding beyond the ends
        return value * (done / self.warm_up) if done < self.warm_up else value

    def in_epoch(self, epoch: int, epochs: int, steps: int) -> list[float]:
        """The values of the steps of an epoch: the epoch's own, but for what changes with each step."""
        if self.shape != "cosine" and not self.warm_up:
            return [self(epoch, epochs)] * steps
        return self.by_step(epoch, epochs, steps)

    def by_step(self, epoch: int, epochs: int, steps: int) -> list[float]:
        """A value for each step of an epoch, whatever the shape."""
        return [self.at((epoch * steps + step) / (epochs * steps)) for step in range(steps)]

    @staticmethod
    def parse(text: "str | float | Schedule") -> "Schedule":
        """A schedule from its text, or from a number: a constant."""
        if isinstance(text, Schedule):
            return text
        number = r"([-+0-9.eE]+)"
        warm_up = rf"(?:,\s*{WARM_UP}\s+{number}\s*)?"
        found = re.fullmatch(rf"\s*{number}\s*(?:(?:->|→)\s*{number}\s*([a-z ]*?)\s*)?{warm_up}", str(text))
        try:
            if not found or isinstance(text, bool):
                raise ValueError
            start = float(found[1])
            end = start if found[2] is None else float(found[2])
            share = 0.0 if found[4] is None else float(found[4])
        except ValueError:
            raise expected("a schedule such as '1e-3 -> 1e-6 after half', or a number", repr(text)[:80]) from None
        return Schedule(start, end, found[3] or "", share)

    def __str__(self) -> str:
        change = "" if self.start == self.end else f" -> {self.end!r} {self.shape}".rstrip()
        return f"{self.start!r}{change}" + (f", {WARM_UP} {self.warm_up!r}" if self.warm_up else "")
