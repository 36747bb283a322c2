"""Progress bars: a terminal has one display, and every bar is a task of it with a text of its own."""

from types import TracebackType
from typing import ClassVar, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Column

SHORTEST, LONGEST = 8, 24  # cells of a bar: a fifth of the terminal, within these


class Bar:
    """A bar, with the time that is left and a text that is folded where it is long; shown until it is closed.

    Several may be shown at once: each is made without regard to the others.
    """

    _shared: ClassVar[Progress | None] = None  # the display of all the bars that are shown

    def __init__(self, console: Console, what: str = "", *, total: int | None = None, done: int = 0) -> None:
        """Show a bar.

        Args:
            console: the terminal; the first bar decides for those that are shown with it.
            what: the text.
            total: the number at which all is done; None where it is unknown.
            done: how much of it is done already.
        """
        if Bar._shared is None:
            Bar._shared = _display(console)
            Bar._shared.start()
        self._display = Bar._shared
        self._task = self._display.add_task(what, total=total, completed=done)

    def show(self, done: int, *, what: str | None = None, total: int | None = None, now: bool = False) -> None:
        """Show how much is done, ``now`` or with the next refresh; a closed bar stays closed."""
        if self._task in self._display.task_ids:
            self._display.update(self._task, completed=done, description=what, total=total, refresh=now)

    def close(self) -> None:
        """Take the bar away; doing so twice does no harm."""
        if self._task in self._display.task_ids:
            self._display.remove_task(self._task)
            if not self._display.task_ids:
                Bar._shared = None
                self._display.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _display(console: Console) -> Progress:
    text = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold", no_wrap=False))
    bar = BarColumn(bar_width=max(SHORTEST, min(LONGEST, console.width // 5)))
    # Standard output may be a file: what is printed there must not go to the terminal instead.
    return Progress(
        *(SpinnerColumn(), bar, TimeRemainingColumn(), text), console=console, transient=True, redirect_stdout=False
    )
