"""Frozen networks in exact rational arithmetic, from the definitions of their layers; slow and obvious."""

from fractions import Fraction
from itertools import product

import numpy as np
import torch
from torch import nn

from safeset import layers

ROOM = (nn.Identity, nn.Flatten, nn.PixelUnshuffle, layers.InvertibleDownsampling)  # nothing but another order


def rational(tensor):
    """A tensor of floats as an array of fractions."""
    flat = [Fraction(value) for value in tensor.detach().double().flatten().tolist()]
    return np.array(flat, dtype=object).reshape(tuple(tensor.shape))


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def paddings(layer, dilation):
    if layer.padding == "valid":
        return [(0, 0), (0, 0)]
    if layer.padding == "same":
        spare = [d * (k - 1) for d, k in zip(dilation, pair(layer.kernel_size), strict=True)]
        return [(each // 2, each - each // 2) for each in spare]
    return [(p, p) for p in pair(layer.padding)]


def windows(layer, x):
    """For each output pixel its place, and the taps and pixels of its window that lie in the image."""
    kernel, stride, dilation = pair(layer.kernel_size), pair(layer.stride), pair(getattr(layer, "dilation", 1))
    pads = paddings(layer, dilation)
    sizes = [
        (n + sum(p) - d * (k - 1) - 1) // s + 1
        for n, p, d, k, s in zip(x.shape[1:], pads, dilation, kernel, stride, strict=True)
    ]
    for place in product(*map(range, sizes)):
        inside = []
        for tap in product(*map(range, kernel)):
            pixel = tuple(
                s * o + d * t - p[0] for s, o, d, t, p in zip(stride, place, dilation, tap, pads, strict=True)
            )
            if all(0 <= at < n for at, n in zip(pixel, x.shape[1:], strict=True)):
                inside.append((tap, pixel))
        yield place, inside, sizes


def convolution(layer, x):
    weight = rational(layer.weight)
    out = None
    per_group, outs = weight.shape[1], weight.shape[0] // layer.groups
    for place, inside, sizes in windows(layer, x):
        if out is None:
            out = np.full((weight.shape[0], *sizes), Fraction(0), dtype=object)
        for o in range(weight.shape[0]):
            first = (o // outs) * per_group
            out[(o, *place)] = sum(
                (weight[(o, i, *tap)] * x[(first + i, *pixel)] for tap, pixel in inside for i in range(per_group)),
                Fraction(0),
            )
    return out if layer.bias is None else out + rational(layer.bias)[:, None, None]


def pooling(layer, x, reduce):
    out = None
    for place, inside, sizes in windows(layer, x):
        if out is None:
            out = np.full((x.shape[0], *sizes), Fraction(0), dtype=object)
        for channel in range(x.shape[0]):
            out[(channel, *place)] = reduce([x[(channel, *pixel)] for _, pixel in inside])
    return out


def mean(layer):
    count = int(np.prod(pair(layer.kernel_size)))
    return lambda values: sum(values, Fraction(0)) / count


def evaluate(layer, x):
    """What a frozen layer or network computes at one point, an array of fractions without the batch."""
    if isinstance(layer, nn.Sequential):
        for part in layer:
            x = evaluate(part, x)
        return x
    if isinstance(layer, layers.Residual):
        return x + evaluate(layer.body, x)
    if isinstance(layer, nn.Linear):
        y = x @ rational(layer.weight).T
        return y if layer.bias is None else y + rational(layer.bias)
    if isinstance(layer, nn.Conv2d):
        return convolution(layer, x)
    if isinstance(layer, layers.ChannelAffine):
        shape = (-1, *(1,) * (x.ndim - 1))
        return x * rational(layer.scale).reshape(shape) + rational(layer.shift).reshape(shape)
    if isinstance(layer, nn.AvgPool2d):
        return pooling(layer, x, mean(layer))
    if isinstance(layer, nn.MaxPool2d):
        return pooling(layer, x, max)
    if isinstance(layer, nn.LeakyReLU):
        return np.where(x > 0, x, x * Fraction(layer.negative_slope))
    if isinstance(layer, nn.ReLU):
        return np.where(x > 0, x, Fraction(0))
    if isinstance(layer, layers.Abs):
        return np.abs(x)
    if isinstance(layer, layers.MinMax):
        first, second = x[: len(x) // 2], x[len(x) // 2 :]
        return np.concatenate([np.maximum(first, second), np.minimum(first, second)])
    assert isinstance(layer, ROOM), layer
    order = layer(torch.arange(x.size, dtype=torch.float64).view(1, *x.shape))[0].long().numpy()
    return x.flatten()[order]


def squared_norm(x):
    return sum((value * value for value in x.flatten()), Fraction(0))
