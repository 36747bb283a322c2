"""The commands `models` and `version`: what comes with safeset."""

from safeset import __version__
from safeset.terminal import console


def models() -> None:
    """The networks, the recipes and the trained models that come with safeset."""
    from safeset.models import list_models
    from safeset.recipes.library import list_recipes
    from safeset.runs.library import list_trained

    console.out.print("Networks:  " + ", ".join(list_models()))
    console.out.print("Recipes:   " + ", ".join(list_recipes()))
    console.out.print("Trained:   " + (", ".join(list_trained()) or "none"))


def version() -> None:
    """The version."""
    console.out.print(f"safeset {__version__}")
