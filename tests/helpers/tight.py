"""Networks tight by construction: around one point each is affine, and every layer a multiple of a co-isometry.

A layer with Jacobian J and JJᵀ = σ²I stretches by exactly σ whatever comes after, so the product of the layers' bounds
is attained by every pair of logits, and the exact radii are those of a linear network.
"""

import numpy as np
import torch
from torch import nn

from safeset.layers import Abs, InvertibleDownsampling, MinMax, Normalize, Residual

FAR = 64.0  # how far from 0 every unit is kept, on one side


def orthonormal_rows(rng, rows, columns):
    return torch.tensor(np.linalg.qr(rng.normal(size=(columns, columns)))[0][:rows].copy())


def dense(rng, at, *, sigma=1.0, becomes=0.0, out=None):
    """Orthonormal rows; at the point itself every output is as told."""
    layer = nn.Linear(len(at), out or len(at)).double()
    layer.weight.data = sigma * orthonormal_rows(rng, layer.out_features, len(at))
    layer.bias.data = becomes - layer.weight.data @ at
    return layer


def convolution(rng, at, *, kernel=1, stride=1, padding=0, out=None, sigma=1.0):
    """Orthonormal in its middle tap, or on patches that do not overlap."""
    layer = nn.Conv2d(len(at), out or len(at), kernel, stride=stride, padding=padding).double()
    taps = torch.zeros_like(layer.weight.data)
    if stride == kernel:
        taps = orthonormal_rows(rng, taps.shape[0], taps[0].numel()).view_as(taps)
    else:
        taps[:, :, kernel // 2, kernel // 2] = orthonormal_rows(rng, *taps.shape[:2])
    layer.weight.data = sigma * taps
    layer.bias.data = torch.tensor(rng.normal(size=taps.shape[0]))
    return layer


def relu(rng, at):
    return nn.Sequential(dense(rng, at, becomes=FAR), nn.ReLU())


def leaky_relu(rng, at):
    return nn.Sequential(dense(rng, at, becomes=-FAR), nn.LeakyReLU(-2.5))


def absolute(rng, at):
    return nn.Sequential(dense(rng, at, becomes=-FAR), Abs())


def min_max(rng, at):
    layer = dense(rng, at, sigma=0.7)
    layer.bias.data[: len(at) // 2] += FAR
    return nn.Sequential(layer, MinMax())


def batch_norm(rng, at):
    layer = nn.BatchNorm1d(len(at), eps=0.0).double()
    layer.running_mean.copy_(torch.tensor(rng.normal(size=len(at))))
    layer.running_var.fill_(0.25)
    nn.init.constant_(layer.weight, 1.5)
    return layer


def image_batch_norm(rng, at):
    layer = nn.BatchNorm2d(len(at), eps=0.0).double()
    layer.running_var.fill_(4.0)
    return layer


def residual(rng, at):
    layer = nn.Linear(len(at), len(at)).double()
    layer.weight.data = 0.75 * torch.eye(len(at), dtype=torch.float64)
    return Residual(layer)


FLAT = {
    "linear": lambda rng, at: dense(rng, at, sigma=1.3),
    "narrowing linear": lambda rng, at: dense(rng, at, sigma=0.2, out=len(at) - 2),
    "relu": relu,
    "leaky relu": leaky_relu,
    "abs": absolute,
    "min-max": min_max,
    "batch norm": batch_norm,
    "residual": residual,
    "identity": lambda rng, at: nn.Identity(),
    "dropout": lambda rng, at: nn.Dropout(0.5),
}
IMAGES = {
    "1×1 convolution": lambda rng, at: convolution(rng, at, sigma=1.2),
    "padded convolution": lambda rng, at: convolution(rng, at, kernel=3, padding=1),
    "strided convolution": lambda rng, at: convolution(rng, at, kernel=2, stride=2, out=3 * len(at), sigma=3.0),
    "invertible downsampling": lambda rng, at: InvertibleDownsampling(2),
    "average pooling": lambda rng, at: nn.AvgPool2d(2),
    "max pooling": lambda rng, at: nn.MaxPool2d(2),
    "normalisation": lambda rng, at: Normalize([0.5] * len(at), [0.5] * len(at)),
    "image batch norm": image_batch_norm,
}


def network(rng, names, classes=6):
    """A tight network of the named layers, the point it is affine around, and its rows and logits there."""
    image = any(name in IMAGES for name in names)
    input_shape = (2, 4, 4) if image else (8,)
    x = torch.tensor(rng.normal(size=input_shape))
    if "max pooling" in names:
        x[:, 1::2, ::2] += FAR  # one pixel of each window above the others
    layers, at = [], x  # what has become of the point

    def add(layer):
        nonlocal at
        layers.append(layer.double().eval())
        with torch.no_grad():
            at = layer(at[None])[0]

    for name in names:
        if name in FLAT and at.ndim > 1:
            add(nn.Flatten())
        add((FLAT | IMAGES)[name](rng, at))
    if at.ndim > 1:
        add(nn.Flatten())
    head = nn.Linear(len(at), classes).double()
    head.weight.data = torch.tensor(rng.normal(size=(classes, len(at))))
    wanted = torch.tensor(rng.normal(size=classes) + np.where(rng.permutation(classes) < 3, 1.5, 0.0))
    head.bias.data = wanted - head.weight.data @ at
    return nn.Sequential(*layers, head), x[None], input_shape


def linear(frozen, x):
    """Rows and logits of the affine function that a frozen net is around x."""
    table = torch.autograd.functional.jacobian(lambda point: frozen(point)[0], x)
    with torch.no_grad():
        return table.reshape(table.shape[0], -1).numpy(), frozen(x)[0].numpy()
