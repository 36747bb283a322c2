"""The command line: parse, call, print. torch is imported only by commands that need it."""

import io
import json
import os
import shlex
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from safeset import __version__
from safeset.cli import show_answers as console_answers
from safeset.cli.checks import audit, check, figures, reproduce
from safeset.cli.data import data_app
from safeset.cli.options import (
    Background,
    Device,
    Epsilon,
    Epsilons,
    GuaranteeText,
    NetworkName,
    RunPath,
    check_alone,
    own_network,
    radii,
    radius,
)
from safeset.cli.suggest import suggest
from safeset.cli.train import Stopped, train
from safeset.errors import SafesetError, TrainingWarning, expected
from safeset.system import torchrun
from safeset.terminal import console

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


app.command()(train)


@app.command()
def evaluate(
    run: RunPath,
    epsilon: Epsilons = None,
    method: Annotated[str, typer.Option(help="Of uniform (the paper), floating, joint.")] = "uniform,floating,joint",
    guarantee: GuaranteeText = None,
    data: Annotated[str | None, typer.Option(help="Other data than the run's own.")] = None,
    per_class: Annotated[bool, typer.Option("--per-class", help="Also by class.")] = False,
    network: NetworkName = None,
    out: Annotated[
        Path | None, typer.Option(help="JSON file. Default: evaluation.json in the run, for all of its own numbers.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is written, and nothing else.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header.")] = False,
    device: Device = None,
) -> None:
    """Evaluate a run on its test data, by proved bounds: VRA, rejection, accuracy, top-1, sizes."""
    _check_format(as_json, as_csv)
    from safeset.runs.evaluate import evaluate_run, is_own
    from safeset.runs.run import Run
    from safeset.system.files import json_text, write_json
    from safeset.system.workers import join_workers

    stored = Run(run).evaluation
    asked: dict[str, Any] = {
        "epsilons": radii(epsilon),
        "methods": [part.strip() for part in method.split(",")],
        "guarantee": guarantee,
        "source": data,
    }
    own = is_own(Run(run).read_recipe(), **asked)
    if out is not None and not out.parent.is_dir():
        raise expected("a directory for the JSON file", f"none at {out.parent}")
    if out is not None and not own and out.resolve() == stored.resolve():
        raise expected("another file than that of the run's own evaluation", str(out), "Choose another --out.")
    notes: list[str] = []  # for after the table
    with join_workers(device) as workers:
        result, units = evaluate_run(
            Run(run),
            **asked,
            per_class=per_class,
            network=own_network(network),
            device=device,
            progress=console.progress,
            report=notes.append,
        )
    if not workers.first:
        return
    target = out or (stored if own else None)
    try:
        if target is not None:
            write_json(target, result)
    finally:  # neither a full disk nor a closed pipe loses all
        if as_json:
            console.line(json_text(result))
        elif as_csv:
            for each in console_answers.evaluation_cells(result):
                console.line(console_answers.row(each))
        else:
            console_answers.evaluation(result, units)
        console.notes(notes)
    kept = "These numbers are not written. To write them: --out FILE"
    if stored.exists():
        kept = f"{stored} keeps the run's own numbers; these are not written. To write them: --out FILE"
    told = f"Written to {target}." if target else kept
    if as_json or as_csv:
        console.err.print(told)
    else:
        console.out.print(f"\n{told}")


@app.command()
def certify(
    run: RunPath,
    files: Annotated[list[str], typer.Argument(help="Images, folders, .csv or .npz files; - for standard input.")],
    epsilon: Epsilon = None,
    method: Annotated[str | None, typer.Option(help="uniform, floating or joint. Default: joint.")] = None,
    guarantee: GuaranteeText = None,
    prefer: Annotated[str, typer.Option(help="The smallest or the largest certified answer.")] = "smallest",
    background: Background = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON object for each point, one in a line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated, with a header.")] = False,
    proof: Annotated[
        Path | None, typer.Option(help="Also write a proof as JSON, which `safeset check` verifies by itself.")
    ] = None,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Certify images or rows: the answer, what it may also include, and what holds up to which change."""
    _check_format(as_json, as_csv)
    from safeset.certificates.promises import check_preference
    from safeset.runs.certify_files import certify_files
    from safeset.system.workers import join_workers

    check_preference(prefer)
    if proof is not None:
        check_alone()
        if not proof.parent.is_dir():
            raise expected("a directory for the JSON file", f"none at {proof.parent}")
    proofs: list[dict[str, Any]] = []
    notes: list[str] = []  # for after the table
    stdin = sys.stdin.buffer if sys.stdin else None
    with join_workers(device) as workers:
        records = certify_files(
            run,
            files,
            epsilon=radius(epsilon),
            method=method,
            guarantee=guarantee,
            prefer=prefer,
            background=background,
            network=own_network(network),
            device=device,
            stdin=stdin,
            report=notes.append,
            proofs=None if proof is None else proofs,
        )
        records = console.waited(records, "proving the network's bounds")
        bad = _print_certificates(records, as_json=as_json, as_csv=as_csv, header=workers.first)
    console.notes(notes)
    if proof is not None:
        _write_proof(proof, proofs, Path(run) / "model.safetensors")
    if bad:
        console.err.print(f"{bad} of the points could not be read.")
        raise typer.Exit(1)


def _write_proof(path: Path, proofs: list[dict[str, Any]], model: Path) -> None:
    """Write the proofs of several batches as one, and say how it is checked."""
    from safeset.system.files import write_whole

    if not proofs:
        raise expected("certified points to prove", "none", "Nothing was written: try a smaller --epsilon.")
    found = [one for each in proofs for one in each["certificates"]]
    write_whole(path, json.dumps({**proofs[0], "certificates": found}) + "\n")
    images = [one["name"] for one in found] if all(one["as in its file"] for one in found) else []
    typed = shlex.join(map(str, (path, model, *images)))
    console.err.print(f"Proof of {len(found)} {'point' if len(found) == 1 else 'points'}: safeset check {typed}")


def _print_certificates(records: Iterator[dict[str, Any]], *, as_json: bool, as_csv: bool, header: bool) -> int:
    """Print certificates as they come, or all in a table; how many points could not be read."""
    bad = 0
    if as_csv and header:
        console.line(console_answers.row(console_answers.COLUMNS))
    if as_json or as_csv:
        for record in records:
            bad += "problem" in record
            text = (
                console_answers.row(console_answers.cells(record)) if as_csv else json.dumps(record, ensure_ascii=False)
            )
            console.line(text)
    elif found := list(records):
        bad = console_answers.certificates(found)
    return bad


app.command()(suggest)
app.command()(audit)
app.command()(check)
app.command()(reproduce)
app.command()(figures)


@app.command()
def models() -> None:
    """The networks and the recipes that come with safeset."""
    from safeset.models import list_models
    from safeset.recipes.library import list_recipes

    console.out.print("Networks:  " + ", ".join(list_models()))
    console.out.print("Recipes:   " + ", ".join(list_recipes()))


@app.command()
def version() -> None:
    """The version."""
    console.out.print(f"safeset {__version__}")


def _check_format(as_json: bool, as_csv: bool) -> None:
    if as_json and as_csv:
        raise expected("one of --json and --csv", "both")
    if sys.stdout is None:
        raise expected("standard output for the answers", "none: it is closed")


def _worker() -> str:
    """Which of several workers speaks."""
    return f"worker {torchrun.rank()}: " if not torchrun.is_alone() else ""


def main() -> None:
    """Run the command line; a user's mistake is a message and a non-zero exit, never a traceback."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:  # closed: or the next file that is opened would get what is meant for the terminal
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names of files may be any bytes
    warnings.showwarning = console.warning
    warnings.simplefilter("always", TrainingWarning)  # that a training has not ended is no matter of Python's
    try:
        try:
            app()
        except SystemExit as ended:
            if ended.code == Stopped.exit_code:
                console.err.print("Interrupted.")
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where what goes wrong is told
    except SafesetError as error:
        if not getattr(error, "reported", False):
            console.failure(f"{_worker()}{error}")
        sys.exit(getattr(error, "exit_code", 1))
    except OSError as error:
        if sys.stdout is not None:
            console.discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            sys.exit(console.PIPE_CLOSED)
        where = f" ({error.filename})" if error.filename else ""
        console.failure(f"{error.strerror or error}{where}")
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "allocate memory" not in str(error):
            raise
        told = str(error).partition("\n")[0].rpartition("Allocator: ")[2] or "too little"
        console.failure(f"Expected memory for what was asked, but got: {told}. Ask for less at a time.")
        sys.exit(1)
