"""ONNX files that are damaged, wrong or hostile: each is answered by a message, and nothing large is allocated."""

import os
import random
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper

import safeset
from helpers.onnx_files import model, node, save
from safeset.capture.from_onnx import read_onnx

rng = np.random.default_rng(0)
KERNEL, W = rng.normal(size=(2, 1, 3, 3)), rng.normal(size=(32, 4))


def good(**changes):
    """A small network with all that files have: convolution, pooling, shapes that are computed, a head."""
    nodes = [
        node("Conv", "x", "k", outputs=("c",), name="first", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        node("Relu", "c", outputs=("r",)),
        node("MaxPool", "r", outputs=("p",), kernel_shape=[2, 2], strides=[2, 2]),
        node("Shape", "p", outputs=("s",)),
        node("Gather", "s", "zero", outputs=("n",), axis=0),
        node("Unsqueeze", "n", "axes", outputs=("u",)),
        node("Concat", "u", "rest", outputs=("t",), axis=0),
        node("Reshape", "p", "t", outputs=("f",)),
        node("Gemm", "f", "w", "b", outputs=("y",), alpha=1.0),
    ]
    ints = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1])}
    return model(nodes, (1, 8, 8), constants={"k": KERNEL, "w": W, "b": W[0], **ints}, **changes)


def refused(made, folder, match):
    path = save(made, folder)
    tracemalloc.start()
    try:
        with pytest.raises(safeset.SafesetError, match=match):
            read_onnx(path)
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


def test_the_good_one_is_read(tmp_path):
    assert read_onnx(save(good(), tmp_path)).classes == 4


def attribute(made, place, name):
    return next(each for each in made.graph.node[place].attribute if each.name == name)


def sparse(made):
    values = helper.make_tensor("q", TensorProto.DOUBLE, [1], [1.0])
    places = helper.make_tensor("qi", TensorProto.INT64, [1], [0])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [4]))


def external(made):
    tensor = made.graph.initializer[1]
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")


def strings(made):
    made.graph.initializer[1].CopyFrom(helper.make_tensor("w", TensorProto.STRING, [1], [b"text"]))


def cycle(made):
    made.graph.node[0].input[0] = "r"


def branch(made):
    inner = helper.make_graph([node("Relu", "r", outputs=("z",))], "g", [], [])
    made.graph.node[1].CopyFrom(node("If", "zero", outputs=("r",), then_branch=inner, else_branch=inner))


def function(made):
    made.functions.append(helper.make_function("own", "F", ["a"], ["b"], [node("Relu", "a", outputs=("b",))], []))


WRONG = {
    "a dimension too large": (lambda m: m.graph.initializer[1].dims.__setitem__(0, 2**40), "numbers for the constant"),
    "many dimensions": (lambda m: m.graph.initializer[1].dims.extend([2**31] * 40), "numbers for the constant"),
    "a negative dimension": (lambda m: m.graph.initializer[1].dims.__setitem__(0, -32), "sizes of at least 0"),
    "a wrong type": (lambda m: setattr(m.graph.initializer[1], "data_type", 1), "numbers for the constant"),
    "an unknown type": (lambda m: setattr(m.graph.initializer[1], "data_type", 99), "numbers as constants"),
    "texts": (strings, "numbers as constants"),
    "sparse constants": (sparse, "dense constants"),
    "external data": (external, "external data"),
    "a missing constant": (lambda m: m.graph.initializer.pop(1), "2 inputs|given by nothing"),
    "the same constant twice": (lambda m: m.graph.initializer.append(m.graph.initializer[0]), "each name once"),
    "a value that is given twice": (lambda m: m.graph.node.append(m.graph.node[1]), "each name once"),
    "a cycle": (cycle, "given by nothing before it"),
    "a branch": (branch, "attributes"),
    "functions": (function, "functions of its own"),
    "another domain": (lambda m: setattr(m.graph.node[1], "domain", "com.example"), "ONNX itself"),
    "an unknown operator": (lambda m: setattr(m.graph.node[1], "op_type", "Relo"), "Relo: safeset knows no"),
    "an unknown attribute": (lambda m: m.graph.node[1].attribute.append(helper.make_attribute("a", 1)), "not known"),
    "an attribute of another type": (lambda m: setattr(attribute(m, 0, "pads"), "type", 1), "pads"),
    "giant pads": (lambda m: attribute(m, 0, "pads").ints.__setitem__(0, 2**30), "entries in all"),
    "negative pads": (lambda m: attribute(m, 0, "pads").ints.__setitem__(0, -1), "pads"),
    "no opset": (lambda m: m.opset_import.pop(), "opset 9 to 21"),
    "an old opset": (lambda m: setattr(m.opset_import[0], "version", 6), "opset 9 to 21"),
    "two outputs": (lambda m: m.graph.output.append(m.graph.output[0]), "one input and one output"),
    "an input of integers": (lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", 7), "floating point"),
    "an input without sizes": (
        lambda m: m.graph.input[0].type.tensor_type.shape.dim[1].ClearField("dim_value"),
        "fixed",
    ),
    "a giant input": (
        lambda m: setattr(m.graph.input[0].type.tensor_type.shape.dim[1], "dim_value", 2**30),
        "numbers in",
    ),
    "NaN": (lambda m: setattr(m.graph.initializer[0], "raw_data", np.full((2, 1, 3, 3), np.nan).tobytes()), "NaN"),
    "an odd name": (lambda m: setattr(m.graph.node[1], "op_type", "\x1b[31m" + "a" * 1000), r"\?\[31ma{70,75}:"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_is_said(what, tmp_path):
    change, message = WRONG[what]
    made = good()
    change(made)
    refused(made, tmp_path, message)


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("Softmax", "leave it out"),
        ("ArgMax", "leave it out"),
        ("LayerNormalization", "layer norm"),
        ("InstanceNormalization", "batch norm"),
        ("QuantizeLinear", "quantised"),
        ("LSTM", "recurrent"),
        ("Exp", "exp has no global"),
        ("Sign", "jumps"),
        ("ConvTranspose", "upsampling"),
        ("RandomNormalLike", "random"),
    ],
)
def test_what_has_no_constant_is_refused_by_name(kind, match, tmp_path):
    refused(model([node(kind, "x", name="one")], (6,)), tmp_path, rf"{kind} \(node 'one'\): .*{match}")


def numbers(**named):
    return {name: np.array(each) for name, each in named.items()}


BROAD = [node("Add", "a", "b", outputs=("c",)), node("Add", "x", "c")]
TAKEN = [node("Gather", "x", "s", axis=1, outputs=("g",)), node("Expand", "g", "t")]
DOUBLED = [node("Expand", "x", "s", outputs=("e0",))]
DOUBLED += [node("Concat", f"e{i}", f"e{i}", outputs=(f"e{i + 1}",), axis=1) for i in range(60)]
DOUBLED += [node("Relu", "e60")]


@pytest.mark.parametrize(
    ("nodes", "constants"),
    [
        ([node("Expand", "x", "s")], {"s": np.array([1, 2**20, 2**20, 1])}),
        ([node("Tile", "x", "s")], {"s": np.array([1, 2**40])}),
        ([node("Pad", "x", "s")], {"s": np.array([0, 2**40, 0, 0])}),
        ([node("ConstantOfShape", "s", outputs=("c",)), node("Add", "x", "c")], {"s": np.array([2**20] * 3)}),
        ([node("Range", "a", "b", "c", outputs=("r",)), node("Add", "x", "r")], numbers(a=0, b=2**50, c=1)),
        (BROAD, {"a": np.zeros((2**15, 1)), "b": np.zeros(2**15)}),
        (TAKEN, numbers(s=[0] * 2**15, t=[1, 2**40])),
        (DOUBLED, numbers(s=[1, 6])),
    ],
)  # fmt: skip
def test_few_bytes_do_not_become_gigabytes(nodes, constants, tmp_path):
    refused(model(nodes, (6,), constants=constants), tmp_path, "entries in all|expanded|shape")


def test_empty_messages_are_counted_before_they_are_parsed(tmp_path):
    path = tmp_path / "model.onnx"
    graph = bytes([0x0A, 0]) * 600_000  # so many nodes without anything
    length = bytearray()
    left = len(graph)
    while left:
        length.append(left & 127 | (128 if left > 127 else 0))
        left >>= 7
    path.write_bytes(bytes([0x3A]) + bytes(length) + graph)
    with pytest.raises(safeset.SafesetError, match="fields"):
        read_onnx(path)


def test_what_is_no_file_is_refused(tmp_path):
    (tmp_path / "empty.onnx").touch()
    (tmp_path / "text.onnx").write_text("this is no network at all")
    (tmp_path / "folder.onnx").mkdir()
    os.mkfifo(tmp_path / "pipe.onnx")
    for name in ("empty", "text", "folder", "pipe", "missing", "nul\0"):
        with pytest.raises(safeset.SafesetError):
            read_onnx(tmp_path / f"{name}.onnx")


def test_without_the_package_the_remedy_is_said(tmp_path):
    save(good(), tmp_path)
    code = (
        "import sys; sys.modules['onnx'] = None\n"
        "from safeset.capture.from_onnx import read_onnx\n"
        f"try:\n    read_onnx({str(tmp_path / 'model.onnx')!r})\nexcept ValueError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'safeset[onnx]'" in done.stdout


# -- mutated files ----------------------------------------------------------------------------------------------------


def answered(content, path):
    """Whether a file is read; anything but a message is a mistake."""
    path.write_bytes(content)
    try:
        program = read_onnx(path)
    except safeset.SafesetError as error:
        assert str(error)  # noqa: PT017
        assert len(str(error)) < 3000  # noqa: PT017
        return False
    return program.classes > 0


def test_mutated_bytes_are_answered(tmp_path):
    random.seed(0)
    content, path = good().SerializeToString(), tmp_path / "model.onnx"
    read = 0
    for _ in range(300):
        changed = bytearray(content)
        for _ in range(random.choice([1, 1, 2, 8])):
            place = random.randrange(len(changed))
            way = random.randrange(4)
            if way == 0:
                changed[place] = random.randrange(256)
            elif way == 1:
                changed[place] ^= 1 << random.randrange(8)
            elif way == 2:
                del changed[place : place + random.choice([1, 5, 50])]
            else:
                changed[place:place] = changed[: random.choice([1, 5, 50])]
        read += answered(bytes(changed), path)
    assert 0 < read < 300  # both happen: mutations of numbers are still networks


def test_mutated_fields_are_answered(tmp_path):
    random.seed(1)
    path, read = tmp_path / "model.onnx", 0
    numbers = [0, 1, -1, 2, 3, 7, 2**31, -(2**31), 2**62, -(2**63), 2**63 - 1]
    kinds = (
        "Add Mul MatMul Concat Reshape Split Slice Pad ReduceSum Clip Flatten Shape AveragePool Conv Transpose Gather"
    )
    kinds = f"{kinds} BatchNormalization Expand Cast PRelu Max Gemm".split()
    for _ in range(300):
        made = good()
        names = ["x", "c", "r", "p", "k", "w", "b", "f", "zero", "rest", "", "t"]
        for _ in range(random.choice([1, 2, 3])):
            each = random.choice(made.graph.node)
            way = random.randrange(5)
            if way == 0:
                each.op_type = random.choice(kinds)
            elif way == 1 and each.input:
                each.input[random.randrange(len(each.input))] = random.choice(names)
            elif way == 2 and each.attribute:
                chosen = random.choice(each.attribute)
                chosen.i, chosen.f = random.choice(numbers), random.choice([0.0, float("nan"), float("inf"), -1e308])
                if chosen.ints:
                    chosen.ints[random.randrange(len(chosen.ints))] = random.choice(numbers)
            elif way == 3:
                tensor = random.choice(made.graph.initializer)
                tensor.dims[:] = [random.choice(numbers) for _ in range(random.randrange(4))]
            else:
                name = random.choice(["rest", "axes", "zero"])
                tensor = next(one for one in made.graph.initializer if one.name == name)
                tensor.raw_data = np.array(random.choice(numbers), dtype=np.int64).tobytes()
        read += answered(made.SerializeToString(), path)
    assert 0 < read < 300
