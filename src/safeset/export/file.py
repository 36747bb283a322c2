"""Files that `export_onnx` wrote: known by what they say of themselves, and run by onnxruntime, without torch.

What such a file says was proved where it was exported. Nothing is proved again here: whoever can change the file can
also change what it says. A digest of the graph finds damage, not forgery.
"""

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from safeset.capture.onnx_bytes import read_model
from safeset.errors import SafesetError, expected
from safeset.system.untrusted import parse_json
from safeset.values import check_names

KEY = "safeset"  # of the file's metadata
FORMAT = 1
INPUT, EPSILON = "x", "epsilon"
OUTPUTS = ("logits", "certified", "core", "optional", "windows")
COVERAGE = "coverage_set"
MOST_CLASSES = 2**20
MOST_SIZES, MOST_NUMBERS = 32, 2**26  # of one input: half a gigabyte, before any graph has run
DOUBLE, FLOAT = 11, 1  # ONNX's numbers of the types
# What `operations.py`, `activations.py`, `certificate.py` and the others write; nothing else is run.
KINDS = [
    "Abs",
    "Add",
    "And",
    "ArgMax",
    "Cast",
    "Concat",
    "Div",
    "Equal",
    "Exp",
    "Expand",
    "Flatten",
    "Gather",
    "GatherElements",
    "Greater",
    "GreaterOrEqual",
    "Identity",
    "Less",
    "Log",
    "MatMul",
    "Max",
    "Min",
    "Mul",
    "Neg",
    "Not",
    "Or",
    "Pad",
    "ReduceMax",
    "ReduceMin",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "TopK",
    "Unsqueeze",
    "Where",
]


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported file: what it says of itself, checked, and its graph.

    Attributes:
        path: where it is.
        content: its bytes.
        says: what `export_onnx` gives.
    """

    path: Path
    content: bytes
    says: dict[str, Any]

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input."""
        return tuple(self.says["input_shape"])

    @property
    def is_proved(self) -> bool:
        """Whether its certificates are proofs: not in float32."""
        return bool(self.says["precision"] == "float64")

    @property
    def note(self) -> str:
        """What is covered, and who has proved it."""
        covers, by = self.says["covers"], self.says["safeset"]
        proved = f"Proved where it was exported (safeset {by}), not here. " if self.is_proved else ""
        return f"{proved}{'Covered: ' if self.is_proved else 'Float32. Covered: '}{covers}."

    @cached_property
    def session(self) -> Any:
        """The graph in onnxruntime, as it is written: nothing in it is rearranged."""
        try:
            import onnxruntime
        except ImportError:
            remedy = "Install it: pip install 'safeset[onnx]'"
            raise expected("the package onnxruntime, to run ONNX files", "none", remedy) from None
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        try:
            return onnxruntime.InferenceSession(self.content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has errors of its own
            reason = str(error).partition("\n")[0][:200]
            raise expected(f"an exported network that onnxruntime can run at {self.path}", reason) from None

    def run(self, x: NDArray[Any], epsilon: float) -> dict[str, NDArray[Any]]:
        """The outputs, by name, of inputs (batch, *input_shape)."""
        dtype = np.dtype(self.says["precision"])
        if not len(x):  # onnxruntime multiplies no empty batch of matrices
            return {name: each[:0] for name, each in self.run(np.zeros((1, *self.input_shape)), epsilon).items()}
        names = [*OUTPUTS, *([COVERAGE] if self.says["coverage"] else [])]
        given = {INPUT: np.ascontiguousarray(x, dtype=dtype), EPSILON: np.array(epsilon, dtype=dtype)}
        try:
            found = dict(zip(names, self.session.run(names, given), strict=True))
        except SafesetError:
            raise
        except Exception as error:
            reason = str(error).partition("\n")[0][:200]
            raise expected(f"a graph that runs in {self.path}", reason) from None
        self._check_found(found, len(x))
        return found

    def _check_found(self, found: dict[str, NDArray[Any]], points: int) -> None:
        """Refuse outputs of other shapes or types than a file of so many classes has."""
        classes = self.says["classes"]
        k = found["windows"].shape[-1] if found["windows"].ndim else 0
        kinds: dict[str, tuple[str, tuple[int, ...]]] = dict.fromkeys(found, ("bool", (points, classes)))
        kinds["logits"] = (self.says["precision"], (points, classes))
        kinds["windows"] = (self.says["precision"], (points, k, k))
        kinds["certified"] = ("bool", (points,))
        for name, (kind, shape) in kinds.items():
            if (found[name].dtype, found[name].shape) != (np.dtype(kind), shape) or not 1 <= k <= classes:
                raise expected(f"{name} of {points} points and {classes} classes from {self.path}", found[name].shape)
        windows, known = found["windows"], np.isfinite(found["logits"]).all(axis=1)
        if not ((windows >= 0) & (known[:, None, None] | (windows == 0))).all():
            raise expected(f"radii ≥ 0, and none without logits, from {self.path}", "others")


def find_exported(path: Path) -> Exported | None:
    """The exported file at a path; None if it is another ONNX file.

    Raises:
        ArgumentError: if it cannot be read, or is damaged, or says what no export says.
    """
    content, model = read_model(path)
    texts = [each.value for each in model.metadata_props if each.key == KEY]
    if not texts:
        return None
    if len(texts) > 1:
        raise expected(f"what {path} says of itself once", f"{len(texts)} times")
    says = _checked(parse_json(texts[0], f"what {path} says of itself"), path)
    if digest_of(model.graph) != says["graph"]:
        raise expected(f"the graph that was exported in {path}", "another one", "It is damaged: export it again.")
    _check_graph(model, path, says)
    return Exported(path, content, says)


def digest_of(graph: Any) -> str:
    """A digest of a graph as onnx has it."""
    return hashlib.sha256(graph.SerializeToString(deterministic=True)).hexdigest()


def _check_graph(model: Any, path: Path, says: dict[str, Any]) -> None:
    """Refuse what no export has: other operators, numbers in other files, other inputs and outputs."""
    graph = model.graph
    strange = sorted({f"{each.domain}{each.op_type}"[:40] for each in graph.node if each.op_type not in KINDS})
    strange += [each.domain[:40] for each in graph.node if each.domain]
    strange += ["functions"] if len(model.functions) or len(model.training_info) else []
    strange += ["sparse constants"] if len(graph.sparse_initializer) else []
    outside = any(len(each.external_data) or each.data_location for each in graph.initializer)
    strange += ["numbers in other files"] if outside else []
    strange += ["values in attributes" for each in graph.node for one in each.attribute if one.type not in (1, 2, 3, 7)]
    read = [each.dim_value for each in graph.input[0].type.tensor_type.shape.dim][1:] if len(graph.input) else []
    strange += [] if read == says["input_shape"] else [f"inputs of shape {read}, not {says['input_shape']}"[:80]]
    names = [*OUTPUTS, *([COVERAGE] if says["coverage"] else [])]
    wanted = ([INPUT, EPSILON], names, DOUBLE if says["precision"] == "float64" else FLOAT)
    ends = ([each.name for each in graph.input], [each.name for each in graph.output])
    kinds = {each.type.tensor_type.elem_type for each in graph.input}
    if strange or (*ends, *kinds) != (wanted[0], wanted[1], wanted[2]):
        got = strange[0] if strange else "other inputs and outputs"
        raise expected(f"the graph of an exported network in {path}", got, "Export it again.")


def _checked(says: Any, path: Path) -> dict[str, Any]:
    """What a file says, if it has all that is read of it."""

    def wrong(key: str) -> SafesetError:
        remedy = "Export it again with this version of safeset."
        return expected(f"{key!r} as an export has it in what {path} says of itself", "something else", remedy)

    if not isinstance(says, dict):
        raise wrong("format")
    if says.get("format") != FORMAT:
        raise wrong("format")
    texts = ("safeset", "units", "guarantee", "method", "prefer", "covers", "weights", "program", "graph")
    for key in texts:
        if not isinstance(says.get(key), str):
            raise wrong(key)
    if says.get("precision") not in ("float64", "float32"):
        raise wrong("precision")
    classes, epsilon, shape = says.get("classes"), says.get("epsilon"), says.get("input_shape")
    if type(classes) is not int or not 2 <= classes <= MOST_CLASSES:
        raise wrong("classes")
    if not isinstance(epsilon, int | float) or isinstance(epsilon, bool) or not 0 <= epsilon < math.inf:
        raise wrong("epsilon")
    if not isinstance(shape, list) or not shape or not all(type(each) is int and 0 < each < 2**31 for each in shape):
        raise wrong("input_shape")
    if len(shape) > MOST_SIZES or math.prod(shape) > MOST_NUMBERS:
        raise expected(f"one input of at most {MOST_NUMBERS:,} numbers in {path}", f"one of shape {shape}"[:80])
    if says.get("class_names") is not None:
        check_names(says["class_names"] if isinstance(says["class_names"], list) else "", classes)
    if says["prefer"] not in ("smallest", "largest") or says["method"] not in ("uniform", "floating", "joint"):
        raise wrong("method")
    _check_coverage(says, wrong)
    _check_reading(says, wrong)
    return says


def _check_coverage(says: dict[str, Any], wrong: Any) -> None:
    """Of a calibration: its level, its words, and how many points it had."""
    found = says.get("coverage")
    if found is None:
        says["coverage"] = None
        return
    if not isinstance(found, dict) or not all(isinstance(found.get(key), str) for key in ("probability", "promise")):
        raise wrong("coverage")
    level, points = found.get("alpha"), found.get("points")
    if not isinstance(level, float) or not 0 < level < 1 or type(points) is not int:
        raise wrong("coverage")


def _check_reading(says: dict[str, Any], wrong: Any) -> None:
    """Of the reading of files: texts and ends that are numbers."""
    found = says.get("reading")
    if found is None:
        says["reading"] = None
        return
    if not isinstance(found, dict) or not isinstance(found.get("ranges"), dict | None):
        raise wrong("reading")
    numbers = [] if found.get("seen") is None else [found["seen"]]
    for ends in [*numbers, *(found.get("ranges") or {}).values()]:
        if not (isinstance(ends, list) and len(ends) == 2 and all(map(_is_finite, ends))):
            raise wrong("reading")
    texts = found.get("one_hot")
    if texts is not None and not (
        isinstance(texts, dict)
        and all(isinstance(each, list) and all(isinstance(one, str) for one in each) for each in texts.values())
    ):
        raise wrong("reading")
    if not all(isinstance(found.get(key), str | None) for key in ("background", "unfinished")):
        raise wrong("reading")


def _is_finite(number: Any) -> bool:
    """Whether something read from JSON is a number that is finite."""
    return isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
