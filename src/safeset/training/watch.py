"""What a training tells while it runs."""

import warnings
from collections.abc import Iterable
from typing import Any, Protocol

from safeset.errors import TrainingWarning


class Watch(Protocol):
    """Somebody who looks on; the command line shows a progress bar, Python nothing."""

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """The same items, shown as they go by: files that are decoded."""

    def begin(self, epochs: int, steps: int, done: int) -> None:
        """Training starts: so many epochs of so many steps, of which some are done."""

    def step(self, loss: float | None) -> None:
        """A step is done; its loss, now and then."""

    def epoch(self, record: dict[str, Any]) -> None:
        """An epoch is done: a line of metrics.jsonl."""

    def note(self, text: str) -> None:
        """Something that should be read."""

    def end(self) -> None:
        """No more steps."""


class Silent:
    """Looks away, but passes notes on as warnings."""

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """The same."""
        return items

    def begin(self, epochs: int, steps: int, done: int) -> None:
        """Nothing."""

    def step(self, loss: float | None) -> None:
        """Nothing."""

    def epoch(self, record: dict[str, Any]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """A warning."""
        warnings.warn(text, TrainingWarning, stacklevel=2)

    def end(self) -> None:
        """Nothing."""
