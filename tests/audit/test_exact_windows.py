"""Windows recomputed in integers: the library's radii hold, and nothing above them does."""

import math
from fractions import Fraction
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers.digits_net import digits, trained
from safeset import CertifiedNet
from safeset.audit.exact_windows import Head, Point, answer, eligible_at, false_windows
from safeset.audit.second_proof import carry_rounding
from safeset.certificates.radii import ClassError
from safeset.layers import ChannelAffine, MinMax, Residual
from safeset.lipschitz.forward_error_exact import root
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.exact import evaluate
from safeset.proofs.prove import Proof

GUARANTEES = ["standard", "top2", "rt2", "rt4", 'affinity:{"sets":[[0,1,2],[2,3]],"everyone_with":[1]}']


def stated(net, x):
    """Certificates by the method joint, and what is needed to prove them again."""
    frozen = net.frozen()
    points, bounds = frozen.measure(x), frozen.bounds()
    certificate, logits = points.certificate(method="joint"), points.logits
    before = carry_rounding(frozen.program, bounds.layers)
    head = Head(frozen.program.head, float(bounds.head.scale), before, Multiples.of(logits).unit, Deadline(math.inf))
    places = [Point(head, one, row, certificate.ranking.shape[1]) for one, row in zip(x, logits.tolist(), strict=True)]
    return certificate, places


def false_of(certificate, points, factor=1.0):
    """How many stated radii, times a factor, are not proved, and how many there are."""
    false = total = 0
    for point, windows, eligible in zip(
        points, (certificate.windows * factor).tolist(), certificate.eligible.tolist(), strict=True
    ):
        false += len(false_windows(point, eligible, windows))
        total += sum(radius > 0 for row in windows for radius in row)
    return false, total


@settings(max_examples=30)
@given(st.integers(0, 2**32), st.integers(5, 8), st.integers(1, 4), st.sampled_from(GUARANTEES), st.integers(-60, 60))
def test_radii_hold_and_larger_ones_do_not(seed, classes, features, guarantee, exponent):
    """For sets of at most four classes joint radii are exact for what the head knows: nothing above them is proved."""
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(3, features), nn.Linear(features, classes)).double()
    network[1].weight.data *= 2.0**exponent
    network[1].bias.data *= 2.0**exponent
    net = CertifiedNet(network, input_shape=(3,), guarantee=guarantee, epsilon=0.1)
    certificate, points = stated(net, torch.randn(4, 3).double())
    false, total = false_of(certificate, points)
    assert false == 0
    assert false_of(certificate, points, 1 + 1e-6) == (total, total)
    for place, point in enumerate(points):
        order = point.order.tolist()
        assert order[: point.k] == certificate.ranking[place].tolist()
        assert eligible_at(str(net.guarantee), order, point.k, classes) == certificate.eligible[place].tolist()


LAYERS = {
    "dense": (lambda: nn.Linear(8, 8), (8,)),
    "convolution": (lambda: nn.Conv2d(2, 4, 3, padding=1, groups=2), (2, 4, 4)),
    "residual": (lambda: Residual(nn.Sequential(nn.Linear(8, 8), MinMax())), (8,)),
    "pooling": (lambda: nn.Sequential(nn.AvgPool2d(2), nn.LeakyReLU(-2.5)), (2, 4, 4)),
    "channels": (lambda: nn.Sequential(ChannelAffine(torch.tensor([3.0, -2.0]), torch.ones(2)), nn.ReLU()), (2, 4, 4)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_rounding_of_every_layer_is_recomputed_and_needed(name, monkeypatch):
    """What the library allows for is enough; without one most radii are too large."""
    torch.manual_seed(0)
    make, shape = LAYERS[name]
    layer = make()
    features = layer(torch.zeros(1, *shape)).numel()
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(features, 6))
    net = CertifiedNet(network, input_shape=shape, guarantee="rt3", epsilon=0.1)
    x = torch.randn(5, *shape).double()
    certificate, points = stated(net, x)
    false, total = false_of(certificate, points)
    assert (false, total > 10) == (0, True)
    frozen = net.frozen()
    proof, logits = frozen.proof(), frozen.measure(x).logits
    for place, point in enumerate(points):  # and it is at least what rounding really does
        exact, computed = evaluate(frozen.network, x[place]), Multiples.of(logits[place]).fractions()
        error, (first, *others) = point.head.error(point.norm, point.order, point.k), point.order.tolist()
        for rank, other in enumerate(others, start=1):
            strayed = abs((exact[first] - exact[other]) - (computed[first] - computed[other]))
            assert strayed <= error[0, rank] * Fraction(1, 2**point.head.bits)
    whole = Proof.allowance

    def none(self, norms):
        error, room = whole(self, norms)
        return ClassError(0 * error.offset, 0 * error.slope), room

    monkeypatch.setattr(type(proof), "allowance", none)
    assert false_of(*stated(net, x))[0] > total / 2


@cache
def trained_points():
    net = CertifiedNet(trained()[0].network, input_shape=(1, 8, 8), guarantee="rt5", epsilon=0.3)
    return stated(net, digits()[1][0][:30].double())


def test_a_trained_network():
    certificate, points = trained_points()
    false, total = false_of(certificate, points)
    assert (false, total > 30) == (0, True)
    assert false_of(certificate, points, 1.001) == (total, total)


def test_only_strict_and_eligible_windows_are_proved():
    net = CertifiedNet(nn.Linear(2, 4).double(), input_shape=(2,), guarantee="rt3", epsilon=0.1)
    net.network.weight.data[1], net.network.bias.data[1] = net.network.weight.data[0], net.network.bias.data[0]
    _, (point,) = stated(net, torch.ones(1, 2).double())
    first = point.order.tolist().index(0) + 1  # equal to that after it
    radii = [[0.0] * 3 for _ in range(3)]
    if first <= 3:
        radii[first - 1][first - 1] = 1e-9
        assert false_windows(point, [True] * 3, radii) == [(first, first)]
    strict = next(k for k in (1, 2, 3) if k != first)
    radii = [[0.0] * 3 for _ in range(3)]
    radii[strict - 1][strict - 1] = 1e-9
    assert false_windows(point, [True] * 3, radii) == []
    assert false_windows(point, [k != strict for k in (1, 2, 3)], radii) == [(strict, strict)]
    radii[strict - 1][strict - 1] = math.inf
    assert false_windows(point, [True] * 3, radii) == [(strict, strict)]


def test_answers_by_their_definition():
    certificate, _ = trained_points()
    for prefer in ("smallest", "largest"):
        shown = certificate.preferring(prefer)
        sizes = list(zip(shown.core.sum(dim=1).tolist(), shown.whole.sum(dim=1).tolist(), strict=True))
        assert [answer(windows, certificate.epsilon, prefer) for windows in certificate.windows.tolist()] == sizes


@given(st.integers(0, 2**300), st.integers(1, 2**300))
def test_roots_come_from_above(numerator, denominator):
    square = Fraction(numerator, denominator)
    assert square <= root(square) ** 2 <= square * (1 + Fraction(1, 2**120))
