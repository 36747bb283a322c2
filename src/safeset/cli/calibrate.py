"""The command `calibrate`: sets that hold the true class with a chosen probability."""

import shlex
import sys
from typing import Annotated

import typer

from safeset.cli.options import Device, NetworkName, RunPath, check_alone, own_network
from safeset.runs.library import find_run
from safeset.terminal import console


def calibrate(
    run: RunPath,
    alpha: Annotated[str, typer.Option(metavar="FLOAT", help="How often the true class may be missing.")] = "0.1",
    data: Annotated[
        str | None, typer.Option(help="Own points that were not trained on. Default: those of train --calibrate.")
    ] = None,
    score: Annotated[
        str, typer.Option(help="membership; for many classes soft-min, or fitted (to the run's training points).")
    ] = "membership",
    k: Annotated[int | None, typer.Option("--k", help="Of membership: among the K best. Default: 1.")] = None,
    tau: Annotated[float | None, typer.Option(help="Of soft-min, in input units. Default: 0.1.")] = None,
    by_class: Annotated[bool, typer.Option("--by-class", help="For each true class by itself.")] = False,
    confidence: Annotated[
        str | None,
        typer.Option(metavar="FLOAT", help="Such as 0.95, of this calibration set. Default: on average over them."),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an older calibration.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print what is written, and nothing else.")] = False,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Calibrate a run: sets that hold the true class, also under attack, with probability ≥ 1 − alpha.

    Choose score, K and tau before you look at these points: a choice made on them is not covered.
    """
    from safeset.coverage.words import in_every_set
    from safeset.runs.calibrate import calibrate_run, check_free, write_calibration
    from safeset.runs.run import Run
    from safeset.system.files import json_text

    check_alone()
    where = Run(find_run(run))
    check_free(where, overwrite)
    coverage, record = calibrate_run(
        where,
        alpha=alpha,
        k=k,
        score=score,
        tau=tau,
        by_class=by_class,
        confidence=confidence,
        source=data,
        network=own_network(network),
        device=device,
        progress=console.progress,
        command=shlex.join(["safeset", *sys.argv[1:]]),
    )
    write_calibration(where, record)
    if as_json:
        console.print_line(json_text(record))
        return
    about = record["points"]
    console.out.print(f"{about['count']:,} points ({about['from']}): {about['drawn']}.")
    console.out.print(f"\nCovers: {coverage.promise}.")
    note = in_every_set(coverage)
    if note:
        console.err.print(f"Note: {note}", style="yellow")
    console.out.print(f"\nWritten to {where.calibration}. `certify` and `evaluate` now show these sets too.")
