"""What the command line shows: tables, progress bars, plain lines where there is no terminal."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from typing import TYPE_CHECKING, Any, Self, TextIO
from unicodedata import category

from rich.console import Console

from safeset.errors import Advice, shown_rate
from safeset.system import torchrun
from safeset.terminal.layout import fold, table_lines

if TYPE_CHECKING:
    from safeset.terminal.bars import Bar


class _Plain(Console):
    """A console that shows texts as they are: names may hold brackets and colons, but cannot move the cursor."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; control characters in texts are escaped. A closed standard error does not stop the command."""
        try:
            super().print(*(visible(each) if isinstance(each, str) else each for each in objects), **options)
        except OSError:
            if not self.stderr:
                raise
            self.quiet = True
            discard(sys.stderr)

    def on_broken_pipe(self) -> None:
        """End as other programs do whose output is closed; where only standard error is closed, go on."""
        self.quiet = True
        discard(sys.stderr if self.stderr else sys.stdout)
        if not self.stderr:
            raise SystemExit(PIPE_CLOSED)


def discard(stream: TextIO) -> None:
    """Discard what cannot be written to a stream, or Python would try again at its own end."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text: str) -> str:
    r"""A text with its control characters escaped: names in a model from elsewhere may be hostile.

    >>> visible("a\x1b[2Jb")
    'a\\x1b[2Jb'
    """
    hidden = {each for each in text if each not in "\n\t" and category(each) in ("Cc", "Cf", "Cs")}
    return text.translate({ord(each): each.encode("unicode_escape").decode() for each in hidden}) if hidden else text


PIPE_CLOSED = 128 + signal.SIGPIPE
TIMED_STEPS, TIMED_SECONDS = 20, 5.0  # the time left of a training is estimated after so many, or so long
FIRST = torchrun.rank() == "0"  # of several workers only the first shows anything
out, err = _Plain(soft_wrap=True), _Plain(stderr=True, soft_wrap=True)


def print_line(text: str) -> None:
    """Print a line for another program, at once and as it is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        out.on_broken_pipe()


def print_sentence(text: str, style: str | None = None) -> None:
    """Print words to standard error, on a terminal whole words in each line; commands are left whole, to be copied."""
    err.print("\n".join(fold(text, err.width)) if err.is_terminal else text, style=style)


def print_table(title: str, header: list[str], rows: Iterable[list[str]], *, texts: int = 1) -> None:
    """Print a table; the first ``texts`` columns are texts, the others numbers. On a terminal it is made to fit."""
    width = out.width if sys.stdout and sys.stdout.isatty() else None
    if title:
        out.print("\n".join(fold(title, width) if width else [title]), style="bold")
    body = [[one_line(cell) for cell in row] for row in rows]
    for each in table_lines(header, body, width, texts=texts):
        out.print(each)


def one_line(text: str) -> str:
    r"""A text that is safe to show in one line: a line break in a name would look like another row of a table.

    >>> one_line("a\nb")
    'a\\nb'
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def progress(items: Iterable[Any], count: int, what: str = "") -> Iterator[Any]:
    """The same items, with a bar on a terminal."""
    with bar(what, total=count) as shown:
        for done, item in enumerate(items, start=1):
            yield item
            shown.show(done)


def show_wait(items: Iterator[Any], what: str) -> Iterator[Any]:
    """The same items; on a terminal a bar says what is being done until the first one comes."""
    with bar(what):
        first = list(islice(items, 1))
    yield from first
    yield from items


def _bars() -> bool:
    """Whether to draw bars: on a terminal or in a notebook with widgets, by the first of several workers."""
    return FIRST and (err.is_terminal or (err.is_jupyter and find_spec("ipywidgets") is not None))


def bar(what: str = "", *, total: int | None = None, done: int = 0) -> "Bar | NoBar":
    """A bar, on a terminal or in a notebook; elsewhere nothing is shown."""
    if not _bars():
        return NoBar()
    from safeset.terminal.bars import Bar  # rich's bars are imported only where they are drawn

    return Bar(err, what, total=total, done=done)


class NoBar:
    """Takes the place of a `Bar` where none is drawn."""

    def show(self, done: int, *, what: str | None = None, total: int | None = None, now: bool = False) -> None:
        """Ignore how much is done."""

    def close(self) -> None:
        """Do nothing, as nothing is shown."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class TrainingWatch:
    """Training on a terminal or in a notebook: a bar with the time left and the metrics; else a line for each epoch."""

    def __init__(self, *, typed: bool = False) -> None:
        self.typed = typed  # whether notes name commands instead of Python
        self.bar: Bar | NoBar | None = None
        self.steps, self.epochs, self.done = 1, 1, 0
        self.loss, self.tail, self.line, self.last = "", "", "", 0.0
        self.timed: tuple[float, int] | None = None  # when the clock was started, and after which step
        self.estimated = False

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """A bar for files that are decoded."""
        return progress(items, count, "decoding")

    def introduce(self, text: str) -> None:
        """Print what is about to be trained."""
        print_sentence(text)

    def begin(self, epochs: int, steps: int, done: int) -> None:
        """Show the bar."""
        self.end()
        self.epochs, self.steps, self.done = epochs, steps, done
        self.line, self.timed, self.estimated = "", None, False
        if done:
            err.print(f"Continuing in epoch {min(epochs, done // steps + 1)} of {epochs}.")
        if _bars():
            self.bar = bar(self._where(), total=epochs * steps, done=done)

    def step(self, loss: float | None) -> None:
        """Move the bar; print how long it will take, once that is known."""
        self.done += 1
        if self.bar is not None:
            if loss is not None:
                self.loss = f", loss {loss:.3f}"
            self.bar.show(self.done, what=f"{self._where()}{self.loss}{self.tail}")
        if loss is not None and not self.estimated:  # A loss is known only after the GPU has finished the step.
            self._estimate(time.perf_counter())

    def _estimate(self, now: float) -> None:
        """Print the time left, once; the first steps are not counted, because they take longer."""
        if self.timed is None:
            self.timed = now, self.done
            return
        start, first = self.timed
        steps, left = self.done - first, self.epochs * self.steps - self.done
        if (steps >= TIMED_STEPS or now - start >= TIMED_SECONDS) and left:
            seconds = (now - start) / steps * left
            if seconds >= TIMED_SECONDS:
                err.print(f"About {_span(seconds)} to go (measured over {steps} steps).")
            self.estimated = True

    def epoch(self, record: dict[str, Any]) -> None:
        """Show the metrics: estimates, from the power method."""
        metrics = (
            f"{record['on']} VRA ≈ {shown_rate(record['vra'])}, rejected {shown_rate(record['rejection_rate'])}, "
            f"accuracy {shown_rate(record['accuracy'])}, top-1 {shown_rate(record['top1'])}"
        )
        self.tail = f", {metrics}"
        self.line = f"epoch {record['epoch']}/{self.epochs}: loss {record['loss']:.4f}, {metrics}"
        if self.bar is None:
            now, left = time.perf_counter(), self.epochs - record["epoch"]
            if now - self.last >= 2 or left == 0 or record["epoch"] == 1:
                remaining = f", {_span(record['seconds'] / record['epoch'] * left)} left" if left else ""
                print_sentence(f"{self.line}{remaining}")
                self.last = now

    def note(self, text: str) -> None:
        """Print a note."""
        err.print(_for_commands(text) if self.typed else text, style="yellow")

    def end(self) -> None:
        """Take the bar away; the metrics of the last epoch stay."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None
            if self.line:
                print_sentence(self.line)

    def _where(self) -> str:
        return f"epoch {min(self.epochs, self.done // self.steps + 1)}/{self.epochs}"


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


def print_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning: safeset's own as it is, others with their type; only the first of several workers prints."""
    if not FIRST:
        return
    own = category.__module__.startswith("safeset")
    text: object = message.args[0] if isinstance(message, Warning) and message.args else message
    shown = _for_commands(text if isinstance(text, str) else str(message))
    err.print(shown if own else f"{category.__name__}: {message}", style="yellow")


def _for_commands(text: str) -> str:
    """The form of a text that names commands instead of Python."""
    return text.typed if isinstance(text, Advice) else text


def print_notes(texts: Iterable[str]) -> None:
    """Print notes after the answers."""
    for text in texts:
        err.print(f"\n{text}", style="yellow")


def print_failure(text: str) -> None:
    """Print why a command failed."""
    err.print(f"error: {text}", style="red")


@contextmanager
def transfer(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar for bytes; call what this gives with the bytes that are done, and with all."""
    with bar(what) as shown:
        yield lambda done, total: shown.show(
            done, total=total, what=f"{what}: {done / 1e6:.1f} of {total / 1e6:.1f} MB"
        )
