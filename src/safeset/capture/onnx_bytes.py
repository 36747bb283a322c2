"""The bytes of an ONNX file, and its message: how many fields there are, and how deep, is seen before it is parsed.

A few bytes can stand for many: an empty message takes two in a file and a hundred in memory. So fields are counted
first, without keeping anything.
"""

import stat
from pathlib import Path
from typing import Any

from safeset.errors import SafesetError, expected

MOST_BYTES = 2**30
MOST_FIELDS = 500_000  # a network of a thousand layers has some ten thousands
MOST_PACKED = 2**26  # bytes of integers in the short form, which take up to eight times as much when they are parsed
_DEEPEST = 50  # messages in one another

# Fields of ONNX's messages that are messages, by number; and the fields of tensors that hold numbers.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 8: "leaf", 14: "leaf", 20: "training", 25: "function", 26: "leaf"},
    "training": {1: "graph", 2: "graph", 3: "leaf", 4: "leaf"},
    "function": {7: "node", 9: "leaf", 11: "attribute", 12: "value", 14: "leaf"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value", 13: "value", 14: "leaf", 15: "sparse", 16: "leaf"},
    "node": {5: "attribute", 9: "leaf", 10: "leaf"},
    "attribute": {
        5: "tensor",
        6: "graph",
        10: "tensor",
        11: "graph",
        14: "type",
        15: "type",
        22: "sparse",
        23: "sparse",
    },
    "sparse": {1: "tensor", 2: "tensor"},
    "value": {2: "type", 4: "leaf"},
    "type": {1: "dense type", 4: "list type", 5: "map type", 8: "dense type", 9: "list type"},
    "dense type": {2: "shape"},
    "list type": {1: "type"},
    "map type": {2: "type"},
    "shape": {1: "leaf"},
    "tensor": {3: "leaf", 13: "leaf", 16: "leaf"},
    "leaf": {},
}
_PACKED = {("tensor", 1), ("tensor", 5), ("tensor", 7), ("tensor", 11), ("attribute", 8)}


def read_model(path: Path) -> tuple[bytes, Any]:
    """The bytes of an ONNX file, and onnx's own message of them, whose fields were counted first.

    Raises:
        ArgumentError: if it cannot be read, or is damaged; without the package ``onnx`` it says how to install it.
    """
    content = read_content(path)
    try:
        import onnx
    except ImportError:
        remedy = "Install it: pip install 'safeset[onnx]'"
        raise expected("the package onnx, to read ONNX files", "none", remedy) from None
    check_fields(content, str(path))
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except Exception:  # protobuf's own errors, whichever way it is built
        raise expected(f"an ONNX file at {path}", "other bytes, or a damaged file") from None
    return content, model


def read_content(path: Path) -> bytes:
    """The bytes of a regular file of a size that can be a network's."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise expected(f"an ONNX file at {path}", "a folder" if stat.S_ISDIR(found.st_mode) else "no regular file")
        if not 0 < found.st_size <= MOST_BYTES:
            raise expected(f"{path} to have 1 to {MOST_BYTES:,} bytes", f"{found.st_size:,}")
        with path.open("rb") as file:
            return file.read(found.st_size)  # no more is allocated, whatever it has become
    except OSError as error:
        raise expected(f"a readable ONNX file at {path}", error.strerror or str(error)) from None
    except SafesetError:
        raise
    except ValueError:  # a null character in the name
        raise expected("a file's name", repr(str(path))) from None


def check_fields(content: bytes, what: str) -> None:
    """Refuse bytes that are no messages of ONNX, or so many that parsing them would take all memory.

    >>> check_fields(bytes([8, 9]), "a file with one number")
    """
    left, packed = MOST_FIELDS, MOST_PACKED
    open_: list[tuple[str, int, int, int]] = [("model", 0, len(content), 0)]
    while open_:
        message, place, end, depth = open_.pop()
        while place < end:
            key, place = _varint(content, place, end, what)
            field, wire, left = key >> 3, key & 7, left - 1
            if left < 0 or packed < 0:
                raise expected(f"{what} to have at most {MOST_FIELDS:,} fields", "more")
            if wire == 0:
                _, place = _varint(content, place, end, what)
            elif wire in (1, 5):
                place += 8 if wire == 1 else 4
            elif wire == 2:
                size, place = _varint(content, place, end, what)
                inner = _INSIDE[message].get(field)
                if (message, field) in _PACKED:
                    packed -= size
                elif inner is not None:
                    if depth >= _DEEPEST:
                        raise expected(f"{what} to have at most {_DEEPEST} messages in one another", "more")
                    if place + size <= end:
                        open_.append((inner, place, place + size, depth + 1))
                place += size
            else:
                raise _no_messages(what)
        if place != end:
            raise _no_messages(what)


def _varint(content: bytes, place: int, end: int, what: str) -> tuple[int, int]:
    """A number in seven bits a byte, and where it ends."""
    found = 0
    for count in range(10):
        if place >= end:
            break
        byte = content[place]
        found |= (byte & 127) << 7 * count
        place += 1
        if byte < 128:
            return found, place
    raise _no_messages(what)


def _no_messages(what: str) -> SafesetError:
    return expected(f"an ONNX file at {what}", "other bytes, or a damaged file")
