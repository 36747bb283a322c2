"""Official archives: downloaded with resume, compared with the publisher's checksum, unpacked whole or not at all."""

import fcntl
import hashlib
import re
import shutil
import stat
import tarfile
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from gzip import BadGzipFile
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PureWindowsPath
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from safeset.data.dataset import data_folder
from safeset.data.source import Archive
from safeset.data.sources import ARCHIVES, SOURCES
from safeset.errors import DataNotFoundError, SafesetError, expected, nearest

TIMEOUT = 30.0  # seconds without a byte, after which a connection counts as dead
TRIES = 5  # connections to a server that drops them
PAUSE = 1.0  # seconds before the second connection; twice as long before the third, and so on
PIECE = 1 << 20  # bytes that are read at once, at most

PARTIAL, RANGE_REFUSED = 206, 416  # HTTP
BROKEN = (EOFError, ValueError, RuntimeError, zlib.error, BadGzipFile, tarfile.TarError, zipfile.BadZipFile)

ShowBytes = Callable[[int, int], None]


class _DroppedError(Exception):
    """A connection that ended before the file did: worth another try."""


def get(
    name: str,
    *,
    folder: Path | None = None,
    progress: ShowBytes | None = None,
    archives: Mapping[str, Archive] = ARCHIVES,
) -> Path:
    """Download and unpack a data set, unless it is there already; what an earlier try has left is continued.

    Args:
        name: one of ``archives``.
        folder: where to put it; by default where safeset looks for data.
        progress: called now and then with the bytes that are there and the bytes of the whole file.
        archives: what can be downloaded.

    Returns:
        The unpacked folder.

    Raises:
        ArgumentError: for a name that is unknown, or that needs no download.
        DataNotFoundError: if its server does not give it, saying how to put it there by hand.
        SafesetError: if another process is downloading it, or if the file is not the publisher's; that file is deleted.
        OSError: if it cannot be written; the unpacked folder is not there then, and what was downloaded is kept.
    """
    place = folder or data_folder()
    check_name(name, place, archives)
    archive = archives[name]
    target, part = place / archive.folder, place / f"{archive.file}.part"
    if target.is_dir():
        return target
    place.mkdir(parents=True, exist_ok=True)
    with _lock(place / f".{name}.lock", name):
        if not target.is_dir():  # another process may just have finished it
            _download(archive, part, target, progress or (lambda done, total: None))
            _verify(archive, part)
            _unpack(archive, part, target)
            part.unlink()
    return target


def check_name(name: str, place: Path, archives: Mapping[str, Archive] = ARCHIVES) -> None:
    """Raise an error if a data set cannot be downloaded into ``place``, saying what to do where that is known."""
    if name in archives:
        return
    known = SOURCES.get(name)
    if known is not None and known.by_hand:
        raise DataNotFoundError(
            f"Expected a data set with an official archive, but got {name!r}, which has none: put {known.by_hand} into "
            f"{place / known.folders[0]}."
        )
    if known is not None:
        remedy = "It comes with safeset: there is nothing to download."
    else:
        remedy = nearest(name, [*archives, *SOURCES])
    raise expected(f"a data set to download ({', '.join(archives)})", repr(name), remedy)


@contextmanager
def _lock(path: Path, name: str) -> Iterator[None]:
    """Be the only process that downloads a data set; the lock ends with the process, so its file may stay."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SafesetError(
                f"Another process is downloading {name} into {path.parent}. Wait until it is done, then try again."
            ) from None
        yield


def _download(archive: Archive, part: Path, target: Path, progress: ShowBytes) -> None:
    """Fetch what is missing of the file, over several connections if need be."""
    dropped = _DroppedError()
    for attempt in range(TRIES):
        time.sleep(PAUSE * attempt)
        try:
            return _fetch_rest(archive, part, target, progress)
        except _DroppedError as error:
            dropped = error
    got = f"the connection was dropped {TRIES} times ({dropped}); what was received is kept for the next try"
    raise _by_hand(archive, target, got)


def _fetch_rest(archive: Archive, part: Path, target: Path, progress: ShowBytes) -> None:
    """Fetch what is missing of the file over one connection.

    Errors of the network are `_DroppedError`, so that errors of the disk are never mistaken for them.
    """
    done = part.stat().st_size if part.exists() else 0
    progress(done, archive.size)
    if done >= archive.size:
        return
    with _request(archive, part, done, target) as response:
        start = _start(response, archive, done)
        with part.open("ab") as file:
            file.truncate(start)
            done = start
            while piece := _piece(response, archive.size - done):
                file.write(piece)
                done += len(piece)
                progress(done, archive.size)
    if done < archive.size:
        raise _DroppedError(f"after {done:,} of {archive.size:,} bytes")


def _request(archive: Archive, part: Path, done: int, target: Path) -> HTTPResponse:
    """Request the file from a byte on; returns the server's response."""
    headers = {"User-Agent": "safeset"} | ({"Range": f"bytes={done}-"} if done else {})
    try:
        response: HTTPResponse = urlopen(Request(archive.url, headers=headers), timeout=TIMEOUT)
        return response
    except HTTPError as error:
        error.close()
        if done and error.code == RANGE_REFUSED:
            part.unlink()
            raise _DroppedError(f"the server has nothing after {done:,} bytes") from None
        raise _by_hand(archive, target, f"the server replied {error.code} {error.reason}") from None
    except (URLError, TimeoutError) as error:
        reason = error.reason if isinstance(error, URLError) else error
        raise _by_hand(archive, target, f"the server could not be reached ({reason})") from None
    except (OSError, HTTPException) as error:
        raise _DroppedError(f"{type(error).__name__}: {error}") from None


def _start(response: HTTPResponse, archive: Archive, done: int) -> int:
    """The byte of the file that a response begins with: 0 if the server ignores ranges."""
    start, total = 0, response.length
    if response.status == PARTIAL:
        found = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
        if not found or int(found[1]) > done:
            raise _DroppedError(f"the server did not continue from byte {done:,}")
        start, total = int(found[1]), None if found[2] == "*" else int(found[2])
    if total not in (None, archive.size):
        raise SafesetError(
            f"Expected {archive.size:,} bytes from {archive.url}, but got a response of {total:,} bytes: that is "
            "another file, perhaps a network's log-in page. Open the address in a browser to see, then try again."
        )
    return start


def _piece(response: HTTPResponse, most: int) -> bytes:
    try:
        return response.read1(min(PIECE, most))
    except (OSError, HTTPException) as error:
        raise _DroppedError(f"{type(error).__name__}: {error}") from None


def _by_hand(archive: Archive, target: Path, got: str) -> DataNotFoundError:
    return DataNotFoundError(
        f"Expected to download {archive.url}, but {got}. Try again later; or get that file (md5 {archive.md5}) by "
        f"other means and unpack it in {target.parent}, so that {target} is there."
    )


def _verify(archive: Archive, part: Path) -> None:
    with part.open("rb") as file:
        got = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if got != archive.md5:
        part.unlink()
        raise SafesetError(
            f"Expected a file with the md5 {archive.md5} from {archive.url}, but got {got}. The file was deleted: try "
            "again."
        )


def _unpack(archive: Archive, part: Path, target: Path) -> None:
    """Unpack beside the target and rename at the end, so that a half-unpacked folder never has the target's name."""
    temporary = target.with_name(f".{target.name}.unpacking")
    shutil.rmtree(temporary, ignore_errors=True)  # left by a process that was killed
    temporary.mkdir()
    try:
        _extract(archive, part, temporary)
        if not (temporary / archive.folder).is_dir():
            raise ValueError("an archive without that folder")
        (temporary / archive.folder).rename(target)
    except BROKEN as error:
        part.unlink()
        raise SafesetError(
            f"Expected {archive.url} to unpack to the folder {archive.folder}, but got {error}. Nothing was unpacked, "
            "and the file was deleted."
        ) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract(archive: Archive, part: Path, into: Path) -> None:
    if archive.file.endswith(".zip"):
        with zipfile.ZipFile(part) as packed:
            for member in packed.infolist():
                _check_member(member.filename, special=stat.S_ISLNK(member.external_attr >> 16))
            packed.extractall(into)
    else:
        with tarfile.open(part, "r:gz") as packed_tar:
            for each in packed_tar.getmembers():
                _check_member(each.name, special=not (each.isfile() or each.isdir()))
            # Python before 3.11.4 has no filters; the others warn without one.
            options: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            packed_tar.extractall(into, **options)


def _check_member(name: str, *, special: bool) -> None:
    path = PureWindowsPath(name)  # Windows' rules cover every system's absolute paths and separators
    if special or path.anchor or ".." in path.parts:
        raise ValueError(f"{name!r} in it, {'no plain file' if special else 'which is outside'}")
