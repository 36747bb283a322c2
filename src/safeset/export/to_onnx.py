"""A certified network as one ONNX graph: from inputs and ε to logits, certified sets, windows and coverage sets."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset import __version__
from safeset.certificates.certify_logits import check_method
from safeset.certificates.promises import check_preference
from safeset.certificates.radii import widened
from safeset.coverage.coverage import Coverage
from safeset.coverage.words import probability
from safeset.errors import expected
from safeset.export import activations as activations  # importing it registers its rules with `write`
from safeset.export.certificate import Constants, Eligible, answers, is_finite, see, window_radii
from safeset.export.comparison import compare_with_python
from safeset.export.covering import check_score, coverage_set
from safeset.export.file import EPSILON, FORMAT, INPUT, KEY, Exported, digest_of
from safeset.export.graph import IR, OPSET, Graph, Precision, Value
from safeset.export.operations import numbers, write
from safeset.guarantees.guarantee import Guarantee
from safeset.guarantees.text import as_guarantee
from safeset.inputs import one_epsilon
from safeset.nets.certifying import Certifying
from safeset.numerics.directed import up
from safeset.numerics.strict import strict_arithmetic
from safeset.program.program import INPUT as READS_INPUT
from safeset.program.program import Program
from safeset.proofs.prove import LARGEST, Proof
from safeset.system.files import write_whole
from safeset.system.provenance import weights_digest

MOST_BYTES = 2**30  # what is read again
COVERED = (
    "the frozen network in exact arithmetic, and this graph as it is computed in float64 by any runtime that rounds "
    "each operation to nearest, adds the terms of a sum in whatever order, keeps subnormal numbers, and neither leaves "
    "out operations nor exchanges them for others; x' is any float64 array in the ball"
)
NOT_COVERED = (
    "the frozen network in exact arithmetic, as far as its constants go; not the rounding of float32, in which this "
    "graph computes logits and radii: take them as estimates, nothing here is proved"
)


def export_onnx(
    net: Certifying,
    path: str | Path,
    *,
    epsilon: float | None = None,
    guarantee: Guarantee | str | None = None,
    method: str | None = None,
    prefer: str = "smallest",
    precision: str = "float64",
    coverage: Coverage | None = None,
    reading: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    r"""Write a certified network to an ONNX file that certifies by itself; whole or not at all.

    Its inputs are ``x`` (batch, \*input_shape) and ``epsilon``, a number; its outputs ``logits``, ``certified``,
    ``core``, ``optional``, ``windows`` and, with a calibration, ``coverage_set``, as a `Certificate` has them. Proved
    constants are inside; `safeset certify` knows such a file and needs no torch for it.

    Args:
        net: a `CertifiedNet` or its frozen form; what is exported is the net as it is now.
        path: a file that ends in ``.onnx``.
        epsilon: what `safeset certify` takes where no other radius is asked for; by default the net's own.
        guarantee: by default the net's own.
        method: ``"uniform"``, ``"floating"`` or ``"joint"`` (the default).
        prefer: which certified answer is core and optional, ``"smallest"`` or ``"largest"``.
        precision: ``"float64"``, or ``"float32"`` for runtimes without the other: nothing is proved there.
        coverage: a calibration of the net, with the score ``"membership"``.
        reading: how points are read from files, where `safeset certify` shall know.

    Returns:
        What the file says of itself.

    Raises:
        ArgumentError: if nothing could be certified, or for operations and scores that have no form in ONNX.
    """
    target = Path(path)
    if target.suffix.lower() != ".onnx":
        raise expected("a name that ends in .onnx", str(path), "Choose another.")
    try:
        import onnx
    except ImportError:
        remedy = "Install it: pip install 'safeset[onnx]'"
        raise expected("the package onnx, to write ONNX files", "none", remedy) from None
    check_preference(prefer)
    kind = Precision.of(precision)
    frozen, radius = net.frozen(), one_epsilon(epsilon, None, net.epsilon)
    chosen = as_guarantee(net.guarantee if guarantee is None else guarantee)
    chosen = chosen if frozen.class_names is None else chosen.bind(frozen.class_names)
    with strict_arithmetic():
        sealed, proof = frozen._proved()
        program = sealed.program
        method = check_method(method, proof.bounds.head)
        constants = _constants(proof)
        sizes, sets = chosen.tables(frozen.classes)
        eligible = Eligible(numbers(sizes), numbers(sets))
        if coverage is not None:
            check_score(coverage)
            _check_same(coverage, program)
        graph = Graph(kind)
        outputs = _write_all(graph, program, constants, eligible, method, prefer, coverage)
    says = {
        "format": FORMAT,
        "safeset": __version__,
        "precision": precision,
        "class_names": None if frozen.class_names is None else list(frozen.class_names),
        "classes": frozen.classes,
        "input_shape": list(frozen.input_shape),
        "units": frozen.units,
        "guarantee": str(chosen),
        "epsilon": radius,
        "method": method,
        "prefer": prefer,
        "covers": _covers(program, kind),
        "lipschitz": float(proof.bounds.head.scale),
        "weights": weights_digest(net.network.state_dict()),
        "program": program.digest(),
        "coverage": None if coverage is None else _about(coverage),
        "reading": None if reading is None else _plain(reading),
    }
    model = _model(graph, frozen.input_shape, outputs, says, onnx)
    content = model.SerializeToString()
    if len(content) > MOST_BYTES:
        raise expected(f"a network of at most {MOST_BYTES:,} bytes", f"{len(content):,}", "ONNX files hold no more.")
    compare_with_python(Exported(target, content, says), frozen, chosen, method)
    write_whole(target, content)
    return says


def _constants(proof: Proof) -> Constants:
    """What was proved, on the CPU; refused where it is infinite, because then nothing is ever certified."""
    head = proof.bounds.head
    every = torch.arange(head.classes, device=head.rows.device)
    distances = head.distances(every)
    slope = up(proof.slopes[:, None] + proof.slopes)
    pairs = widened(head.upper_from(distances), slope)
    drift = torch.where(pairs > 0, slope / pairs, 0.0)
    room = LARGEST / float(proof.peak.slope) if proof.peak.offset < LARGEST else -math.inf
    tables = (proof.offsets, proof.slopes, pairs, distances, drift)
    if not (all(bool(each.isfinite().all()) for each in tables) and room > 0):
        remedy = "net.bounds() has every layer's; train the network with its Lipschitz constant in the loss."
        raise expected("proved bounds that are finite", "infinite ones: nothing would be certified", remedy)
    arrays = map(numbers, tables)
    offsets, slopes, own, apart, share = arrays
    return Constants(offsets, slopes, room, own, apart, share, head.slack, head.least_distance)


def _write_all(
    graph: Graph,
    program: Program,
    constants: Constants,
    eligible: Eligible,
    method: str,
    prefer: str,
    coverage: Coverage | None,
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Write the whole graph; returns name, type and shape of each output."""
    x, epsilon = Value(graph, INPUT), Value(graph, EPSILON)
    shape, k, classes = program.input_shape, len(eligible.sizes), program.classes
    entries = math.prod(shape)
    flat = x.apply("Flatten", axis=1)
    graph.true = epsilon.equals(epsilon)
    # A number that is flushed to 0 where it should be subnormal would be a rounding that no proof has.
    one = graph.true.number()
    keeps = (one * (graph.precision.least * 2.0)) * 0.5 > 0.0 if graph.precision.name == "float64" else one > 0.0
    finite = is_finite(flat) & keeps
    clean = graph.where(finite, flat, 0.0)
    raw = _run(graph, program, clean.reshaped(*shape))
    seen = see(clean, entries, raw, finite, constants)
    windows, ranking = window_radii(seen, constants, eligible, method)
    valid = (epsilon >= 0.0) & (epsilon < math.inf)
    certified, core, optional = answers(windows, ranking, epsilon, valid, k, classes, prefer)
    found = {
        "logits": (graph.where(finite, raw, math.nan), "float", (classes,)),
        "certified": (certified, "bool", ()),
        "core": (core, "bool", (classes,)),
        "optional": (optional, "bool", (classes,)),
        "windows": (windows, "float", (k, k)),
    }
    if coverage is not None:
        found["coverage_set"] = (coverage_set(seen, coverage, constants, epsilon, valid), "bool", (classes,))
    for name, (value, _, _) in found.items():
        graph.call(value, name)
    return [(name, kind, sizes) for name, (_, kind, sizes) in found.items()]


def _run(graph: Graph, program: Program, x: Value) -> Value:
    """The program itself: (batch, *input_shape) → (batch, classes)."""
    values = {READS_INPUT: x}
    for number, node in enumerate(program.nodes):
        inputs = [values[read] for read in node.inputs]
        values[number] = write(node.operation, graph, node.shape, *inputs)
    return values[len(program.nodes) - 1]


def _model(
    graph: Graph, shape: tuple[int, ...], outputs: list[tuple[str, str, tuple[int, ...]]], says: Any, onnx: Any
) -> Any:
    """The file as onnx has it, checked."""
    helper, element = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(graph.precision.dtype)
    types = {"float": element, "bool": onnx.TensorProto.BOOL}
    made = helper.make_graph(
        graph.nodes,
        "safeset",
        [
            helper.make_tensor_value_info(INPUT, element, ["batch", *shape]),
            helper.make_tensor_value_info(EPSILON, element, []),
        ],
        [helper.make_tensor_value_info(name, types[kind], ["batch", *sizes]) for name, kind, sizes in outputs],
        [onnx.numpy_helper.from_array(array, name) for name, array in graph.constants.items()],
    )
    model = helper.make_model(
        made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR, producer_name="safeset"
    )
    model.producer_version = __version__
    says["graph"] = digest_of(made)
    helper.set_model_props(model, {KEY: json.dumps(says, ensure_ascii=False)})
    onnx.checker.check_model(model)
    return model


def _covers(program: Program, precision: Precision) -> str:
    """What a certificate of the file is about, in words."""
    if precision.name != "float64":
        return NOT_COVERED
    assumptions = program.assumptions
    return COVERED + (f", assuming that {'; that '.join(assumptions)}" if assumptions else "")


def _check_same(coverage: Coverage, program: Program) -> None:
    """Refuse a calibration of another network."""
    if not coverage._program.equals(program):
        raise expected("a calibration of this network", "one of another", "Calibrate it: Coverage.calibrate.")


def _about(coverage: Coverage) -> dict[str, Any]:
    """What the file says of its calibration."""
    return {
        "alpha": float(coverage.alpha),
        "probability": probability(coverage),
        "points": len(coverage),
        "score": str(coverage.score),
        "promise": coverage.promise,
    }


def _plain(value: Any) -> Any:
    """Plain values for JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
