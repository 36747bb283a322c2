"""The data sets that have a name, and how data is found: by its name, or by the path of a user's own."""

from functools import partial
from pathlib import Path
from typing import Any

from safeset.data.acasxu import ACASXU
from safeset.data.cifar100 import CIFAR100
from safeset.data.dataset import Dataset, Progress
from safeset.data.embedded import BLOBS2D, DIGITS
from safeset.data.eurosat import EUROSAT
from safeset.data.images import read_folder
from safeset.data.npz import read_npz
from safeset.data.source import Archive, Source, read_source
from safeset.data.tables import read_table
from safeset.data.tiny_imagenet import TINY_IMAGENET
from safeset.errors import DataNotFoundError, expected, nearest

SOURCES: dict[str, Source] = {
    source.name: source for source in (DIGITS, BLOBS2D, EUROSAT, CIFAR100, TINY_IMAGENET, ACASXU)
}
ARCHIVES: dict[str, Archive] = {name: source.archive for name, source in SOURCES.items() if source.archive}


def check_here(source: str, network: str | None = None) -> None:
    """Raise an error if files of a named data set are missing, without reading any; `load_data` checks other sources.

    Args:
        source: as for `load_data`.
        network: of ``acasxu``.

    Raises:
        DataNotFoundError: saying where it was looked for.
    """
    if source in SOURCES:
        SOURCES[source].check_here(network)


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
    suffix = path.suffix.lower()
    if name in SOURCES:
        return read_source(SOURCES[name].read, name, options, progress)
    if path.is_dir():
        return read_source(partial(read_folder, path), name, options, progress)
    if path.is_file() and suffix == ".npz":
        return read_source(partial(read_npz, path), name, options, progress)
    if path.is_file() and suffix in (".csv", ".tsv"):
        return read_source(partial(read_table, path), name, options, progress)
    if path.is_file():
        raise expected("a folder of class folders, an .npz or a .csv file", name)
    remedy = nearest(name, SOURCES)
    raise DataNotFoundError(
        f"Expected one of {', '.join(SOURCES)}, or the path of a folder, .npz or .csv file, but got {name!r}, and "
        f"nothing is there.{' ' + remedy if remedy else ''}"
    )
