"""What the command line shows: tables, progress bars, plain lines where there is no terminal."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from typing import Any, TextIO
from unicodedata import category

from rich.cells import cell_len
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    SpinnerColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table


class _Plain(Console):
    """A console that shows texts as they are: names may hold brackets and colons, and may not move the cursor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; control characters in texts are escaped. What nobody can be told does not stop anything."""
        try:
            super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)
        except OSError:
            if not self.stderr:
                raise
            self.quiet = True
            discard(sys.stderr)

    def on_broken_pipe(self) -> None:
        """Nobody listens any more: end as other programs do whose pipe is closed, unless it was only told aside."""
        self.quiet = True
        discard(sys.stderr if self.stderr else sys.stdout)
        if not self.stderr:
            raise SystemExit(PIPE_CLOSED)


def discard(stream: TextIO) -> None:
    """Send nowhere what cannot be written to a stream: else Python would try again at its end."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text: str) -> str:
    r"""A text whose control characters are written out: names in a model from elsewhere may be hostile.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    hidden = {each for each in text if each not in "\n\t" and category(each) in ("Cc", "Cf", "Cs")}
    return text.translate({ord(each): each.encode("unicode_escape").decode() for each in hidden}) if hidden else text


PIPE_CLOSED = 128 + signal.SIGPIPE
WIDEST_WORD = 40  # of a text in a table: longer ones are folded
FIRST = os.environ.get("RANK", "0") == "0"  # torchrun numbers its workers
out, err = _Plain(soft_wrap=True), _Plain(stderr=True, soft_wrap=True)


def line(text: str) -> None:
    """Print a line for another program, at once and as it is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        out.on_broken_pipe()


def table(title: str, header: list[str], rows: Iterable[list[str]], *, texts: int = 1) -> None:
    """Print a table; the first ``texts`` columns are texts, the others numbers. Nothing is cut on a narrow terminal."""
    if title:
        out.print(title, style="bold")
    shown = Table(box=None, pad_edge=False)
    lines, needed = [[visible(cell) for cell in row] for row in rows], -2
    for place, name in enumerate(header):
        cells = [line[place] for line in (header, *lines)]
        if place < texts:
            words = (cell_len(word) for cell in cells for word in cell.split())
            width = min(max(words, default=0), WIDEST_WORD)
            shown.add_column(name, header_style="dim", overflow="fold", min_width=width)
        else:
            width = max(map(cell_len, cells))
            shown.add_column(name, header_style="dim", no_wrap=True, justify="right")
        needed += width + 2
    for line in lines:
        shown.add_row(*line)
    terminal = out.width if sys.stdout and sys.stdout.isatty() else 500
    _Plain(width=max(terminal, needed)).print(shown)


def progress(items: Iterable[Any], count: int, what: str = "") -> Iterator[Any]:
    """The same items, with a bar on a terminal."""
    if not _bars():
        yield from items
        return
    with _bar() as bar:
        yield from bar.track(items, total=count, description=what)


def waited(items: Iterator[Any], what: str) -> Iterator[Any]:
    """The same items; on a terminal it is said, until the first one comes, what takes so long."""
    with err.status(what) if _bars() else nullcontext():
        first = list(islice(items, 1))
    yield from first
    yield from items


def _bars() -> bool:
    """Whether to draw bars: on a terminal, and of several workers by the first."""
    return err.is_terminal and FIRST


def _bar() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
    return Progress(*columns, TextColumn("{task.fields[tail]}"), console=err, transient=True)


class TrainingWatch:
    """Training on a terminal: a bar with the time left, loss, VRA, rejection, accuracy; else a line for each epoch."""

    def __init__(self) -> None:
        self.bar: Progress | None = None
        self.task = TaskID(0)
        self.steps, self.epochs, self.done = 1, 1, 0
        self.tail, self.last = "", 0.0

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """A bar for files that are decoded."""
        return progress(items, count, "decoding")

    def begin(self, epochs: int, steps: int, done: int) -> None:
        """Show the bar."""
        self.epochs, self.steps, self.done = epochs, steps, done
        if _bars():
            self.bar = _bar()
            self.bar.start()
            self.task = self.bar.add_task("", total=epochs * steps, completed=done, tail="")
        elif done:
            err.print(f"Continuing in epoch {done // steps + 1} of {epochs}.")

    def step(self, loss: float | None) -> None:
        """Move the bar."""
        self.done += 1
        if self.bar is not None:
            where = f"epoch {min(self.epochs, self.done // self.steps + 1)}/{self.epochs}"
            self.bar.update(self.task, completed=self.done, description=where)
            if loss is not None:
                self.bar.update(self.task, tail=f"loss {loss:.3f} {self.tail}")

    def epoch(self, record: dict[str, Any]) -> None:
        """Show the metrics: estimates, from the power method."""
        told = f"VRA ≈ {record['vra']:.3f}, rejected {record['rejection_rate']:.3f}, accuracy {record['accuracy']:.3f}"
        self.tail = told
        if self.bar is None:
            now, left = time.perf_counter(), self.epochs - record["epoch"]
            if now - self.last >= 2 or left == 0 or record["epoch"] == 1:
                remaining = f", {_span(record['seconds'] / record['epoch'] * left)} left" if left else ""
                line = f"epoch {record['epoch']}/{self.epochs}: loss {record['loss']:.4f}, {told}{remaining}"
                err.print(line)
                self.last = now

    def note(self, text: str) -> None:
        """Print a note."""
        err.print(text, style="yellow")

    def end(self) -> None:
        """Take the bar away."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None


def _span(seconds: float) -> str:
    """A time in words.

    >>> _span(75.2), _span(4020)
    ('1 min 15 s', '1 h 07 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning: safeset's own as it is, others with their kind; of several workers the first does."""
    if not FIRST:
        return
    own = category.__module__.startswith("safeset")
    err.print(str(message) if own else f"{category.__name__}: {message}", style="yellow")


def failure(text: str) -> None:
    """Print why nothing came of it."""
    err.print(f"error: {text}", style="red")


@contextmanager
def transfer(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for bytes; called with those done, and all."""
    if not err.is_terminal:
        yield lambda done, total: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, TimeRemainingColumn(), console=err, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
