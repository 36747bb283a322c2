"""The command `certify`: what a run answers at a user's own points, and what is proved of it."""

import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.cli import show_answers
from safeset.cli.options import (
    Alpha,
    Background,
    Device,
    Epsilon,
    GuaranteeText,
    Method,
    ModelPath,
    NetworkName,
    check_alone,
    check_format,
    check_target,
    file_of,
    own_network,
    radius,
)
from safeset.errors import counted, expected
from safeset.runs.library import find_run
from safeset.terminal import console


def certify(
    run: ModelPath,
    files: Annotated[list[str], typer.Argument(help="Images, folders, .csv or .npz files; - for standard input.")],
    epsilon: Epsilon = None,
    method: Method = None,
    guarantee: GuaranteeText = None,
    prefer: Annotated[str, typer.Option(help="The smallest or the largest certified answer.")] = "smallest",
    alpha: Alpha = None,
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
    check_format(as_json, as_csv)
    from safeset.certificates.promises import check_preference
    from safeset.runs.certify_exported import certify_exported, open_exported

    check_preference(prefer)
    run = find_run(run)
    options: dict[str, Any] = {
        "epsilon": radius(epsilon),
        "method": method,
        "guarantee": guarantee,
        "prefer": prefer,
        "background": background,
        "alpha": alpha,
        "stdin": sys.stdin.buffer if sys.stdin else None,
    }
    if (exported := open_exported(run)) is not None:  # it runs without torch
        check_alone()
        others = {"--proof": proof, "--network": network, "--device": None if device == "cpu" else device}
        if given := next((name for name, value in others.items() if value is not None), None):
            raise expected(f"no {given} beside {run}, which certifies by itself", others[given], "Certify the run.")
        records = certify_exported(exported, files, **options)
        unread = _show(records, as_json=as_json, as_csv=as_csv, header=True)
        console.err.print(exported.note, style="dim")
        _report_unread(unread)
        return
    from safeset.runs.certify_files import certify_files
    from safeset.runs.library import is_onnx
    from safeset.runs.onnx_models import COVERED
    from safeset.system.workers import join_workers

    if proof is not None:
        check_alone()
        check_target(proof, "JSON", run=run, inputs=[*files, file_of(guarantee)])
    proofs: list[dict[str, Any]] = []
    notes: list[str] = []  # printed after the table
    with join_workers(device) as workers:
        records = certify_files(
            run,
            files,
            network=own_network(network),
            device=device,
            report=notes.append,
            proofs=None if proof is None else proofs,
            **options,
        )
        records = console.show_wait(records, "proving the network's bounds")
        unread = _show(records, as_json=as_json, as_csv=as_csv, header=workers.first)
    if is_onnx(run) and workers.first:
        console.err.print(COVERED, style="dim")
    console.print_notes(notes)
    if proof is not None:
        _write_proof(proof, proofs, Path(run) / "model.safetensors")
    _report_unread(unread)


def _report_unread(unread: int) -> None:
    """Fail, with a message, if points could not be read."""
    if unread:
        console.err.print(f"{unread} of the points could not be read.")
        raise typer.Exit(1)


def _show(records: Iterator[dict[str, Any]], *, as_json: bool, as_csv: bool, header: bool) -> int:
    """Print certificates as they come, or all in a table; returns how many points could not be read."""
    if not (as_json or as_csv):
        found = list(records)
        return show_answers.show_certificates(found) if found else 0
    unread = 0
    if as_csv and header:
        console.print_line(show_answers.row(show_answers.COLUMNS))
    for record in records:
        unread += "problem" in record
        as_row = show_answers.row(show_answers.cells(record)) if as_csv else json.dumps(record, ensure_ascii=False)
        console.print_line(as_row)
    return unread


def _write_proof(path: Path, proofs: list[dict[str, Any]], model: Path) -> None:
    """Write the proofs of several batches as one, and say how it is checked."""
    from safeset.system.files import write_whole

    if not proofs:
        raise expected("certified points to prove", "none", "Nothing was written: try a smaller --epsilon.")
    found = [one for each in proofs for one in each["certificates"]]
    write_whole(path, json.dumps({**proofs[0], "certificates": found}) + "\n")
    images = [one["name"] for one in found] if all(one["as in its file"] for one in found) else []
    command = shlex.join(map(str, (path, model, *images)))
    console.err.print(f"Proof of {counted(len(found), 'point')}: safeset check {command}")
    console.err.print("Large networks may not be checkable within its --budget (exit code 2).", style="dim")
