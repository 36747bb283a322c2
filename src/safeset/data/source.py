"""A named data set as one value: how it is read, where its files lie, and where they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from safeset.data.dataset import Dataset, Progress, data_folder, find
from safeset.errors import expected


@dataclass(frozen=True)
class Archive:
    """A publisher's archive of a data set.

    Attributes:
        url: where it is.
        md5: the publisher's checksum of the whole file.
        size: its bytes.
        folder: what it unpacks to.
        citation: whom to credit.
    """

    url: str
    md5: str
    size: int
    folder: str
    citation: str

    @property
    def file(self) -> str:
        """The archive's own name.

        >>> Archive("https://example.org/files/birds.zip?download=1", "", 0, "birds", "").file
        'birds.zip'
        """
        return Path(urlsplit(self.url).path).name


@dataclass(frozen=True)
class Source:
    """A data set that has a name.

    Attributes:
        name: what it is called in recipes.
        summary: what it is, in half a line.
        read: returns it; takes the options of the source, and ``progress`` where it decodes many files.
        folders: where its files may lie in the data folder, the best place first; none where it needs no files.
        archive: where `safeset data get` downloads it.
        by_hand: what to put into the first folder, where there is no archive.
        network_file: the file of a network that an option names (ACAS Xu).
    """

    name: str
    summary: str
    read: Callable[..., Dataset]
    folders: tuple[str, ...] = ()
    archive: Archive | None = None
    by_hand: str = ""
    network_file: Callable[[str], Path] | None = None

    def folder(self) -> Path:
        """The folder that holds its files.

        Raises:
            DataNotFoundError: saying where it was looked for.
        """
        return find(*self.folders, what=f"{self.name} ({self.summary})", get=self.name if self.archive else None)

    def check_here(self, network: str | None = None) -> None:
        """Raise an error if files are missing, without reading any; ``network`` is one that an option names."""
        if self.folders:
            self.folder()
        if self.network_file and network:
            self.network_file(network)

    def place(self) -> str:
        """Where its files are, or how they get there, in words."""
        there = [data_folder() / folder for folder in self.folders if (data_folder() / folder).exists()]
        if there:
            return f"in {there[0]}"
        if not self.folders:
            return "built in"
        return f"safeset data get {self.name}" if self.archive else f"to be put into {data_folder() / self.folders[0]}"


def read_source(read: Callable[..., Dataset], name: str, options: dict[str, Any], progress: Progress | None) -> Dataset:
    """Call a reader with the options that a user gave it, and with ``progress`` where it shows any.

    Raises:
        ArgumentError: for an option that it does not have.
    """
    known = signature(read).parameters
    strange = next((option for option in options if option not in known), None)
    if strange is not None:
        raise expected(f"options that {name} has", repr(strange))
    return read(**options, **({"progress": progress} if "progress" in known else {}))
