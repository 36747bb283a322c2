"""Calls with arguments that nobody expects: understood, or refused with a reason."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from onnx import helper
from torch import Tensor, nn
from torch.nn import functional

from helpers.onnx_files import model, node, runtime, save
from safeset import CertifiedNet, SafesetError, UnsupportedLayerError
from safeset.capture.from_onnx import read_onnx

CONSTANT = torch.linspace(-1, 1, 4, dtype=torch.float64)


class Around(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.function = nn.Linear(3, 4), nn.Linear(4, 2), function

    def forward(self, x: Tensor) -> Tensor:
        """Of the features."""
        return self.head(self.function(self.first(x)))


def _net(function: Callable[[Tensor], Tensor]) -> CertifiedNet:
    return CertifiedNet(Around(function).double(), input_shape=(3,), guarantee="standard", epsilon=0.01)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.lerp(CONSTANT, x, 0.3),
        lambda x: torch.lerp(x, CONSTANT, 0.3),
        lambda x: torch.addcmul(x, CONSTANT, CONSTANT, value=2.0),
    ],
)
def test_constants_among_values(function: Callable[[Tensor], Tensor]) -> None:
    net, x = _net(function), torch.ones(2, 3, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach())


@pytest.mark.parametrize("slope", [float("nan"), float("inf")])
def test_slopes_that_are_no_numbers_are_refused(slope: float) -> None:
    # Far from 0, where no random point comes to the side that the slope is of.
    with pytest.raises(UnsupportedLayerError, match="finite slope"):
        _net(lambda x: functional.leaky_relu(x + 1e6, slope))
    with pytest.raises(UnsupportedLayerError, match="finite slopes"):
        _net(lambda x: functional.prelu(x + 1e6, torch.full((1,), slope, dtype=torch.float64)))


@pytest.mark.parametrize(
    "large_batches",
    [
        lambda x: x * (torch.sym_max(x.shape[0], 64) / 64),
        lambda x: torch.roll(x, torch.sym_max(x.shape[0], 100), 1),
        lambda x: torch.roll(x, x.shape[0] // 50, 1),
        lambda x: torch.roll(x, (x.shape[0] - 3) * (x.shape[0] - 4) * (x.shape[0] - 1) * (x.shape[0] - 5), 1),
        lambda x: x + torch.full((4,), x.shape[0] // 50, dtype=x.dtype),
        lambda x: x[:, : torch.sym_max(x.shape[0] - 50, 3)].repeat(1, 2)[:, :4],
        lambda x: torch.cat([x, x[:, 7 : x.shape[0]].sum(1, keepdim=True)], dim=1)[:, 1:],
    ],
)
def test_the_size_of_a_batch_is_no_number_to_compute_with(large_batches: Callable[[Tensor], Tensor]) -> None:
    """In small batches, which can be tried, most of them are the identity."""
    with pytest.raises(UnsupportedLayerError, match="batch"):
        _net(large_batches)


def test_the_size_of_a_batch_may_be_the_size_of_an_axis() -> None:
    def shaped(x: Tensor) -> Tensor:
        beside = torch.ones(1, 4, dtype=x.dtype).expand(x.shape[0], 4) + x.new_zeros(x.shape[0], 4)
        return (x.relu().view(x.shape[0] * 2, 2).reshape(x.shape[0], -1) + beside).flatten(1)

    net, x = _net(shaped), torch.randn(7, 3, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach())


@pytest.mark.parametrize("padding", ["SAME_UPPER", "SAME_LOWER"])
def test_dilated_pooling_that_runtimes_pad_differently_is_refused(padding: str, tmp_path: Path) -> None:
    # ONNX pads for the dilated kernel; onnxruntime for the plain one, so that it gives fewer rows.
    pooling = node("MaxPool", "x", kernel_shape=[3, 3], dilations=[2, 2], auto_pad=padding, outputs=("pooled",))
    file = save(model([pooling, node("Flatten", "pooled")], (2, 6, 6)), tmp_path)
    with pytest.raises(UnsupportedLayerError, match="dilation"):
        read_onnx(file)


def test_a_network_that_does_not_run_in_float64_is_refused_with_the_remedy() -> None:
    plain = torch.ones(4, 4)  # no parameter and no buffer: it stays in float32
    with pytest.raises(UnsupportedLayerError, match="register them as buffers"):
        _net(lambda x: x @ plain)


def test_the_size_of_a_batch_in_a_constant_is_no_number_to_compute_with() -> None:
    """At random points nothing of it is seen."""

    def clip(x: Tensor) -> Tensor:
        return torch.minimum(x, torch.full((x.shape[0], 1), 1e6, dtype=x.dtype) * x.shape[0])

    with pytest.raises(UnsupportedLayerError, match="computes with its size"):
        _net(clip)
    net, x = _net(lambda x: x + torch.zeros(x.shape[0], 4, dtype=x.dtype)), torch.ones(2, 3, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach())


@pytest.mark.parametrize(
    "rare",
    [
        lambda: torch.bernoulli(torch.full((4,), 1e-9, dtype=torch.float64)),
        lambda: 1e-9 * torch.randn(4, dtype=torch.float64),
        lambda: torch.rand(4, dtype=torch.float64).sub(0.999999).relu(),
    ],
)
def test_what_is_random_is_refused_even_where_it_is_rarely_seen(rare: Callable[[], Tensor]) -> None:
    with pytest.raises(UnsupportedLayerError, match="random"):
        _net(lambda x: x + rare())


@pytest.mark.parametrize(
    "of_size",
    [
        lambda x: torch.roll(x.view(-1, 2, 2), x.shape[0], 2).flatten(1),
        lambda x: torch.roll(x, x.shape[0] % 2, 1),
        lambda x: x + torch.full((4,), x.shape[0] % 2, dtype=x.dtype),
    ],
)
def test_whether_the_size_of_a_batch_is_even_is_no_number_to_compute_with(of_size: Callable[[Tensor], Tensor]) -> None:
    """Once all batches that were looked at were odd."""
    with pytest.raises(UnsupportedLayerError, match="computes with its size"):
        _net(of_size)


def test_whether_the_size_of_a_batch_is_even_is_nothing_for_a_file_to_compute_with(tmp_path: Path) -> None:
    constants = {"two": np.array([2])}
    nodes = [
        node("Shape", "x", outputs=("n",), end=1),
        node("Div", "n", "two", outputs=("half",)),
        node("Mul", "half", "two", outputs=("even",)),
        node("Sub", "n", "even", outputs=("odd",)),
        node("Cast", "odd", outputs=("number",), to=11),
        node("Mul", "x", "number"),
    ]
    with pytest.raises(UnsupportedLayerError, match="size of the batch"):
        read_onnx(save(model(nodes, (5,), batch="n", constants=constants), tmp_path))


def test_a_power_of_an_integer_is_an_integer_in_a_file(tmp_path: Path) -> None:
    """Once 9 ** 0.4 was 2.41 there, and it is 2."""
    nodes = [
        node("Pow", "base", "exponent", outputs=("power",)),
        node("Cast", "power", outputs=("number",), to=11),
        node("Mul", "x", "number"),
    ]
    for exponent in (np.array([0.4, 1.5]), np.array([2, 3])):
        constants = {"base": np.array([9, 2]), "exponent": exponent}
        path, x = save(model(nodes, (2,), constants=constants), tmp_path), np.random.default_rng(0).normal(size=(4, 2))
        np.testing.assert_array_equal(read_onnx(path).run(torch.tensor(x)).numpy(), runtime(path)(x))
    cut_off = {"base": np.array([9, 2]), "exponent": np.array([400.0, 1.0])}
    with pytest.raises(UnsupportedLayerError, match="no integer"):
        read_onnx(save(model(nodes, (2,), constants=cut_off), tmp_path))


def test_integers_that_would_wrap_around_are_refused_in_a_file(tmp_path: Path) -> None:
    nodes = [
        node("Mul", "one", "two", outputs=("product",)),
        node("Cast", "product", outputs=("number",), to=11),
        node("Mul", "x", "number"),
    ]
    constants = {"one": np.array([100000, 2], dtype=np.int32), "two": np.array([100000, 3], dtype=np.int32)}
    with pytest.raises(UnsupportedLayerError, match="beyond int32"):
        read_onnx(save(model(nodes, (2,), constants=constants), tmp_path))
    nodes[0] = node("ReduceProd", "one", outputs=("product",))
    constants["one"] = np.full(2, 100000, dtype=np.int32)
    with pytest.raises(UnsupportedLayerError, match="beyond int32"):
        read_onnx(save(model(nodes, (2,), constants=constants), tmp_path))


def _written(x: Tensor, dtype: torch.dtype) -> Tensor:
    found = torch.zeros(x.shape[0], 4, dtype=dtype)
    found[:] = x
    return found * CONSTANT


@pytest.mark.parametrize(
    "rounded",
    [
        lambda x: _written(x, torch.float32),
        lambda x: torch.slice_scatter(torch.zeros(x.shape[0], 4), x[:, :2], 1, 0, 2) * CONSTANT,
        lambda x: torch.cumsum(x, 1, dtype=torch.float32) * CONSTANT,
    ],
)
def test_values_that_are_rounded_to_float32_on_the_way_are_refused(rounded: Callable[[Tensor], Tensor]) -> None:
    """The difference is smaller than what is seen at random points; casts are refused too."""
    with pytest.raises(UnsupportedLayerError, match=r"rounded to torch\.float32"):
        _net(rounded)
    net, x = _net(lambda x: _written(x, x.dtype)), torch.ones(2, 3, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach())


def test_constants_like_a_value_are_of_the_type_that_is_asked_for() -> None:
    net = _net(lambda x: x + torch.full_like(x, 0.1, dtype=torch.float32) + torch.full_like(x, 0.7, dtype=torch.int64))
    x = torch.ones(2, 3, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach(), rtol=0.0, atol=1e-15)


@pytest.mark.parametrize(
    "drop", [lambda x: functional.dropout(x, training=False), lambda x: functional.dropout(x, 0.0)]
)
def test_dropout_in_evaluation_shares_its_memory(drop: Callable[[Tensor], Tensor]) -> None:
    """Once what was written into its input, far from random points, was missing in what it gives."""

    def forward(x: Tensor) -> Tensor:
        first = 2 * x
        second = drop(first)
        first.clamp_(-1000, 1000)
        return second + 0

    net, x = _net(forward), torch.full((2, 3), 1e6, dtype=torch.float64)
    assert torch.allclose(net.frozen()(x), net(x).detach())


def _with_gradients(x: Tensor) -> Tensor:
    with torch.enable_grad():
        return 2 * x


@pytest.mark.parametrize(
    "inside",
    [
        _with_gradients,
        lambda x: torch.cond(CONSTANT.sum() > 1, torch.relu, torch.abs, (x,)),
        lambda x: torch.vmap(torch.relu)(x),
    ],
)
def test_graphs_and_modes_inside_are_refused_and_leave_nothing_behind(inside: Callable[[Tensor], Tensor]) -> None:
    """Once they ended in a TypeError, and after torch.vmap no other network could be captured."""
    with pytest.raises(UnsupportedLayerError, match="only plain operations are read"):
        _net(inside)
    _net(torch.relu)


@pytest.mark.parametrize("kind", [np.uint8, np.int8, np.int16, np.uint16, np.uint32])
def test_integers_that_wrap_around_sooner_are_not_read(kind: type, tmp_path: Path) -> None:
    """3 − 5 is 254 in uint8."""
    nodes = [
        node("Sub", "one", "two", outputs=("less",)),
        node("Cast", "less", outputs=("number",), to=11),
        node("Mul", "x", "number"),
    ]
    constants = {"one": np.array([3, 2], dtype=kind), "two": np.array([5, 1], dtype=kind)}
    with pytest.raises(SafesetError, match="int32 and int64"):
        read_onnx(save(model(nodes, (2,), constants=constants), tmp_path))
    number = {"number": np.array([3, 2])}
    into = node("Cast", "number", outputs=("one",), to=helper.np_dtype_to_tensor_dtype(np.dtype(kind)))
    back = node("Cast", "one", outputs=("back",), to=11)
    with pytest.raises(UnsupportedLayerError, match="a cast to type"):
        read_onnx(save(model([into, back, node("Mul", "x", "back")], (2,), constants=number), tmp_path))
