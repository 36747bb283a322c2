"""The recipes that come with safeset, and any of them with changes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safeset.data.sources import SOURCES
from safeset.errors import ArgumentError, expected, nearest
from safeset.recipes import toml
from safeset.recipes.recipe import Recipe, resolve_changes


def recipe_folder() -> Path:
    """Where the recipes that come with safeset are: in the installed package, or beside it in a checkout."""
    inside = Path(__file__).parent
    return inside if any(inside.glob("*/*.toml")) else Path(__file__).parents[3] / "recipes"


def list_recipes() -> list[str]:
    """The names of the recipes that come with safeset, such as ``cifar100/rt5``."""
    folder = recipe_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.toml"))


def find_recipe(name: str) -> Path:
    """A recipe by its path, or by the name of one that comes with safeset."""
    path = Path(name)
    is_data = name in SOURCES or path.is_dir() or path.suffix.lower() in (".csv", ".tsv", ".npz")
    if path.is_file() and not is_data:
        return path
    if name in list_recipes():
        return recipe_folder() / f"{name}.toml"
    remedies = [nearest(name, list_recipes())]
    if is_data:
        remedies.append(f"To train on data, with defaults: --data {name}")
    elif not remedies[0]:
        remedies.append(f"safeset has {', '.join(list_recipes())}.")
    remedy = " ".join(filter(None, remedies))
    raise expected("the path of a recipe, or the name of one that comes with safeset", repr(name), remedy)


def assemble_recipe(name: str | None, changes: Mapping[str, Any]) -> Recipe:
    """A recipe by its path or name, or none, with values at dotted keys changed: what the command line means.

    Other data replaces the recipe's, with all its options.
    """
    path = find_recipe(name) if name is not None else None
    table = toml.read_table(path) if path else {}
    plain = resolve_changes(changes)
    given = table.get("data")
    if "data.source" in plain and isinstance(given, Mapping) and plain["data.source"] != given.get("source"):
        table.pop("data")
    if not table.get("data") and "data.source" not in plain:
        remedy = "Give a recipe, or --data with a name (safeset data list), a folder, an .npz or a .csv file."
        raise expected("something to train on", "nothing", remedy)
    try:
        return Recipe.from_table(toml.override(table, plain), path.parent if path else None)
    except ArgumentError as error:
        raise ArgumentError(f"In {path}: {error}" if path and not changes else str(error)) from None
