"""TOML and JSON from untrusted files, as plain values that are safe to handle, or an error that names the mistake."""

import json
import re
import stat
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safeset.errors import ArgumentError, expected

MOST_BYTES = 2**24  # a text with more is refused; a recipe has some thousands
DEEPEST = 50  # nested tables and lists, and parts of a dotted key
# Comments and strings of TOML; one that is not closed extends to the end, so that no character is matched twice.
_QUOTED = re.compile(
    r"""
    \#[^\n]* | \"{3} (?:\\.|[^\\])*? (?:\"{3}(?!\")|\\?\Z) | \'{3} .*? (?:\'{3}(?!\')|\Z)
    | \" (?:\\[^\n]|[^\"\\\n])* \"? | \'[^\'\n]*\'?
    """,
    re.DOTALL | re.VERBOSE,
)


def read_text(path: Path) -> str:
    """The text of a regular file of a few megabytes at most, in UTF-8.

    Raises:
        ArgumentError: if it cannot be read, or is something else.
    """
    try:
        mode = path.stat().st_mode  # checked before opening: reading a pipe would wait, and a device never ends
        content = b""
        if stat.S_ISREG(mode):
            with path.open("rb") as file:
                content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise expected(f"a readable file at {path}", error.strerror or str(error)) from None
    except ValueError as error:  # a null character in the name
        raise expected("a file's name", f"{str(path)!r} ({error})") from None
    if not stat.S_ISREG(mode):
        raise expected(f"a readable file at {path}", "a folder" if stat.S_ISDIR(mode) else "a device or a pipe")
    if len(content) > MOST_BYTES:
        raise expected(f"{path} to have at most {MOST_BYTES:,} bytes", "more")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise expected(f"{path} to be text in UTF-8", "other bytes") from None


def parse_toml(text: str, what: str) -> dict[str, Any]:
    """The values of a TOML text; ``what`` names it in errors.

    >>> parse_toml("epochs = 5", "the recipe")
    {'epochs': 5}
    """
    pieces = re.split(r"[,=\[\]{}\n]", _QUOTED.sub("''", text))
    parts = 1 + max(piece.count(".") for piece in pieces)
    if parts > DEEPEST:  # refused here, because tomllib's time grows with their square
        raise expected(f"{what} to be TOML with keys of at most {DEEPEST} parts", parts)
    return _parse(tomllib.loads, text, f"{what} to be TOML")  # type: ignore[no-any-return]


def parse_json(text: str, what: str) -> Any:
    """The values of a JSON text; ``what`` names it in errors."""
    return _parse(json.loads, text, f"{what} to be JSON")


def read_json(path: Path) -> Any:
    """The values of a JSON file.

    Raises:
        ArgumentError: if it cannot be read, or is something else.
    """
    return parse_json(read_text(path), str(path))


def read_json_table(path: Path) -> dict[str, Any]:
    """The table in a JSON file; an empty one where the file is missing, damaged, or holds something else."""
    try:
        found = read_json(path)
    except ArgumentError:
        return {}
    return found if isinstance(found, dict) else {}


def _parse(parser: Callable[[str], Any], text: str, wanted: str) -> Any:
    """Parse a text, and refuse values that are nested too deeply or too long to be shown in a message."""
    try:
        found = parser(text)
    except (ValueError, RecursionError) as error:
        raise expected(wanted, f"this: {error}") from None
    level, deep = [found], 0
    while level:
        if deep > DEEPEST:
            raise expected(f"{wanted}, at most {DEEPEST} tables and lists in one another", "more")
        if any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in level):
            raise expected(f"{wanted}, with numbers of at most 64 bits", "a longer one")
        inner = [list(one.values()) if isinstance(one, dict) else one for one in level if isinstance(one, dict | list)]
        level, deep = [value for values in inner for value in values], deep + 1
    return found
