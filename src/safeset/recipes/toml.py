"""Frozen dataclasses from the tables of a TOML file, and back: every key and value is checked, and named if wrong."""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from safeset.errors import ArgumentError, expected, nearest
from safeset.inputs import as_number
from safeset.recipes.schedules import Schedule
from safeset.system.untrusted import DEEPEST, parse_toml, read_text

Value = TypeVar("Value")
_WORDS = {int: "an integer", float: "a number", str: "a text", bool: "true or false", Mapping: "a table"}


def from_table(kind: type[Value], table: Any, where: str = "") -> Value:
    """A dataclass from a table of plain values.

    Args:
        kind: the dataclass; its fields are the keys, their types are checked, and may be dataclasses themselves.
        table: what `tomllib` reads.
        where: name of the table, for messages.

    Raises:
        ArgumentError: for unknown keys, with the nearest known one, and for values of another type.
    """
    if not isinstance(table, Mapping):
        raise expected(f"`{where}` to be a table", repr(table)[:80])
    hints = {name: hint for name, hint in get_type_hints(kind).items() if name in _names(kind)}
    for key in table:
        if key not in hints:
            place = f" of [{where}]" if where else ""
            known = {**hints, **{name: None for part in hints.values() if is_dataclass(part) for name in _names(part)}}
            raise expected(f"the keys{place} to be among {', '.join(hints)}", repr(key), nearest(key, known))
    prefix = f"{where}." if where else ""
    values = {key: _convert(hints[key], value, prefix + key) for key, value in table.items()}
    missing = next((name for name in _required(kind) if name not in values), None)
    if missing:
        raise expected(f"`{prefix}{missing}`", "none")
    try:
        return kind(**values)
    except ArgumentError as error:
        raise ArgumentError(f"In [{where}]: {error}" if where else str(error)) from None


def _names(kind: Any) -> list[str]:
    return [field.name for field in fields(kind)]


def _required(kind: Any) -> list[str]:
    return [field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING]


def _convert(hint: Any, value: Any, where: str) -> Any:
    """A value as its field has it."""
    choices = get_args(hint) if get_origin(hint) in (UnionType, Union) else (hint,)
    kinds = [choice for choice in choices if choice is not type(None)]
    if any(kind is Schedule for kind in kinds):
        try:
            return Schedule.parse(value)
        except ArgumentError as error:
            raise ArgumentError(f"In `{where}`: {error}") from None
    for kind in kinds:
        if is_dataclass(kind):
            return from_table(kind, value, where)  # type: ignore[arg-type]
        plain = get_origin(kind) or kind
        if plain is float and isinstance(value, int | float) and not isinstance(value, bool):
            return as_number(value)
        if plain is tuple and isinstance(value, list):
            member = get_args(kind)[0]
            return tuple(_convert(member, each, f"{where}[{place}]") for place, each in enumerate(value))
        if plain is Mapping and isinstance(value, Mapping):
            _, member = get_args(kind)
            return {name: _convert(member, each, f"{where}.{name}") for name, each in value.items()}
        if isinstance(value, plain) and not (isinstance(value, bool) and plain is not bool):
            return value
    wanted = " or ".join(_WORDS.get(get_origin(kind) or kind, "a list") for kind in kinds)
    raise expected(f"`{where}` to be {wanted}", repr(value)[:80])


def to_table(value: Any) -> dict[str, Any]:
    """The keys and plain values of a dataclass that differ from its defaults or have none."""
    table = {}
    for field in fields(value):
        content = getattr(value, field.name)
        default = field.default_factory() if field.default_factory is not MISSING else field.default
        if content is None or content == default:
            continue
        table[field.name] = to_table(content) if is_dataclass(content) and not _plain(content) else content
    return table


def _plain(value: Any) -> bool:
    return isinstance(value, Schedule)


def write(table: Mapping[str, Any]) -> str:
    """A table as TOML: its own keys first, then a section for each table in it.

    >>> print(write({"epochs": 5, "data": {"source": "digits"}}), end="")
    epochs = 5
    <BLANKLINE>
    [data]
    source = "digits"
    """
    plain = {key: value for key, value in table.items() if not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_literal(value)}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            lines += [*([""] if lines else []), f"[{_key(key)}]"]
            lines += [f"{_key(name)} = {_literal(each)}" for name, each in value.items()]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Schedule):
        constant = value.start == value.end and not value.warm_up
        return _literal(value.start) if constant else _literal(str(value))
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(name)} = {_literal(each)}" for name, each in value.items()) + " }"
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return "[\n" + "".join(f"  {_literal(each)},\n" for each in value) + "]"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_literal, value)) + "]"
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return repr(value)


def _key(name: str) -> str:
    plain = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
    return name if plain else _literal(name)


def literal(text: str) -> Any:
    """A value as TOML writes it, or a plain text: what stands after = on the command line.

    >>> literal("3"), literal("true"), literal("1e-3 -> 1e-6 after half")
    (3, True, '1e-3 -> 1e-6 after half')
    >>> literal("2_1")  # a network of ACAS Xu, though TOML reads 21
    '2_1'
    """
    if re.fullmatch(r"[0-9]_[0-9]", text):
        return text
    try:
        return parse_toml(f"value = {text}", "the value")["value"]
    except ArgumentError:
        return text


def flag_text(value: Any) -> str:
    """A value as it stands after = on the command line: `literal` gives it again.

    >>> flag_text(True), flag_text("1e-3 -> 1e-6 after half"), flag_text("21")
    ('true', '1e-3 -> 1e-6 after half', '"21"')
    """
    return value if isinstance(value, str) and literal(value) == value else _literal(value)


def different_keys(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """The keys at which two tables differ, in their order.

    >>> different_keys({"epochs": 2, "seed": 1}, {"epochs": 3, "seed": 1, "batch": 8})
    ['epochs', 'batch']
    """
    return [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]


def read_table(path: Path) -> dict[str, Any]:
    """The table of a TOML file.

    Raises:
        ArgumentError: if it cannot be read, or is no TOML.
    """
    return parse_toml(read_text(path), str(path))


def override(table: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A table with other values at dotted keys.

    >>> override({"data": {"source": "digits"}}, {"data.size": 32, "epochs": 5})
    {'data': {'source': 'digits', 'size': 32}, 'epochs': 5}
    """
    result = dict(table)
    for key, value in changes.items():
        if key.count(".") >= DEEPEST:
            raise expected(f"keys of at most {DEEPEST} parts", repr(key))
        head, _, rest = key.partition(".")
        if rest:
            inner = result.get(head, {})
            if not isinstance(inner, Mapping):
                raise expected(f"`{head}` to be a table, for `{key}`", repr(inner)[:80])
            result[head] = override(inner, {rest: value})
        else:
            result[head] = value
    return result
