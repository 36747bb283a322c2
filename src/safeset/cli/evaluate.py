"""The command `evaluate`: the metrics of a run on its test data."""

from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.cli import show_answers
from safeset.cli.options import (
    Device,
    Epsilons,
    GuaranteeText,
    ModelPath,
    NetworkName,
    OtherData,
    check_alone_network,
    check_format,
    check_target,
    file_of,
    own_network,
    radii,
)
from safeset.errors import expected
from safeset.runs.library import find_run, is_shipped
from safeset.terminal import console


def evaluate(
    run: ModelPath,
    epsilon: Epsilons = None,
    method: Annotated[str, typer.Option(help="Of uniform (the paper), floating, joint.")] = "uniform,floating,joint",
    guarantee: GuaranteeText = None,
    data: OtherData = None,
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
    check_format(as_json, as_csv)
    from safeset.runs.evaluate import evaluate_file, evaluate_run, is_own
    from safeset.runs.library import is_onnx
    from safeset.runs.run import Run
    from safeset.system.files import write_json
    from safeset.system.workers import join_workers

    asked: dict[str, Any] = {
        "epsilons": radii(epsilon),
        "methods": [part.strip() for part in method.split(",")],
        "guarantee": guarantee,
        "source": data,
    }
    alone = is_onnx(run)  # a file without a run, in which nothing is stored
    check_alone_network(network, run, alone)
    run = run if alone else find_run(run)
    stored, own = Run(run).evaluation, not alone and is_own(Run(run).read_recipe(), **asked)
    _check_out(out, stored, own, [data, file_of(guarantee), run])
    notes: list[str] = []  # printed after the table
    shown: dict[str, Any] = {"per_class": per_class, "device": device}
    shown |= {"progress": console.progress, "report": notes.append}
    with join_workers(device) as workers:
        if alone:
            result, units = evaluate_file(run, **asked, **shown)
        else:
            result, units = evaluate_run(Run(run), **asked, **shown, network=own_network(network))
    if not workers.first:
        return
    target = out or (stored if own and not is_shipped(stored) else None)
    try:
        if target is not None:
            write_json(target, result)
    finally:  # the numbers are shown even if the disk is full
        _show(result, units, as_json=as_json, as_csv=as_csv)
        console.print_notes(notes)
    where = _where(target, stored)
    if as_json or as_csv:
        console.err.print(where)
    else:
        console.out.print(f"\n{where}")


def _check_out(out: Path | None, stored: Path, own: bool, inputs: list[str | Path | None]) -> None:
    """Refuse a file that cannot be written, or that only the run's own evaluation may replace."""
    check_target(out, "JSON", run=stored.parent, own=stored.name, inputs=inputs)
    if out is not None and not own and out.resolve() == stored.resolve():
        raise expected("another file than that of the run's own evaluation", str(out), "Choose another --out.")


def _show(result: dict[str, Any], units: str, *, as_json: bool, as_csv: bool) -> None:
    from safeset.system.files import json_text

    if as_json:
        console.print_line(json_text(result))
    elif as_csv:
        for cells in show_answers.evaluation_cells(result):
            console.print_line(show_answers.row(cells))
    else:
        show_answers.show_evaluation(result, units)


def _where(target: Path | None, stored: Path) -> str:
    """Where the numbers are written, or how to have them written."""
    if target is not None:
        return f"Written to {target}."
    if stored.exists() and not is_shipped(stored):
        return f"{stored} keeps the run's own numbers; these are not written. To write them: --out FILE"
    return "These numbers are not written. To write them: --out FILE"
