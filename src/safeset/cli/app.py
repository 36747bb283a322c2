"""The application: collects all commands, and turns a user's mistakes into messages."""

import io
import os
import signal
import sys
import warnings
from typing import Annotated

import typer

from safeset.cli.audit import audit, check
from safeset.cli.calibrate import calibrate
from safeset.cli.certify import certify
from safeset.cli.data import data_app
from safeset.cli.evaluate import evaluate
from safeset.cli.export import export
from safeset.cli.listings import models, version
from safeset.cli.paper import figures, reproduce
from safeset.cli.report import plot, report
from safeset.cli.serve import serve
from safeset.cli.suggest import suggest, suggest_affinity
from safeset.cli.train import train
from safeset.cli.verify import supports, verify
from safeset.errors import SafesetError, TrainingWarning
from safeset.system import torchrun
from safeset.terminal import console

INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="safeset",
    help="Classifiers whose answers are certified sets: train, evaluate, certify.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data_app, name="data")


def _say_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _before(
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


_OF_RUNS = (train, evaluate, certify, calibrate, suggest, suggest_affinity, audit, check, report, plot, serve, export)
_OTHERS = (verify, reproduce, figures, models, version)
for _command in (*_OF_RUNS, *_OTHERS):
    app.command()(_command)
app.command(context_settings={"ignore_unknown_options": True})(supports)  # VNN-LIB writes its arguments as options


def _worker() -> str:
    """The start of a message that says which of several workers it is from."""
    return "" if torchrun.is_alone() else f"worker {torchrun.rank()}: "


def main() -> None:
    """Run the command line; a user's mistake is a message and a non-zero exit, never a traceback."""
    _open_streams()
    warnings.showwarning = console.print_warning
    warnings.simplefilter("always", TrainingWarning)  # Python shows a repeated warning once; this one matters each time
    try:
        _run()
    except SafesetError as error:
        if not getattr(error, "reported", False):
            console.print_failure(f"{_worker()}{error}")
        sys.exit(getattr(error, "exit_code", 1))
    except OSError as error:
        if sys.stdout is not None:
            console.discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(console.PIPE_CLOSED)
        where = f" ({error.filename})" if error.filename else ""
        console.print_failure(f"{error.strerror or error}{where}")
        sys.exit(1)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        console.print_failure(
            "Expected PyTorch, which all but exported networks need, but got none. Install it: pip install torch"
        )
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        reason = str(error).partition("\n")[0].rpartition("Allocator: ")[2] or "too little"
        console.print_failure(f"There is not enough memory: {reason}. Ask for less at a time.")
        sys.exit(1)


def _open_streams() -> None:
    """Make the standard streams safe to write to, whatever the caller closed and whatever bytes names hold."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # The next file that is opened would otherwise get what is meant for the terminal.
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run() -> None:
    """Parse the command line and call the command; what is still to be printed is written before this returns."""
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            console.err.print("Interrupted.")
        raise
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
