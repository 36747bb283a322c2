"""The commands about data sets: `safeset data list | show | get`."""

from pathlib import Path
from typing import Annotated

import typer

from safeset.cli.options import Background, Drop, OneHot, Units, names
from safeset.errors import counted, expected
from safeset.terminal import console

data_app = typer.Typer(help="Data sets: list them, look at them, download them.", no_args_is_help=True)


@data_app.command("list")
def data_list() -> None:
    """The data sets that safeset knows, and whether they are here."""
    from safeset.data.sources import known

    rows = [[name, where, about] for name, where, about in known()]
    console.table("", ["name", "", "what"], rows, texts=3)


@data_app.command("show")
def data_show(
    source: Annotated[str, typer.Argument(help="A name, a folder of class folders, .npz or .csv.")],
    out: Annotated[Path | None, typer.Option(help="File for the picture. Default: NAME.png in the cache.")] = None,
    size: Annotated[int | None, typer.Option(help="Folders of images: resize to this side.")] = None,
    background: Background = None,
    label: Annotated[str | None, typer.Option(help="Tables: the column of labels. Default: the last.")] = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    units: Units = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave out bad files and rows.")] = False,
) -> None:
    """Counts by class, and a picture."""
    if out is not None and out.suffix.lower() not in (".png", ".jpg", ".jpeg", ".webp"):
        raise expected("a picture's file that ends in .png, .jpg or .webp", str(out))
    from safeset.data.images import cache_folder
    from safeset.data.quality import report
    from safeset.data.sources import SOURCES, load_data
    from safeset.drawing.picture import picture
    from safeset.recipes.sections import Data
    from safeset.recipes.toml import from_table
    from safeset.system.files import write_whole

    options = {
        "size": size,
        "background": background,
        "label": label,
        "drop": names(drop),
        "one_hot": names(one_hot),
        "units": units,
        "skip_bad": skip_bad or None,
    }
    given = {name: value for name, value in options.items() if value is not None}
    stated = from_table(Data, {"source": source, **given}, "data")
    found = load_data(source, progress=console.progress, **stated.options)
    report(found, oddities=source not in SOURCES)
    rows = [[name, f"{a:,}", f"{b:,}"] for name, a, b in found.counts()]
    console.table(f"{found.name}: points of shape {found.input_shape}, {found.units}", ["class", "train", "test"], rows)
    sizes = f"{counted(len(found.train), 'training point')}, {counted(len(found.test), 'test point')}"
    console.out.print(f"{sizes}, {found.classes} classes")
    if found.ranges:
        ends = [[name, f"{low:g}", f"{high:g}"] for name, (low, high) in found.ranges.items()]
        console.table(f"\nInputs, {found.units}", ["column", "from", "to"], ends)
    target = out or cache_folder() / f"{found.name}.png"
    target.parent.mkdir(parents=True, exist_ok=True)
    write_whole(target, picture(found, target.suffix.lower()))
    console.out.print(f"Picture: {target}")


@data_app.command("get")
def data_get(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="eurosat, cifar100 or tiny-imagenet.")],
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
