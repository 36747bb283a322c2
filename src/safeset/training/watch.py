"""To whom a training reports while it runs."""

import sys
import warnings
from collections.abc import Iterable
from typing import Any, Protocol

from safeset.errors import TrainingWarning, callers_level


class Watch(Protocol):
    """To whom progress is reported, such as a progress bar."""

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """The same items, shown as they go by: files that are decoded."""

    def introduce(self, text: str) -> None:
        """What is about to be trained, in a line."""

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
    """Shows nothing, but passes notes on as warnings."""

    def _ignore(self, *_: Any, **__: Any) -> None:
        pass

    introduce = begin = step = epoch = end = _ignore

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """The items as they are."""
        return items

    def note(self, text: str) -> None:
        """Warn of it."""
        warnings.warn(TrainingWarning(text), stacklevel=callers_level())


def choose_watch(progress: bool | None) -> Watch:
    """A watch that shows progress, or one that shows nothing.

    Args:
        progress: whether to show it; None shows it in a terminal and in a notebook.
    """
    if progress is False:
        return Silent()
    if progress or (sys.stderr is not None and sys.stderr.isatty()) or "ipykernel" in sys.modules:
        from safeset.terminal.console import TrainingWatch  # rich is imported only where something is shown

        return TrainingWatch()
    return Silent()
