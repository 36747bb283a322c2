"""Certificates of networks whose exact radii are known: they hold up to them, and not beyond."""

import numpy as np
import pytest
import torch

from helpers.linear_truth import nearest_violation
from helpers.tight import FLAT, IMAGES, linear, network
from safeset import Affinity, CertifiedNet, HeadConstants, RelaxedTopK, Standard, TopK, certify_logits
from safeset.certificates.margins import METHODS

CLOSE = 5e-7
MIXED = [
    ["normalisation", "padded convolution", "invertible downsampling", "1×1 convolution", "min-max", "relu"],
    ["max pooling", "image batch norm", "1×1 convolution", "leaky relu", "narrowing linear", "residual"],
    ["strided convolution", "average pooling", "abs", "batch norm", "dropout", "linear"],
    ["linear", "min-max", "residual", "relu", "identity", "residual"],
]


def guarantees(order):
    """Guarantees, and the k that each allows at a point with these classes, best first."""
    best = [int(c) for c in order]
    yield Standard(), [1]
    yield from ((TopK(k), [k]) for k in (1, 2, 3))
    yield from ((RelaxedTopK(k), list(range(1, k + 1))) for k in (1, 2, 3, 4))
    yield Affinity([best[:3], best[2:5]]), [1, 2, 3]
    yield Affinity([best[:2], [best[0], best[3]]]), [1, 2]


def is_exact(guarantee, ks, method):
    if len(ks) == 1:
        return True
    return len(ks) <= {"uniform": 1, "floating": 2, "joint": 4}[method]


def is_violated(before, after, ks):
    """Whether for each k the k best classes are others than before."""
    first, second = np.argsort(-before, kind="stable"), np.argsort(-after, kind="stable")
    return all(set(first[:k]) != set(second[:k]) for k in ks)


def check(names, seed):
    rng = np.random.default_rng(seed)
    torch.manual_seed(seed)
    layers, x, shape = network(rng, names)
    net = CertifiedNet(layers, input_shape=shape, guarantee="standard", epsilon=0.1)
    frozen = net.frozen()
    rows, logits = linear(frozen, x)
    exhibited = 0
    for guarantee, ks in guarantees(np.argsort(-logits)):
        truth, place = nearest_violation(rows, logits, ks)
        for method in METHODS:
            found = frozen.certify(x, guarantee=guarantee, method=method)
            radius = found.radius.item()
            # Every window is proved as far as for the linear network itself.
            alone = certify_logits(logits[None], HeadConstants(torch.tensor(rows)), 0.1, guarantee, method=method)
            assert (found.windows >= (1 - CLOSE) * alone.windows).all()
            assert (found.windows <= (1 + 1e-12) * alone.windows).all()
            assert radius <= truth * (1 + 1e-9)
            if is_exact(guarantee, ks, method) and np.isfinite(truth):
                assert found.at(truth * (1 - CLOSE)).certified.item()
                assert not found.at(truth * (1 + CLOSE)).certified.item()
                worst = x + torch.tensor(place * (1 + CLOSE)).view_as(x)
                with torch.no_grad():
                    assert is_violated(logits, frozen(worst)[0].numpy(), ks)
                exhibited += 1
    assert exhibited >= 10


@pytest.mark.parametrize("name", [*FLAT, *IMAGES])
def test_layer_by_layer_the_radius_is_exact(name):
    for seed in range(2):
        check([name], seed)


@pytest.mark.parametrize("names", MIXED, ids=range(len(MIXED)))
def test_the_radius_of_mixed_networks_is_exact(names):
    for seed in range(3):
        check(names, seed)


@pytest.mark.slow
def test_the_radius_of_hundreds_of_mixed_networks_is_exact():
    rng = np.random.default_rng(0)
    for seed in range(200):
        images = list(rng.choice([*IMAGES], size=rng.integers(0, 3), replace=False))
        if "max pooling" in images:  # it must see the input, whose largest pixels are known
            images = ["max pooling", *(name for name in images if name != "max pooling")]
        flat = list(rng.choice([*FLAT], size=rng.integers(1, 5), replace=True))
        if flat.count("narrowing linear") > 1 or images.count("average pooling") + ("max pooling" in images) > 1:
            continue
        check([*images, *flat], seed)
