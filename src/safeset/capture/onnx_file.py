"""An ONNX file as plain values: what it claims is checked before anything is allocated for it.

A few bytes of a hostile file can stand for gigabytes: shapes without numbers, numbers in other files. So tensors are
made only of numbers that the file really has.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.capture.onnx_bytes import read_model
from safeset.errors import SafesetError, expected

OPSETS = (9, 21)  # of ONNX's own operators, the oldest and the newest that are read
LONGEST = 80  # characters of a name that are shown

# Types of ONNX's tensors that are read: how they are stored, and where if not as raw bytes.
_TYPES: Mapping[int, tuple[str, str]] = {
    1: ("<f4", "float_data"),
    6: ("<i4", "int32_data"),
    7: ("<i8", "int64_data"),
    9: ("?", "int32_data"),
    10: ("<f2", "int32_data"),
    11: ("<f8", "double_data"),
    16: ("<u2", "int32_data"),  # bfloat16: the upper half of a float32
}
BFLOAT16, FLOAT16 = 16, 10
FLOATS = (1, 10, 11, 16)
Dimension = int | None  # None for one that the file leaves open


@dataclass(frozen=True)
class FileNode:
    """One operation of a file.

    Attributes:
        kind: its name in ONNX.
        name: its own name, or its kind; short and printable.
        inputs: names of what it reads; empty for what is left out.
        outputs: names of what it gives.
        attributes: plain values and tensors.
    """

    kind: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class File:
    """What a file says: operations in their order, constants by name, one input and one output."""

    nodes: tuple[FileNode, ...]
    constants: Mapping[str, Tensor]
    input: str
    input_dims: tuple[Dimension, ...]
    output: str
    output_dims: tuple[Dimension, ...] | None


def read_file(path: Path) -> File:
    """What an ONNX file says.

    Raises:
        ArgumentError: if it is no such file, or has what is not read: external data, functions, several inputs.
        ImportError: never; without the package ``onnx`` it is an ArgumentError that says how to install it.
    """
    _, model = read_model(path)
    return _Reading(str(path)).file(model)


# -- what it says -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Reading:
    """A parsed file on its way to plain values."""

    path: str

    def file(self, model: Any) -> File:
        graph = model.graph
        self._check_versions(model)
        if len(graph.sparse_initializer):
            raise self._wrong("dense constants", "sparse ones", "Store them as plain initializers.")
        constants: dict[str, Tensor] = {}
        for each in graph.initializer:
            constants[self._new(each.name, constants)] = self.tensor(each, f"the constant {shown(each.name)!r}")
        given = [each for each in graph.input if each.name not in constants]
        if len(given) != 1 or len(graph.output) != 1:
            got = f"{len(given)} inputs and {len(graph.output)} outputs"
            raise self._wrong("one input and one output", got, "Export the classifier alone, from images to logits.")
        dims = self._dims(given[0])
        if dims is None:
            raise self._wrong("the shape of the input", "none", "Export it with the sizes of its input.")
        names = set(constants) | {given[0].name}
        nodes = []
        for each in graph.node:
            nodes.append(self._node(each))
            for name in nodes[-1].outputs:
                if name:
                    names.add(self._new(name, names))
        return File(tuple(nodes), constants, given[0].name, dims, graph.output[0].name, self._dims(graph.output[0]))

    def _check_versions(self, model: Any) -> None:
        if len(model.functions) or len(model.training_info):
            raise self._wrong(
                "plain operators", "functions of its own", "Inline them: onnx.inliner.inline_local_functions."
            )
        versions = [each.version for each in model.opset_import if each.domain in ("", "ai.onnx")]
        first, last = OPSETS
        if len(versions) != 1 or not first <= versions[0] <= last:
            got = " and ".join(map(str, versions)) or "none"
            remedy = f"Export it with opset_version={min(last, 20)}, or convert it: onnx.version_converter."
            raise self._wrong(f"operators of ONNX's opset {first} to {last}", got, remedy)

    def _node(self, node: Any) -> FileNode:
        kind = shown(node.op_type)
        if node.domain not in ("", "ai.onnx"):
            raise self._wrong("operators of ONNX itself", f"{kind} of {shown(node.domain)}", "Export it without them.")
        name = shown(node.name) or kind
        found: dict[str, Any] = {}
        for each in node.attribute:
            found[self._new(each.name, found)] = self._attribute(each, f"{kind} (node {name!r})")
        return FileNode(kind, name, tuple(node.input), tuple(node.output), found)

    def _attribute(self, each: Any, where: str) -> Any:
        kinds = {1: "f", 2: "i", 3: "s", 4: "t", 6: "floats", 7: "ints"}
        if each.ref_attr_name or each.type not in kinds:
            raise self._wrong(
                "numbers, texts and tensors as attributes",
                f"{shown(each.name)!r} of {where}",
                "Networks with branches, loops or texts inside are not read.",
            )
        value = getattr(each, kinds[each.type])
        if each.type == 3:
            return value[:LONGEST].decode("utf-8", "replace")
        if each.type == 4:
            return self.tensor(value, f"{shown(each.name)!r} of {where}")
        return list(value) if each.type > 5 else value

    def _dims(self, value: Any) -> tuple[Dimension, ...] | None:
        if not value.type.HasField("tensor_type"):
            raise self._wrong("tensors in and out", f"something else ({shown(value.name)!r})")
        tensor = value.type.tensor_type
        if tensor.elem_type not in FLOATS:
            raise self._wrong(
                "inputs and outputs in floating point", f"type {tensor.elem_type} ({shown(value.name)!r})"
            )
        if not tensor.HasField("shape"):
            return None
        dims = [each.dim_value if each.HasField("dim_value") else None for each in tensor.shape.dim]
        if any(each is not None and not 0 <= each < 2**31 for each in dims):
            raise self._wrong("sizes of at least 1", f"{dims} ({shown(value.name)!r})")
        return tuple(each or None for each in dims)  # 0 is how some say that it is open

    def tensor(self, tensor: Any, what: str) -> Tensor:
        """The numbers of a tensor: floating-point ones in float64, others in int64 or as booleans."""
        if len(tensor.external_data) or tensor.data_location:
            raise self._wrong(
                "all numbers in one file",
                f"external data for {what}",
                "To put it inside: onnx.save(onnx.load(file), one_file)",
            )
        if tensor.data_type not in _TYPES:
            raise self._wrong(
                "numbers as constants",
                f"type {tensor.data_type} for {what}",
                "Texts, quantised and complex numbers and integers but int32 and int64 are not read.",
            )
        if tensor.HasField("segment"):
            raise self._wrong("whole tensors", f"a segment for {what}")
        stored, field = _TYPES[tensor.data_type]
        dims, size = list(tensor.dims), np.dtype(stored).itemsize
        if any(each < 0 for each in dims):
            raise self._wrong("sizes of at least 0", f"{dims[:8]} for {what}")
        count, raw = math.prod(dims), tensor.HasField("raw_data")
        there = len(tensor.raw_data) / size if raw else len(getattr(tensor, field))
        if there != count or len(dims) > 32:
            raise self._wrong(f"{count:,} numbers for {what}, of shape {dims[:8]}", f"{there:,}")
        if raw:
            numbers = np.frombuffer(tensor.raw_data, dtype=stored)
        else:
            bits = "<u2" if tensor.data_type == FLOAT16 else stored  # the bits of a float16, as an integer
            found = np.array(getattr(tensor, field))
            numbers = (found & 65535 if bits == "<u2" else found).astype(bits).view(stored)
        if tensor.data_type == BFLOAT16:
            numbers = (numbers.astype("<u4") << 16).view("<f4")
        wanted = np.float64 if tensor.data_type in FLOATS else np.bool_ if stored == "?" else np.int64
        return torch.from_numpy(numbers.astype(wanted).reshape(dims))

    def _new(self, name: str, before: Any) -> str:
        if name in before:
            raise self._wrong("each name once", f"{shown(name)!r} twice")
        return name

    def _wrong(self, wanted: str, got: str, remedy: str = "") -> SafesetError:
        return expected(f"{wanted} in {self.path}", got, remedy)


def shown(name: str) -> str:
    r"""A name of a file as it can be printed.

    >>> shown("a\nb" + "c" * 100)[:5]
    'a?bcc'
    """
    return "".join(each if each.isprintable() else "?" for each in str(name)[:LONGEST])
