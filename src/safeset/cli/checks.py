"""The commands that check: an audit of a run, and the paper's table and figures anew."""

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from safeset.cli.options import Changes, Device, NetworkName, RunPath, changes, check_alone, own_network
from safeset.errors import SafesetError, expected
from safeset.proofs.check import SECONDS
from safeset.proofs.check import check as checked
from safeset.system.files import check_folder
from safeset.terminal import console

RESULTS = Path("results/paper")


def audit(
    run: RunPath,
    points: Annotated[int | None, typer.Option(help="So many test points. Default: all.")] = None,
    budget: Annotated[float, typer.Option(help="Minutes; what is not reached is said.")] = 5.0,
    data: Annotated[str | None, typer.Option(help="Other data than the run's own.")] = None,
    network: NetworkName = None,
    out: Annotated[Path | None, typer.Option(help="JSON file. Default: audit.json in the run.")] = None,
    device: Device = None,
) -> None:
    """Attack every certificate, prove bounds and windows anew, compare what is stored; 1 if anything is wrong."""
    from safeset.audit.audit import audit_run, check_arguments, stopped
    from safeset.cli.show_audit import show
    from safeset.runs.run import Run
    from safeset.system.files import write_json
    from safeset.system.memory import keep_freed_memory

    check_alone()
    keep_freed_memory()
    target = out or Run(run).path / "audit.json"
    if out is not None and not target.parent.is_dir():
        raise expected("a directory for the JSON file", f"none at {target.parent}")
    check_arguments(points, budget)
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
            with suppress(OSError):  # what stopped it is told in any case
                write_json(target, stopped(error))
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
    """Check a proof in exact arithmetic, believing nothing of it: 0 valid, 1 refuted, 2 not checkable."""
    code, said = checked(str(proof), str(model), images or (), budget)
    for line in said:
        console.out.print(line)
    if code:
        raise typer.Exit(code)


def reproduce(
    rows: Annotated[
        list[str] | None,
        typer.Argument(
            help="Rows of the paper's table: cifar100/rt5, all of cifar100 …: `safeset models`. Default: all."
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            help="Networks for each row. Default: 10 as in the paper, 3 of Tiny-ImageNet and beyond its table."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Where the JSON files go; those that are there are kept.")] = RESULTS,
    analyses: Annotated[
        Path | None,
        typer.Option(help="The same for the analyses of the text. Default: results/analyses/paper, or in --out."),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where the trained models go.")] = Path("runs/paper"),
    change: Changes = None,
    device: Device = None,
) -> None:
    """Train and evaluate the paper's table anew, as far as it is missing, and print both."""
    from safeset.paper import reproduce as job
    from safeset.paper import table as paper
    from safeset.system.memory import keep_freed_memory

    check_alone()
    keep_freed_memory()
    named = rows or list(paper.PAPER)
    usual = out.absolute() == RESULTS.absolute()
    beside = analyses or (Path("results/analyses/paper") if usual else out / "analyses")
    check_folder(beside, "analyses")
    watch = console.TrainingWatch()
    try:
        records = job.reproduce(
            named,
            seeds=seeds,
            out=out,
            runs=runs,
            changes=changes(change or []),
            device=device,
            tell=console.err.print,
            watch=watch,
        )
    finally:
        watch.end()
    header = ["row", "", "seeds", "the paper", "uniform", "floating", "joint", "power method"]
    splits = " and ".join(sorted({f"{each['split']} data" for each in records}))
    title = f"{splits}; proved bounds, but for the last column: uniform by the power method, which proves nothing"
    console.table(title, header, paper.compared(records), texts=2)
    found = job.analyse(named, seeds=seeds, results=out, out=beside, runs=runs, device=device, watch=watch)
    if found:
        console.out.print()
        console.table("the analyses of the text", ["data", "share", *header[2:-1]], paper.told(found), texts=2)
    console.out.print("\nWhat differs from the paper, and why: docs/paper.md", style="dim")


def figures(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME", help="surfaces, eurosat, cifar100, superclasses, groups-eurosat … Default: all."
        ),
    ] = None,
    runs: Annotated[Path, typer.Option(help="Where the trained models are.")] = Path("runs/paper"),
    out: Annotated[Path, typer.Option(help="Where the PNG files go.")] = Path("docs/figures"),
    seed: Annotated[int, typer.Option(min=0, help="Of the networks, and of the draw of images.")] = 0,
    device: Device = None,
) -> None:
    """Draw the paper's figures anew, and which classes go together, from the networks that `reproduce` trained."""
    from safeset.paper.figures import draw

    watch = console.TrainingWatch()
    try:
        for path in draw(
            names or (), runs=runs, out=out, seed=seed, device=device, tell=console.err.print, watch=watch
        ):
            watch.end()
            console.out.print(f"Drawn: {path}")
    finally:
        watch.end()
