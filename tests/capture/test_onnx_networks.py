"""Whole networks in ONNX files, as PyTorch's exporters and others write them."""

import logging
import pickle
import warnings

import numpy as np
import pytest
import torch
from torch import nn

import safeset
from helpers.onnx_files import model, node, runtime, save
from safeset.capture.from_onnx import read_onnx
from safeset.capture.onnx_comparison import compare_with_runtime
from safeset.capture.program_network import ProgramNetwork
from safeset.program.activations import Mish, SiLU
from safeset.program.entries import Shift
from safeset.program.erf import ErfGELU
from safeset.program.linear import Linear
from safeset.program.piecewise import Hardswish
from safeset.verification.networks import read_network

IMAGE = (3, 8, 8)


class Block(nn.Module):
    def __init__(self, channels, activation):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels))
        self.activation = activation

    def forward(self, x):
        return x + self.activation(self.first(x))


def trained(network):
    """With statistics that are not 0 and 1."""
    torch.manual_seed(0)
    for layer in network.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_()
            layer.running_var.uniform_(0.5, 2.0)
    return network.eval()


def residual(activation):
    return trained(
        nn.Sequential(
            nn.Conv2d(3, 4, 3, stride=2, padding=1),
            Block(4, activation),
            nn.AvgPool2d(2),
            nn.Flatten(),
            nn.Linear(16, 5),
        )
    )


class Split(nn.Module):
    """Maxima and minima of halves, concatenated and shuffled."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(192, 5)

    def forward(self, x):
        first, second = x.flatten(1).chunk(2, dim=1)
        both = torch.cat([torch.maximum(first, second), torch.minimum(first, second)], dim=1)
        return self.head(both.view(-1, 2, 96).transpose(1, 2).flatten(1).roll(3, 1))


NETWORKS = {
    "relu": lambda: residual(nn.ReLU()),
    "silu": lambda: residual(nn.SiLU()),
    "gelu": lambda: residual(nn.GELU()),
    "tanh": lambda: residual(nn.Tanh()),
    "relu6": lambda: residual(nn.ReLU6()),
    "pooling": lambda: trained(
        nn.Sequential(
            nn.Conv2d(3, 6, 3, groups=3),
            nn.MaxPool2d(2),
            nn.LeakyReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(6, 4),
        )
    ),
    "dense": lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 8), nn.ELU(), nn.Softplus(), nn.Linear(8, 3)).eval(),
    "split": Split,
}


def export(network, path, *, opset, dynamo, batch):
    shapes = {"dynamic_shapes": ({0: torch.export.Dim("batch")},)} if dynamo else {"dynamic_axes": {"x": {0: "batch"}}}
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(2 if batch else 1, *IMAGE),),
            path,
            input_names=["x"],
            opset_version=opset,
            dynamo=dynamo,
            external_data=False,
            verbose=False,
            **(shapes if batch else {}),
        )


@pytest.mark.parametrize("opset", [13, 17, 20])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_torch_exports_is_what_is_read(name, opset, tmp_path):
    network, path = NETWORKS[name](), tmp_path / "model.onnx"
    export(network, path, opset=opset, dynamo=False, batch=opset != 17)
    check(network, path)


@pytest.mark.parametrize("name", ["relu", "gelu", "split"])
def test_what_the_new_exporter_writes_is_what_is_read(name, tmp_path):
    network, path = NETWORKS[name](), tmp_path / "model.onnx"
    export(network, path, opset=21, dynamo=True, batch=True)
    check(network, path)


def check(network, path):
    x = torch.randn(6, *IMAGE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = read_onnx(path).run(x)
    with torch.no_grad():
        torch.testing.assert_close(found, network.double()(x), rtol=1e-6, atol=1e-7)
    np.testing.assert_allclose(found.numpy(), runtime(path)(x.numpy()), rtol=1e-4, atol=1e-5)


def kinds(path):
    return [type(each.operation) for each in read_onnx(path).nodes]


def test_silu_and_gelu_are_seen(tmp_path):
    export(NETWORKS["silu"](), tmp_path / "silu.onnx", opset=17, dynamo=False, batch=False)
    export(NETWORKS["gelu"](), tmp_path / "gelu.onnx", opset=17, dynamo=False, batch=True)
    assert SiLU in kinds(tmp_path / "silu.onnx")
    assert ErfGELU in kinds(tmp_path / "gelu.onnx")


@pytest.mark.parametrize(
    ("nodes", "seen"),
    [
        ([node("Softplus", "x", outputs=("s",)), node("Tanh", "s", outputs=("g",))], Mish),
        ([node("HardSigmoid", "x", outputs=("g",), alpha=1 / 6)], Hardswish),
    ],
    ids=["mish", "hardswish"],
)
def test_gates_of_opset_13_are_seen(nodes, seen, tmp_path):
    # Of opset 13 both have no operator of their own: torch writes them as products.
    constants = {"w": np.random.default_rng(2).normal(size=(5, 3))}
    nodes = [*nodes, node("Mul", "x", "g", outputs=("a",)), node("MatMul", "a", "w")]
    path = save(model(nodes, (5,), constants=constants, opset=13, double=False), tmp_path)
    assert seen in kinds(path)
    x = 3 * torch.randn(6, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    np.testing.assert_allclose(read_onnx(path).run(x).numpy(), runtime(path)(x.numpy()), rtol=1e-4, atol=1e-5)


W, BIAS = np.random.default_rng(0).normal(size=(5, 3)), np.array([1.0, 2.0, 3.0])


def acas(batch, shape, flatten=True):
    """As networks of VNN-COMP are written: one point, a flattened image, a product and a sum."""
    nodes = [node("Sub", "x", "mean", outputs=("c",)), node("Flatten", "c", outputs=("f",))][: 1 + flatten]
    nodes += [node("MatMul", nodes[-1].output[0], "w", outputs=("m",)), node("Add", "m", "b", outputs=("y",))]
    return model(nodes, shape, batch=batch, constants={"w": W, "b": BIAS, "mean": np.full(shape, 0.5)})


def test_a_product_and_a_sum_are_one_head(tmp_path):
    program = read_onnx(save(acas(1, (1, 1, 5)), tmp_path))
    assert program.input_shape == (1, 1, 5)
    assert [each for each in kinds(tmp_path / "model.onnx") if each in (Linear, Shift)] == [Shift, Linear]
    assert torch.equal(program.head.weight, torch.tensor(W.T))
    assert torch.equal(program.head.bias, torch.tensor(BIAS))


def test_a_file_without_a_batch_has_one_point(tmp_path):
    path = save(acas(None, (5,), flatten=False), tmp_path)
    x = np.random.default_rng(1).normal(size=(4, 5))
    np.testing.assert_allclose(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x), rtol=1e-12)


def test_columns_are_one_point(tmp_path):
    nodes = [node("MatMul", "w", "x", outputs=("m",)), node("Relu", "m", outputs=("r",)), node("Add", "r", "b")]
    made = model(nodes, (5, 1), batch=None, constants={"w": W.T, "b": BIAS[:, None]}, out_dims=[3, 1])
    x = np.random.default_rng(1).normal(size=(4, 5, 1))
    path = save(made, tmp_path)
    program = read_onnx(path)
    assert program.input_shape == (5, 1)
    np.testing.assert_allclose(program.run(torch.tensor(x)).numpy(), runtime(path)(x), rtol=1e-12)


def test_a_batch_of_one_may_be_reshaped_in_any_way(tmp_path):
    nodes = [
        node("Reshape", "x", "flat", outputs=("f",)),
        node("Relu", "f", outputs=("r",)),
        node("MatMul", "r", "w", outputs=("m",)),
        node("Reshape", "m", "back", outputs=("y",)),
    ]
    constants = {"w": W, "flat": np.array([-1]), "back": np.array([1, 3])}
    path = save(model(nodes, (1, 5), batch=1, constants=constants), tmp_path)
    x = np.random.default_rng(1).normal(size=(4, 1, 5))
    np.testing.assert_allclose(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x), rtol=1e-12)


def test_what_mixes_the_points_of_a_batch_is_refused(tmp_path):
    mean = node("ReduceMean", "x", outputs=("m",), axes=[0])
    path = save(model([mean, node("Sub", "x", "m")], (5,)), tmp_path)
    with pytest.raises(safeset.UnsupportedLayerError, match="all points of a batch"):
        read_onnx(path)
    nodes = [node("Transpose", "x", outputs=("t",)), node("Reshape", "t", "s")]
    mixed = save(model(nodes, (6,), constants={"s": np.array([-1, 6])}), tmp_path)
    with pytest.raises(safeset.UnsupportedLayerError, match="mixed"):
        read_onnx(mixed)


@pytest.mark.parametrize(("batch", "reads"), [("n", False), (1, True), (4, True)])
def test_the_size_of_the_batch_is_no_number_to_compute_with(batch, reads, tmp_path):
    nodes = [
        node("Shape", "x", outputs=("s",), end=1),
        node("Cast", "s", outputs=("n",), to=11),
        node("Div", "x", "n"),
    ]
    path = save(model(nodes, (5,), batch=batch), tmp_path)
    if not reads:
        with pytest.raises(safeset.UnsupportedLayerError, match="size of the batch"):
            read_onnx(path)
        return
    x = np.random.default_rng(1).normal(size=(4, 5))
    np.testing.assert_allclose(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x), rtol=1e-12)


def test_weights_of_all_precisions_are_exact(tmp_path):
    import ml_dtypes
    from onnx import helper

    numbers = np.array([[1.1, -2.3], [0.7, 1e-3]])
    for kind, dtype in ((1, np.float32), (10, np.float16), (16, ml_dtypes.bfloat16), (11, np.float64)):
        stored = numbers.astype(dtype)
        raw = helper.make_tensor("w", kind, [2, 2], stored.tobytes(), raw=True)
        for tensor in (raw, helper.make_tensor("w", kind, [2, 2], stored.astype(np.float64).flatten().tolist())):
            made = model([node("MatMul", "x", "w")], (2,), double=False)
            made.graph.initializer.append(tensor)
            found = read_onnx(save(made, tmp_path)).head.weight
            assert torch.equal(found, torch.tensor(stored.astype(np.float64)).T), kind


# -- nets -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def net(tmp_path):
    export(NETWORKS["relu"](), tmp_path / "model.onnx", opset=17, dynamo=False, batch=True)
    return safeset.load(tmp_path / "model.onnx", epsilon=0.01, guarantee="rt2")


def test_a_file_is_loaded_as_a_net(net):
    x = torch.rand(4, *IMAGE)
    assert net.units == "pixels in [0, 1]"
    assert str(net.guarantee) == "rt2"
    certificate = net.certify(x)
    assert bool((certificate.radius > 0).any())
    torch.testing.assert_close(net(x), net.frozen()(x))
    for copied in (pickle.loads(pickle.dumps(net)), pickle.loads(pickle.dumps(net.frozen()))):
        assert torch.equal(copied.certify(x).windows, certificate.windows)
    same = net.frozen().network
    assert type(same) is ProgramNetwork
    assert list(same.state_dict()) == [name.removeprefix("network.") for name in net.frozen().state_dict()]


def test_other_weights_are_another_net(net):
    x = torch.rand(4, *IMAGE)
    before = net.certify(x).windows
    with torch.no_grad():
        for weight in net.network.parameters():
            weight.mul_(1.5)
    assert not torch.equal(net.certify(x).windows, before)
    with torch.no_grad():
        weight[:] = float("nan")
    with pytest.raises(safeset.SafesetError, match="finite"):
        net.certify(x)


def test_batch_norm_is_folded(tmp_path):
    nodes = [node("MatMul", "x", "w", outputs=("p",)), node("BatchNormalization", "p", "b", "b", "b", "b")]
    path = save(model(nodes, (5,), constants={"w": W, "b": BIAS}), tmp_path)
    assert [place.type for place in read_onnx(path).places] == ["Linear", "ChannelAffine", "FixedLinear"]
    net = safeset.load(path, epsilon=0.1)
    assert [place.type for place in net.network.places] == ["Linear"]
    x = torch.rand(4, 5, dtype=torch.float64)
    torch.testing.assert_close(net(x), read_onnx(path).run(x), rtol=1e-12, atol=1e-12)


def test_a_file_needs_a_radius_and_a_run_does_not(tmp_path):
    path = save(acas("batch", (1, 1, 5)), tmp_path)
    with pytest.raises(safeset.ArgumentError, match="epsilon"):
        safeset.load(path)
    with pytest.raises(safeset.ArgumentError, match="file alone"):
        safeset.load(tmp_path, epsilon=0.1)
    with pytest.raises(safeset.ArgumentError, match="none"):
        safeset.load(tmp_path / "other.onnx", epsilon=0.1)
    assert str(safeset.load(path, epsilon=0.1).guarantee) == "standard"


def test_what_onnxruntime_computes_otherwise_is_refused(tmp_path):
    path = save(acas("batch", (1, 1, 5)), tmp_path)
    program = read_onnx(path)
    compare_with_runtime(path, program)
    other = save(acas("batch", (1, 1, 5)), tmp_path, "other.onnx")
    changed = acas("batch", (1, 1, 5))
    changed.graph.node[-1].op_type = "Sub"
    other.write_bytes(changed.SerializeToString())
    with pytest.raises(safeset.UnsupportedLayerError, match="other logits"):
        compare_with_runtime(other, program)


LONGER = {  # a constant with more axes than the value, of which the result then has as many
    "MatMul": ([node("MatMul", "x", "c", outputs=("a",))], np.eye(2)[None]),
    "MatMul, left": ([node("MatMul", "c", "x", outputs=("a",))], np.eye(1)[None]),
    "Max": ([node("Max", "x", "c", outputs=("a",))], np.full((1, 1, 1), -100.0)),
    "Min": ([node("Min", "c", "x", outputs=("a",))], np.full((1, 1, 1), 100.0)),
    "Add": ([node("Add", "x", "c", outputs=("a",))], np.zeros((1, 1, 2))),
    "MatMul and Add": (
        [node("MatMul", "x", "w", outputs=("p",)), node("Add", "p", "c", outputs=("a",))],
        np.zeros((1, 1, 2)),
    ),
    "Mul": ([node("Mul", "x", "c", outputs=("a",))], np.ones((1, 1, 1))),
    "Pow": ([node("Pow", "x", "c", outputs=("a",))], np.ones((1, 1, 1))),
    "PRelu": ([node("PRelu", "x", "c", outputs=("a",))], np.ones((1, 1, 1))),
}


@pytest.mark.parametrize("batch", ["batch", 1])
@pytest.mark.parametrize("name", LONGER)
def test_axes_that_a_constant_adds_are_counted_or_refused(name, batch, tmp_path):
    """Once `safeset verify` gave wrong verdicts for such files: the second axis of the result was another."""
    nodes, constant = LONGER[name]
    tail = [node("Slice", "a", "s", "e", "axis", outputs=("b",)), node("Gather", "b", "i", outputs=("y",), axis=-1)]
    cuts = {"s": np.array([-1]), "e": np.array([9]), "axis": np.array([1]), "i": np.array([0])}
    constants = {"c": constant, "w": np.eye(2), **cuts}
    path = save(model([*nodes, *tail], (2,), batch=batch, constants=constants, out_dims=[None] * 3), tmp_path)
    try:
        found = read_onnx(path)
    except safeset.SafesetError:
        return
    x = np.array([[5.0, 7.0]])
    np.testing.assert_allclose(found.run(torch.tensor(x)).numpy().ravel(), runtime(path)(x).ravel())


def test_some_longer_constants_are_read(tmp_path):
    """A batch of 1 may be an axis like any other."""
    nodes, constant = LONGER["Mul"]
    path = save(model(nodes, (2,), batch=1, constants={"c": constant}, out="a", out_dims=[1, 1, 2]), tmp_path)
    assert read_onnx(path).run(torch.ones(1, 2, dtype=torch.float64)).tolist() == [[1.0, 1.0]]


def test_verify_compares_a_file_with_what_runs_it(tmp_path, monkeypatch):
    export(NETWORKS["dense"](), tmp_path / "model.onnx", opset=17, dynamo=False, batch=True)
    assert read_network(tmp_path / "model.onnx").classes == 3
    other = read_onnx(tmp_path / "model.onnx")
    export(NETWORKS["relu"](), tmp_path / "model.onnx", opset=17, dynamo=False, batch=True)
    monkeypatch.setattr("safeset.capture.from_onnx.read_onnx", lambda path: other)
    with pytest.raises(safeset.UnsupportedLayerError, match="other logits from onnxruntime"):
        read_network(tmp_path / "model.onnx")
