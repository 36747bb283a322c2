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
    Changes,
    Device,
    Drop,
    Epsilon,
    Epsilons,
    GuaranteeText,
    NetworkName,
    OneHot,
    RunPath,
    Units,
    changes,
    check_alone,
    names,
    own_network,
    radii,
    radius,
)
from safeset.cli.suggest import suggest
from safeset.errors import SafesetError, TrainingWarning, expected
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
    from safeset.recipes.library import assemble_recipe
    from safeset.runs.card import name_for
    from safeset.runs.run import Run
    from safeset.system.memory import keep_freed_memory
    from safeset.system.workers import joined
    from safeset.training.train import train as run_training

    if network is not None and "model" in given:
        raise expected("one of --model and --network", "both")
    factory = own_network(network)
    if resume and recipe is None and out is not None and Run(out).recipe.exists():
        stated = Run(out).read_recipe().with_changes(given)
    elif resume and recipe is None and "data.source" not in given:
        raise expected("a run to continue", f"none in {out}" if out else "none named", "Name its directory with --out.")
    else:
        stated = assemble_recipe(recipe, given)
    path = out or Path("runs") / name_for(stated)
    if factory is None and (stated.network or stated.model == "own"):
        remedy = f"Give --network {stated.network or 'MODULE:FACTORY'}: your own code is run only by that flag."
        raise expected("the network to train", "none", remedy)
    keep_freed_memory()
    watch = console.TrainingWatch(typed=True)
    with joined(device) as workers:
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
        console_answers.evaluation(json.loads(Run(path).evaluation.read_text()), task.units)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        remedy = "safeset evaluate writes it anew."
        raise expected(f"an evaluation in {Run(path).evaluation}", "something else", remedy) from None
    one = path / f"seed{stated.seed}" if stated.seeds > 1 else path  # any of several networks
    again = f" --network {network}" if network else ""
    console.out.print(
        f"\nThe run is {path}. Next: safeset certify {one} FILE…{again}, safeset evaluate {one} --per-class{again}"
    )


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
    from safeset.system.workers import joined

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
    with joined(device) as workers:
        result, units = evaluate_run(
            Run(run),
            **asked,
            per_class=per_class,
            network=own_network(network),
            device=device,
            progress=console.progress,
            tell=notes.append,
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
    from safeset.system.workers import joined

    check_preference(prefer)
    if proof is not None:
        check_alone()
        if not proof.parent.is_dir():
            raise expected("a directory for the JSON file", f"none at {proof.parent}")
    proofs: list[dict[str, Any]] = []
    notes: list[str] = []  # for after the table
    stdin = sys.stdin.buffer if sys.stdin else None
    with joined(device) as workers:
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
            tell=notes.append,
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
    return f"worker {os.environ.get('RANK')}: " if os.environ.get("WORLD_SIZE", "1") != "1" else ""


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
            if ended.code == _Stopped.exit_code:
                console.err.print("Interrupted.")
            raise
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()  # here, where what goes wrong is told
    except SafesetError as error:
        if not getattr(error, "told", False):
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
