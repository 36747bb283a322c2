"""The commands that help to choose: ε and K, and affinity sets."""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.cli.options import (
    Device,
    Epsilon,
    Method,
    NetworkName,
    OtherData,
    RunPath,
    check_alone,
    check_target,
    own_network,
    radius,
)
from safeset.cli.show_answers import rates
from safeset.errors import expected, shown_rate
from safeset.runs.library import find_run, is_shipped
from safeset.terminal import console

if TYPE_CHECKING:
    from safeset.runs.affinity_suggestion import AffinitySuggestion
    from safeset.runs.suggestion import Suggestion

COLUMNS = {
    "VRA": "vra",
    "rejected": "rejection_rate",
    "core": "core_size",
    "answer": "set_size",
    "smallest: label": "smallest_share",
    "classes": "smallest_set_size",
}
LEGEND = (
    "VRA, core, answer: of the largest certified answers, as in the paper. Smallest: the share of labels in the core "
    "of the smallest certified answer, which `certify` shows, and the mean number of its classes."
)
AFFINITY_COLUMNS = {"VRA": "vra", "rejected": "rejection_rate", "smallest answer": "smallest_set_size"}


def suggest(
    run: RunPath,
    data: OtherData = None,
    method: Method = None,
    out: Annotated[
        Path | None, typer.Option(help="PNG file. Default: suggest.png in the run, if its own data is looked at.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON, and nothing else.")] = False,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Show what ε and K cost on points that were not trained on, in a table and a plot, and suggest a choice."""
    from safeset.runs.run import Run
    from safeset.runs.suggestion import suggest_for_run
    from safeset.system.files import write_whole

    check_alone()
    run = find_run(run)
    target = out or (Run(run).path / "suggest.png" if data is None and not is_shipped(run) else None)
    drawn = find_spec("matplotlib") is not None
    if out is not None:
        from safeset.drawing.sheet import check_matplotlib

        check_matplotlib()
        check_target(out, "PNG", run=Run(run).path, own="suggest.png", inputs=[data])
    found = suggest_for_run(
        Run(run),
        source=data,
        method=method,
        network=own_network(network),
        device=device,
        progress=console.progress,
    )
    _present(found, lambda: _show(found), as_json)
    if target is None:
        return
    if drawn:
        from safeset.runs.tradeoffs import tradeoffs

        write_whole(target, tradeoffs(found))
    no_plot = "No plot without matplotlib: pip install 'safeset[report]' brings it."
    _note(f"Drawn: {target}" if drawn else no_plot, as_json)


def _present(found: "Suggestion | AffinitySuggestion", show: Callable[[], None], as_json: bool) -> None:
    """Print a suggestion for people, or all its numbers as JSON."""
    from safeset.system.files import json_text

    if as_json:
        console.print_line(json_text(found.record()))
    else:
        show()


def _note(text: str, as_json: bool) -> None:
    """Say at the end which file was written; beside JSON on standard error."""
    (console.err if as_json else console.out).print(f"\n{text}")


def _show(found: "Suggestion") -> None:
    from safeset.system.files import plain

    rows = plain(found.rows(found.grid, found.names))
    body = [[shorten(row["guarantee"], 0), shown_epsilon(row["epsilon"]), *rates(row, COLUMNS)] for row in rows]
    title = (
        f"{found.on}: {len(found.labels):,}, top-1 accuracy {shown_rate(rows[0]['top1'])}, trained for "
        f"{shorten(found.own, 0)} at ε = {shown_epsilon(found.epsilon)}; {found.method}, proved bounds, "
        f"ε in {found.units}"
    )
    console.print_table(title, ["guarantee", "ε", *COLUMNS], body, texts=1)
    console.out.print(LEGEND, style="dim")
    for sentence in found.sentences:
        console.out.print(f"\n{sentence}")


def suggest_affinity(
    run: RunPath,
    pairs: Annotated[
        int | None,
        typer.Option(
            help="Pairs of classes at the most. Default: as many as recover 80 % of the gain, or one a class."
        ),
    ] = None,
    k: Annotated[
        int | None,
        typer.Option(
            "--k", help="Whose gain is to be recovered: relaxed top-K. Default: as large as the run's answers, or 3."
        ),
    ] = None,
    epsilon: Epsilon = None,
    data: OtherData = None,
    method: Method = None,
    out: Annotated[Path | None, typer.Option(help="TOML file to write. Default: affinity.toml in the run.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all numbers as JSON, and nothing else.")] = False,
    network: NetworkName = None,
    device: Device = None,
) -> None:
    """Propose affinity sets from points that were held out: few pairs that recover most of what top-K gains."""
    from safeset.runs.affinity_suggestion import suggest_affinity as propose
    from safeset.runs.run import Run
    from safeset.system.files import write_whole

    check_alone()
    run = find_run(run)
    if out is None and is_shipped(run):
        raise expected("--out FILE.toml for the sets", "none", f"Nothing is written into {run}: it came with safeset.")
    target = out or Run(run).path / "affinity.toml"
    if out is not None:
        check_target(out, "TOML", run=Run(run).path, own="affinity.toml", inputs=[data])
    if target.exists() and not overwrite:
        raise expected(
            "a new file for the sets", f"{target}, which is there", "Name another with --out, or say --overwrite."
        )
    found = propose(
        Run(run),
        pairs=pairs,
        k=k,
        epsilon=radius(epsilon),
        source=data,
        method=method,
        network=own_network(network),
        device=device,
        progress=console.progress,
    )
    _present(found, lambda: _show_affinity(found), as_json)
    if found.sets:
        write_whole(target, found.text())
    written = f"Written: {target}. As a guarantee: affinity:{target}"
    _note(written if found.sets else "Nothing was written.", as_json)


def _show_affinity(found: "AffinitySuggestion") -> None:
    from safeset.system.files import plain

    body = []
    for row in plain(found.rows):
        together = ", ".join(" + ".join(pair) for pair in row["added"]) or row["guarantee"]
        share = "–" if row["recovered"] is None else f"{100 * row['recovered']:.0f} %"
        body.append(
            [together, "–" if row["pairs"] is None else str(row["pairs"]), share, *rates(row, AFFINITY_COLUMNS)]
        )
    certificate = found.certificate
    title = (
        f"{found.on}: {len(found.labels):,}; ε = {shown_epsilon(certificate.epsilon)} in {found.units}; "
        f"{certificate.method}, proved bounds"
    )
    console.print_table(title, ["put together", "pairs", "of the gain", *AFFINITY_COLUMNS], body, texts=1)
    for sentence in found.sentences:
        console.out.print(f"\n{sentence}")
