"""Files that are written whole or not at all, and tensors in them, without pickles."""

import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from safeset.errors import SafesetError, expected

if TYPE_CHECKING:
    from torch import Tensor

MOST_HEADER = 2**24  # bytes; the header of some hundred tensors has a few thousand


def not_through_links(path: str, flags: int) -> int:
    """Open a file, but no link: a directory from elsewhere could make us overwrite other files by one."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file whole or not at all: into a temporary file that is flushed to the disk, then renamed.

    Raises:
        SafesetError: if something else than a file is there.
        OSError: if it cannot be written; a file that was there before is unchanged.
    """
    if path.exists() and not path.is_file():
        raise expected(f"a file to write at {path}", "a folder, a device or a pipe, which it would replace")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb", opener=not_through_links) as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def sweep(*folders: Path) -> None:
    """Remove temporary files of `write_whole` that killed processes have left; those of living ones stay."""
    for left in (path for folder in folders for path in folder.glob(".*.tmp")):
        number = left.name.split(".")[-2]
        if number.isdecimal() and not _lives(int(number)):
            with suppress(OSError):
                left.unlink()


def _lives(process: int) -> bool:
    """Whether a process of this number runs on this machine, under any user."""
    try:
        with suppress(PermissionError):
            os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    return True


def check_folder(path: Path, what: str) -> None:
    """Raise an error if a directory cannot be made or written into: before long work, not after it."""
    there = next(each for each in (path, *path.parents) if each.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        got = f"{there}, which is {'not to be written' if there.is_dir() else 'a file'}"
        raise expected(f"a directory for {what} at {path}", got, "Choose another.")


def plain(value: Any) -> Any:
    """The same without ∞ and NaN, which JSON has no numbers for: they are None."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def json_text(value: Any) -> str:
    """Plain values as JSON, in the layout of all files of safeset."""
    return json.dumps(value, indent=1)


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, whole or not at all."""
    write_whole(path, json_text(value) + "\n")


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as a safetensors file, whole or not at all."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(content, dict(metadata)))


def read_texts(path: Path) -> dict[str, str]:
    """The texts of a safetensors file, without reading its tensors; none if the file is something else."""
    try:
        with path.open("rb") as file:
            start, _ = _header(file)
        texts = json.loads(start[8:]).get("__metadata__")
        return texts if isinstance(texts, dict) else {}
    except Exception:  # readers of broken files raise errors of any type
        return {}


def read_tensors(
    path: Path, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and texts of a safetensors file; nothing in it is ever executed.

    Args:
        path: the file. Its header is compared with its size before anything else is read.
        shapes: the tensors that there must be, by name: others are refused by the header alone.

    Raises:
        SafesetError: if it cannot be read, is no safetensors file, or holds other tensors.
    """
    from safetensors.torch import load

    try:
        if path.exists() and not path.is_file():
            raise ValueError("a folder, a device or a pipe")
        with path.open("rb") as file:
            start, rest = _header(file)
            header = json.loads(start[8:])
            texts = header.pop("__metadata__", None) or {}
            if max((one["data_offsets"][1] for one in header.values()), default=0) != rest:
                raise ValueError("its header is about a file of another size")
            if shapes is not None:
                compare_shapes({name: tuple(one["shape"]) for name, one in header.items()}, shapes, path)
            file.seek(0)
            content = file.read(len(start) + rest)
            if not content.startswith(start):
                raise ValueError("it changes while it is read")
            return load(content), texts
    except OSError as error:
        raise SafesetError(f"Expected a file of tensors at {path}, but got: {error.strerror or error}.") from None
    except SafesetError:
        raise
    except Exception as error:  # readers of broken files raise errors of any type
        reason = f"{type(error).__name__}: {error}"[:300]
        raise SafesetError(f"Expected a safetensors file at {path}, but got something else ({reason}).") from None


def _header(file: BinaryIO) -> tuple[bytes, int]:
    """The header with its length before it, and the number of bytes that follow."""
    size = os.fstat(file.fileno()).st_size
    start = file.read(8)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or not 2 <= length <= min(size - 8, MOST_HEADER):
        raise ValueError(f"its first bytes are {start!r}: no header of a file of {size:,} bytes")
    return start + file.read(length), size - 8 - length


def compare_shapes(found: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]], path: Path) -> None:
    """Raise an error if tensors of a file have other names or shapes than they must."""
    for name in sorted(found.keys() | wanted.keys()):
        got, own = found.get(name, "none"), wanted.get(name, "none")
        if got != own:
            raise expected(f"{name[:80]!r} of shape {own} in {path}", got)
