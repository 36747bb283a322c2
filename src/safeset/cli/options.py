"""Options that several commands have, and what they are checked for."""

import csv
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safeset.errors import expected
from safeset.runs.library import is_shipped
from safeset.system import torchrun

if TYPE_CHECKING:
    from safeset.runs.own_networks import Factory

ModelPath = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="Directory of a run; a trained model (`safeset models`); or an .onnx file."),
]
RunPath = Annotated[
    Path, typer.Argument(metavar="RUN", help="Directory of a run, or a trained model (`safeset models`).")
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 …; a GPU if there is one.")]
OtherData = Annotated[str | None, typer.Option(help="Other data than the run's own.")]
Method = Annotated[str | None, typer.Option(help="uniform, floating or joint. Default: joint.")]
GuaranteeText = Annotated[str | None, typer.Option(help="standard, top3, rt3, affinity:FILE.toml or affinity:groups.")]
Background = Annotated[
    str | None, typer.Option(help="Images with transparency: the colour behind them. Default: white.")
]
Units = Annotated[str | None, typer.Option(help="raw: own numbers as they are, and ε in their units.")]
Size = Annotated[int | None, typer.Option(help="Folders of images: resize to this side.")]
Label = Annotated[str | None, typer.Option(help="Tables: the column of labels. Default: the last.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and rows.")]
Drop = Annotated[str | None, typer.Option(metavar="COLUMN,…", help="Tables: columns to leave out.")]
OneHot = Annotated[
    str | None,
    typer.Option(metavar="COLUMN,…", help="Tables: columns of texts, to become columns of 0 and 1."),
]
Alpha = Annotated[
    str | None,
    typer.Option(metavar="FLOAT", help="Calibrated runs: how often the true class may be missing. Default: as stored."),
]
Epsilon = Annotated[
    list[str] | None,
    typer.Option("--epsilon", "--eps", metavar="FLOAT", help="L2 radius in input units; images are in [0, 1]."),
]
Epsilons = Annotated[
    list[str] | None,
    typer.Option("--epsilon", "--eps", metavar="FLOATS", help="One or more radii: 0.05,0.141. Default: the run's own."),
]
NetworkName = Annotated[
    str | None,
    typer.Option("--network", metavar="MODULE:FACTORY", help="Your own network: code of yours that is run to make it."),
]
Changes = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any key of the recipe: loss.margins=floating."),
]


def data_settings(*, drop: str | None, one_hot: str | None, skip_bad: bool, **others: Any) -> dict[str, Any]:
    """What the flags about data set in a recipe's table of data: the keys that were given."""
    given = {**others, "drop": names(drop), "one_hot": names(one_hot), "skip_bad": skip_bad or None}
    return {name: value for name, value in given.items() if value is not None}


def names(text: str | None) -> list[str] | None:
    """Split a list at its commas; a name that holds a comma stands in quotes.

    >>> names('city, "name, first"')
    ['city', 'name, first']
    """
    return None if text is None else [name.strip() for name in next(csv.reader([text], skipinitialspace=True), [])]


def radii(given: list[str] | None) -> list[float] | None:
    """The numbers of --epsilon or --eps, which are one option; None where it is not given."""
    if not given:
        return None
    try:
        found = [[float(part) for part in text.split(",")] for text in given]
    except ValueError:
        raise expected("--epsilon to be one or more numbers such as 0.05,0.141", repr(",".join(given))) from None
    if any(each != found[0] for each in found):
        raise expected("one --epsilon (--eps is the same option)", " and ".join(given))
    return found[0]


def radius(given: list[str] | None) -> float | None:
    """The one number of --epsilon or --eps; None where it is not given."""
    found = radii(given)
    if found and len(found) > 1:
        raise expected("one number for --epsilon", ",".join(map(str, found)))
    return found[0] if found else None


def changes(texts: list[str]) -> dict[str, Any]:
    """Parse the KEY=VALUE texts of --set."""
    from safeset.recipes.toml import literal

    changes = {}
    for text in texts:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise expected("--set KEY=VALUE", repr(text))
        changes[key.strip()] = literal(value.strip())
    return changes


def own_network(name: str | None) -> "Factory | None":
    """Find the function that makes a user's own network, by the flag --network."""
    if name is None:
        return None
    from safeset.runs.own_networks import find_factory

    return find_factory(name)


def check_alone_network(network: str | None, path: Path, alone: bool) -> None:
    """Refuse --network beside a file that has its own."""
    if alone and network is not None:
        raise expected(f"no --network beside {path}, which has its own", network)


def check_alone() -> None:
    """Raise an error where torchrun started several workers."""
    if not torchrun.is_alone():
        raise expected("one process", f"{torchrun.workers()} workers", "Start it without torchrun.")


OF_A_RUN = {"recipe.toml", "model.safetensors", "last.safetensors", "checkpoint.safetensors", "witnesses.safetensors"}
OF_A_RUN |= {"answers.safetensors", "bounds.json", "evaluation.json", "audit.json", "metrics.jsonl", "README.md"}
OF_A_RUN |= {"metrics.png", "samples.png", "suggest.png", "report.html", "plot.png", "calibration.json", ".lock"}


def check_target(
    path: Path | None, kind: str, *, run: Path, own: str = "", inputs: Iterable[str | Path | None] = ()
) -> None:
    """Raise an error, before long work, for a file that cannot be written, or that holds something else.

    Args:
        path: the file.
        kind: such as JSON, in which an existing file must end.
        run: a directory whose files are kept.
        own: the name of the file in it that is the command's own.
        inputs: what the command reads.
    """
    if path is None:
        return
    if not path.parent.is_dir():
        raise expected(f"a directory for the {kind} file", f"none at {path.parent}")
    remedy = f"Choose another name for the {kind} file. Nothing was written."
    target = Path(os.path.realpath(path))
    if is_shipped(target):
        raise expected(f"a {kind} file to write", f"{path}, among the models that come with safeset", remedy)
    if str(target) in {os.path.realpath(each) for each in inputs if each is not None}:
        raise expected(f"a {kind} file to write", f"{path}, which is to be read", remedy)
    if Path(os.path.realpath(run)) in target.parents and target.name in OF_A_RUN - {own}:
        raise expected(f"a {kind} file to write", f"{path}, a file of the run itself", remedy)
    if path.is_file() and target.suffix.lower() != f".{kind.lower()}":
        raise expected(f"a {kind} file to write", f"{path}, which is there and has another ending", remedy)


def file_of(guarantee: str | None) -> str | None:
    """The file that the text of a guarantee names, if it names one.

    >>> file_of("affinity:sets.json"), file_of("rt3")
    ('sets.json', None)
    """
    kind, sign, rest = (guarantee or "").partition(":")
    return rest if sign and kind == "affinity" and not rest.startswith(("{", "[")) else None


def check_format(as_json: bool, as_csv: bool) -> None:
    """Refuse two formats at once, and to print where standard output is closed."""
    if as_json and as_csv:
        raise expected("one of --json and --csv", "both")
    if sys.stdout is None:
        raise expected("standard output for the answers", "none: it is closed")
