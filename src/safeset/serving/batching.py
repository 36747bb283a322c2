"""One thread that works: what is asked meanwhile waits, up to a bound, and is then answered together."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from safeset.errors import SafesetError

Asked = TypeVar("Asked")
Given = TypeVar("Given")


class BusyError(SafesetError):
    """So much is to be done already that nothing more is taken for now."""


class ClosedError(SafesetError):
    """Nothing is taken any more."""


@dataclass(frozen=True, eq=False)
class _Job(Generic[Asked, Given]):
    """What is asked, how large it is, and where the answer goes."""

    asked: Asked
    size: int
    answer: "Future[Given]" = field(default_factory=Future)


class Batcher(Generic[Asked, Given]):
    """A thread with a queue; nobody waits for others to come, but who comes while it works is served together.

    Args:
        work: answers several at once, in their order.
        most: what may wait, as a sum of sizes.
        batch: what is answered at once, as a sum of sizes; one that is larger is answered alone.
    """

    def __init__(self, work: Callable[[Sequence[Asked]], Sequence[Given]], *, most: int, batch: int) -> None:
        self.most, self.batch, self.waiting = most, batch, 0
        self._work, self._jobs, self._is_open = work, deque[_Job[Asked, Given]](), True
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="safeset-certify", daemon=True)
        self._thread.start()

    def submit(self, asked: Asked, size: int) -> "Future[Given]":
        """Put something into the queue; cancel what comes back to take it out again.

        Raises:
            BusyError: if the queue is full.
            ClosedError: after `close`.
        """
        job = _Job[Asked, Given](asked, size)
        with self._changed:
            if not self._is_open:
                raise ClosedError("The server is stopping: nothing more is taken.")
            if self.waiting + size > self.most and self._jobs:
                raise BusyError(f"{self.waiting:,} points are waiting already: try again in a moment.")
            self._jobs.append(job)
            self.waiting += size
            self._changed.notify()
        return job.answer

    def close(self) -> None:
        """Take nothing more, answer all that was taken, and end the thread."""
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while jobs := self._take():
            asked = [job for job in jobs if job.answer.set_running_or_notify_cancel()]
            if asked:
                self._answer(asked)

    def _take(self) -> list[_Job[Asked, Given]]:
        """The next jobs, as many as are answered at once; none after the end."""
        with self._changed:
            while self._is_open and not self._jobs:
                self._changed.wait()
            found: list[_Job[Asked, Given]] = []
            size = 0
            while self._jobs and (not found or size + self._jobs[0].size <= self.batch):
                found.append(self._jobs.popleft())
                size += found[-1].size
            self.waiting -= size
            return found

    def _answer(self, jobs: list[_Job[Asked, Given]]) -> None:
        """Answer some; where that fails, each by itself, so that nobody pays for the others."""
        try:
            given = self._work([job.asked for job in jobs])
        except BaseException as error:
            if len(jobs) == 1:
                jobs[0].answer.set_exception(error)
                return
            for job in jobs:
                self._answer([job])
            return
        for job, one in zip(jobs, given, strict=True):
            job.answer.set_result(one)
