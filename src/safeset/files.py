"""Files that are written whole or not at all, and tensors in them, without pickles."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safeset.errors import SafesetError

if TYPE_CHECKING:
    from torch import Tensor


def write_whole(path: Path, content: str | bytes) -> None:
    """Write a file so that its name always stands for something whole: into a temporary file, to the disk, renamed.

    Raises:
        OSError: if it cannot be written; what stood there before still stands.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write plain values as JSON, whole or not at all."""
    write_whole(path, json.dumps(value, indent=1) + "\n")


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]", metadata: Mapping[str, str]) -> None:
    """Write named tensors and texts as a safetensors file, whole or not at all."""
    from safetensors.torch import save

    content = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    write_whole(path, save(content, dict(metadata)))


def read_tensors(path: Path) -> "tuple[dict[str, Tensor], dict[str, str]]":
    """The tensors and texts of a safetensors file; nothing in it is ever executed.

    Raises:
        SafesetError: if it cannot be read, or is none.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        content = path.read_bytes()
        tensors = load(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except OSError as error:
        raise SafesetError(f"Expected a file of tensors at {path}, but got: {error.strerror or error}.") from None
    except (SafetensorError, ValueError, RecursionError) as error:
        raise SafesetError(f"Expected a safetensors file at {path}, but got something else ({error}).") from None
    return tensors, header.get("__metadata__", {})
