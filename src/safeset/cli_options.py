"""Options that several commands have."""

import csv
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
Units = Annotated[str | None, typer.Option(help="raw: own numbers as they are, and ε in their units.")]
Drop = Annotated[str | None, typer.Option(metavar="COLUMN,…", help="Tables: columns to leave out.")]
OneHot = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,…", help="Tables: columns of texts, to become columns of 0 and 1."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe: loss.margins=floating."),
]


def names(text: str | None) -> list[str] | None:
    """Names with commas between them; those with a comma of their own in quotes.

    >>> names('city, "name, first"')
    ['city', 'name, first']
    """
    return None if text is None else [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


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
