"""The command `export`: a run as one ONNX file that certifies by itself."""

from pathlib import Path
from typing import Annotated

import typer

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.cli.options import (
    Alpha,
    Epsilon,
    GuaranteeText,
    Method,
    ModelPath,
    NetworkName,
    check_alone,
    check_target,
    file_of,
    own_network,
    radius,
)
from safeset.runs.library import find_run
from safeset.terminal import console


def export(
    run: ModelPath,
    target: Annotated[Path, typer.Argument(metavar="FILE", help="The ONNX file to write, such as model.onnx.")],
    epsilon: Epsilon = None,
    method: Method = None,
    guarantee: GuaranteeText = None,
    prefer: Annotated[str, typer.Option(help="The smallest or the largest certified answer.")] = "smallest",
    alpha: Alpha = None,
    float32: Annotated[
        bool, typer.Option("--float32", help="Numbers for runtimes without float64: estimates, nothing is proved.")
    ] = False,
    network: NetworkName = None,
) -> None:
    """Write a run as an ONNX file that certifies by itself: logits, certified sets and radii, for any input and ε."""
    check_alone()
    from safeset.export.to_onnx import export_onnx
    from safeset.runs.opened import open_model

    run = find_run(run)
    check_target(target, "ONNX", run=run, inputs=[run, file_of(guarantee)])
    model = open_model(run, network=own_network(network), epsilon=radius(epsilon), guarantee=guarantee, device="cpu")
    coverage = model.coverage_at(alpha)
    if coverage is not None and alpha is None and coverage.score.kind != "membership":
        console.err.print(f"Note: coverage sets are left out: the score {coverage.score} has no form in ONNX here.")
        coverage = None
    reading = {key: value for key, value in model.reading().items() if key not in ("input_shape", "units")}
    with console.bar("proving the network's bounds"):
        says = export_onnx(
            model.trained,
            target,
            epsilon=radius(epsilon),
            guarantee=guarantee,
            method=method,
            prefer=prefer,
            precision="float32" if float32 else "float64",
            coverage=coverage,
            reading={**reading, "unfinished": model.unfinished},
        )
    size = target.stat().st_size
    shown = f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.0f} kB"
    about = f"{shorten(says['guarantee'])} by {says['method']}, ε = {shown_epsilon(says['epsilon'])} unless another is"
    console.out.print(f"Written: {target} ({shown}): {about} given, in {says['units']}.")
    console.out.print("`safeset certify` takes it like a run, and needs no torch.")
    console.err.print(f"{'Float32. ' if float32 else ''}Covered: {says['covers']}.", style="dim")
