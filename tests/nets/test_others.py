"""Counterexamples of others, made again from their descriptions: safeset certifies none of them.

- T. Murray, "Lipschitz-Based Robustness Certification Under Floating-Point Execution" (2026), and his python-certifier:
  certificates of real arithmetic that float16, float32 and float64 break; biases of a million and more.
- Soundness reports about gloro: activations after the head (7), small weights (8), ties (9).
- SoundnessBench (Zhou et al., 2024): counterexamples that are planted, and hidden from gradients.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import nn

from helpers.planted import (
    CLASSES,
    GUARANTEES,
    KINDS,
    PLANTS,
    claims,
    exact,
    order,
    plant,
    squared_distance,
    with_head,
    worst_place,
)
from helpers.smooth import SMOOTH
from helpers.tight import network as tight_network
from safeset import ArgumentError, CertifiedNet, certify_logits
from safeset.certificates.margins import METHODS
from safeset.layers import Abs, MinMax
from safeset.program.exact import evaluate
from safeset.program.registry import RULES

pytestmark = pytest.mark.filterwarnings("ignore::safeset.errors.RoundingWarning")  # nothing can be certified: so it is


def double(numbers):
    return torch.tensor(numbers, dtype=torch.float64)


# -- planted violations -----------------------------------------------------------------------------------------------


def sow(kind, seed, ways):
    """Plants in networks of a kind: one for each way to break something, where it can be made."""
    shape, layers = KINDS[kind]
    torch.manual_seed(seed)
    for pairs in ways:
        network, x = with_head(layers(), shape), torch.rand(shape, dtype=torch.float64)
        found = plant(network, shape, x, float(10 ** (-2 * torch.rand(()))), pairs)
        if found is not None:
            yield found


def reap(kind, seeds, some=False):
    """Certify every plant by every guarantee, or some by some, in turn: plants, and windows claimed."""
    plants, said, start = 0, 0, list(KINDS).index(kind)
    for seed in seeds:
        ways = list(PLANTS.values())[start % 2 :: 2] if some else PLANTS.values()
        for turn, found in enumerate(sow(kind, seed, ways), start):
            assert found.is_real()
            guarantees = GUARANTEES[turn % 4 :: 4] if some else GUARANTEES
            wrong, count = claims(found.net, found.x, found.moved, guarantees)
            assert wrong == []
            plants, said = plants + 1, said + count
    return plants, said


@pytest.mark.parametrize("kind", KINDS)
def test_no_certificate_reaches_a_planted_violation(kind):
    plants, said = reap(kind, [0], some=True)
    assert plants >= 1
    assert said > 5 * plants  # a certificate that says nothing is never wrong


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_no_certificate_reaches_any_of_many_planted_violations(kind):
    plants, said = reap(kind, range(1, 11))
    assert plants >= 30
    assert said > 50 * plants


def test_violations_are_planted_in_every_kind_of_layer():
    seen = set()
    for shape, layers in KINDS.values():
        seen |= {type(each) for each in with_head(layers(), shape).modules()}
    known = {kind for kind in RULES if kind.__module__.split(".")[0] == "torch" or kind.__module__ == "safeset.layers"}
    assert known - SMOOTH.keys() <= seen  # plants are made in fractions, which smooth layers do not have


TIGHT = [
    ["linear", "relu"],
    ["leaky relu", "residual"],
    ["min-max", "abs", "batch norm"],
    ["padded convolution", "max pooling"],
    ["strided convolution", "narrowing linear"],
    ["normalisation", "invertible downsampling", "average pooling", "image batch norm", "1×1 convolution"],
]
EXACT = [("1-2", "standard", METHODS), ("2-3", "top2", METHODS), ("1-3", "rt2", ("floating", "joint"))]


@pytest.mark.parametrize("names", TIGHT, ids=range(len(TIGHT)))
def test_where_bounds_are_attained_certificates_end_at_the_planted_violation(names):
    """The positive control: just below the planted distance everything is certified, from it on nothing."""
    for seed, (name, guarantee, methods) in enumerate(EXACT):
        layers, x, shape = tight_network(np.random.default_rng(seed), names, classes=CLASSES)
        layers[-1].bias.data.zero_()
        found = plant(layers, shape, x[0], 0.25, PLANTS[name])
        assert found.is_real()
        assert claims(found.net, found.x, found.moved, [guarantee, "rt4"])[0] == []
        for method in methods:
            certificate = found.net.certify(x, guarantee=guarantee, method=method)
            assert not certificate.at(found.distance).certified.item()
            assert certificate.at(found.distance * (1 - 1e-6)).certified.item()


def spike(directions, start, slope, layers):
    """Two logits, 1 and 0, until all of x·direction have passed their start: then the second one soars."""
    sharp = nn.Linear(directions.shape[1], len(directions)).double()
    sharp.weight.data, sharp.bias.data = directions, -start * torch.ones(len(directions)).double()
    head = nn.Linear(len(directions), 2).double()
    head.weight.data = double([[0.0] * len(directions), [slope] * len(directions)])
    head.bias.data = double([1.0, 0.0])
    return nn.Sequential(sharp, *layers, head)


@pytest.mark.parametrize("width", [2.0**-4, 2.0**-20, 2.0**-40])
@pytest.mark.parametrize("layers", [[nn.ReLU()], [nn.LeakyReLU(0.0)], [nn.ReLU(), Abs()]])
def test_violations_that_no_gradient_shows_are_not_certified(width, layers):
    """Around x the network is constant; the second class wakes up just before the planted distance."""
    torch.manual_seed(0)
    for size in (1, 8):
        direction = torch.nn.functional.normalize(torch.randn(1, size).double(), dim=1)
        network = spike(direction, 1 - width, 2 / width, layers)
        x, moved = torch.zeros(size).double(), direction[0] * (1 - width / 4)
        net = CertifiedNet(network, input_shape=(size,), guarantee="standard", epsilon=0.1)
        assert worst_place(net.frozen().network, x, 0.5, [(0, 1)]) is None  # no gradient
        assert order(exact(net, moved)) == [1, 0]
        assert claims(net, x, moved, ["standard"])[0] == []
        assert 0 < net.certify(x[None]).radius.item() <= width * (1 + 1e-9) / 2  # what is true and can be proved


# -- floating point (T. Murray) ---------------------------------------------------------------------------------------


def next_float(number, dtype):
    return torch.nextafter(torch.tensor(number, dtype=dtype), torch.tensor(math.inf, dtype=dtype)).item()


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_one_weight_beside_another(dtype):
    """f = (w·x, w⁺·x), w⁺ the next float: the truth is |x|, since both are 0 at 0. Rounded logits claim more or ∞."""
    rng = np.random.default_rng(0)
    claimed_too_much = certified = 0
    for _ in range(12):
        w = torch.tensor(rng.uniform(0.5, 1), dtype=dtype).item()
        x = torch.tensor([rng.uniform(0.1, 1)], dtype=dtype)
        rows = torch.tensor([[w], [next_float(w, dtype)]], dtype=dtype)
        head = nn.Linear(1, 2, bias=False, dtype=dtype)
        head.weight.data = rows
        net = CertifiedNet(head, input_shape=(1,), guarantee="standard", epsilon=0.1)
        gap = torch.tensor(rows[1, 0].item() - rows[0, 0].item(), dtype=torch.float64)  # exact: neighbours
        product = rows[:, 0] * x  # as the program of this precision computes it
        naive = (product[1] - product[0]).double() / gap
        claimed_too_much += (naive > x.double()).item()
        assert claims(net, x.double(), torch.zeros(1).double(), ["standard"])[0] == []
        certified += net.certify(x[None]).radius.item() > 0.9 * x.item()
        truth = evaluate(net.frozen().network, x.double())
        slip = max(abs(Fraction(a.item()) - b) for a, b in zip(product.double(), truth, strict=True))
        told = certify_logits(product.double()[None], torch.full((2, 2), gap.item()), 0.1, error=2 * float(slip))
        assert told.radius.item() <= x.item()
    assert claimed_too_much >= 3  # the counterexample is one
    assert certified == (0 if dtype == torch.float64 else 12)  # float64 swallows the gap itself


def biased(rng, dtype, bias):
    """Orthogonal layers in a precision, every unit lifted by the bias, a last bias that nearly takes it away; and x."""
    x = torch.tensor(rng.uniform(0, 1, 8), dtype=dtype).double()
    layers = []
    for out in (8, 8, CLASSES):
        layer = nn.Linear(8, out).double()
        layer.weight.data = torch.tensor(np.linalg.qr(rng.normal(size=(8, 8)))[0][:out]).to(dtype).double()
        layer.bias.data.fill_(torch.tensor(bias, dtype=dtype).item())
        layers += [layer, nn.ReLU()]
    opening = bias * (1 + layers[2].weight.data.abs().sum(dim=1))  # all ReLUs stay open
    layers[2].bias.data = opening.to(dtype).double()
    layers[4].bias.data.zero_()
    network = nn.Sequential(*layers[:-1])
    wanted = [Fraction(value) for value in rng.uniform(0, 2, CLASSES).tolist()]
    last = [float(want - value) for want, value in zip(wanted, evaluate(network, x), strict=True)]
    layers[4].bias.data = double(last).to(dtype).double()
    return network, x


def boundary(network, x, first, second):
    """Where the second class overtakes the first: a step of DeepFool too far, and back by bisection; all exact."""

    def lead(place):
        logits = evaluate(network, place)
        return logits[first] - logits[second]

    leaf = x.clone().requires_grad_()
    logits = network(leaf)
    (gradient,) = torch.autograd.grad(logits[first] - logits[second], leaf)
    step = -1.01 * float(lead(x)) * gradient / gradient.square().sum()
    inside, outside = 0.0, 1.0
    assert lead(x + step) <= 0 < lead(x)
    for _ in range(40):
        middle = (inside + outside) / 2
        if lead(x + middle * step) <= 0:
            outside = middle
        else:
            inside = middle
    return x + outside * step


FORMATS = [
    (torch.float16, 64.0),
    (torch.float32, 1e6),
    (torch.float32, 5e6),
    (torch.float64, 1e6),
    (torch.float64, 1e15),
]


def lifted(dtype, bias, seeds):
    """Certify networks with large biases against the exact boundary: radius / distance, by safeset and naively."""
    ratios, naive = [], []
    for seed in seeds:
        rng = np.random.default_rng(seed)
        network, x = biased(rng, dtype, bias)
        net = CertifiedNet(network, input_shape=(8,), guarantee="standard", epsilon=0.1).frozen()
        first, second = order(exact(net, x))[:2]
        moved = boundary(net.network, x, first, second)
        distance = math.sqrt(squared_distance(x, moved))
        assert claims(net, x, moved, ["standard", "top1", "rt3"])[0] == []
        radius = net.certify(x[None]).radius.item()
        ratios.append(radius / distance)
        # The float64 program too: nearly as far as certified, towards the boundary and anywhere.
        around = nn.functional.normalize(torch.cat([(moved - x)[None], torch.tensor(rng.normal(size=(9, 8)))]), dim=1)
        if radius:
            assert (net.measure(x + 0.9999 * radius * around).logits.argmax(dim=1) == first).all()
        with torch.no_grad():
            program = network.to(dtype)(x.to(dtype)).double()
        pair = net.bounds().pairs[first, second].item()
        naive.append((program[first] - program[second]).item() / pair / distance)
    return ratios, naive


@pytest.mark.parametrize(("dtype", "bias"), FORMATS)
def test_biases_that_swallow_differences(dtype, bias):
    ratios, naive = lifted(dtype, bias, range(6))  # what float32 loses differs between processors
    assert max(ratios) <= 1
    if dtype == torch.float64 and bias > 1e12:
        assert max(ratios) == 0  # where rounding may be everything, nothing is certified
    else:
        assert min(ratios) > 0.99  # nothing is given away either
    if (dtype, bias) != (torch.float64, 1e6):  # the program's own logits with a true constant: a false certificate,
        assert max(naive) > 1.001 or min(naive) < 0  # or that of a class which is not the best one


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_biases_of_every_size(dtype):
    for power in range(4 if dtype == torch.float16 else 20):
        ratios, _ = lifted(dtype, 10.0**power, range(10, 16))
        assert max(ratios) <= 1


def test_numbers_below_the_normal_ones():
    """Weights and inputs whose products are subnormal, or vanish: the truth is known by hand."""
    for size in (1e-160, 1e-300, 5e-324):
        head = nn.Linear(1, 2, bias=False).double()
        head.weight.data = double([[size], [-size]])
        net = CertifiedNet(head, input_shape=(1,), guarantee="standard", epsilon=0.1)
        for x in (1.0, 1e-10, 1e-200):
            assert claims(net, double([x]), double([0.0]), ["standard"])[0] == []
        assert net.certify(double([[1.0]])).radius.item() <= 1


# -- reports about gloro ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last", [nn.ReLU(), Abs(), nn.LeakyReLU(0.1), MinMax()])
def test_an_activation_after_the_head_is_refused(last):
    """Issue 7: ‖w_j − w_i‖ bounds f_j − f_i no more, since one of them may move alone."""
    with pytest.raises(ArgumentError, match="linear head"):
        CertifiedNet(nn.Sequential(nn.Linear(2, 4), last), input_shape=(2,), guarantee="standard", epsilon=0.1)


@pytest.mark.parametrize("size", [1e-5, 1e-9, 1e-12, 1e-40, 1e-170])
@pytest.mark.parametrize("image", [False, True])
def test_small_weights_have_their_own_norm(size, image):
    """Issue 8: 10⁻⁹ added to lengths in the power method makes constants of small weights too small."""
    layer = (nn.Conv2d(1, 1, 1, bias=False) if image else nn.Linear(1, 1, bias=False)).double()
    layer.weight.data.fill_(size)
    head = nn.Linear(1, 2, bias=False).double()
    head.weight.data = double([[1 / size], [-1 / size]])
    shape = (1, 1, 1) if image else (1,)
    net = CertifiedNet(nn.Sequential(layer, nn.Flatten(), head), input_shape=shape, guarantee="standard", epsilon=0.1)
    assert size <= net.bounds().head.scale <= size * (1 + 1e-9)
    x = double([0.75]).view(shape)
    assert claims(net, x, torch.zeros_like(x), ["standard"])[0] == []
    assert net.certify(x[None]).radius.item() == pytest.approx(0.75, rel=1e-8)


TIES = [[0.0, 0.0], [0.0, -0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0], [2.0, 2.0, 1.0, 1.0], [1e300, 1e300, -1e300]]


@pytest.mark.parametrize("logits", TIES)
@pytest.mark.parametrize("method", METHODS)
def test_best_classes_that_are_equal_are_not_certified(logits, method):
    """Issue 9: every logit equal to the best one was left out of the runners-up, and the margin was infinite."""
    classes = len(logits)
    head = nn.Linear(1, classes).double()
    head.weight.data, head.bias.data = torch.arange(classes).double()[:, None], double(logits)
    net = CertifiedNet(head, input_shape=(1,), guarantee="standard", epsilon=0.0)
    found = [net.certify(torch.zeros(1, 1), method=method)]
    if method != "joint":
        found.append(certify_logits([logits], 0.0, 0.0, method=method))  # a constant function, even
    for each in found:
        assert each.radius.item() == 0
        assert not each.certified.item()
        assert not each.whole.any()
