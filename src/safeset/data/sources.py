"""Data by its name, or by the path of a user's own."""

from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any

from safeset.data import acasxu, cifar100, embedded, images, npz, tables, tiny_imagenet
from safeset.data.dataset import Dataset, Progress, data_folder, find
from safeset.data.download import ARCHIVES
from safeset.errors import DataNotFoundError, expected, nearest

SOURCES: dict[str, Callable[..., Dataset]] = {
    "digits": embedded.digits,
    "blobs2d": embedded.blobs2d,
    "eurosat": images.eurosat,
    "cifar100": cifar100.cifar100,
    "tiny-imagenet": tiny_imagenet.tiny_imagenet,
    "acasxu": acasxu.acasxu,
}


ABOUT = {
    "digits": "handwritten digits, 8 × 8 pixels, 10 classes; comes with scikit-learn",
    "blobs2d": "four overlapping classes in the plane; made here",
    "eurosat": "satellite images, 64 × 64 pixels, 10 classes",
    "cifar100": "small photographs, 32 × 32 pixels, 100 classes in 20 superclasses",
    "tiny-imagenet": "photographs, 64 × 64 pixels, 200 classes",
    "acasxu": "advisories of a collision-avoidance network, 5 numbers, 5 classes",
}
PLACES = {
    "eurosat": ("EuroSAT_RGB", "2750"),
    "cifar100": ("cifar-100-binary",),
    "tiny-imagenet": ("tiny-imagenet-200",),
    "acasxu": ("acasxu",),
}


def known() -> list[tuple[str, str, str]]:
    """Each data set: its name, whether it is here, and what it is."""
    return [(name, _here(name), ABOUT[name]) for name in SOURCES]


def check_here(source: str, network: str | None = None) -> None:
    """Complain if a data set that needs files has none, without reading any; other sources are left to `load_data`.

    Args:
        source: as for `load_data`.
        network: of ``acasxu``.

    Raises:
        DataNotFoundError: saying where it was looked for.
    """
    if source in PLACES:
        get = source if source in ARCHIVES else None
        find(*PLACES[source], what=f"{source} ({ABOUT[source]})", get=get)
    if source == "acasxu" and network:
        acasxu.nnet_file(network)


def _here(name: str) -> str:
    if name not in PLACES:
        return "built in"
    found = [data_folder() / place for place in PLACES[name] if (data_folder() / place).exists()]
    if found:
        return f"in {found[0]}"
    return f"safeset data get {name}" if name in ARCHIVES else f"to be put into {data_folder() / PLACES[name][0]}"


def load_data(source: str | Path, *, progress: Progress | None = None, **options: Any) -> Dataset:
    """A data set by its name, or from a folder of class folders, an ``.npz`` or a ``.csv`` file.

    Args:
        source: one of `SOURCES`, or a path.
        progress: wraps the files that are decoded, to show how far it is.
        options: those of the source, such as ``network`` of ``acasxu``, ``size`` of a folder, ``label`` of a table.

    >>> load_data("digits").classes
    10
    """
    name, path = str(source), Path(source)
    try:
        if name in SOURCES:
            shown = {"progress": progress} if "progress" in signature(SOURCES[name]).parameters else {}
            return SOURCES[name](**options, **shown)
        if path.is_dir():
            return images.folder(path, progress=progress, **options)
        if path.is_file() and path.suffix.lower() == ".npz":
            return npz.npz(path, **options)
        if path.is_file() and path.suffix.lower() in (".csv", ".tsv"):
            return tables.table(path, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        option = str(error).rpartition("argument ")[2].strip("'").partition("'")[0]
        raise expected(f"options that {name} has", repr(option)) from None
    if path.is_file():
        raise expected("a folder of class folders, an .npz or a .csv file", name)
    remedy = nearest(name, SOURCES)
    raise DataNotFoundError(
        f"Expected one of {', '.join(SOURCES)}, or the path of a folder, .npz or .csv file, but got {name!r}, and "
        f"nothing is there.{' ' + remedy if remedy else ''}"
    )
