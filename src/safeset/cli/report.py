"""The commands `report` and `plot`: what a run does, as a page for people and as curves for a paper."""

from pathlib import Path
from typing import Annotated

import typer

from safeset.cli.options import Device, NetworkName, OtherData, RunPath, check_alone, check_target, own_network
from safeset.errors import expected
from safeset.runs.library import find_run
from safeset.terminal import console

PAGE, PLOT = "report.html", "plot.png"


def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN…", help="Directories of runs, or trained models, side by side.")
    ],
    out: Annotated[
        Path | None, typer.Option(help="HTML file. Default: report.html in the run; several runs need one.")
    ] = None,
    data: OtherData = None,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Write a page about one or several runs: numbers, curves, classes, inputs and answers; it needs no network."""
    from safeset.report.findings import look_at
    from safeset.report.page import report_page
    from safeset.runs.run import Run
    from safeset.system.files import write_whole

    check_alone()
    if out is None and len(runs) > 1:
        raise expected(f"--out FILE for a report of {len(runs)} runs", "none", "For example --out report.html.")
    runs = [find_run(run) for run in runs]
    target = out or Run(runs[0]).path / PAGE
    for run in runs:
        Run(run).read_recipe()  # before anything is measured, of all of them
        check_target(target, "HTML", run=run, own=PAGE, inputs=[data, *runs])
    if target.suffix.lower() not in (".html", ".htm"):
        raise expected("a name that ends in .html for the report", target, "Choose another --out.")
    factory = own_network(network)
    found = [look_at(Run(run), source=data, network=factory, device=device, progress=console.progress) for run in runs]
    write_whole(target, report_page(found))
    console.out.print(f"Written: {target}. Open it in a browser: it is one file, and loads nothing.")


def plot(
    run: RunPath,
    out: Annotated[Path | None, typer.Option(help="PNG or SVG file. Default: plot.png in the run.")] = None,
    data: OtherData = None,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Draw VRA, rejections and sizes of answers against ε, for a paper: as PNG, or as SVG by the file's ending."""
    from safeset.drawing.sheet import check_matplotlib
    from safeset.report.findings import look_at
    from safeset.report.plot import SUFFIXES, draw_plot
    from safeset.runs.run import Run
    from safeset.system.files import write_whole

    check_alone()
    check_matplotlib()
    run = find_run(run)
    target = out or Run(run).path / PLOT
    suffix = target.suffix.lower()
    if suffix not in SUFFIXES:
        raise expected(f"a name that ends in {' or '.join(SUFFIXES)} for the plot", target, "Choose another --out.")
    Run(run).read_recipe()
    check_target(target, suffix[1:].upper(), run=run, own=PLOT, inputs=[data, run])
    factory = own_network(network)
    found = look_at(Run(run), source=data, network=factory, device=device, details=False, progress=console.progress)
    write_whole(target, draw_plot(found, suffix))
    console.out.print(f"Drawn: {target}")
