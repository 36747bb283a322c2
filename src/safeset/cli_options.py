"""Options that several commands have."""

from pathlib import Path
from typing import Annotated, Any

import typer

from safeset.errors import expected

RunPath = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, as `safeset train` makes it.")]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; a GPU if there is one.")]
GuaranteeText = Annotated[str | None, typer.Option(help="standard, top3, rt3, affinity:FILE.toml or affinity:groups.")]
Background = Annotated[
    str | None, typer.Option(help="Images with transparency: the colour behind them. Default: white.")
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe: loss.margins=floating."),
]


def changes(texts: list[str]) -> dict[str, Any]:
    """KEY=VALUE texts as keys and values."""
    from safeset.training.toml import literal

    changes = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise expected("--set KEY=VALUE", repr(text))
        changes[key.strip()] = literal(value.strip())
    return changes
