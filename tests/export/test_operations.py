"""Every kind of operation in ONNX, run by onnxruntime: as near to ATen as rounding allows, and no kind is left out."""

import inspect

import mpmath
import numpy as np
import onnxruntime
import pytest
import torch
from onnx import helper, numpy_helper

from helpers.programs import numbers, program_from
from safeset.errors import UnsupportedLayerError
from safeset.export import activations as activations
from safeset.export.graph import IR, OPSET, Graph, Precision, Value
from safeset.export.operations import write
from safeset.program.activations import ELU, GELU, Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.circular import CircularConv2d
from safeset.program.entries import Clamp, Scale, Shift
from safeset.program.erf import Erf, ErfGELU
from safeset.program.joining import Join
from safeset.program.l2_pool import RootOfSquares
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.one_row import OneRow
from safeset.program.operation import Operation
from safeset.program.own import OwnLayer
from safeset.program.piecewise import Hardsigmoid, Hardswish, PReLU
from safeset.program.pointwise import Absolute, HalfAbsolute, LeakyReLU, MinMax, ReLU
from safeset.program.potential import PotentialStep
from safeset.program.reorder import ChannelShift, ChannelShuffle, Flatten, Identity, Shuffle, Unshuffle
from safeset.program.select import Reshape, Select
from safeset.program.sliding import AveragePooling, Conv2d, MaxPooling
from safeset.program.sorting import Greatest, GroupSort, Least
from safeset.program.total import Sum

IMAGE = (4, 6, 7)
WEIGHT, BIAS = numbers(6, 4, 3, 2), numbers(6)
CASES = [
    (Linear(numbers(3, 5), numbers(3)), (5,)),
    (Linear(numbers(3, 5), None), (2, 5)),
    (ChannelAffine(numbers(4), numbers(4)), IMAGE),
    (Scale(numbers(4, 1, 7)), IMAGE),
    (Shift(numbers(1, 6, 1)), IMAGE),
    (Clamp(-0.3, 0.4), IMAGE),
    (Clamp(None, 0.4), IMAGE),
    (Conv2d((1, 1), (0, 0), (1, 1), WEIGHT, BIAS, 1), IMAGE),
    (Conv2d((2, 3), (2, 1), (2, 1), WEIGHT, None, 1), IMAGE),
    (Conv2d((1, 1), "same", (1, 1), WEIGHT, BIAS, 1), IMAGE),
    (Conv2d((1, 2), (1, 0), (1, 1), numbers(6, 2, 3, 2), BIAS, 2), IMAGE),
    (Conv2d((1, 1), (0, 0), (1, 1), numbers(6, 4, 1, 1), BIAS, 1), IMAGE),
    (CircularConv2d((1, 1), (1, 1), (1, 1), numbers(6, 4, 3, 3), BIAS, 1), IMAGE),
    (OneRow(Conv2d((1, 2), (0, 1), (1, 1), numbers(6, 4, 1, 3), BIAS, 1)), (4, 9)),
    (AveragePooling((2, 2), (1, 1), (1, 1), (3, 2)), IMAGE),
    (AveragePooling((2, 2), (0, 0), (1, 1), (2, 2), 3), IMAGE),
    (MaxPooling((2, 2), (1, 1), (1, 1), (3, 3), False), IMAGE),
    (MaxPooling((2, 2), (0, 0), (1, 1), (3, 3), True), IMAGE),
    (PotentialStep(numbers(3, 5), numbers(3)), (5,)),
    (PotentialStep(numbers(3, 4, 3, 3), numbers(3)), IMAGE),
    (RootOfSquares(), (4, 5)),
    (RootOfSquares((2, 3)), IMAGE),
    (Identity(), IMAGE),
    (Flatten(1, -1), IMAGE),
    (Flatten(2, 3), IMAGE),
    (Unshuffle(2), (2, 4, 6)),
    (Shuffle(2), (8, 2, 3)),
    (ChannelShuffle(2), IMAGE),
    (ChannelShift(16), (32, 4, 4)),
    (Reshape((7, 24)), IMAGE),
    (Select(torch.tensor([[3, -1], [3, 0]])), (5,)),
    (Select(torch.tensor([1, 1, 4])), (5,)),
    (ReLU(), IMAGE),
    (Absolute(), IMAGE),
    (MinMax(), IMAGE),
    (HalfAbsolute(True), IMAGE),
    (HalfAbsolute(False), (4,)),
    (LeakyReLU(-0.2), IMAGE),
    (PReLU(numbers(4)), IMAGE),
    (PReLU(numbers(1)), (5,)),
    (GroupSort(7), IMAGE),
    (GroupSort(7, True), IMAGE),
    (Greatest(), IMAGE),
    (Least(), IMAGE),
    (Hardswish(), IMAGE),
    (Hardsigmoid(), IMAGE),
]
SMOOTH = {
    Tanh(): mpmath.tanh,
    Sigmoid(): lambda t: 1 / (1 + mpmath.exp(-t)),
    SiLU(): lambda t: t / (1 + mpmath.exp(-t)),
    Erf(): mpmath.erf,
    GELU(): lambda t: t * (1 + mpmath.erf(t / mpmath.sqrt(2))) / 2,
    GELU("tanh"): lambda t: t * (1 + mpmath.tanh(mpmath.sqrt(2 / mpmath.pi) * (t + mpmath.mpf("0.044715") * t**3))) / 2,
    ErfGELU(0.75): lambda t: t * (1 + mpmath.erf(0.75 * t)) / 2,
    Mish(): lambda t: t * mpmath.tanh(mpmath.log1p(mpmath.exp(t))),
    Softplus(2.0, 40.0): lambda t: mpmath.log1p(mpmath.exp(2 * t)) / 2,
    ELU(0.7, 1.5, 2.0): lambda t: 1.5 * (t if t > 0 else mpmath.mpf(0.7) * mpmath.expm1(2 * t)),
}


def runtime(operation, shape, *inputs):
    """What onnxruntime gives for an operation on points of a shape."""
    graph = Graph(Precision.of("float64"))
    names = [f"x{place}" for place in range(len(inputs))]
    graph.call(write(operation, graph, shape, *(Value(graph, name) for name in names)), "y")
    both = list(zip(names, inputs, strict=True))
    given = [helper.make_tensor_value_info(name, 11, ["batch", *x.shape[1:]]) for name, x in both]
    out = helper.make_tensor_value_info("y", 11, None)
    stored = [numpy_helper.from_array(array, name) for name, array in graph.constants.items()]
    model = helper.make_model(
        helper.make_graph(graph.nodes, "test", given, [out], stored),
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR,
    )
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {name: x.numpy() for name, x in both})[0]


@pytest.mark.parametrize(("operation", "shape"), CASES, ids=lambda part: getattr(part, "kind", None))
def test_operations_are_what_they_are(operation, shape):
    x = numbers(3, *shape, seed=7)
    wanted = operation.run(x).numpy()
    found = runtime(operation, shape, x)
    assert found.shape == wanted.shape
    assert np.abs(found - wanted).max() <= 1e-13


@pytest.mark.parametrize("signs", [(1, 1), (-1, 1), (1, -1, -1)])
def test_sums(signs):
    parts = [numbers(3, *IMAGE, seed=seed) for seed in range(len(signs))]
    assert np.array_equal(runtime(Sum(signs), IMAGE, *parts), Sum(signs).run(*parts).numpy())


def test_joins():
    parts = numbers(3, *IMAGE), numbers(3, 5)
    assert np.array_equal(runtime(Join(), IMAGE, *parts), Join().run(*parts).numpy())


@pytest.mark.parametrize("size", [1e-300, 1e-150, 1.0, 1e150, 1e290])
def test_roots_of_squares_of_any_size(size):
    x = torch.tensor([[[3.0, 4.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1e-200, 0.0]]], dtype=torch.float64) * size
    assert runtime(RootOfSquares(), (3, 3), x)[0] == pytest.approx([5 * size, 0.0, size], rel=1e-15)


@pytest.mark.parametrize(("operation", "exact"), SMOOTH.items(), ids=lambda part: getattr(part, "kind", None))
def test_smooth_activations_stray_no_farther_than_their_proofs_allow(operation, exact):
    spread = np.concatenate([np.linspace(-8, 8, 321), np.geomspace(1e-310, 600, 60), -np.geomspace(1e-310, 600, 60)])
    found = runtime(operation, (len(spread),), torch.from_numpy(spread)[None])[0]
    relative, absolute = operation.strays
    with mpmath.workdps(60):
        for v, computed in zip(spread.tolist(), found.tolist(), strict=True):
            allowed = relative * abs(v) + absolute
            strays = abs(mpmath.mpf(computed) - exact(mpmath.mpf(v)))
            assert strays <= mpmath.mpf(float(allowed)) / 2, v  # half of it: what is seen is not all there is


def kinds(base):
    for kind in base.__subclasses__():
        yield kind
        yield from kinds(kind)


def test_every_kind_of_operation_has_a_rule():
    there = {type(operation) for operation, _ in CASES} | {type(operation) for operation in SMOOTH} | {Sum, Join}
    plain = {
        kind
        for kind in kinds(Operation)
        if not inspect.isabstract(kind) and kind.__module__.startswith("safeset.program.") and hasattr(kind, "kind")
    }
    assert plain - there == {OwnLayer}


def test_an_own_layer_is_refused_with_a_remedy():
    own = object.__new__(OwnLayer)
    graph = Graph(Precision.of("float64"))
    with pytest.raises(UnsupportedLayerError, match=r"own layer.*freeze it"):
        write(own, graph, (3,), Value(graph, "x"))


def test_programs_are_written_node_by_node():
    program = program_from(
        (5,), Linear(numbers(4, 5), None), ReLU(), (Sum((1, 1)), (0, 1)), Linear(numbers(3, 4), None)
    )
    x = numbers(6, 5)
    values = {-1: x}
    for number, node in enumerate(program.nodes):
        inputs = [values[read] for read in node.inputs]
        values[number] = torch.from_numpy(runtime(node.operation, node.shape, *inputs))
    assert torch.allclose(values[3], program.run(x), atol=1e-13)
