"""Signals that ask a training to stop, and the message when it has."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from safeset.errors import SafesetError
from safeset.runs.run import Run
from safeset.system.workers import Workers


class Interrupted(SafesetError):  # noqa: N818  (no mistake)
    """A signal asked the training to stop; the nets have the best weights so far, or the last ones."""

    def __init__(self, number: int, epoch: int, epochs: int, run: Run, saved: bool) -> None:
        state = (
            "All is saved" if saved else "This could not be saved" if run.checkpoint.exists() else "Nothing is saved"
        )
        self._state = f"Interrupted in epoch {epoch} of {epochs}. {state}; continue with"
        super().__init__(f"{self._state}: safeset train --resume --out {run.path}")
        self.signal, self.epoch = number, epoch
        self.reported = not Workers.here().first  # one message is enough
        self.exit_code = 128 + number

    def continued_by(self, what: str) -> "Interrupted":
        """The same, to be continued in another way."""
        self.args = (f"{self._state} {what}.",)
        return self


@contextmanager
def catch_signals(catch: bool, workers: Workers) -> Iterator[Callable[[], int]]:
    """Give a function that asks all workers which signal wants them to stop, 0 if none; a second one stops at once.

    Args:
        catch: whether signals are caught here; without a run to save into, Python's own handlers stay.
        workers: who shares the training.
    """
    received: list[int] = []
    if not catch or threading.current_thread() is not threading.main_thread():
        yield lambda: workers.largest(0)
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: workers.largest(received[0] if received else 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
