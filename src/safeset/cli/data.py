"""The commands about data sets: `safeset data list | show | get`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from safeset.cli.options import Background, Drop, Label, OneHot, Size, SkipBad, Units, data_settings
from safeset.errors import counted, expected
from safeset.terminal import console

if TYPE_CHECKING:
    from safeset.data.dataset import Dataset

data_app = typer.Typer(help="Data sets: list them, look at them, download them.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """The data sets that safeset knows, and whether they are here."""
    from safeset.data.sources import SOURCES

    rows = [[source.name, source.place(), source.summary] for source in SOURCES.values()]
    console.print_table("", ["name", "", "what"], rows, texts=3)


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A name, a folder of class folders, .npz or .csv.")],
    out: Annotated[Path | None, typer.Option(help="File for the picture. Default: NAME.png in the cache.")] = None,
    size: Size = None,
    background: Background = None,
    label: Label = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    units: Units = None,
    skip_bad: SkipBad = False,
) -> None:
    """Counts by class, and a picture."""
    if out is not None and out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise expected("a picture's file that ends in .png, .jpg or .webp", str(out))
    from safeset.data.images import cache_folder
    from safeset.data.quality import report
    from safeset.data.sources import SOURCES, load_data
    from safeset.drawing.picture import draw_picture
    from safeset.recipes.sections import Data
    from safeset.recipes.toml import from_table
    from safeset.system.files import write_whole

    given = data_settings(
        size=size, background=background, label=label, drop=drop, one_hot=one_hot, units=units, skip_bad=skip_bad
    )
    checked = from_table(Data, {"source": source, **given}, "data")
    found = load_data(source, progress=console.progress, **checked.options)
    report(found, oddities=source not in SOURCES)
    _show_counts(found)
    target = out or cache_folder() / f"{found.name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, draw_picture(found, target.suffix.lower()))
    console.out.print(f"Picture: {target}")


def _show_counts(data: "Dataset") -> None:
    """Print how many points a class has, and the ranges of the columns of a table."""
    rows = [[name, f"{train:,}", f"{test:,}"] for name, train, test in data.counts()]
    title = f"{data.name}: points of shape {data.input_shape}, {data.units}"
    console.print_table(title, ["class", "train", "test"], rows)
    sizes = f"{counted(len(data.train), 'training point')}, {counted(len(data.test), 'test point')}"
    console.out.print(f"{sizes}, {data.classes} classes")
    if data.ranges:
        ends = [[name, f"{low:g}", f"{high:g}"] for name, (low, high) in data.ranges.items()]
        console.print_table(f"\nInputs, {data.units}", ["column", "from", "to"], ends)


@data_app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="As `safeset data list` shows them.")],
) -> None:
    """Download data sets from their publishers: checked, and resumed where it was interrupted."""
    from safeset.data.dataset import data_folder
    from safeset.data.download import check_name, get

    for name in names:  # a mistake is reported before anything is downloaded
        check_name(name, data_folder())
    for name in dict.fromkeys(names):
        with console.transfer(name) as report:
            path = get(name, progress=report)
        console.out.print(f"{name} is in {path}.")
