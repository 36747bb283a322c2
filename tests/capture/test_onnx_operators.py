"""Each operator of ONNX: what the program computes is what onnxruntime computes, in every form of the batch."""

import numpy as np
import pytest
import torch

from helpers.onnx_files import BATCHES, model, node, runtime, save
from safeset.capture.from_onnx import OPERATORS, read_onnx
from safeset.errors import UnsupportedLayerError

IMAGE, FLAT = (4, 6, 6), (6,)
rng = np.random.default_rng(0)
W44, W46, BIAS = rng.normal(size=(4, 4, 3, 3)), rng.normal(size=(6, 4)), rng.normal(size=4)
FLATTEN = node("Flatten", "h", outputs=("f",))
INTEGERS = {"two": np.array([2]), "last": np.array([-1]), "axes23": np.array([2, 3])}


def one(kind, *others, constants=None, opset=17, **attributes):
    """One operator with one value in, and what else it is given."""
    return [node(kind, "x", *others, outputs=("h",), **attributes)], constants or {}, opset


def conv(**attributes):
    return one("Conv", "w", "b", constants={"w": W44, "b": BIAS}, **attributes)


def ints(*numbers):
    return np.array(numbers, dtype=np.int64)


IMAGES = {
    "Conv": conv(),
    "Conv, pads": conv(pads=[1, 1, 1, 1], strides=[2, 1]),
    "Conv, other pads": conv(pads=[0, 1, 2, 0], dilations=[2, 1], kernel_shape=[3, 3]),
    "Conv, same": conv(auto_pad="SAME_UPPER", strides=[2, 2]),
    "Conv, same lower": conv(auto_pad="SAME_LOWER", strides=[2, 1]),
    "Conv, valid": conv(auto_pad="VALID"),
    "Conv, groups": one("Conv", "w", constants={"w": W44[:, :2]}, group=2),
    "MaxPool": one("MaxPool", kernel_shape=[2, 2], strides=[2, 2]),
    "MaxPool, pads": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "MaxPool, other pads": one("MaxPool", kernel_shape=[3, 2], strides=[2, 2], pads=[0, 1, 1, 0]),
    "MaxPool, ceil": one("MaxPool", kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    "MaxPool, stride 1": one("MaxPool", kernel_shape=[2, 3], auto_pad="SAME_UPPER"),
    "AveragePool": one("AveragePool", kernel_shape=[2, 2], strides=[2, 2]),
    "AveragePool, pads": one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    "AveragePool, counted": one("AveragePool", kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1),
    "AveragePool, other pads": one("AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[0, 1, 1, 0]),
    "AveragePool, others counted": one("AveragePool", kernel_shape=[3, 3], pads=[0, 1, 2, 0], count_include_pad=1),
    "LpPool": one("LpPool", kernel_shape=[2, 3], strides=[2, 1], pads=[1, 0, 0, 1], opset=18),
    "GlobalAveragePool": one("GlobalAveragePool"),
    "GlobalMaxPool": one("GlobalMaxPool"),
    "GlobalLpPool": one("GlobalLpPool"),
    "BatchNormalization": one(
        "BatchNormalization",
        "s",
        "b",
        "m",
        "v",
        constants={"s": BIAS, "b": BIAS, "m": BIAS, "v": BIAS**2},
        epsilon=1e-3,
    ),
    "PRelu, channels": one("PRelu", "s", constants={"s": BIAS.reshape(4, 1, 1)}),
    "DepthToSpace": one("DepthToSpace", blocksize=2),
    "DepthToSpace, CRD": one("DepthToSpace", blocksize=2, mode="CRD"),
    "SpaceToDepth": one("SpaceToDepth", blocksize=3),
    "Transpose": one("Transpose", perm=[0, 2, 3, 1]),
    "Split": ([node("Split", "x", outputs=("a", "h"), axis=1)], {}, 17),
    "Split, sizes": ([node("Split", "x", "s", outputs=("a", "h", "c"), axis=2)], {"s": ints(1, 3, 2)}, 17),
    "Split, 18": ([node("Split", "x", outputs=("a", "b", "h"), axis=2, num_outputs=3)], {}, 18),
    "Slice": one(
        "Slice", "a", "b", "c", "d", constants={"a": ints(0, -1), "b": ints(2, -99), "c": ints(1, 3), "d": ints(1, -2)}
    ),
    "Gather": one("Gather", "i", constants={"i": ints(2, -1, 2)}, axis=1),
    "Gather, one": one("Gather", "i", constants={"i": np.array(1)}, axis=2),
    "Pad": one("Pad", "p", constants={"p": ints(0, 0, 1, 2, 0, 0, 0, 1)}),
    "Pad, number": one("Pad", "p", "v", constants={"p": ints(0, 0, 1, 2, 0, 0, 0, 1), "v": np.array(1.5)}),
    "Pad, reflect": one("Pad", "p", constants={"p": ints(0, 0, 1, 2, 0, 0, 3, 1)}, mode="reflect"),
    "Pad, edge": one("Pad", "p", constants={"p": ints(0, 0, 1, 2, 0, 1, 3, 1)}, mode="edge"),
    "Pad, axes": one("Pad", "p", "", "a", constants={"p": ints(1, 2), "a": ints(-1)}, mode="wrap", opset=19),
    "Tile": one("Tile", "r", constants={"r": ints(1, 1, 2, 1)}),
    "ReduceMean": one("ReduceMean", axes=[2, 3]),
    "ReduceMean, 18": one("ReduceMean", "a", constants={"a": ints(-1, 1)}, keepdims=0, opset=18),
    "ReduceSum": one("ReduceSum", "a", constants={"a": ints(1)}),
    "ReduceMax": one("ReduceMax", axes=[1], keepdims=0),
    "ReduceMin": one("ReduceMin", axes=[3]),
    "ReduceL2": one("ReduceL2", axes=[2, 3]),
    "Squeeze": (
        [node("Unsqueeze", "x", "a", outputs=("u",)), node("Squeeze", "u", "a", outputs=("h",))],
        {"a": ints(1, -1)},
        17,
    ),
    "Unsqueeze, 11": ([node("Unsqueeze", "x", outputs=("h",), axes=[1])], {}, 11),
    "Concat": ([node("Relu", "x", outputs=("r",)), node("Concat", "x", "r", outputs=("h",), axis=1)], {}, 17),
    "MatMul, last axis": one("MatMul", "w", constants={"w": rng.normal(size=(6, 5))}),
    "MatMul, before": ([node("MatMul", "w", "x", outputs=("h",))], {"w": rng.normal(size=(5, 6))}, 17),
    "Reshape": one("Reshape", "s", constants={"s": ints(0, 2, -1, 3)}),
    "Flatten, 2": one("Flatten", axis=1),
    "Sum": (
        [node("Tanh", "x", outputs=("t",)), node("Sum", "x", "t", "c", outputs=("h",))],
        {"c": BIAS.reshape(4, 1, 1)},
        17,
    ),
    "Mean": ([node("Tanh", "x", outputs=("t",)), node("Mean", "x", "t", outputs=("h",))], {}, 17),
}
FLATS = {
    "Gemm": one("Gemm", "w", "b", constants={"w": W46, "b": BIAS}),
    "Gemm, turned": one("Gemm", "w", "b", constants={"w": W46.T, "b": BIAS[None]}, transB=1, alpha=0.5, beta=2.0),
    "Gemm, one number": one("Gemm", "w", "b", constants={"w": W46, "b": np.array([1.5])}),
    "MatMul and Add": (
        [node("MatMul", "x", "w", outputs=("m",)), node("Add", "b", "m", outputs=("h",))],
        {"w": W46, "b": BIAS},
        17,
    ),
    "Relu": one("Relu"),
    "LeakyRelu": one("LeakyRelu", alpha=0.3),
    "PRelu": one("PRelu", "s", constants={"s": rng.normal(size=6)}),
    "Abs": one("Abs"),
    "Neg": one("Neg"),
    "Identity": one("Identity"),
    "Dropout": one("Dropout"),
    "Add": one("Add", "c", constants={"c": rng.normal(size=6)}),
    "Sub": one("Sub", "c", constants={"c": rng.normal(size=(1, 6))}),
    "Sub, from": ([node("Sub", "c", "x", outputs=("h",))], {"c": rng.normal(size=6)}, 17),
    "Mul": one("Mul", "c", constants={"c": rng.normal(size=6)}),
    "Div": one("Div", "c", constants={"c": rng.normal(size=6)}),
    "Max": one("Max", "c", constants={"c": rng.normal(size=6)}),
    "Min": one("Min", "c", constants={"c": np.array(0.25)}),
    "Max of two": (
        [node("Neg", "x", outputs=("n",)), node("Max", "x", "n", "c", outputs=("h",))],
        {"c": np.array(0.5)},
        17,
    ),
    "Clip": one("Clip", "a", "b", constants={"a": np.array(-0.5), "b": np.array(0.75)}),
    "Clip, above": one("Clip", "", "b", constants={"b": np.array(0.75)}),
    "Sigmoid": one("Sigmoid"),
    "Tanh": one("Tanh"),
    "Softplus": one("Softplus"),
    "Softplus, as torch exports it": (
        [
            node("Softplus", "x", outputs=("s",)),
            node("Greater", "x", "t", outputs=("g",)),
            node("Where", "g", "x", "s", outputs=("h",)),
        ],
        {"t": np.array(0.5)},  # so low that the jump is seen
        17,
    ),
    "Elu": one("Elu", alpha=1.5),
    "Selu": one("Selu"),
    "Celu": one("Celu", alpha=0.5),
    "Erf": one("Erf"),
    "Gelu": one("Gelu", opset=20),
    "Gelu, tanh": one("Gelu", approximate="tanh", opset=20),
    "Mish": one("Mish", opset=18),
    "HardSigmoid": one("HardSigmoid", alpha=0.15, beta=0.4),
    "HardSwish": one("HardSwish"),
    "SiLU": ([node("Sigmoid", "x", outputs=("s",)), node("Mul", "x", "s", outputs=("h",))], {}, 17),
    "Root of squares": (
        [
            node("Mul", "x", "x", outputs=("q",)),
            node("ReduceSum", "q", "last", outputs=("s",)),
            node("Sqrt", "s", outputs=("r",)),
            node("Concat", "x", "r", outputs=("h",), axis=1),
        ],
        {"last": ints(-1)},
        17,
    ),
    "Root of powers": (
        [
            node("Pow", "x", "t", outputs=("q",)),
            node("ReduceMean", "q", outputs=("s",), axes=[1]),
            node("Pow", "s", "half", outputs=("r",)),
            node("Concat", "x", "r", outputs=("h",), axis=1),
        ],
        {"t": np.array(2.0), "half": np.array(0.5)},
        17,
    ),
    "ReduceSumSquare": (
        [
            node("ReduceSumSquare", "x", outputs=("s",), axes=[1]),
            node("Sqrt", "s", outputs=("r",)),
            node("Concat", "x", "r", outputs=("h",), axis=1),
        ],
        {},
        17,
    ),
    "Expand": (
        [node("Unsqueeze", "x", "a", outputs=("u",)), node("Expand", "u", "s", outputs=("h",))],
        {"a": ints(1), "s": ints(1, 3, 1)},
        17,
    ),
    "shapes of shapes": (
        [
            node("Shape", "x", outputs=("s",)),
            node("Gather", "s", "zero", outputs=("n",), axis=0),
            node("Unsqueeze", "n", "axis", outputs=("u",)),
            node("Concat", "u", "rest", outputs=("target",), axis=0),
            node("Reshape", "x", "target", outputs=("h",)),
        ],
        {"zero": np.array(0), "axis": ints(0), "rest": ints(2, 3)},
        17,
    ),
    "a constant of the batch's shape": (
        [
            node("Shape", "x", outputs=("s",)),
            node("ConstantOfShape", "s", outputs=("c",)),
            node("Cast", "c", outputs=("d",), to=11),
            node("Concat", "x", "d", outputs=("e",), axis=1),
            node("Add", "e", "five", outputs=("h",)),
        ],
        {"five": np.array(5.0)},
        17,
    ),
    "Cast": one("Cast", to=11),
    "CastLike": one("CastLike", "c", constants={"c": np.array(1.0)}),
    "Constant": (
        [
            node("Constant", outputs=("c",), value_floats=[1.0, 2.0]),
            node("Cast", "c", outputs=("d",), to=11),
            node("ReduceSum", "d", outputs=("e",)),
            node("Mul", "e", "x", outputs=("h",)),
        ],
        {},
        17,
    ),
}
CASES = {
    **{name: (IMAGE, *case) for name, case in IMAGES.items()},
    **{name: (FLAT, *case) for name, case in FLATS.items()},
}


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", CASES)
def test_the_program_computes_what_onnxruntime_does(name, batch, tmp_path):
    shape, nodes, constants, opset = CASES[name]
    path, run = made(tmp_path, nodes, shape, constants, opset, batch)
    x = np.random.default_rng(1).normal(size=(4, *shape))
    wanted, program = run(x), read_onnx(path)
    found = program.run(torch.tensor(x)).numpy()
    assert program.input_shape == shape
    assert found.shape == wanted.shape
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


def made(folder, nodes, shape, constants, opset, batch):
    """A file in float64, or in float32 where onnxruntime has no kernel."""
    for double in (True, False):
        cast = [each for each in nodes if each.op_type == "Cast"]
        for each in cast:
            each.attribute[0].i = 11 if double else 1
        file = model([*nodes, FLATTEN], shape, batch=batch, constants=constants, opset=opset, out="f", double=double)
        path = save(file, folder)
        try:
            return path, runtime(path)
        except Exception as error:
            if not double or not any(each in str(error) for each in ("NOT_IMPLEMENTED", "INVALID_GRAPH")):
                raise
    raise AssertionError


def test_each_operator_is_tried():
    tried = {each.op_type for _, nodes, _, _ in CASES.values() for each in nodes}
    assert OPERATORS - tried <= {"Flatten", "Size"}
    assert not OPERATORS & {"Greater", "Where"}  # read in one form alone: `supports` must not claim them


@pytest.mark.parametrize(
    ("kind", "attributes"),
    [
        ("LeakyRelu", {"alpha": 0.01}),
        ("HardSigmoid", {"alpha": 0.2, "beta": 0.5}),
        ("Elu", {"alpha": 1.0}),
        ("Selu", {"alpha": 1.6732632423543772, "gamma": 1.0507009873554805}),
        ("BatchNormalization", {"epsilon": 1e-5}),
    ],
)
def test_numbers_that_are_left_out_are_those_that_a_file_can_write(kind, attributes, tmp_path):
    """Attributes are float32: a property is not decided for a slope that no file can have."""
    numbers = ["s", "b", "m", "v"] if kind == "BatchNormalization" else []
    constants = dict.fromkeys(numbers, np.ones(6))
    written, left_out = (
        read_onnx(save(model([node(kind, "x", *numbers, **given)], FLAT, constants=constants), tmp_path))
        for given in (attributes, {})
    )
    assert written.equals(left_out)


@pytest.mark.parametrize(
    "choice", [("g", "s", "x"), ("g", "x", "r"), ("g", "n", "s"), ("m", "x", "s"), ("c", "x", "s")]
)
def test_a_choice_other_than_that_of_softplus_is_refused(choice, tmp_path):
    nodes = [
        node("Softplus", "x", outputs=("s",)),
        node("Relu", "x", outputs=("r",)),
        node("Neg", "x", outputs=("n",)),
        node("Greater", "x", "t", outputs=("g",)),
        node("Greater", "n", "t", outputs=("m",)),
        node("Where", *choice, outputs=("h",)),
    ]
    constants = {"t": np.array(20.0), "c": np.array(True)}
    with pytest.raises(UnsupportedLayerError, match="a choice that depends on the input jumps"):
        read_onnx(save(model(nodes, FLAT, constants=constants, opset=17, out="h"), tmp_path))
