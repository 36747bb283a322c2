"""ONNX files as programs: each operation becomes nodes, with the file's own numbers."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from safeset.capture.expressions import Absent, Squares
from safeset.capture.from_export import with_head
from safeset.capture.graph import POINTS, Graph, View
from safeset.capture.onnx_broadcast import check_shape
from safeset.capture.onnx_call import Call, Frame
from safeset.capture.onnx_choices import CHOICES
from safeset.capture.onnx_constants import CONSTANTS
from safeset.capture.onnx_file import OPSETS, Dimension, File, FileNode, read_file, shown
from safeset.capture.onnx_operations import HANDLERS
from safeset.capture.onnx_refusals import REFUSED
from safeset.capture.onnx_shapes import SHAPES
from safeset.errors import SafesetError, UnsupportedLayerError, expected
from safeset.numerics.strict import strict_arithmetic, without_modes
from safeset.program.program import Program

# Choices are read only as torch writes softplus, so they are not among what other programs are told.
OPERATORS = (frozenset(HANDLERS) - frozenset(CHOICES)) | frozenset(SHAPES) | {"Constant", "ConstantOfShape"}
MOST_INPUTS = 2**24  # entries of one point
MOST_POINTS = 64  # of a batch of a fixed size: entries of all of them are followed
__all__ = ["OPERATORS", "OPSETS", "read_onnx"]


def read_onnx(path: str | Path) -> Program:
    """The program of a feed-forward classifier in an ONNX file: float64, with the numbers of the file as they are.

    The file's first axis is the batch; with a fixed batch of 1 it may be used in any way, and a file whose input and
    output do not share their first axis has one point at a time.

    Raises:
        SafesetError: if the file is damaged, or has what is not read or has no Lipschitz constant, with its name.
    """
    file = read_file(Path(path))
    with torch.inference_mode(False), torch.no_grad(), without_modes(), strict_arithmetic():
        program = _program(file, str(path))
        if file.input_dims[:1] != (None,):
            return program
        if any(_sees_batch(node) for node in _needed(file)[0]):
            return _alone(file, str(path), program)
        if _program(_with_batch(file, POINTS + 1), str(path)).digest() != program.digest():
            raise _depends(str(path))
        return program


def _with_batch(file: File, points: int) -> File:
    return replace(file, input_dims=(points, *file.input_dims[1:]), output_dims=(points,))


def _sees_batch(node: FileNode) -> bool:
    """Whether an operation may treat a batch of 1, or batches of different sizes, differently."""
    has_axes = any(node.inputs[1:]) or bool(node.attributes)
    return node.kind in ("Shape", "Size") or (node.kind == "Squeeze" and not has_axes)


def _alone(file: File, path: str, program: Program) -> Program:
    """What a file that reads the size of its batch computes of one point: that alone is certified.

    Raises:
        UnsupportedLayerError: if it gives other logits in a larger batch, at random points.
    """
    alone = _program(_with_batch(file, 1), path)
    x = torch.rand((6, *program.input_shape), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = (2 * x - 1) * (8.0 ** torch.arange(6)).view(-1, *(1,) * len(program.input_shape))  # some far out
    other = alone.run(x)
    for each in (program, _program(_with_batch(file, POINTS + 1), path)):
        if not bool(((each.run(x) - other).abs() <= 1e-9 * (other.abs().amax(dim=1, keepdim=True) + 1e-3)).all()):
            raise _depends(path)
    return alone


def _depends(path: str) -> SafesetError:
    return UnsupportedLayerError(
        f"Expected the logits of a point to be the same in every batch, but got others in {path}: it computes with the "
        "size of the batch. Export it with a batch of 1."
    )


def _program(file: File, path: str) -> Program:
    shape, hidden, points = _form(file, path)
    graph = Graph(shape, torch.device("cpu"), points)
    frame = Frame(graph, hidden)
    whole = graph.input()
    if hidden:
        whole = whole.map(lambda places: places.reshape(points, *map(_size, file.input_dims)))
    values: dict[str, Any] = {**file.constants, "": None, file.input: whole}
    nodes, last = _needed(file)
    for number, node in enumerate(nodes):
        found = _computed(node, values, frame)
        values.update({name: value for name, value in zip(node.outputs, found, strict=False) if name})
        for name in node.inputs:  # what nobody reads any more
            if last[name] == number and name:
                values.pop(name, None)
    return _finished(values.get(file.output), frame, path)


def _form(file: File, path: str) -> tuple[tuple[int, ...], bool, int]:
    """The shape of one point, whether views have an axis more than the file's values, and of how many points."""
    dims, last = file.input_dims, file.output_dims
    shape = dims[1:]
    shares = last is not None and len(last) > 0 and last[0] == dims[0] if dims else False
    alone = not dims or len(dims) == 1 or not (dims[0] in (None, 1) or shares)
    if alone:
        shape = dims
    if not shape or any(size is None for size in shape) or math.prod(map(_size, shape)) > MOST_INPUTS:
        remedy = "Export it with sizes that are fixed but for the batch, the first axis."
        raise expected(
            f"an input of shape (batch, …) with at most {MOST_INPUTS:,} numbers in {path}", _dims(dims), remedy
        )
    batch = dims[0]
    hidden = alone or batch == 1
    points = POINTS if hidden or batch is None else batch
    if points > MOST_POINTS:
        raise expected(
            f"a batch of at most {MOST_POINTS} points in {path}", points, "Export it with a batch of 1 or of any size."
        )
    return tuple(map(_size, shape)), hidden, points


def _size(size: Dimension) -> int:
    return size or 1


def _dims(dims: tuple[Dimension, ...]) -> str:
    return f"({', '.join('?' if size is None else str(size) for size in dims)})"


def _needed(file: File) -> tuple[list[FileNode], Mapping[str, int]]:
    """The operations that the output needs, in order, and the last of them that reads each value."""
    wanted, nodes = {file.output}, []
    for node in reversed(file.nodes):
        if wanted & set(node.outputs) - {""}:
            wanted.update(node.inputs)
            nodes.append(node)
    nodes.reverse()
    last = {name: number for number, node in enumerate(nodes) for name in node.inputs}
    return nodes, last | {file.output: len(nodes)}


def _computed(node: FileNode, values: Mapping[str, Any], frame: Frame) -> list[Any]:
    """What one operation gives."""
    try:
        for name in node.inputs:
            if name not in values:
                raise UnsupportedLayerError(f"its input {shown(name)!r} is given by nothing before it")
        call = Call(
            node.kind, node.name, [values[name] for name in node.inputs], len(node.outputs), node.attributes, frame
        )
        found = _handler(call)(call)
        call.check_asked()
        check_shape(call, found)
        several = list(found) if isinstance(found, list | tuple) else [found]
        for value in several:
            if isinstance(value, View | Tensor):
                frame.spend(frame.shape(value))
        return several
    except Exception as error:  # whatever torch says of shapes that do not fit
        raise _refusal(node, error) from None


def _handler(call: Call) -> Any:
    if call.kind in SHAPES:
        return SHAPES[call.kind]
    depends = any(isinstance(each, View | Squares | Absent) for each in call.inputs)
    if not depends and call.kind in CONSTANTS:
        return CONSTANTS[call.kind]
    if depends and call.kind in HANDLERS:
        return HANDLERS[call.kind]
    if depends or call.kind not in HANDLERS:
        raise UnsupportedLayerError(REFUSED.get(call.kind, "safeset knows no Lipschitz constant of it"))
    raise UnsupportedLayerError("constants are computed by it: simplify the file, for example with onnxsim")


def _refusal(node: FileNode, error: Exception) -> SafesetError:
    lines = str(error).splitlines() or [type(error).__name__]
    where = "" if node.name == node.kind else f" (node {node.name!r})"
    return UnsupportedLayerError(
        f"Expected operations with a Lipschitz constant that safeset can prove, but got {node.kind}{where}: "
        f"{lines[0].rstrip('.')}."
    )


def _finished(value: Any, frame: Frame, path: str) -> Program:
    """The program that ends in a linear head."""
    if not isinstance(value, View):
        raise expected(f"logits that depend on the input in {path}", "something else as its output")
    shape = frame.shape(value)
    classes = math.prod(shape) if frame.hidden else math.prod(shape[1:])
    if value.places.numel() != frame.graph.points * classes or max(shape[not frame.hidden :], default=0) != classes:
        raise expected(f"logits of shape (batch, classes) in {path}", _dims(shape))
    logits = with_head(frame.graph, value.map(lambda places: places.reshape(frame.graph.points, classes)))
    return frame.graph.finished(logits)
