"""The contract of every layer, one line each: its bound, its estimate, its frozen form, its rounding."""

import copy
import math
from fractions import Fraction

import pytest
import torch
from torch import nn

from helpers.smooth import SMOOTH, nearly_exact
from safeset import ArgumentError, ExactRule, LayerRule, UnsupportedLayerError, register_layer
from safeset.audit.second_proof import prove_again
from safeset.capture.capture import capture
from safeset.layers import (
    Abs,
    AOLConv2d,
    AOLLinear,
    Centre,
    ChannelAffine,
    ChannelShift,
    CPLConv2d,
    CPLLinear,
    HalfAbs,
    InvertibleDownsampling,
    L2Pool,
    LinearResidualConv2d,
    MinMax,
    Normalize,
    Orthogonal,
    OrthogonalConv1x1,
    OrthogonalLinear,
    PositionBias,
    PotentialConv2d,
    PotentialLinear,
    Residual,
    SLLConv2d,
    SLLLinear,
    UnitRowLinear,
)
from safeset.lipschitz.forward_error import Rounding
from safeset.numerics.directed import Up, row_norms
from safeset.numerics.multiples import rational, squared_norm
from safeset.program.exact import evaluate
from safeset.program.from_modules import program_of
from safeset.program.rules import rule_of

IMAGE = (4, 6, 5)
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")


def batch_norm(layer):
    layer.running_mean = torch.linspace(-1, 1, layer.num_features)
    layer.running_var = torch.linspace(0.1, 4, layer.num_features)
    nn.init.uniform_(layer.weight, -2, 2)
    nn.init.uniform_(layer.bias, -2, 2)
    return layer


def circular(*sizes, kind=nn.Conv2d, **others):
    return kind(*sizes, padding_mode="circular", **others)


def slopes(layer, *numbers):
    layer.weight.data = torch.tensor(numbers)
    return layer


def weight_norm(layer):
    return nn.utils.parametrizations.weight_norm(layer)


def spectral_norm(layer):
    return nn.utils.parametrizations.spectral_norm(layer)


def orthogonal(layer):
    return nn.utils.parametrizations.orthogonal(layer, use_trivialization=False)


def drawn(layer):
    """With all of its weights drawn at random."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


# name: a function that makes the layer, the shape of its input, its Lipschitz constant where it is known beforehand
CASES = {
    "linear": (lambda: nn.Linear(6, 5), (6,), None),
    "linear without bias": (lambda: nn.Linear(3, 9, bias=False), (3,), None),
    "linear on places": (lambda: nn.Linear(5, 3), (4, 5), None),
    "linear, weight norm": (lambda: weight_norm(nn.Linear(5, 4)), (5,), None),
    "linear, spectral norm": (lambda: spectral_norm(nn.Linear(5, 4)), (5,), None),
    "linear, orthogonal": (lambda: orthogonal(nn.Linear(5, 5)), (5,), 1.0),
    "convolution": (lambda: nn.Conv2d(4, 3, 3, padding=1), IMAGE, None),
    "convolution, weight norm": (lambda: weight_norm(nn.Conv2d(4, 2, 3)), IMAGE, None),
    "convolution, strided": (lambda: nn.Conv2d(4, 2, 4, stride=2, padding=1), IMAGE, None),
    "convolution, same, even": (lambda: nn.Conv2d(4, 2, (4, 2), padding="same"), IMAGE, None),
    "convolution, dilated": (lambda: nn.Conv2d(4, 2, 3, dilation=(2, 1), padding=(2, 0)), IMAGE, None),
    "convolution, valid": (lambda: nn.Conv2d(4, 2, (3, 1), padding="valid", bias=False), IMAGE, None),
    "convolution, groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), IMAGE, None),
    "convolution, depthwise": (lambda: nn.Conv2d(4, 4, 3, stride=(2, 1), groups=4), IMAGE, None),
    "min-max": (lambda: MinMax(), (6,), 1.0),
    "min-max of images": (lambda: MinMax(), IMAGE, 1.0),
    "relu": (lambda: nn.ReLU(), (5,), 1.0),
    "leaky relu": (lambda: nn.LeakyReLU(0.3), (5,), 1.0),
    "steep leaky relu": (lambda: nn.LeakyReLU(-2.5), (5,), 2.5),
    "abs": (lambda: Abs(), (5,), 1.0),
    "tanh": (lambda: nn.Tanh(), (5,), 1.0),
    "sigmoid": (lambda: nn.Sigmoid(), (5,), 0.25),
    "silu": (lambda: nn.SiLU(), (5,), 1.0998393201288669),
    "gelu": (lambda: nn.GELU(), (5,), 1.1289041451851547),
    "gelu by tanh": (lambda: nn.GELU(approximate="tanh"), (5,), 1.1289930686587717),
    "mish": (lambda: nn.Mish(), (5,), 1.0884981612517278),
    "softplus": (lambda: nn.Softplus(), (5,), 1.0),
    "softplus that jumps": (lambda: nn.Softplus(beta=2.0, threshold=1.0), (5,), 1.0),
    "elu": (lambda: nn.ELU(0.7), (5,), 1.0),
    "steep elu": (lambda: nn.ELU(-2.5), (5,), 2.5),
    "selu": (lambda: nn.SELU(), (5,), 1.6732632423543772 * 1.0507009873554805),
    "celu": (lambda: nn.CELU(0.3), (5,), 1.0),
    "hard tanh": (lambda: nn.Hardtanh(-0.5, 1.5), (5,), 1.0),
    "hard tanh above 0": (lambda: nn.Hardtanh(0.5, math.inf), (5,), 1.0),
    "relu 6": (lambda: nn.ReLU6(), IMAGE, 1.0),
    "hard swish": (lambda: nn.Hardswish(), (5,), 1.5),
    "hard sigmoid": (lambda: nn.Hardsigmoid(), (5,), 1 / 6),
    "prelu": (lambda: slopes(nn.PReLU(), -1.5), (5,), 1.5),
    "prelu of channels": (lambda: slopes(nn.PReLU(4), 0.5, -0.25, 2.0, -3.0), IMAGE, 3.0),
    "convolution, circular": (lambda: circular(4, 3, 3, padding=1), IMAGE, None),
    "convolution, circular, strided": (lambda: circular(4, 2, 3, stride=(2, 1), padding=1), IMAGE, None),
    "convolution, circular, same": (lambda: circular(4, 2, (2, 3), padding="same", groups=2), IMAGE, None),
    "convolution, circular, dilated": (lambda: circular(4, 2, 3, dilation=2, padding=2), IMAGE, None),
    "convolution of rows": (lambda: nn.Conv1d(4, 3, 3, padding=1), (4, 7), None),
    "convolution of rows, strided": (lambda: nn.Conv1d(4, 6, 2, stride=3, dilation=2, groups=2), (4, 7), None),
    "convolution of rows, same": (lambda: weight_norm(nn.Conv1d(2, 3, 4, padding="same")), (2, 7), None),
    "convolution of rows, circular": (lambda: circular(2, 3, 3, padding=1, kind=nn.Conv1d), (2, 7), None),
    "average pooling, divisor": (lambda: nn.AvgPool2d(2, divisor_override=1), IMAGE, 2.0),
    "average pooling of rows": (lambda: nn.AvgPool1d(2), (3, 6), math.sqrt(0.5)),
    "average pooling of rows, overlapping": (lambda: nn.AvgPool1d(3, stride=2, padding=1), (3, 6), None),
    "max pooling of rows": (lambda: nn.MaxPool1d(3, stride=1, padding=1), (3, 6), math.sqrt(3)),
    "max pooling, to size": (lambda: nn.AdaptiveMaxPool2d((3, 1)), IMAGE, 1.0),
    "l2 pooling": (lambda: nn.LPPool2d(2, (2, 3)), IMAGE, 1.0),
    "unflatten": (lambda: nn.Unflatten(1, (2, -1)), (6,), 1.0),
    "unflatten of an image": (lambda: nn.Unflatten(-1, (5, 1)), IMAGE, 1.0),
    "zeros around images": (lambda: nn.ZeroPad2d((1, 0, 2, 1)), IMAGE, 1.0),
    "images without their edge": (lambda: nn.ConstantPad2d((-1, 2, 0, -2), 0.0), IMAGE, 1.0),
    "zeros around rows": (lambda: nn.ZeroPad1d((2, 1)), (3, 4), 1.0),
    "zeros as constants": (lambda: nn.ConstantPad1d(1, 0.0), (3, 4), 1.0),
    "circular padding": (lambda: nn.CircularPad2d((1, 2, 0, 3)), IMAGE, 2.0),
    "circular padding of rows": (lambda: nn.CircularPad1d(2), (3, 4), math.sqrt(2)),
    "circular padding of short rows": (lambda: nn.CircularPad1d(3), (3, 4), math.sqrt(3)),
    "reflection padding": (lambda: nn.ReflectionPad2d((2, 1, 1, 0)), IMAGE, 2.0),
    "reflection padding of rows": (lambda: nn.ReflectionPad1d((1, 2)), (3, 4), math.sqrt(3)),
    "replication padding": (lambda: nn.ReplicationPad2d((1, 0, 2, 0)), IMAGE, math.sqrt(6)),
    "replication padding of rows": (lambda: nn.ReplicationPad1d((3, 1)), (3, 4), 2.0),
    "dropout of volumes": (lambda: nn.Dropout3d(0.5), IMAGE, 1.0),
    "alpha dropout": (lambda: nn.AlphaDropout(0.5), (5,), 1.0),
    "alpha dropout of channels": (lambda: nn.FeatureAlphaDropout(0.5), IMAGE, 1.0),
    "identity": (lambda: nn.Identity(), (5,), 1.0),
    "invertible downsampling": (lambda: InvertibleDownsampling(2), (2, 4, 6), 1.0),
    "pixel unshuffle": (lambda: nn.PixelUnshuffle(2), (2, 4, 6), 1.0),
    "flatten": (lambda: nn.Flatten(), IMAGE, 1.0),
    "average pooling": (lambda: nn.AvgPool2d(2), IMAGE, 0.5),
    "average pooling, overlapping": (lambda: nn.AvgPool2d(3, stride=1, padding=1), IMAGE, None),
    "average pooling, global": (lambda: nn.AdaptiveAvgPool2d(1), IMAGE, 1 / math.sqrt(30)),
    "average pooling, to size": (lambda: nn.AdaptiveAvgPool2d((3, None)), IMAGE, 1 / math.sqrt(2)),
    "max pooling": (lambda: nn.MaxPool2d(2), IMAGE, 1.0),
    "max pooling, overlapping": (lambda: nn.MaxPool2d(3, stride=1, padding=1), IMAGE, 3.0),
    "max pooling, dilated": (lambda: nn.MaxPool2d((3, 2), stride=2, dilation=2), IMAGE, math.sqrt(6)),
    "normalisation": (lambda: Normalize([0.5] * 4, [0.5, 0.25, 2.0, 1.0]), IMAGE, 4.0),
    "normalisation, one number": (lambda: Normalize([0.5], [0.25]), IMAGE, 4.0),
    "channel affine": (lambda: ChannelAffine(torch.tensor([-3.0, 1.0]), torch.tensor([1.0, 2.0])), (2, 3, 3), 3.0),
    "batch norm": (lambda: batch_norm(nn.BatchNorm2d(4)), IMAGE, None),
    "batch norm of features": (lambda: batch_norm(nn.BatchNorm1d(5)), (5,), None),
    "batch norm without weights": (lambda: nn.BatchNorm2d(4, affine=False, eps=0.0), IMAGE, 1.0),
    "orthogonal": (lambda: OrthogonalLinear(6, 6), (6,), None),
    "orthogonal, wide, on places": (lambda: OrthogonalLinear(5, 3), (4, 5), None),
    "orthogonal, tall, without bias": (lambda: OrthogonalLinear(3, 5, bias=False), (3,), None),
    "orthogonal at every pixel": (lambda: OrthogonalConv1x1(4, 4), IMAGE, None),
    "orthogonal at every pixel, tall": (lambda: OrthogonalConv1x1(4, 7, bias=False), IMAGE, None),
    "unit rows": (lambda: UnitRowLinear(6, 5), (6,), None),
    "unit rows, one": (lambda: UnitRowLinear(6, 1, bias=False), (6,), 1.0),
    "centre": (lambda: Centre(), IMAGE, 1.0),
    "centre of channels": (lambda: Centre([0.1, 0.2, 0.3, 0.4]), IMAGE, 1.0),
    "channel shift": (lambda: ChannelShift(4), IMAGE, 1.0),
    "channel shift, some stay": (lambda: ChannelShift(), (18, 3, 4), 1.0),
    "half abs": (lambda: HalfAbs(), IMAGE, 1.0),
    "half abs of even features": (lambda: HalfAbs("even"), (6,), 1.0),
    "l2 pooling of all": (lambda: L2Pool(), IMAGE, 1.0),
    "l2 pooling of squares": (lambda: L2Pool(2), (3, 4, 6), 1.0),
    "position bias": (lambda: drawn(PositionBias(6, 5)), IMAGE, 1.0),
    "position bias of channels": (lambda: drawn(PositionBias(6, 5, 4)), IMAGE, 1.0),
    "linear residual": (lambda: LinearResidualConv2d(4, scale=0.5), IMAGE, None),
    "linear residual, wide kernel": (lambda: drawn(LinearResidualConv2d(4, 5, bias=False)), IMAGE, None),
    "almost orthogonal": (lambda: drawn(AOLLinear(5, 7)), (5,), None),
    "almost orthogonal, wide": (lambda: drawn(AOLLinear(7, 5, bias=False)), (2, 7), None),
    "almost orthogonal convolution": (lambda: drawn(AOLConv2d(4, 6)), IMAGE, None),
    "almost orthogonal convolution, strided": (lambda: drawn(AOLConv2d(4, 3, 5, stride=2)), IMAGE, None),
    "potential": (lambda: drawn(PotentialLinear(5, 4)), (5,), None),
    "potential on places": (lambda: PotentialLinear(5, 7), (3, 5), 1.0),
    "potential of images": (lambda: drawn(PotentialConv2d(4, 3)), IMAGE, None),
    "sll": (lambda: drawn(SLLLinear(5, 9)), (5,), 1.0),
    "sll of images": (lambda: drawn(SLLConv2d(4, 3)), IMAGE, 1.0),
    "sll, one pixel": (lambda: drawn(SLLConv2d(4, 6, 1)), IMAGE, 1.0),
    "cpl": (lambda: drawn(CPLLinear(6, 3)), (6,), 1.0),
    "cpl of images": (lambda: drawn(CPLConv2d(4)), IMAGE, 1.0),
    "dropout": (lambda: nn.Dropout(0.5), (5,), 1.0),
    "dropout of channels": (lambda: nn.Dropout2d(0.5), IMAGE, 1.0),
    "residual": (lambda: Residual(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))), (4,), None),
    "residual without rounding of its own": (lambda: Residual(MinMax()), (4,), 2.0),
    "residual of twice": (lambda: Residual(ChannelAffine(torch.full((4,), 2.0), torch.zeros(4))), IMAGE, 3.0),
    "nested": (lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), nn.Identity()), (4,), None),
}
LINEAR = (
    nn.Linear,
    nn.Conv2d,
    nn.AvgPool2d,
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    ChannelAffine,
    Normalize,
    Centre,
    Orthogonal,
    UnitRowLinear,
    AOLLinear,
    AOLConv2d,
    LinearResidualConv2d,
)


# The same operation as another line has, or nearly: drawn in the slow suite.
ALIKE = {
    "steep elu",
    "celu",
    "hard tanh above 0",
    "prelu of channels",
    "unflatten of an image",
    "images without their edge",
    "zeros around rows",
    "zeros as constants",
    "circular padding of rows",
    "circular padding of short rows",
    "reflection padding of rows",
    "replication padding of rows",
    "dropout of volumes",
    "alpha dropout",
    "alpha dropout of channels",
    "linear, weight norm",
    "convolution, valid",
    "min-max of images",
    "normalisation, one number",
}


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.slow] * (name in ALIKE)) for name in CASES])
def case(request):
    make, shape, known = CASES[request.param]
    torch.manual_seed(0)
    return make(), shape, known


def proved(layer, shape):
    """Frozen layer, bound and rounding of a layer alone: as the first of a network with a head behind."""
    from safeset.nets.net import CertifiedNet

    probe = copy.deepcopy(layer).eval()(torch.zeros(2, *shape))[0].numel()
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(probe, 2))
    net = CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1)
    return net, net.frozen().network[0], net.bounds().head.scale


def points(shape, count=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64) * 2


def jacobian(layer, x):
    """(out, in) at one point."""
    table = torch.autograd.functional.jacobian(lambda point: layer(point[None])[0], x)
    return table.reshape(-1, x.numel())


def test_the_bound_is_above_every_slope_and_the_known_constant(case):
    layer, shape, known = case
    _, frozen, bound = proved(layer, shape)
    slopes = [torch.linalg.matrix_norm(jacobian(frozen, x), 2).item() for x in points(shape)]
    slack = 1e-7 if isinstance(layer, nn.Hardsigmoid) else 1e-13  # torch's gradient of it has ⅙ in float32
    assert max(slopes) <= bound * (1 + slack)
    x, y = points(shape, seed=1), points(shape, seed=2)
    moved = (frozen(x) - frozen(y)).flatten(1).norm(dim=1)
    assert (moved <= bound * (x - y).flatten(1).norm(dim=1) * (1 + 1e-13)).all()
    if known is not None:
        assert known * (1 - 1e-14) <= bound <= known * (1 + 1e-9)


def test_the_bound_of_linear_layers_is_attained(case):
    layer, shape, _ = case
    if not isinstance(layer, LINEAR):
        return
    _, frozen, bound = proved(layer, shape)
    assert torch.linalg.matrix_norm(jacobian(frozen, points(shape)[0]), 2).item() >= bound * (1 - 1e-8)


def test_every_bound_is_proved_again(case):
    layer, shape, _ = case
    net, _, _ = proved(layer, shape)
    assert {line.verdict for line in prove_again(net.frozen())} == {"proved"}


def test_the_frozen_layer_computes_the_same(case):
    layer, shape, _ = case
    before = copy.deepcopy(layer.state_dict())
    layer.train()
    _, frozen, _ = proved(layer, shape)
    assert layer.training
    assert all(torch.equal(before[name], tensor) for name, tensor in layer.state_dict().items())
    x = points(shape)
    torch.testing.assert_close(copy.deepcopy(layer).double().eval()(x), frozen(x), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(layer.eval()(x.float()).double(), frozen(x), rtol=1e-4, atol=1e-4)
    assert all(tensor.dtype == torch.float64 and not tensor.requires_grad for tensor in frozen.state_dict().values())


def test_the_estimate_comes_from_below_and_has_a_gradient(case):
    layer, shape, _ = case
    net, _, bound = proved(layer.eval(), shape)
    vectors = net.start_vectors()
    constants, later = net.estimate(dict(net.named_parameters()), vectors, 300)
    scale = torch.as_tensor(constants.scale).item()
    assert 0.99 * bound <= scale <= bound * (1 + 1e-5)
    assert vectors.keys() == later.keys()
    again, _ = net.estimate(None, vectors, 300)
    assert torch.as_tensor(again.scale).item() == scale  # pure
    if isinstance(constants.scale, torch.Tensor) and constants.scale.requires_grad:
        constants.scale.backward()
        gradients = [p.grad for p in net.network[0].parameters() if p.grad is not None]
        assert gradients
        assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize(("size", "bias"), [(1.0, 1.0), (1.0, 2.0**40), (1e-160, 1e-160), (1e-322, 1e-322)])
def test_the_rounding_is_accounted_for(case, size, bias):
    """‖computed − exact‖ ≤ E(‖x‖), with the exact value from fractions."""
    layer, shape, _ = case
    _, frozen, _ = proved(layer, shape)
    with torch.no_grad():
        for name, tensor in frozen.state_dict().items():
            if name.endswith(("bias", "shift")):
                tensor.fill_(bias)
    x = points(shape, 2, seed=3) * size
    after = rounding_of(frozen, shape, Rounding.start())
    with torch.no_grad():
        computed = program_of(frozen, shape).run(x)
    for point, image in zip(x, computed, strict=True):
        exact = nearly_exact(frozen, point) if type(frozen) in SMOOTH else evaluate(frozen, rational(point))
        norm = Fraction(row_norms(point.flatten()).item())
        allowed = Fraction(after.error.offset) + Fraction(after.error.slope) * norm
        assert squared_norm(rational(image) - exact) <= allowed**2
        assert squared_norm(exact) <= (Fraction(after.size.offset) + Fraction(after.size.slope) * norm) ** 2


def test_the_norm_of_magnitudes_is_bounded(case, monkeypatch):
    """α ≥ ‖ |A| ‖ and the bias's norm over all outputs, as they enter the rounding of affine layers."""
    layer, shape, _ = case
    if not isinstance(layer, LINEAR) or isinstance(layer, nn.BatchNorm1d):
        return
    with torch.no_grad():
        if isinstance(layer, nn.Conv2d) and layer.groups > 1:
            layer.weight[-1] *= 50  # the last group counts too
    _, frozen, _ = proved(layer, shape)
    seen = []
    monkeypatch.setattr(Rounding, "affine", lambda self, **facts: seen.append(facts) or self)
    rounding_of(frozen, shape, Rounding.start())
    (facts,) = seen
    matrix = jacobian(frozen, torch.zeros(shape, dtype=torch.float64))
    at_zero = frozen(torch.zeros(1, *shape, dtype=torch.float64))
    assert facts["alpha"] >= torch.linalg.matrix_norm(matrix.abs(), 2).item() * (1 - 1e-13)
    assert facts["sigma"] >= torch.linalg.matrix_norm(matrix, 2).item() * (1 - 1e-13)
    assert facts["bias"] >= at_zero.norm().item() * (1 - 1e-13)
    assert facts["outputs"] == at_zero.numel()
    assert facts["fan_in"] >= (matrix != 0).sum(dim=1).max().item()


def rounding_of(layer, shape, before):
    """The rounding after a frozen layer, by its rule."""
    if isinstance(layer, nn.Sequential):
        for part in layer:
            before = rounding_of(part, shape, before)
            shape = tuple(part(torch.zeros(1, *shape, dtype=torch.float64)).shape[1:])
        return before
    if isinstance(layer, Residual):
        return before.plus(rounding_of(layer.body, shape, before))
    rule = rule_of(layer)
    bound, _ = rule.bound(layer, shape, "exact")
    return rule.rounding(layer, shape, bound, before)


# -- what is refused --------------------------------------------------------------------------------------------------


class Subclass(nn.ReLU):
    pass


class Own(nn.Module):
    def forward(self, x):
        return 2 * x


def hooked(layer):
    layer.register_forward_hook(lambda module, inputs, output: 2 * output)
    return layer


def pre_hooked(layer):
    layer.register_forward_pre_hook(lambda module, inputs: (2 * inputs[0],))
    return layer


def overridden(layer):
    layer.forward = lambda x: 2 * x
    return layer


def with_weight(layer, *shape):
    """Weights of another shape than the layer's attributes say: torch runs them, a bound by the attributes is wrong."""
    layer.weight.data = torch.ones(*shape)
    return layer


def with_bias(layer, *shape):
    layer.bias.data = torch.ones(*shape)
    return layer


def patched(layer, attribute):
    setattr(layer, attribute, lambda *arguments: arguments[0])
    return layer


class Disguised(nn.ReLU):
    """Looks parametrised, and calls something else."""

    def __init__(self):
        super().__init__()
        self.parametrizations = nn.ModuleDict({"q": nn.Identity()})

    def __call__(self, x):
        return 100 * super().__call__(x)


class Quantised(torch.Tensor):
    """Weights whose products are not what they seem."""


def quantised(layer):
    layer.weight = nn.Parameter(layer.weight.data.as_subclass(Quantised))
    return layer


REFUSED = {
    "other kernel": (lambda: with_weight(nn.Conv2d(1, 1, 1, padding=1), 1, 1, 3, 3), (1, 8, 8), "weight of shape"),
    "other rows": (lambda: with_weight(nn.Linear(4, 3), 7, 4), (4,), r"weight of shape \(3, 4\)"),
    "broadcast bias": (lambda: with_bias(nn.Linear(4, 3), 1), (4,), r"bias of shape \(3,\)"),
    "instance's convolution": (lambda: patched(nn.Conv2d(1, 1, 1), "_conv_forward"), (1, 4, 4), "forward of its class"),
    "instance's copy": (lambda: patched(nn.ReLU(), "__deepcopy__"), (4,), "forward of its class"),
    "disguised": (lambda: Disguised(), (4,), "of type Disguised"),
    "tensor subclass": (lambda: quantised(nn.Linear(4, 4)), (4,), "plain tensors, but got"),
    "other channels": (lambda: nn.BatchNorm1d(1), (4,), "Expected 1 channels, but got 4"),
    "no outputs": (lambda: nn.AdaptiveAvgPool2d(0), (1, 4, 4), "divides"),
    "slope that is a tensor": (lambda: nn.LeakyReLU(torch.tensor(0.2)), (4,), "finite negative_slope"),
    "unknown": (
        lambda: Own(),
        (4,),
        r"layer '0' of type Own.*register_layer\(Own, rule\).*estimate, bound and rounding",
    ),
    "subclass": (lambda: Subclass(), (4,), "layer '0' of type Subclass.*use ReLU itself"),
    "hook": (lambda: hooked(nn.ReLU()), (4,), "Expected no forward hooks, but got some on layer '0'"),
    "hook before": (lambda: pre_hooked(nn.Linear(4, 4)), (4,), "forward hooks"),
    "hook on a container": (lambda: hooked(nn.Sequential(nn.ReLU())), (4,), "forward hooks"),
    "hook on a residual": (lambda: hooked(Residual(nn.ReLU())), (4,), "forward hooks"),
    "other forward": (lambda: overridden(nn.ReLU()), (4,), "Expected the forward of its class.*'0'"),
    "softmax": (lambda: nn.Softmax(dim=1), (4,), "layer '0' of type Softmax.*plain logits"),
    "own forward": (lambda: nn.TransformerEncoderLayer(4, 1), (4,), "nn.Sequential, for instance"),
    "wrapped": (lambda: nn.DataParallel(nn.ReLU()), (4,), r"the network inside, its \.module"),
    "no signal": (lambda: nn.Conv1d(1, 1, 3), (4,), "signals of shape"),
    "indices": (lambda: nn.MaxPool1d(2, return_indices=True), (1, 4), "without return_indices"),
    "uneven maxima": (lambda: nn.AdaptiveMaxPool2d(2), (1, 5, 5), "divides the image's"),
    "l1 pooling": (lambda: nn.LPPool2d(1, 2), (1, 4, 4), "norm_type=2"),
    "l2 pooling that leaves pixels out": (lambda: L2Pool(2), (1, 4, 5), "multiples of 2"),
    "l2 pooling of features": (lambda: L2Pool(), (4,), "images of shape"),
    "divisor": (lambda: nn.AvgPool2d(2, divisor_override=-1), (1, 4, 4), "divisor ≥ 1"),
    "uneven windows": (lambda: nn.AdaptiveAvgPool2d(2), (1, 5, 5), "divides the image's"),
    "batch statistics": (lambda: nn.BatchNorm1d(4, track_running_stats=False), (4,), "running statistics"),
    "changed shortcut": (
        lambda: Residual(nn.Sequential(nn.ReLU(inplace=True))),
        (4,),
        "inplace=False at the start of a residual",
    ),
    "no channels": (lambda: nn.Conv2d(2, 2, 3), (5, 5), "images of shape"),
    "threshold": (lambda: nn.Softplus(threshold=1e4), (4,), "'0' .Softplus.*threshold in −700…700"),
    "beta": (lambda: nn.Softplus(beta=-1.0), (4,), "finite beta > 0"),
    "growing elu": (lambda: nn.CELU(-1.0), (4,), "the input's ≥ 0"),
    "no celu": (lambda: nn.CELU(0.0), (4,), "division by zero"),
    "endless clamp": (lambda: nn.Hardtanh(math.nan, 1.0), (4,), "ends of a clamp"),
    "approximation": (lambda: nn.GELU(approximate="sigmoid"), (4,), "approximate='none' or 'tanh'"),
    "slopes of other channels": (lambda: nn.PReLU(3), (4,), "Expected 3 channels, but got 4"),
    "padding with ones": (lambda: nn.ConstantPad2d(1, 1.0), (1, 4, 4), "padding with zeros"),
    "padding of no image": (lambda: nn.ReflectionPad2d(1), (4, 4), "points of 3 axes"),
    "unflattened batch": (lambda: nn.Unflatten(0, (1, 2)), (4,), "axis of points"),
    "layer norm": (lambda: nn.LayerNorm(4), (4,), "no finite Lipschitz constant.*use batch norm, whose statistics are"),
    "group norm": (lambda: nn.GroupNorm(1, 4), (4,), "of type GroupNorm.*no finite Lipschitz constant"),
    "instance norm": (lambda: nn.InstanceNorm2d(1), (1, 4, 4), "of type InstanceNorm2d.*no finite Lipschitz constant"),
    "rms norm": (lambda: nn.RMSNorm(4), (4,), "of type RMSNorm.*no finite Lipschitz constant"),
    "attention": (lambda: nn.MultiheadAttention(4, 1), (2, 4), "of type MultiheadAttention.*grows with its input"),
    "slope": (lambda: nn.LeakyReLU(math.nan), (4,), "finite negative_slope"),
    "old weight norm": (lambda: pre_hooked(nn.Linear(4, 4)), (4,), "torch.nn.utils.parametrizations"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_proved_is_refused(name):
    make, shape, message = REFUSED[name]
    network = nn.Sequential(make(), nn.Flatten(), nn.LazyLinear(2))
    with pytest.raises(UnsupportedLayerError, match=f"(?s){message}"):
        program_of(network, shape)


def test_a_global_hook_is_refused():
    handle = nn.modules.module.register_module_forward_hook(lambda module, inputs, output: output)
    try:
        with pytest.raises(UnsupportedLayerError, match="forward hooks"):
            capture(nn.Sequential(nn.Linear(2, 2)), (2,))
    finally:
        handle.remove()
    capture(nn.Sequential(nn.Linear(2, 2)), (2,))


def test_another_forward_of_the_class_is_noticed(monkeypatch):
    monkeypatch.setattr(nn.ReLU, "forward", lambda self, x: 2 * x)
    with pytest.raises(UnsupportedLayerError, match="Expected the forward of ReLU"):
        capture(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)), (2,))


def test_another_method_of_the_class_is_noticed(monkeypatch):
    monkeypatch.setattr(nn.Conv2d, "_conv_forward", lambda self, x, weight, bias: 2 * x)
    with pytest.raises(UnsupportedLayerError, match="Expected the forward of Conv2d"):
        capture(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(), nn.Linear(4, 2)), (1, 2, 2))


def test_in_place_is_fine_where_no_shortcut_is_changed():
    body = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 4))
    network = nn.Sequential(nn.ReLU(inplace=True), Residual(body), nn.ReLU(inplace=True), nn.Linear(4, 2))
    frozen, *_ = capture(network, (4,))
    x = points((4,))
    kept = x.clone()
    torch.testing.assert_close(frozen(x), copy.deepcopy(network).double()(x.clone()))
    assert torch.equal(x, kept)
    with pytest.raises(UnsupportedLayerError, match="inplace"):
        capture(nn.Sequential(Residual(nn.Sequential(nn.Identity(), nn.ReLU(inplace=True))), nn.Linear(4, 2)), (4,))


@pytest.mark.parametrize("layer", [nn.LazyLinear(3), nn.MaxPool2d(2, 1, 1, 3)])
def test_layers_that_cannot_run_are_named(layer):
    with pytest.raises(ArgumentError, match=r"Run the network once|patch lie in the padding"):
        capture(nn.Sequential(layer, nn.Flatten(), nn.Linear(3, 2)), (1, 2, 2))


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (ChannelShift(8), "at least 8 channels, of which one in 8 moves each way, but got 3"),
        (HalfAbs(), "an even number of channels for HalfAbs, but got 3"),
        (HalfAbs("even"), "an even number of channels for HalfAbs, but got 3"),
        (PositionBias(3, 4), "check input_shape"),
        (PositionBias(4, 4, 6), "check input_shape"),
        (OrthogonalConv1x1(4, 4), "check input_shape"),
    ],
)
def test_layers_that_do_not_fit_are_named(layer, message):
    with pytest.raises(ArgumentError, match=message):
        capture(nn.Sequential(layer, nn.Flatten(), nn.Linear(3, 2)), (3, 4, 4))


@pytest.mark.parametrize(
    "make",
    [
        lambda: ChannelShift(3),
        lambda: ChannelShift(4.5),
        lambda: HalfAbs("odd"),
        lambda: PositionBias(0, 3),
        lambda: L2Pool(0),
        lambda: Centre([[0.5]]),
        lambda: Centre(math.nan),
        lambda: UnitRowLinear(3, 0),
    ],
)
def test_settings_that_cannot_be_are_named(make):
    with pytest.raises(ArgumentError, match="Expected"):
        make()


def test_an_own_layer_is_registered_in_one_place():
    class Halved(nn.Module):
        def forward(self, x):
            return x / 2

    class HalvedRule(LayerRule):
        def estimate(self, layer, shape, vector, steps):
            return 0.5, None

        def bound(self, layer, shape, convolutions):
            return Up(0.5), "by hand"

        def rounding(self, layer, shape, bound, before):
            return before.scaled(bound, 0.5, math.prod(shape))

    from safeset import CertifiedNet

    register_layer(Halved, HalvedRule())
    network = nn.Sequential(Halved(), nn.Linear(2, 2, bias=False))
    network[1].weight.data = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])
    net = CertifiedNet(network, input_shape=(2,), guarantee="standard", epsilon=0.5)
    assert net.bounds().layers[0].method == "by hand"
    assert net.certify(torch.tensor([[1.0, 0.0]])).radius.item() == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize(("kind", "rule"), [(nn.ReLU(), ExactRule()), (nn.ReLU, ExactRule), (1, ExactRule())])
def test_mistakes_in_registering_are_named(kind, rule):
    with pytest.raises(ArgumentError, match="a type of layer and a LayerRule"):
        register_layer(kind, rule)


def test_registering_again_replaces_the_rule():
    class Moved(nn.Module):
        def forward(self, x):
            return x.roll(1, dims=-1)

    register_layer(Moved, ExactRule(lambda layer, shape: Up(7.0)))
    register_layer(Moved, ExactRule())
    assert rule_of(Moved()).bound(Moved(), (3,), "auto")[0] == 1
