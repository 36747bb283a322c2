"""The trained models that come with safeset: runs that are only read."""

from pathlib import Path

from safeset.errors import expected, nearest

LARGEST, LARGEST_TOGETHER = 8 * 2**20, 24 * 2**20  # bytes of a model, and of all: they are in every wheel


def model_folder() -> Path:
    """Where the models that come with safeset are: in the installed package, or beside it in a checkout."""
    inside = Path(__file__).parents[1] / "models"
    return inside if any(inside.glob("*/*/recipe.toml")) else Path(__file__).parents[3] / "models"


def list_trained() -> list[str]:
    """The names of the trained models that come with safeset, such as ``acasxu/targeted``."""
    folder = model_folder()
    return sorted(path.parent.relative_to(folder).as_posix() for path in folder.glob("*/*/recipe.toml"))


def find_run(name: str | Path) -> Path:
    """The directory of a run: a path that is there, or that of a model by its name; else the path as it is.

    Raises:
        ArgumentError: where there is none, and the name of a model looks like it.
    """
    path = Path(name)
    if path.exists() or path.is_symlink():
        return path
    known = list_trained()
    if path.as_posix() in known:
        return model_folder() / path
    remedy = nearest(path.as_posix(), known)
    if remedy:
        raise expected("the directory of a run, or a model that comes with safeset", str(name), remedy)
    return path


def is_onnx(path: str | Path) -> bool:
    """Whether a path names an ONNX file.

    >>> is_onnx("model.onnx"), is_onnx("runs/digits")
    (True, False)
    """
    return Path(path).suffix.lower() == ".onnx"


def is_shipped(path: Path) -> bool:
    """Whether a path lies among the models that come with safeset: nothing is written there."""
    return model_folder().resolve() in path.resolve().parents


def title_of(path: Path) -> str:
    """What people call a run: a model that comes with safeset by its name, not by where it is installed.

    >>> title_of(model_folder() / "acasxu" / "targeted"), title_of(Path("runs") / "digits")
    ('acasxu/targeted', 'runs/digits')
    """
    return path.resolve().relative_to(model_folder().resolve()).as_posix() if is_shipped(path) else str(path)
