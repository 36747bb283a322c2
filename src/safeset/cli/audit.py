"""The commands `audit`, which tries to refute a run, and `check`, which checks a proof from a file."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from safeset.cli.options import Device, NetworkName, OtherData, RunPath, check_alone, check_target, own_network
from safeset.errors import SafesetError
from safeset.proofs.check import SECONDS
from safeset.proofs.check import check as check_proof
from safeset.terminal import console


def audit(
    run: RunPath,
    points: Annotated[int | None, typer.Option(help="So many test points. Default: all.")] = None,
    budget: Annotated[float, typer.Option(help="Minutes; what is not reached is said.")] = 5.0,
    data: OtherData = None,
    network: NetworkName = None,
    out: Annotated[Path | None, typer.Option(help="JSON file. Default: audit.json in the run.")] = None,
    device: Device = None,
) -> None:
    """Attack every certificate, prove bounds and windows again, compare what is stored; 1 if anything is wrong."""
    from safeset.audit.audit import audit_run, check_arguments, inconclusive
    from safeset.cli.show_audit import show
    from safeset.runs.run import Run
    from safeset.system.files import write_json
    from safeset.system.memory import keep_freed_memory

    check_alone()
    keep_freed_memory()
    target = out or Run(run).path / "audit.json"
    check_target(out, "JSON", run=Run(run).path, own="audit.json", inputs=[data])
    check_arguments(points, budget)
    if Run(run).recipe.is_file():
        with suppress(OSError):  # reported at the end, beside what was found
            write_json(target, inconclusive("the audit has not ended"))  # an older verdict may be of other weights
    try:
        result = audit_run(
            Run(run),
            points=points,
            minutes=budget,
            source=data,
            network=own_network(network),
            device=device,
            progress=console.progress,
        )
    except SafesetError as error:
        if Run(run).recipe.is_file():
            with suppress(OSError):  # the error itself is reported in any case
                write_json(target, inconclusive(f"stopped: {error}"))
        raise
    try:
        write_json(target, result)
    finally:
        show(result)
    console.out.print(f"\nWritten to {target}.")
    if result["verdict"] == "failed":
        raise typer.Exit(1)


def check(
    proof: Annotated[Path, typer.Argument(metavar="PROOF", help="JSON file, as `safeset certify` writes it.")],
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The weights: model.safetensors of the run.")],
    images: Annotated[
        list[str] | None,
        typer.Argument(metavar="[IMAGE]…", help="PNG files, one for each certificate, to be compared with its input."),
    ] = None,
    budget: Annotated[float, typer.Option(help="Seconds.")] = SECONDS,
) -> None:
    """Check a proof in exact arithmetic, trusting nothing in it: 0 valid, 1 refuted, 2 not checkable."""
    try:
        code, lines = check_proof(str(proof), str(model), images or (), budget)
        for line in lines:
            console.out.print(line)
        if sys.stdout is not None:
            sys.stdout.flush()
    except (KeyboardInterrupt, OSError) as error:  # 1 would mean that the proof is refuted
        if sys.stdout is not None:
            console.discard(sys.stdout)
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else f"no output: {error.strerror}"
        console.print_failure(f"Not checkable: {reason}.")
        raise typer.Exit(2) from None
    if code:
        raise typer.Exit(code)
