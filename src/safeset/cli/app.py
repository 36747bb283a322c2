"""The application: collects all commands, and turns a user's mistakes into messages."""

import io
import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.cli import show_answers as console_answers
from safeset.cli.audit import audit, check
from safeset.cli.certify import certify
from safeset.cli.data import data_app
from safeset.cli.evaluate import evaluate
from safeset.cli.listings import models, version
from safeset.cli.options import (
    Background,
    Changes,
    Device,
    Drop,
    Epsilon,
    GuaranteeText,
    NetworkName,
    OneHot,
    Units,
    changes,
    names,
    own_network,
    radius,
)
from safeset.cli.paper import figures, reproduce
from safeset.cli.suggest import suggest
from safeset.errors import SafesetError, TrainingWarning, expected
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


@app.command()
def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's TOML file, or its name: `safeset models`.")] = None,
    data: Annotated[str | None, typer.Option(help="A name (`safeset data list`), a folder, .npz or .csv.")] = None,
    guarantee: GuaranteeText = None,
    epsilon: Epsilon = None,
    epochs: Annotated[int | None, typer.Option()] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the run. Default: runs/DATA-GUARANTEE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    model: Annotated[str | None, typer.Option(help="A network: `safeset models`.")] = None,
    network: NetworkName = None,
    batch: Annotated[int | None, typer.Option(help="Points in a step.")] = None,
    loss: Annotated[str | None, typer.Option(help="cross-entropy or trades.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    seeds: Annotated[int | None, typer.Option(help="So many networks at once: this seed and the next.")] = None,
    size: Annotated[int | None, typer.Option(help="Folders of images: resize to this side.")] = None,
    background: Background = None,
    label: Annotated[str | None, typer.Option(help="Tables: the column of labels. Default: the last.")] = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    units: Units = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and rows.")] = False,
    validation: Annotated[
        bool,
        typer.Option("--validation", help="Hold out a tenth of the training data to evaluate on: for choices."),
    ] = False,
    hold_out: Annotated[
        float | None,
        typer.Option(help="Share of the training data that chooses the best epoch. Default: 0.1 of your own data."),
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs that were not better.")] = None,
    change: Changes = None,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Between two checkpoints.")] = 5.0,
    device: Device = None,
) -> None:
    """Train a certified classifier by a recipe, or with defaults on your own data."""
    flags = {
        "data.source": data,
        "guarantee": guarantee,
        "epsilon": radius(epsilon),
        "epochs": epochs,
        "model": model,
        "network": network,
        "batch": batch,
        "loss.name": loss,
        "seed": seed,
        "seeds": seeds,
        "data.size": size,
        "data.background": background,
        "data.label": label,
        "data.drop": names(drop),
        "data.one_hot": names(one_hot),
        "data.units": units,
        "data.skip_bad": skip_bad or None,
        "validation": validation or None,
        "hold_out": hold_out,
        "patience": patience,
    }
    given = {key: value for key, value in flags.items() if value is not None} | changes(change or [])
    try:
        _train(recipe, given, network, out, resume=resume, minutes=checkpoint_minutes, device=device)
    except KeyboardInterrupt:
        raise _Stopped(out) from None


class _Stopped(SafesetError):  # noqa: N818  (no mistake)
    """A training was interrupted where no step could be finished: before the first one, or a second time."""

    exit_code = 130

    def __init__(self, path: Path | None) -> None:
        if path is not None and (path / "checkpoint.safetensors").exists():
            kept = f"What was saved last is kept; continue with: safeset train --resume --out {path}"
        else:
            kept = "Nothing is trained or saved yet: to begin, run the same command again."
        super().__init__(f"Interrupted. {kept}")


def _train(
    recipe: str | None,
    given: dict[str, Any],
    network: str | None,
    out: Path | None,
    *,
    resume: bool,
    minutes: float,
    device: str | None,
) -> None:
    from safeset.recipes.library import assembled
    from safeset.runs.card import name_for
    from safeset.runs.run import Run
    from safeset.system.memory import keep_freed_memory
    from safeset.system.workers import join_workers
    from safeset.training.train import train as run_training

    if network is not None and "model" in given:
        raise expected("one of --model and --network", "both")
    factory = own_network(network)
    if resume and recipe is None and out is not None and Run(out).recipe.exists():
        stated = Run(out).read_recipe().changed(given)
    elif resume and recipe is None and "data.source" not in given:
        raise expected("a run to continue", f"none in {out}" if out else "none named", "Name its directory with --out.")
    else:
        stated = assembled(recipe, given)
    path = out or Path("runs") / name_for(stated)
    if factory is None and (stated.network or stated.model == "own"):
        remedy = f"Give --network {stated.network or 'MODULE:FACTORY'}: your own code is run only by that flag."
        raise expected("the network to train", "none", remedy)
    keep_freed_memory()
    watch = console.TrainingWatch(typed=True)
    with join_workers(device) as workers:
        try:
            run_training(
                stated,
                network=factory,
                out=path,
                resume=resume,
                device=device,
                checkpoint_minutes=minutes,
                watch=watch,
            )
        except KeyboardInterrupt:
            raise _Stopped(path) from None
        finally:
            watch.end()
    if not workers.first:
        return
    task = Run(path).read_recipe().task
    assert task is not None  # it has been fitted
    try:
        console_answers.show_evaluation(json.loads(Run(path).evaluation.read_text()), task.units)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        remedy = "safeset evaluate writes it anew."
        raise expected(f"an evaluation in {Run(path).evaluation}", "something else", remedy) from None
    one = path / f"seed{stated.seed}" if stated.seeds > 1 else path  # any of several networks
    again = f" --network {network}" if network else ""
    console.out.print(
        f"\nThe run is {path}. Next: safeset certify {one} FILE…{again}, safeset evaluate {one} --per-class{again}"
    )


for _command in (evaluate, certify, suggest, audit, check, reproduce, figures, models, version):
    app.command()(_command)


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
