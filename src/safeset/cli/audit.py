"""The commands `audit`, which tries to refute a run, and `check`, which checks a proof from a file."""

import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.cli.options import (
    Device,
    Epsilon,
    GuaranteeText,
    ModelPath,
    NetworkName,
    OtherData,
    check_alone,
    check_alone_network,
    check_target,
    file_of,
    own_network,
    radius,
)
from safeset.errors import SafesetError, expected
from safeset.proofs.check import SECONDS
from safeset.proofs.check import check as check_proof
from safeset.runs.library import find_run, is_shipped
from safeset.terminal import console


def audit(
    run: ModelPath,
    points: Annotated[int | None, typer.Option(help="So many test points. Default: all.")] = None,
    budget: Annotated[float, typer.Option(help="Minutes; what is not reached is said.")] = 5.0,
    data: OtherData = None,
    calibration_data: Annotated[
        str | None,
        typer.Option(help="Your own points that it was calibrated with. Default: where calibration.json says."),
    ] = None,
    epsilon: Epsilon = None,
    guarantee: GuaranteeText = None,
    network: NetworkName = None,
    out: Annotated[Path | None, typer.Option(help="JSON file. Default: audit.json in the run.")] = None,
    device: Device = None,
) -> None:
    """Attack every certificate, prove bounds and windows again, compare what is stored; 1 if anything is wrong.

    A run is audited as it was trained; --epsilon and --guarantee are for an .onnx file, which has none.
    """
    from safeset.runs.library import is_onnx

    check_alone()
    if is_onnx(run):
        check_alone_network(network, run, True)
        if calibration_data is not None:
            raise expected("--calibration-data for a run that is calibrated", run)
        check_target(out, "JSON", run=run, inputs=[data, run, file_of(guarantee)])
        _audit_file(run, out, radius(epsilon), guarantee, points, budget, data, device)
        return
    if epsilon or guarantee:
        raise expected("--epsilon and --guarantee for an .onnx file alone", "them for a run, which has its own")
    from safeset.audit.audit import audit_run, check_arguments, inconclusive
    from safeset.runs.run import Run
    from safeset.system.files import write_json
    from safeset.system.memory import keep_freed_memory

    keep_freed_memory()
    where = Run(find_run(run))
    target = out or (None if is_shipped(where.path) else where.path / "audit.json")
    check_target(out, "JSON", run=where.path, own="audit.json", inputs=[data, calibration_data])
    check_arguments(points, budget)

    def write(found: dict[str, Any]) -> None:
        if target is not None and where.recipe.is_file():
            with suppress(OSError):  # reported at the end, beside what was found
                write_json(target, found)

    write(inconclusive("the audit has not ended"))  # an older verdict may be of other weights
    try:
        result = audit_run(
            where,
            points=points,
            minutes=budget,
            source=data,
            calibration=calibration_data,
            network=own_network(network),
            device=device,
            progress=console.progress,
        )
    except SafesetError as error:
        write(inconclusive(f"stopped: {error}"))
        raise
    _finish(result, target)


def _finish(result: dict[str, Any], target: Path | None) -> None:
    """Write what was found, if there is a file for it, and show it; exit with 1 where the audit failed."""
    from safeset.cli.show_audit import show
    from safeset.system.files import write_json

    try:
        if target is not None:
            write_json(target, result)
    finally:
        show(result)
    console.out.print(f"\nWritten to {target}." if target else "\nNot written. To write it: --out FILE")
    if result["verdict"] == "failed":
        raise typer.Exit(1)


def _audit_file(
    path: Path,
    out: Path | None,
    epsilon: float | None,
    guarantee: str | None,
    points: int | None,
    budget: float,
    data: str | None,
    device: str | None,
) -> None:
    """Audit an ONNX file; what is found is written only where --out says."""
    from safeset.audit.audit import audit_file
    from safeset.system.memory import keep_freed_memory

    keep_freed_memory()
    result = audit_file(
        path,
        epsilon=epsilon,
        guarantee=guarantee,
        points=points,
        minutes=budget,
        source=data,
        device=device,
        progress=console.progress,
    )
    _finish(result, out)


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
