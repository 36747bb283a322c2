"""Networks in exact arithmetic: small cases by hand, torch's layers on integers, and what is refused."""

from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from helpers.nets import image_network, inputs
from safeset import CertifiedNet, ExactRule, UnsupportedLayerError, create_model, register_layer
from safeset.capture.capture import capture
from safeset.layers import Abs, ChannelAffine, InvertibleDownsampling, MinMax, Residual
from safeset.numerics.multiples import Multiples, rational, squared_norm
from safeset.program import rules
from safeset.program.exact import enclose, evaluate
from safeset.program.l2_pool import RootOfSquares
from safeset.program.pointwise import Absolute
from safeset.program.program import INPUT, Node, Place, Program

FLOATS = st.floats(allow_nan=False, allow_infinity=False)
IMAGE = (4, 7, 6)

# On small integers torch rounds nothing, so it must agree in every bit; weights and biases are integers too.
LAYERS = {
    "linear": (nn.Linear(6, 3), (6,)),
    "linear on places": (nn.Linear(6, 3), (2, 6)),
    "convolution": (nn.Conv2d(4, 3, 3, padding=1), IMAGE),
    "convolution, strided, dilated": (nn.Conv2d(4, 2, (3, 2), stride=(2, 3), dilation=(2, 1), padding=(0, 2)), IMAGE),
    "convolution, same": (nn.Conv2d(4, 2, (4, 2), padding="same"), IMAGE),
    "convolution, valid, groups": (nn.Conv2d(4, 6, 2, padding="valid", groups=2, bias=False), IMAGE),
    "channel affine": (ChannelAffine(torch.tensor([2.0, -3.0, 0.0, 1.0]), torch.arange(4.0)), IMAGE),
    "average pooling": (nn.AvgPool2d((2, 4), stride=(1, 2), padding=(1, 2)), IMAGE),
    "max-pooling": (nn.MaxPool2d(3, stride=2, padding=1), IMAGE),
    "max-pooling, dilated": (nn.MaxPool2d((3, 2), stride=1, dilation=(2, 3)), IMAGE),
    "max-pooling, all windows": (nn.MaxPool2d((3, 2), stride=(3, 4), padding=(1, 0), ceil_mode=True), IMAGE),
    "max-pooling, a window too many": (nn.MaxPool2d(2, stride=2, padding=1, ceil_mode=True), IMAGE),
    "convolution, circular": (nn.Conv2d(4, 2, (3, 2), stride=(2, 3), padding=2, padding_mode="circular"), IMAGE),
    "convolution of rows": (nn.Conv1d(4, 2, 3, stride=2, padding=2, groups=2), (4, 7)),
    "convolution of rows, circular": (nn.Conv1d(4, 2, 3, padding="same", padding_mode="circular"), (4, 7)),
    "average pooling, divisor": (nn.AvgPool2d(2, divisor_override=4), IMAGE),
    "average pooling of rows": (nn.AvgPool1d(4, stride=2, padding=1), (3, 8)),
    "max-pooling of rows": (nn.MaxPool1d(3, stride=2, padding=1, ceil_mode=True), (3, 8)),
    "max-pooling, to size": (nn.AdaptiveMaxPool2d((1, 3)), IMAGE),
    "hard tanh": (nn.Hardtanh(-3.0, 5.0), (5,)),
    "prelu": (nn.PReLU(4), IMAGE),
    "zeros around": (nn.ZeroPad2d((1, 2, 0, -1)), IMAGE),
    "relu": (nn.ReLU(), (5,)),
    "leaky relu": (nn.LeakyReLU(-0.375), (5,)),
    "abs": (Abs(), (5,)),
    "min-max": (MinMax(), IMAGE),
    "residual": (Residual(nn.Sequential(nn.Linear(4, 4), nn.ReLU())), (4,)),
    "flatten": (nn.Flatten(), IMAGE),
    "identity": (nn.Identity(), IMAGE),
    "downsampling": (InvertibleDownsampling(2), (3, 4, 6)),
    "unshuffle": (nn.PixelUnshuffle(3), (2, 3, 6)),
    "shuffle": (nn.PixelShuffle(2), (4, 2, 3)),
    "channels": (nn.ChannelShuffle(2), (4, 3)),
}


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("name", LAYERS)
def test_layers_are_torchs_where_nothing_is_rounded(name):
    layer, shape = LAYERS[name]
    layer = layer.double().eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in layer.parameters():
            tensor.copy_(torch.randint(-9, 10, tensor.shape, generator=generator))
        for _ in range(3):
            x = torch.randint(-9, 10, shape, generator=generator).double()
            found = evaluate(layer, x)
            expected = layer(x[None])[0]
            assert found.shape == expected.shape
            assert found.tolist() == rational(expected).tolist()


def test_nothing_is_rounded():
    layer = nn.Linear(3, 1).double()
    layer.weight.data = torch.tensor([[1.0, 1e-300, 0.1]], dtype=torch.float64)
    layer.bias.data = torch.tensor([5e-324], dtype=torch.float64)
    (found,) = evaluate(layer, torch.tensor([1e300, 1e-20, -0.1], dtype=torch.float64))
    tenth = Fraction(0.1)
    assert found == Fraction(1e300) + Fraction(1e-300) * Fraction(1e-20) - tenth**2 + Fraction(5e-324)


def test_means_are_divided_in_fractions():
    x = torch.ones(1, 3, 3, dtype=torch.float64)
    x[0, 0, 0] = 2.0
    layer = nn.Sequential(nn.AvgPool2d(3), nn.Flatten(), nn.Linear(1, 1, bias=False).double())
    layer[2].weight.data.fill_(0.5)
    assert evaluate(layer, x).tolist() == [Fraction(5, 9)]
    assert evaluate(layer, rational(x) / 7).tolist() == [Fraction(5, 63)]


@given(st.lists(FLOATS, max_size=6))
def test_floats_are_taken_apart_exactly(numbers):
    tensor = torch.tensor(numbers, dtype=torch.float64)
    assert rational(tensor).tolist() == [Fraction(number) for number in numbers]
    assert squared_norm(rational(tensor)) == sum(Fraction(number) ** 2 for number in numbers)
    integers = [abs(integer) for integer in Multiples.of(tensor).integers.tolist() if integer]
    assert not integers or any(integer % 2 for integer in integers)  # the unit is the last bit that is set


@given(st.lists(st.fractions(), min_size=1, max_size=5), st.fractions(), st.fractions())
def test_sums_have_a_common_unit(numbers, first, second):
    array = np.array(numbers, dtype=object)
    found = Multiples.from_fractions(array * first) + Multiples.from_fractions(array * second)
    assert found.fractions().tolist() == [number * (first + second) for number in numbers]


def test_a_whole_network_is_close_to_its_float64_program(net):
    frozen = net.frozen().network
    x = inputs(1).double()[0]
    computed = frozen(x[None])[0].tolist()
    assert [float(logit) for logit in evaluate(frozen, x)] == pytest.approx(computed, rel=1e-12)


class Subclass(nn.ReLU):
    pass


@pytest.mark.parametrize(
    "layer",
    [
        nn.Tanh(),
        Subclass(),
        nn.LPPool2d(2, 2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.AvgPool2d(2, ceil_mode=True),
        nn.AvgPool2d(3, padding=1, count_include_pad=False),
        nn.MaxPool2d(2, return_indices=True),
    ],
    ids=str,
)
def test_unknown_layers_are_refused(layer):
    with pytest.raises(UnsupportedLayerError):
        evaluate(nn.Sequential(layer), torch.zeros(IMAGE))


def test_layers_of_one_s_own_have_no_exact_form(monkeypatch):
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    register_layer(Subclass, ExactRule())
    with pytest.raises(UnsupportedLayerError, match=r"exact arithmetic, but got .*known to their rule alone"):
        evaluate(nn.Sequential(Subclass()), torch.zeros(IMAGE))


def test_parts_that_are_frozen_are_known(net):
    assert evaluate(CertifiedNet(image_network(), **shape_of(net)).frozen().network, inputs(1)[0]).shape == (5,)


def shape_of(net):
    return {"input_shape": net.input_shape, "guarantee": net.guarantee, "epsilon": net.epsilon}


@pytest.mark.slow
def test_networks_of_the_papers_size():
    torch.manual_seed(0)
    frozen, *_ = capture(create_model("cnn-2c2f", input_shape=(3, 32, 32), classes=100), (3, 32, 32))
    x = torch.rand(3, 32, 32, dtype=torch.float64)
    assert [float(logit) for logit in evaluate(frozen, x)] == pytest.approx(frozen(x[None])[0].tolist(), abs=1e-12)


def alone(operation, shape):
    return Program(shape, (Node(Place("one", operation.kind, (INPUT,), shape, is_layer=True), operation),))


@pytest.mark.parametrize("patch", [None, (2, 3)])
def test_roots_are_enclosed(patch):
    """Beside mpmath, with more digits than the error allows for."""
    rng = np.random.default_rng(0)
    shape = (2, 5, 6)
    entries = torch.tensor(rng.integers(-3, 4, size=shape) * 2.0 ** rng.integers(-30, 30, size=shape))
    operation = RootOfSquares(patch)
    program = alone(operation, shape)
    found, error = enclose(program, entries, [1.0])
    groups = operation._groups(entries[None])[0]
    with mpmath.workdps(400):
        for group, root in zip(groups.flatten(0, -2), found.flatten().tolist(), strict=True):
            truth = mpmath.sqrt(sum(mpmath.mpf(each) ** 2 for each in group.tolist()))
            apart = truth - mpmath.mpf(root.numerator) / root.denominator
            assert 0 <= apart <= mpmath.mpf(error.numerator) / error.denominator
    assert 0 < error < Fraction(1, 2**390)
    plain, none = enclose(alone(Absolute(), shape), entries, [1.0])
    assert none == 0
    assert (plain == abs(rational(entries))).all()


def test_a_network_with_roots_is_enclosed_near_its_float64_program():
    torch.manual_seed(0)
    network = create_model("shift-net", input_shape=(3, 8, 8), classes=4, depth=2, width=16)
    net = CertifiedNet(network, input_shape=(3, 8, 8), guarantee="standard", epsilon=0.1).frozen()
    x = torch.rand(3, 8, 8, dtype=torch.float64)
    exact, error = enclose(net.program, x, [line.bound for line in net.bounds().layers])
    assert 0 < error < Fraction(1, 2**380)
    computed = net.measure(x[None]).logits[0].tolist()
    assert max(abs(Fraction(one) - two) for one, two in zip(computed, exact.tolist(), strict=True)) < Fraction(
        1, 10**12
    )
    with pytest.raises(UnsupportedLayerError):
        evaluate(net.program, x)
