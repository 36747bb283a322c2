"""Networks in ONNX files, opened as runs are: what commands and `safeset.load` need of them."""

import hashlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from safeset.capture.from_onnx import read_onnx
from safeset.capture.onnx_comparison import compare_with_runtime
from safeset.capture.program_network import ProgramNetwork
from safeset.data.dataset import PIXELS, Dataset, Progress
from safeset.data.quality import report
from safeset.data.sources import load_data
from safeset.data.units import OWN, kind
from safeset.errors import DataWarning, expected
from safeset.export.file import find_exported
from safeset.guarantees.guarantee import Guarantee
from safeset.nets.net import CertifiedNet
from safeset.program.folding import fold
from safeset.program.linear import Linear
from safeset.program.operation import Shape
from safeset.program.program import Program
from safeset.runs.data import check_tests

STANDARD = "standard"  # the guarantee, unless another is given
COVERED = (
    "Covered: the file's network in exact arithmetic, and as safeset runs it in float64; numbers that it computes from "
    "constants are rounded once. Not covered: the rounding of a runtime in float32."
)


def load_onnx(
    path: Path,
    *,
    guarantee: Guarantee | str | None = None,
    epsilon: float | None = None,
    class_names: Sequence[str] | None = None,
) -> CertifiedNet:
    """The network of an ONNX file with a guarantee, by default ``standard``, and a radius in the units of its input.

    Batch norm and the like are folded into the layers beside them, which makes the bounds smaller.
    """
    if not path.is_file():
        raise expected(f"an ONNX file at {path}", "a folder" if path.is_dir() else "none")
    if epsilon is None:
        raise expected(f"a radius for {path}", "none", "Give epsilon (--epsilon), in the units of the input.")
    if find_exported(path) is not None:
        remedy = "Take the run that it was exported from; `safeset certify` runs the file itself."
        raise expected("an ONNX file with a network alone", f"{path}, which certifies by itself", remedy)
    program = read_onnx(path)
    compare_with_runtime(path, program)
    network = ProgramNetwork(_with_own_head(fold(program)))
    net = CertifiedNet(
        network,
        input_shape=network.input_shape,
        guarantee=STANDARD if guarantee is None else guarantee,
        epsilon=epsilon,
        class_names=class_names,
    )
    net.units = units_of(net.input_shape)
    return net.eval()


def _with_own_head(program: Program) -> Program:
    """Without the identity as a head, where what is before it has become a head by folding."""
    *others, last = program.nodes
    if not others or last.inputs != (len(others) - 1,):
        return program
    before, head = others[-1], program.head
    identity = torch.eye(len(head.weight), dtype=torch.float64, device=head.weight.device)
    plain = isinstance(before.operation, Linear) and len(before.shape) == 1 and head.bias is None
    return Program(program.input_shape, tuple(others)) if plain and torch.equal(head.weight, identity) else program


def units_of(shape: Shape) -> str:
    """What a network's inputs are measured in: pixels where they are images, channels first; else unknown."""
    return PIXELS if len(shape) == 3 and shape[0] in (1, 3) else OWN


def load_onnx_data(shape: Shape, source: str | None, progress: Progress | None = None) -> Dataset:
    """Labelled points for the network of a file: class i of the data is its logit i."""
    if source is None:
        raise expected("labelled points", "none: an ONNX file has no data", "Name a file, folder or data set: --data.")
    images = units_of(shape) == PIXELS
    points = load_data(source, progress=progress, **_options(Path(source), shape, images))
    report(points, oddities=False)
    if points.input_shape != shape:
        raise expected(f"points of shape {shape}, as the file has them", points.input_shape)
    if images and kind(points.units) != PIXELS:
        raise expected(f"images as {PIXELS}", points.units, "Divide by 255; normalisation belongs into the network.")
    check_tests(points, source)
    return points


def check_classes(points: Dataset, classes: int) -> None:
    """Refuse data with other classes than a network has logits; warn of labels that are other numbers than those."""
    if points.classes != classes:
        remedy = (
            "Class i of the data is logit i. Give points of each class, or an .npz file (x, y, class_names), where "
            "class_names has a name for each logit and y are their numbers."
        )
        raise expected(f"points of {classes} classes, as many as logits", points.classes, remedy)
    numbers = [_number(name) for name in points.class_names]
    if None not in numbers and numbers != list(range(classes)):
        shown = ", ".join(points.class_names[:5]) + (", …" if classes > 5 else "")
        warnings.warn(
            f"The labels {shown} are not the numbers of logits, 0 to {classes - 1}: in this order they are taken for "
            "logits 0, 1, 2, …",
            DataWarning,
            stacklevel=2,
        )


def _number(name: str) -> float | None:
    """What a class's name says, if it is a number."""
    try:
        return float(name)
    except ValueError:
        return None


def about_file(path: Path) -> dict[str, Any]:
    """Which file a result is about."""
    return {"model": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def _options(source: Path, shape: Shape, images: bool) -> dict[str, Any]:
    """Images of a folder become as large as the network takes them."""
    if not source.is_dir() or not images:
        return {}
    _, height, width = shape
    if height != width:
        raise expected("a network of square images, for a folder of them", f"{height} × {width}", "Give an .npz file.")
    return {"size": height}
