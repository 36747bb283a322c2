"""Violations planted at a known distance, in networks of every kind of layer, and what they refute.

The idea is SoundnessBench's (Zhou et al., 2024): whoever knows a counterexample need not trust any search. Here it is
made by the biases of the head: classes swap their order exactly at a chosen x', in rational arithmetic.
"""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import nn

from safeset import Affinity, CertifiedNet, RelaxedTopK, Standard, TopK
from safeset.certificates.margins import METHODS
from safeset.layers import Abs, ChannelAffine, InvertibleDownsampling, MinMax, Normalize, Residual
from safeset.numerics.multiples import rational, squared_norm
from safeset.program.exact import evaluate

CLASSES = 5
FLAT, IMAGE = (8,), (2, 4, 4)
GUARANTEES = [
    Standard(),
    *map(TopK, (1, 2, 3)),
    *map(RelaxedTopK, (2, 3, 4)),
    Affinity([[0, 1], [1, 2]]),
    Affinity([[0, 1, 2], [2, 3]]),
]
PLANTS = {  # pairs of ranks, counted from 0, that are inverted at x': they break these k
    "1-2": [(0, 1)],
    "2-3": [(1, 2)],
    "1-3": [(0, 2)],
    "1-4": [(0, 3)],
    "chain": [(0, 2), (1, 3)],
}


def batch_norm(kind):
    layer = kind(2 if kind is nn.BatchNorm2d else 8)
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.1, 3)
    nn.init.normal_(layer.weight)
    return layer


KINDS = {
    "linear": (FLAT, lambda: [nn.Linear(8, 9)]),
    "relu": (FLAT, lambda: [nn.Linear(8, 9), nn.ReLU(), nn.Linear(9, 9), nn.ReLU()]),
    "leaky relu": (FLAT, lambda: [nn.Linear(8, 9), nn.LeakyReLU(0.3), nn.Linear(9, 6), nn.LeakyReLU(-2.0)]),
    "abs": (FLAT, lambda: [nn.Linear(8, 9), Abs()]),
    "min-max": (FLAT, lambda: [nn.Linear(8, 8), MinMax(), nn.Linear(8, 6), MinMax()]),
    "batch norm": (FLAT, lambda: [batch_norm(nn.BatchNorm1d), nn.Linear(8, 8)]),
    "channels": (FLAT, lambda: [ChannelAffine(torch.randn(8), torch.randn(8)), nn.ReLU()]),
    "residual": (FLAT, lambda: [Residual(nn.Sequential(nn.Linear(8, 8), nn.ReLU())), nn.Linear(8, 6)]),
    "dropout": (FLAT, lambda: [nn.Dropout(), nn.Linear(8, 8), nn.Identity(), nn.Dropout1d(), nn.ReLU()]),
    "convolution": (IMAGE, lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.ReLU()]),
    "same": (IMAGE, lambda: [nn.Conv2d(2, 3, (1, 3), padding="same"), Abs()]),
    "strided": (IMAGE, lambda: [nn.Conv2d(2, 4, 3, stride=2, padding=1), nn.ReLU()]),
    "dilated": (IMAGE, lambda: [nn.Conv2d(2, 3, 2, dilation=2, padding=2), nn.ReLU()]),
    "groups": (IMAGE, lambda: [nn.Conv2d(2, 4, 2, groups=2), MinMax()]),
    "max pooling": (IMAGE, lambda: [nn.MaxPool2d(2)]),
    "overlapping max pooling": (IMAGE, lambda: [nn.MaxPool2d(3, stride=1, padding=1)]),
    "max pooling, ceil": (IMAGE, lambda: [nn.MaxPool2d(3, stride=2, ceil_mode=True)]),
    "average pooling": (IMAGE, lambda: [nn.AvgPool2d(2), nn.ReLU()]),
    "overlapping average pooling": (IMAGE, lambda: [nn.AvgPool2d(3, stride=1, padding=1)]),
    "adaptive pooling": (IMAGE, lambda: [nn.Conv2d(2, 8, 3), nn.AdaptiveAvgPool2d(1)]),
    "normalisation": (IMAGE, lambda: [Normalize([0.4, 0.5], [0.1, 0.25]), nn.Conv2d(2, 2, 3)]),
    "image batch norm": (IMAGE, lambda: [batch_norm(nn.BatchNorm2d), nn.Dropout2d()]),
    "downsampling": (IMAGE, lambda: [InvertibleDownsampling(2), nn.Conv2d(8, 2, 1)]),
    "orders": (IMAGE, lambda: [nn.PixelUnshuffle(2), nn.ChannelShuffle(4), nn.PixelShuffle(2), nn.Conv2d(2, 2, 2)]),
    "image residual": (IMAGE, lambda: [Residual(nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), MinMax()))]),
    "clamps": (FLAT, lambda: [nn.Linear(8, 9), nn.Hardtanh(-0.5, 0.75), nn.Linear(9, 9), nn.ReLU6()]),
    "hard activations": (FLAT, lambda: [nn.Linear(8, 9), nn.Hardswish(), nn.Linear(9, 6), nn.Hardsigmoid()]),
    "prelu": (FLAT, lambda: [nn.Linear(8, 9), nn.PReLU(init=-1.5), nn.Linear(9, 6), nn.PReLU(6)]),
    "alpha dropout": (FLAT, lambda: [nn.AlphaDropout(), nn.FeatureAlphaDropout(), nn.Linear(8, 8)]),
    "circular": (IMAGE, lambda: [nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular"), nn.ReLU()]),
    "zero padding": (IMAGE, lambda: [nn.ZeroPad2d(1), nn.Dropout3d(), nn.Conv2d(2, 2, 3), nn.ConstantPad2d(-1, 0.0)]),
    "other padding": (
        IMAGE,
        lambda: [nn.ReflectionPad2d((1, 2, 0, 0)), nn.ReplicationPad2d(1), nn.CircularPad2d(2), nn.Conv2d(2, 2, 3)],
    ),
    "max pooling, to size": (IMAGE, lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.AdaptiveMaxPool2d(2)]),
    "rows": (
        FLAT,
        lambda: [
            nn.Unflatten(1, (2, 4)),
            nn.ZeroPad1d(1),
            nn.ReflectionPad1d(1),
            nn.Conv1d(2, 4, 3, padding=1),
            nn.AvgPool1d(3, 1),
            nn.CircularPad1d(1),
            nn.ReplicationPad1d(1),
            nn.ConstantPad1d(1, 0.0),
            nn.MaxPool1d(2),
        ],
    ),
    "mixture": (
        IMAGE,
        lambda: [
            Normalize([0.5], [0.5]),
            nn.Conv2d(2, 4, 3, padding=1),
            nn.BatchNorm2d(4),
            nn.ReLU(),
            Residual(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, groups=2), MinMax())),
            nn.ChannelShuffle(2),
            nn.AvgPool2d(2),
            nn.PixelShuffle(2),
            nn.MaxPool2d(2, 1),
            nn.Flatten(),
            nn.Linear(9, 6),
            nn.LeakyReLU(0.5),
        ],
    ),
}


def with_head(layers, shape):
    """The layers in float64 and evaluation, with a random head without bias."""
    flat = nn.Sequential(*layers, nn.Flatten()).double().eval()
    with torch.no_grad():
        features = flat(torch.zeros(1, *shape, dtype=torch.float64)).shape[1]
    head = nn.Linear(features, CLASSES).double()
    head.weight.data, head.bias.data = torch.randn(CLASSES, features).double(), torch.zeros(CLASSES).double()
    return nn.Sequential(*flat, head)


@dataclass(frozen=True, eq=False)
class Plant:
    """A frozen network, a point, and another where pairs of its classes (which are in order at x) are inverted."""

    net: CertifiedNet
    x: torch.Tensor
    moved: torch.Tensor
    pairs: tuple[tuple[int, int], ...]

    @property
    def distance(self):
        """Rounded up: an ε that certainly reaches x'."""
        return rounded_up_root(squared_distance(self.x, self.moved))

    def is_real(self):
        """In exact arithmetic, of the network that is certified."""
        here, there = exact(self.net, self.x), exact(self.net, self.moved)
        return order(here) == list(range(CLASSES)) and all(there[i] >= there[j] for j, i in self.pairs)


def rounded_up(number):
    """The least float64 that is not below a fraction."""
    found = float(number)
    return found if Fraction(found) >= number else math.nextafter(found, math.inf)


def rounded_up_root(square):
    """A float64 whose square is not below a fraction, as near as it can be."""
    half = max(0, square.denominator.bit_length() - square.numerator.bit_length() + 160)
    whole = math.isqrt((square.numerator << 2 * half) // square.denominator) + 1
    return rounded_up(Fraction(whole, 2**half))


def squared_distance(x, moved):
    return squared_norm(rational(x) - rational(moved))


def worst_place(network, x, radius, pairs, steps=6):
    """A point at that distance from x at which the sum of f_j − f_i is small, by gradients."""
    place = x
    for _ in range(steps):
        leaf = place.clone().requires_grad_()
        logits = network(leaf[None])[0]
        (gradient,) = torch.autograd.grad(sum(logits[j] - logits[i] for j, i in pairs), leaf)
        if not gradient.any():
            return None
        place = x - radius * gradient / gradient.norm()
    return place


def plant(network, shape, x, radius, pairs, moved=None):
    """Set the head's biases so that these pairs are inverted at x', and the classes are in order at x; None if not so.

    Every other order is kept far away, so that nothing else happens nearer to x where the network is tight.
    """
    moved = worst_place(network, x, radius, pairs) if moved is None else moved
    if moved is None:
        return None
    net = CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1)
    frozen = net.frozen().network
    here, there = evaluate(frozen, x), evaluate(frozen, moved)
    gains = [(here[j] - here[i]) - (there[j] - there[i]) for j, i in pairs]
    if min(gains) <= 0 or (len(pairs) > 1 and gains[1] <= gains[0] * Fraction(3, 4)):
        return None
    (first, last), step, apart = pairs[0], gains[0], 20 * max(gains)
    wanted = [apart * (first - c) if c < first else -step - apart * (c - last) for c in range(CLASSES)]
    for c in range(first, last + 1):
        wanted[c] = -step * Fraction(c - first, last - first)
    for (j, i), gain in list(zip(pairs, gains, strict=True))[1:]:
        wanted[i:] = [wanted[j] - gain - apart * (c - i) for c in range(i, CLASSES)]
    biases = [float(want - value) for want, value in zip(wanted, here, strict=True)]
    for j, i in pairs:  # at x' exactly: at least a tie
        biases[i] = rounded_up(there[j] + Fraction(biases[j]) - there[i])
    network[-1].bias.data = torch.tensor(biases, dtype=torch.float64)
    if order([value + Fraction(bias) for value, bias in zip(here, biases, strict=True)]) != list(range(CLASSES)):
        return None
    return Plant(net.frozen(), x, moved, tuple(pairs))


def exact(net, x):
    """The logits of the network that is certified, as fractions."""
    return list(evaluate(net.frozen().network, x))


def order(logits):
    return sorted(range(len(logits)), key=lambda c: -logits[c])


def is_broken(here, there, first, last):
    """Whether each k from first to last is broken: a class outside F^k(x) is at least as good as one of it at x'."""
    ranked = [there[c] for c in order(here)]
    return all(max(ranked[k:]) >= min(ranked[:k]) for k in range(first, last + 1))


def refuted(certificate, here, there, squared):
    """Everything that a certificate of one point says and a point x' at this distance refutes; and how much it said."""
    wrong, said = [], 0
    assert certificate.ranking[0].tolist() == order(here)[: certificate.ranking.shape[1]] or not certificate.radius
    for a, row in enumerate(certificate.windows[0].tolist(), 1):
        for b, radius in enumerate(row, 1):
            if radius > 0:
                said += 1
                if (radius == math.inf or Fraction(radius) ** 2 > squared) and is_broken(here, there, a, b):
                    wrong.append((a, b, radius))
    reaches = certificate.at(rounded_up_root(squared))
    for prefer in ("smallest", "largest"):  # as it is shown to people
        shown = reaches.preferring(prefer)
        a, b = int(shown.core.sum()), int(shown.whole.sum())
        if a and is_broken(here, there, a, b):
            wrong.append((a, b, prefer))
    return wrong, said


def claims(net, x, moved, guarantees=GUARANTEES, methods=METHODS):
    """What certificates of x by all guarantees and methods say that x' refutes, and how much they say."""
    here, there, squared = exact(net, x), exact(net, moved), squared_distance(x, moved)
    points = net.measure(x[None])
    wrong, said = [], 0
    for guarantee in guarantees:
        for method in methods:
            found, count = refuted(points.certificate(guarantee=guarantee, method=method), here, there, squared)
            wrong += [(str(guarantee), method, *each) for each in found]
            said += count
    return wrong, said
