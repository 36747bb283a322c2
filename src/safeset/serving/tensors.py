"""Tensors as the Open Inference Protocol has them: as lists in JSON, or as bytes after it."""

import json
import math
from collections.abc import Mapping
from itertools import chain
from typing import Any

import numpy as np

from safeset.errors import expected

KINDS = {
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
}
MOST_SIZES = 32  # of a shape: the product of very many takes minutes
MOST_PLACES = 2**48  # of a shape, without its zeros: numpy refuses one that is too large even where it holds nothing
EVERY_INTEGER = 2**53 - 1  # up to it, no other integer has the same float64


def split_body(body: bytes, header: str | None) -> tuple[dict[str, Any], memoryview]:
    """The JSON of a request and the bytes after it, whose place the header Inference-Header-Content-Length gives."""
    length = len(body)
    if header is not None:
        if not (header.isascii() and header.isdecimal()) or len(header) > 15 or int(header) > length:
            got = f"{header[:40]!r} of {length:,} bytes"
            raise expected("the length of the JSON in Inference-Header-Content-Length", got)
        length = int(header)
    try:
        found = json.loads(body[:length])
    except (ValueError, RecursionError) as error:
        raise expected("a request in JSON", f"this: {error}") from None
    if not isinstance(found, dict):
        raise expected("a JSON object as the request", type(found).__name__)
    return found, memoryview(body)[length:]


def read_tensor(described: Mapping[str, Any], rest: memoryview) -> tuple[np.ndarray, memoryview]:
    """A tensor of a request, and the bytes that are left.

    Args:
        described: name, shape, datatype, and data or the parameter binary_data_size.
        rest: the bytes after the JSON from its own first one on.
    """
    name, kind, shape = str(described.get("name"))[:80], described.get("datatype"), described.get("shape")
    if not isinstance(kind, str) or kind not in KINDS:
        raise expected(f"the datatype of {name!r} to be one of {', '.join(KINDS)}", repr(kind)[:80])
    if not isinstance(shape, list) or not all(type(size) is int and 0 <= size < 2**31 for size in shape):
        raise expected(f"the shape of {name!r} as a list of integers", repr(shape)[:80])
    if len(shape) > MOST_SIZES:
        raise expected(f"at most {MOST_SIZES} sizes in the shape of {name!r}", f"{len(shape):,}")
    if math.prod(size or 1 for size in shape) > MOST_PLACES:
        raise expected(f"a shape of {name!r} that memory could hold", f"{shape}"[:80])
    count = math.prod(shape)
    parameters = described.get("parameters") or {}
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is not None:
        wanted = count * np.dtype(KINDS[kind]).itemsize
        if "data" in described or type(size) is not int or size != wanted or size > len(rest):
            got = f"{size!r}, with {len(rest):,} after the JSON"[:80]
            raise expected(f"{wanted:,} bytes for {name!r}, {kind} of shape {shape}, and no data", got)
        return np.frombuffer(rest[:size], dtype=np.dtype(KINDS[kind]).newbyteorder("<")).reshape(shape), rest[size:]
    numbers = as_numbers(described.get("data"), f"the data of {name!r}")
    if numbers.size != count:
        raise expected(f"{count:,} numbers in {name!r}, of shape {shape}", f"{numbers.size:,}")
    low, high = _range(kind)
    if numbers.size and not bool(((numbers >= low) & (numbers <= high) | ~np.isfinite(numbers)).all()):
        raise expected(f"numbers of {kind} in {name!r}", f"some in {numbers.min():g}..{numbers.max():g}")
    if kind.startswith("FP"):
        return numbers.astype(KINDS[kind]).reshape(shape), rest
    # In the positive form: neither NaN nor ∞ is an integer of any type.
    if numbers.dtype.kind == "f" and not bool(
        ((np.abs(numbers) <= EVERY_INTEGER) & (numbers == np.rint(numbers))).all()
    ):
        raise expected(f"integers in {name!r}, of type {kind}", "others")
    return numbers.astype(KINDS[kind]).reshape(shape), rest


def as_numbers(data: Any, what: str) -> np.ndarray:
    """Nested lists of numbers as an array."""
    try:
        found = np.asarray(data) if isinstance(data, list) and _are_numbers(data) else None
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise expected(f"{what} as lists of numbers, all of one length", str(error)) from None
    if found is None or found.dtype.kind not in "fiu":
        raise expected(f"{what} as lists of numbers, all of one length", "something else")
    return found.astype(np.float64) if found.dtype.kind == "f" else found


def _are_numbers(data: list[Any]) -> bool:
    """Whether lists hold nothing but lists and numbers: an array of texts has room in each place for the longest."""
    level: list[Any] = data
    while level:
        if not set(map(type, level)) <= {list, int, float}:
            return False
        level = list(chain.from_iterable(one for one in level if type(one) is list))
    return True


def _range(kind: str) -> tuple[float, float]:
    about: Any = np.finfo(KINDS[kind]) if kind.startswith("FP") else np.iinfo(KINDS[kind])
    return about.min, about.max


def kind_of(array: np.ndarray) -> str:
    """The protocol's name of what an output holds."""
    return {"b": "BOOL", "f": "FP64", "O": "BYTES"}[array.dtype.kind]


def as_bytes(array: np.ndarray) -> bytes:
    """An output as bytes: texts are preceded by their lengths."""
    if array.dtype.kind != "O":
        return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).tobytes()
    texts = [str(text).encode() for text in array.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def as_list(array: np.ndarray) -> list[Any]:
    """An output as a flat list, as JSON can hold it: it has no ∞ and no NaN, which become null."""
    flat = array.ravel().tolist()
    return [None if isinstance(each, float) and not math.isfinite(each) else each for each in flat]
