"""The command that helps to choose ε and K."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.cli.options import Device, Method, NetworkName, OtherData, RunPath, check_alone, check_target, own_network
from safeset.cli.show_answers import rates
from safeset.errors import shown_rate
from safeset.terminal import console

if TYPE_CHECKING:
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
    from safeset.system.files import json_text, write_whole

    check_alone()
    target = out or (Run(run).path / "suggest.png" if data is None else None)
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
    if as_json:
        console.print_line(json_text(found.record()))
    else:
        _show(found)
    if target is not None and drawn:
        from safeset.runs.tradeoffs import tradeoffs

        write_whole(target, tradeoffs(found))
    note = f"Drawn: {target}" if drawn else "No plot without matplotlib: pip install 'safeset[report]' brings it."
    if target is not None:
        (console.err if as_json else console.out).print(f"\n{note}")


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
