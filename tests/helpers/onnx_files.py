"""ONNX files for tests: made operator by operator, and what onnxruntime gives for them."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

BATCHES = ("batch", 1, 4)  # symbolic, one point at a time, another fixed size


def node(kind, *inputs, name="", outputs=("y",), **attributes):
    return helper.make_node(kind, list(inputs), list(outputs), name=name, **attributes)


def model(nodes, shape, *, batch="batch", constants=None, opset=17, out="y", double=True, out_dims=None):
    """A model from ``x`` of (batch, *shape) to ``out``; constants are arrays by name."""
    element, dtype = (TensorProto.DOUBLE, np.float64) if double else (TensorProto.FLOAT, np.float32)
    dims = list(shape) if batch is None else [batch, *shape]
    stored = []
    for name, numbers in (constants or {}).items():
        array = np.asarray(numbers)
        stored.append(numpy_helper.from_array(array.astype(dtype) if array.dtype.kind == "f" else array, name))
    ins = [helper.make_tensor_value_info("x", element, dims)]
    given = out_dims or ([batch, None] if isinstance(batch, int) and batch > 1 else [None, None])
    outs = [helper.make_tensor_value_info(out, element, given)]
    graph = helper.make_graph(list(nodes), "test", ins, outs, stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)


def save(made, folder, name="model.onnx"):
    path = folder / name
    path.write_bytes(made.SerializeToString())
    return path


def runtime(path):
    """What onnxruntime gives, as a function of points in float64, in batches as the file has them."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    given = session.get_inputs()[0]
    dtype = np.float64 if "double" in given.type else np.float32

    def run(points):
        batch = given.shape[0]
        if len(given.shape) == points.ndim - 1:
            rows = [session.run(None, {given.name: point.astype(dtype)})[0].reshape(1, -1) for point in points]
            return np.concatenate(rows).astype(np.float64)
        size = batch if isinstance(batch, int) else len(points)
        parts = [points[start : start + size].astype(dtype) for start in range(0, len(points), size)]
        outputs = [session.run(None, {given.name: part})[0] for part in parts]
        return np.concatenate([each.reshape(len(part), -1) for each, part in zip(outputs, parts, strict=True)]).astype(
            np.float64
        )

    return run


def load(path):
    return onnx.load(str(path))


def photo_network(classes=4):
    """A small network of 8 × 8 photos."""
    random = np.random.default_rng(5)
    nodes = [
        node("Conv", "x", "k", outputs=("c",), name="conv", pads=[1, 1, 1, 1]),
        node("Relu", "c", outputs=("r",)),
        node("MaxPool", "r", outputs=("p",), kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p", outputs=("f",)),
        node("Gemm", "f", "w", "b", outputs=("y",), name="head"),
    ]
    constants = {"k": random.normal(size=(4, 3, 3, 3)) / 5, "w": random.normal(size=(64, classes)) / 4}
    return model(nodes, (3, 8, 8), constants={**constants, "b": np.zeros(classes)}, double=False)
