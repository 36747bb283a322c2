"""The commands about the paper: `reproduce` its table, and draw its `figures`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.cli.options import Changes, Device, changes, check_alone
from safeset.system.files import check_folder
from safeset.terminal import console

RESULTS = Path("results/paper")
HEADER = ["row", "", "seeds", "the paper", "uniform", "floating", "joint", "power method"]


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
    """Train and evaluate the paper's table again, as far as it is missing, and print both."""
    from safeset.paper.analyse import analyse
    from safeset.paper.reproduce import reproduce as train_rows
    from safeset.paper.table import PAPER
    from safeset.system.memory import keep_freed_memory

    check_alone()
    keep_freed_memory()
    named = rows or list(PAPER)
    usual = out.absolute() == RESULTS.absolute()
    beside = analyses or (Path("results/analyses/paper") if usual else out / "analyses")
    check_folder(beside, "analyses")
    watch = console.TrainingWatch()
    try:
        records = train_rows(
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
    _show_table(records)
    _show_shares(analyse(named, seeds=seeds, results=out, out=beside, runs=runs, device=device, watch=watch))
    console.out.print("\nWhat differs from the paper, and why: docs/paper.md", style="dim")


def _show_table(records: Sequence[Mapping[str, Any]]) -> None:
    from safeset.paper.table import table_lines

    splits = " and ".join(sorted({f"{each['split']} data" for each in records}))
    title = f"{splits}; proved bounds, but for the last column: uniform by the power method, which proves nothing"
    console.print_table(title, HEADER, table_lines(records), texts=2)


def _show_shares(analyses: Sequence[Mapping[str, Any]]) -> None:
    from safeset.paper.table import share_lines

    if analyses:
        console.out.print()
        console.print_table(
            "the analyses of the text", ["data", "share", *HEADER[2:-1]], share_lines(analyses), texts=2
        )


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
    """Draw the paper's figures, and which classes go together, from the networks that `reproduce` trained."""
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
