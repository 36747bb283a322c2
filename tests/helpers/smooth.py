"""Smooth activations by definition, in 60 digits: for tests of what float64 makes of them."""

from fractions import Fraction

import mpmath
import numpy as np
from mpmath import mp, mpf
from torch import nn

DIGITS = 60


def _elu(x, alpha, scale=1.0, input_scale=1.0):
    return mpf(scale) * (x if x > 0 else mpf(alpha) * mp.expm1(mpf(input_scale) * x))


def _sigmoid(x):
    return 1 / (1 + mp.exp(-x))


def _softplus(x, beta=1.0):
    return mp.log1p(mp.exp(beta * x)) / beta if beta * x < 700 else x + mp.exp(-beta * x) / beta


def _gelu(x, approximate):
    if abs(x) > 1000:
        return max(x, mpf(0))
    if approximate == "none":
        return x * mp.erfc(-x / mp.sqrt(2)) / 2
    return x * _sigmoid(2 * mp.sqrt(2 / mp.pi) * (x + mpf("0.044715") * x**3))


# from a layer of torch to its function of one number, exactly but for 60 digits
SMOOTH = {
    nn.LPPool2d: lambda layer: None,  # of patches, see below
    nn.Tanh: lambda layer: mp.tanh,
    nn.Sigmoid: lambda layer: _sigmoid,
    nn.SiLU: lambda layer: lambda x: x * _sigmoid(x),
    nn.GELU: lambda layer: lambda x: _gelu(x, layer.approximate),
    nn.Mish: lambda layer: lambda x: x * mp.tanh(_softplus(x)),
    nn.Softplus: lambda layer: lambda x: _softplus(x, mpf(layer.beta)),
    nn.ELU: lambda layer: lambda x: _elu(x, layer.alpha),
    nn.SELU: lambda layer: lambda x: _elu(x, 1.6732632423543772, 1.0507009873554805),
    nn.CELU: lambda layer: lambda x: _elu(x, layer.alpha, 1.0, 1.0 / layer.alpha),
}


def nearly_exact(layer, x):
    """What a smooth layer is at a tensor of floats, as an array of fractions right to 60 digits or to 2⁻²⁰⁰⁰."""
    with mpmath.workdps(DIGITS):
        if isinstance(layer, nn.LPPool2d):
            return _root_of_squares(layer, x)
        value = SMOOTH[type(layer)](layer)
        found = [_fraction(value(mpf(number))) for number in x.flatten().tolist()]
    array = np.empty(len(found), dtype=object)
    array[:] = found
    return array.reshape(tuple(x.shape))


def _root_of_squares(layer, x):
    high, wide = layer.kernel_size
    found = np.empty((len(x), x.shape[1] // high, x.shape[2] // wide), dtype=object)
    for channel, row, column in np.ndindex(found.shape):
        patch = x[channel, high * row : high * (row + 1), wide * column : wide * (column + 1)]
        found[channel, row, column] = _fraction(mp.sqrt(sum(mpf(each) ** 2 for each in patch.flatten().tolist())))
    return found


def _fraction(number):
    if abs(number) < mpf(2) ** -2000:
        return Fraction(0)  # as a fraction e^−10³⁰⁰ has more digits than there is memory
    sign, mantissa, exponent, _ = mpf(number)._mpf_
    return (-1) ** sign * Fraction(int(mantissa)) * Fraction(2) ** exponent
