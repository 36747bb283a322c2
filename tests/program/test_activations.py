"""Smooth activations: steepest slopes by interval arithmetic, rounding against 60 digits, and what is assumed."""

import math
from fractions import Fraction

import mpmath
import pytest
import torch
from mpmath import iv, mp, mpf
from torch import nn

from helpers.smooth import SMOOTH, nearly_exact
from safeset import CertifiedNet
from safeset.layers import L2Pool
from safeset.numerics.directed import Up
from safeset.numerics.multiples import rational
from safeset.program.activations import ASSUMPTION, ELU, GELU, Mish, Sigmoid, SiLU, Softplus, Tanh
from safeset.program.piecewise import Hardsigmoid, Hardswish, PReLU

LAYERS = {
    "tanh": (nn.Tanh(), Tanh()),
    "sigmoid": (nn.Sigmoid(), Sigmoid()),
    "silu": (nn.SiLU(), SiLU()),
    "gelu": (nn.GELU(), GELU()),
    "gelu by tanh": (nn.GELU("tanh"), GELU("tanh")),
    "mish": (nn.Mish(), Mish()),
    "softplus": (nn.Softplus(), Softplus()),
    "softplus that jumps": (nn.Softplus(0.5, 2.0), Softplus(0.5, 2.0)),
    "softplus far out": (nn.Softplus(3.0, 600.0), Softplus(3.0, 600.0)),
    "elu": (nn.ELU(), ELU()),
    "steep elu": (nn.ELU(-40.0), ELU(-40.0)),
    "selu": (nn.SELU(), ELU(1.6732632423543772, 1.0507009873554805)),
    "celu": (nn.CELU(0.01), ELU(0.01, 1.0, 100.0)),
}


def arguments():
    """Numbers of all sizes, more where something happens."""
    generator = torch.Generator().manual_seed(0)
    exponents = torch.empty(400, dtype=torch.float64).uniform_(-1070, 900, generator=generator)
    wide = torch.exp2(exponents)
    near = torch.empty(400, dtype=torch.float64).uniform_(-45, 45, generator=generator)
    fixed = [0.0, 5e-324, 4.0, math.nextafter(4.0, 5), 20.0, math.nextafter(20, 30), 200.0, 709.0, 710.0, 745.0, 1e4]
    some = torch.tensor(fixed, dtype=torch.float64)
    return torch.cat([wide, -wide, near, near / 40, some, -some])


@pytest.mark.parametrize("name", LAYERS)
def test_what_is_computed_strays_no_farther_than_allowed(name):
    layer, operation = LAYERS[name]
    x = arguments()
    computed = operation.run(x[None])[0]
    assert torch.equal(computed, layer(x))
    relative, absolute = operation.strays
    for number, found, exact in zip(rational(x), rational(computed), nearly_exact(layer, x), strict=True):
        assert abs(found - exact) <= relative * abs(number) + absolute
    at_zero = nearly_exact(layer, torch.zeros(1, dtype=torch.float64))[0]
    assert abs(at_zero) <= operation.at_zero <= abs(at_zero) * (1 + Fraction(1, 10**25))


def test_the_jump_of_softplus_is_no_slope():
    """Two neighbours at the threshold: their images are 3·10¹³ times as far apart as they are."""
    jumping = Softplus(1.0, 2.0)
    below, above = torch.tensor([[2.0], [math.nextafter(2, 3)]], dtype=torch.float64)
    apart = jumping.run(below[None]) - jumping.run(above[None])
    assert apart.item() > 0.1
    assert Fraction(apart.item()) <= jumping.strays[1] + Fraction(1, 10**9)
    assert jumping.prove((1,), "auto", None)[0] == 1


# -- the steepest slopes ----------------------------------------------------------------------------------------------


def e(x):
    return iv.exp(x)


def silu(x):
    """The first and the second derivative on an interval."""
    s = 1 / (1 + e(-x))
    return s * (1 + x * (1 - s)), s * (1 - s) * (2 + x * (1 - 2 * s))


def gelu_by_tanh(x):
    k, c = iv.sqrt(2 / iv.pi), iv.mpf("0.044715")
    w, first, second = k * (x + c * x**3), k * (1 + 3 * c * x**2), 6 * k * c * x
    t = 1 - 2 / (e(2 * w) + 1)
    rest = 4 / ((e(w) + e(-w)) ** 2)  # 1 − tanh²
    slope = (1 + t) / 2 + x * rest * first / 2
    return slope, rest * first + x * (rest * second - 2 * t * rest * first**2) / 2


def mish(x):
    s = 1 / (1 + e(-x))
    square = (1 + e(x)) ** 2
    t, rest = 1 - 2 / (square + 1), 4 * square / (square + 1) ** 2
    return t + x * rest * s, 2 * rest * s + x * (rest * s * (1 - s) - 2 * t * rest * s**2)


def is_below(slopes, low, high, most):
    """Whether the slope on [low, high] is at most ``most``: by the interval, or from its middle by the mean value."""
    whole = iv.mpf([low, high])
    slope, curvature = slopes(whole)
    middle = (low + high) / 2
    from_middle = slopes(iv.mpf(middle))[0] + curvature * iv.mpf([low - middle, high - middle])
    if min(slope.b, from_middle.b) <= most:
        return True
    return high - low > mpf(10) ** -25 and all(
        is_below(slopes, *part, most) for part in ((low, middle), (middle, high))
    )


@pytest.mark.parametrize(("slopes", "operation"), [(silu, SiLU()), (gelu_by_tanh, GELU("tanh")), (mish, Mish())])
def test_the_steepest_slopes_are_proved_by_intervals(slopes, operation):
    """On [−64, 64]; beyond, 1 − tanh² and σ(1 − σ) times powers of x are below 10⁻²⁰: slopes are nearly 0 or 1."""
    stated = operation.steepest
    with mpmath.workdps(60):
        iv.dps = 60
        most = mpf(stated.numerator) / stated.denominator
        for start in range(-64, 64):
            assert is_below(slopes, mpf(start), mpf(start + 1), most)
            assert is_below(lambda x: [-each for each in slopes(x)], mpf(start), mpf(start + 1), most)
        assert not is_below(slopes, mpf(1), mpf(3), most - mpf(10) ** -29)  # and no smaller bound is one
    assert Fraction(operation.prove((1,), "auto", None)[0]) >= stated


def test_the_steepest_slope_of_gelu_is_at_the_root_of_2():
    """φ″ = (2 − x²)·exp(−x²/2)/√(2π): φ′ rises up to √2 and falls from there; φ′(−x) = 1 − φ′(x)."""
    with mpmath.workdps(60):
        top = mp.ncdf(mp.sqrt(2)) + mp.sqrt(2) * mp.npdf(mp.sqrt(2))
        stated = mpf(GELU().steepest.numerator) / GELU().steepest.denominator
        assert top <= stated <= top + mpf(10) ** -29


@pytest.mark.parametrize(
    "operation", [Tanh(), Sigmoid(), Softplus(3.0, 9.0), ELU(-2.5), ELU(0.2, 3.0, 2.0), Hardswish(), Hardsigmoid()]
)
def test_the_other_slopes_are_attained_and_never_passed(operation):
    points = torch.linspace(-8, 8, 4001, dtype=torch.float64)
    steepest = operation.steepest
    pairs = operation.run(points[None])[0].diff().abs() / points.diff()
    jump = float(operation.strays[1]) / float(points.diff()[0]) if isinstance(operation, Softplus) else 0.0
    assert float(pairs.max()) <= float(steepest) * (1 + 1e-9) + jump
    assert float(pairs.max()) >= float(steepest) * (1 - 1e-2)


# -- what is assumed --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["exp", "expm1", "log1p", "erf", "tanh"])
def test_the_library_is_as_near_as_is_assumed_here(name):
    x = arguments()
    x = x[x.abs() < 700].abs() if name == "log1p" else x[x.abs() < 700]
    computed = getattr(torch, name)(x)
    with mpmath.workdps(60):
        for number, found in zip(x.tolist(), computed.tolist(), strict=True):
            exact = getattr(mp, name)(mpf(number))
            assert abs(mpf(found) - exact) <= 16 * mpf(2) ** -53 * abs(exact) + 16 * mpf(2) ** -1074


def test_certificates_name_what_is_assumed():
    torch.manual_seed(0)

    def said(*layers):
        network = nn.Sequential(nn.Linear(3, 4), *layers, nn.Linear(4, 3))
        net = CertifiedNet(network, input_shape=(3,), guarantee="standard", epsilon=0.01)
        return net.frozen().program.assumptions, net.certify(torch.ones(1, 3)).covers

    assert said(nn.ReLU(), nn.Hardswish(), nn.PReLU())[0] == ()
    assert "assuming" not in said(nn.ReLU())[1]
    assumptions, covers = said(nn.Tanh(), nn.Linear(4, 4), nn.GELU())
    assert assumptions == (ASSUMPTION,)
    assert covers.endswith(f", assuming that {ASSUMPTION}")


def test_every_smooth_layer_has_its_reference():
    assert {type(layer) for layer, _ in LAYERS.values()} | {nn.LPPool2d, L2Pool} == set(SMOOTH)


def test_fractions_are_rounded_up():
    for number in (Fraction(1, 3), Fraction(1, 10), Fraction(3), Fraction(0), Fraction(1, 2**1080)):
        assert number <= Fraction(Up.above(number)) <= number * (1 + Fraction(1, 2**50)) + Fraction(1, 2**1074)
    assert Up.above(Fraction(10) ** 400) == math.inf


def test_slopes_of_channels_are_taken_as_they_are():
    operation = PReLU(torch.tensor([0.5, -2.0], dtype=torch.float64))
    x = torch.tensor([[[-1.0, 2.0], [-3.0, 4.0]]], dtype=torch.float64)
    assert operation.run(x).tolist() == [[[-0.5, 2.0], [6.0, 4.0]]]
    assert (operation.steepest, operation.assumption) == (2, None)
