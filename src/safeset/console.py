"""What the command line shows: tables, progress bars, plain lines where there is no terminal."""

import csv
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import TYPE_CHECKING, Any, TextIO
from unicodedata import category

from rich.console import Console

from safeset.layout import folded, table_lines

if TYPE_CHECKING:
    from safeset.bars import Bar


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
FIRST = os.environ.get("RANK", "0") == "0"  # torchrun numbers its workers
out, err = _Plain(soft_wrap=True), _Plain(stderr=True, soft_wrap=True)


def line(text: str) -> None:
    """Print a line for another program, at once and as it is."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        out.on_broken_pipe()


def table(title: str, header: list[str], rows: Iterable[list[str]], *, texts: int = 1) -> None:
    """Print a table; the first ``texts`` columns are texts, the others numbers. On a terminal it is made to fit."""
    width = out.width if sys.stdout and sys.stdout.isatty() else None
    if title:
        out.print("\n".join(folded(title, width) if width else [title]), style="bold")
    body = [[one_line(cell) for cell in row] for row in rows]
    for each in table_lines(header, body, width, texts=texts):
        out.print(each)


def one_line(text: str) -> str:
    r"""A text that is safe to show, and in one line: the name of a file may hold another row of the table.

    >>> one_line("a\nb")
    'a\\nb'
    """
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def rates(row: dict[str, Any]) -> list[str]:
    """The metrics of a row of an evaluation, as texts."""
    sizes = [f"{row[name]:.2f}" if row[name] is not None else "–" for name in ("core_size", "set_size")]
    spread = {name: f" ± {value:.3f}" for name, value in row.get("std", {}).items()}
    return [*(f"{row[name]:.3f}{spread.get(name, '')}" for name in ("vra", "rejection_rate", "accuracy")), *sizes]


RATES = ["VRA", "rejected", "accuracy", "core", "core + optional"]


def evaluation(result: dict[str, Any], units: str) -> None:
    """Print the rows of an evaluation; by class where it has them."""
    rows = result["rows"]
    about = f"{result['guarantee']}" if len(result["guarantee"]) < 60 else "affinity"
    title = f"{result['data']}, {about}: {result['points']:,} {result['split']} points, proved bounds, ε in {units}"
    if "seeds" in result:
        title += f", means of {len(result['seeds'])} seeds"
    body = [[row["method"], f"{row['epsilon']:.4g}", *rates(row)] for row in rows]
    table(title, ["method", "ε", *RATES], body, texts=1)
    for row in rows:
        if "classes" in row:
            body = [[name, f"{part['points']:,}", *rates(part)] for name, part in row["classes"].items()]
            out.print()
            table(f"{row['method']}, ε = {row['epsilon']:.4g}, by class", ["class", "points", *RATES], body)


def progress(items: Iterable[Any], count: int, what: str = "") -> Iterator[Any]:
    """The same items, with a bar on a terminal."""
    if not _bars():
        yield from items
        return
    with _bar(what, total=count) as bar:
        for done, item in enumerate(items, start=1):
            yield item
            bar.show(done)


def waited(items: Iterator[Any], what: str) -> Iterator[Any]:
    """The same items; on a terminal it is said, until the first one comes, what takes so long."""
    if _bars():
        with _bar(what):
            first = list(islice(items, 1))
        yield from first
    yield from items


def _bars() -> bool:
    """Whether to draw bars: on a terminal, and of several workers by the first."""
    return err.is_terminal and FIRST


def _bar(what: str = "", *, total: int | None = None, done: int = 0) -> "Bar":
    from safeset.bars import Bar  # only terminals need it

    return Bar(err, what, total=total, done=done)


class TrainingWatch:
    """Training on a terminal: a bar with the time left, loss, VRA, rejection, accuracy; else a line for each epoch."""

    def __init__(self) -> None:
        self.bar: Bar | None = None
        self.steps, self.epochs, self.done = 1, 1, 0
        self.loss, self.tail, self.last = "", "", 0.0

    def track(self, items: Iterable[Any], count: int) -> Iterable[Any]:
        """A bar for files that are decoded."""
        return progress(items, count, "decoding")

    def begin(self, epochs: int, steps: int, done: int) -> None:
        """Show the bar."""
        self.end()
        self.epochs, self.steps, self.done = epochs, steps, done
        if _bars():
            self.bar = _bar(self._where(), total=epochs * steps, done=done)
        elif done:
            err.print(f"Continuing in epoch {done // steps + 1} of {epochs}.")

    def step(self, loss: float | None) -> None:
        """Move the bar."""
        self.done += 1
        if self.bar is not None:
            if loss is not None:
                self.loss = f", loss {loss:.3f}"
            self.bar.show(self.done, what=f"{self._where()}{self.loss}{self.tail}")

    def epoch(self, record: dict[str, Any]) -> None:
        """Show the metrics: estimates, from the power method."""
        told = f"VRA ≈ {record['vra']:.3f}, rejected {record['rejection_rate']:.3f}, accuracy {record['accuracy']:.3f}"
        self.tail = f", {told}"
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
            self.bar.close()
            self.bar = None

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


def certificates(records: list[dict[str, Any]]) -> int:
    """Print certificates as a table; how many points could not be read."""
    from safeset.certificates import shown  # after torch, which others have imported by now

    rows, bad = [], 0
    for record in records:
        if "problem" in record:
            bad += 1
            rows.append([record["name"], "not read", "", ""])
            err.print(f"{record['name']}: {record['problem']}", style="yellow")
            continue
        holds = ", ".join(f"{{{_names(each['core'])}}} < {shown(each['radius'])}" for each in record["cores"])
        core = f"{{{_names(record['core'])}}}" if record["certified"] else "⊥ (rejected)"
        rows.append([record["name"], core, _names(record["optional"]), holds or "–"])
    table("", ["point", "core", "may join", "holds for ε"], rows, texts=4)
    return bad


COLUMNS = ["name", "certified", "core", "optional", "core_radius", "radius", "best", "radii", "epsilon", "guarantee"]
COLUMNS += ["method", "problem"]


def row(cells: list[Any]) -> str:
    """A line of CSV.

    >>> row(["a,b", 0.5])
    '"a,b",0.5'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def cells(record: dict[str, Any]) -> list[Any]:
    """A record of a certificate as cells of a CSV row; lists are joined by |, an infinite radius is inf.

    ``best`` are the best classes, and ``radii`` the radius up to which each of their first ones is a core.
    """
    cores = record.get("cores", [])
    row = {**record, "best": cores[-1]["core"] if cores else [], "radii": [each["radius"] for each in cores]}

    def cell(value: Any) -> Any:
        if isinstance(value, list):
            return "|".join(str(cell(each)) for each in value)
        return "inf" if value is None else value

    return [cell(row.get(name, "")) for name in COLUMNS]


def evaluation_cells(result: dict[str, Any]) -> list[list[Any]]:
    """An evaluation as rows of CSV, the header first: one for each method and ε, each followed by those of its classes.

    >>> row = {"method": "joint", "vra": 0.5, "core_size": None, "classes": {"cat": {"vra": 0.5, "core_size": 1.0}}}
    >>> evaluation_cells({"rows": [row]})
    [['class', 'method', 'vra', 'core_size'], ['', 'joint', 0.5, ''], ['cat', 'joint', 0.5, 1.0]]
    """
    rows: list[dict[str, Any]] = []
    for row in result["rows"]:
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        parts = row.get("classes", {})
        rows += [{"class": "", **plain} if parts else plain]
        rows += [{"class": name, **dict.fromkeys(plain), **_named(row), **part} for name, part in parts.items()]
    return [list(rows[0]), *(["" if value is None else value for value in row.values()] for row in rows)]


def _named(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("method", "epsilon") if name in row}


def _names(classes: list[str]) -> str:
    return ", ".join(map(str, classes))


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
    with _bar(what) as bar:
        yield lambda done, total: bar.show(done, total=total, what=f"{what}: {done / 1e6:.1f} of {total / 1e6:.1f} MB")
