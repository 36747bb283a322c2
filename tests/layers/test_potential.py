"""Steps down a convex potential: their constant against Jacobians, and layers that keep it at 1 whatever is learned."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from safeset import ArgumentError, CertifiedNet
from safeset.audit.second_proof import prove_again
from safeset.layers import (
    AOLConv2d,
    AOLLinear,
    CPLConv2d,
    CPLLinear,
    LinearResidualConv2d,
    PotentialConv2d,
    PotentialLinear,
    SLLConv2d,
    SLLLinear,
)
from safeset.layers.overlaps import norm, overlaps
from safeset.numerics.directed import Up
from safeset.program.potential import PotentialStep

IMAGE = (3, 4, 5)
MAKERS = {
    "sll": (lambda: SLLLinear(6, 4), (6,)),
    "sll of images": (lambda: SLLConv2d(3, 5), IMAGE),
    "cpl": (lambda: CPLLinear(6, 8), (6,)),
    "cpl of images": (lambda: CPLConv2d(3, 2, 5), IMAGE),
    "aol": (lambda: AOLLinear(6, 4), (6,)),
    "aol of images": (lambda: AOLConv2d(3, 4), IMAGE),
}


def net_of(layer, shape):
    torch.manual_seed(1)
    features = layer(torch.zeros(2, *shape)).flatten(1).shape[1]
    network = nn.Sequential(layer, nn.Flatten(), nn.Linear(features, 3))
    return CertifiedNet(network, input_shape=shape, guarantee="standard", epsilon=0.1)


def jacobian(layer, x):
    """(out, in) at one point."""
    return torch.autograd.functional.jacobian(lambda point: layer(point[None])[0].flatten(), x).reshape(-1, x.numel())


def operator(weight, shape):
    """The linear map of a weight on points of a shape, as a matrix."""
    if weight.ndim == 2:
        return weight
    padded = lambda x: nn.functional.conv2d(x[None], weight, padding=weight.shape[2] // 2).flatten()  # noqa: E731
    return torch.autograd.functional.jacobian(padded, torch.zeros(shape, dtype=weight.dtype)).flatten(1)


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.booleans(), st.floats(0.1, 3.0), st.sampled_from([0.0, 1.0, 100.0]))
def test_the_constant_is_above_every_jacobian_and_attained(seed, of_images, size, shift):
    generator = torch.Generator().manual_seed(seed)
    shape = IMAGE if of_images else (6,)
    weight = torch.randn((4, 3, 3, 3) if of_images else (4, 6), generator=generator, dtype=torch.float64)
    weight = size * weight / torch.linalg.matrix_norm(operator(weight, shape), 2)
    step = PotentialStep(weight, torch.full((4,), shift, dtype=torch.float64))
    bound = step.prove(shape, "exact", None)[0]
    assert max(1, size**2 - 1) * (1 - 1e-12) <= bound <= max(1, size**2 - 1) * (1 + 1e-7)
    x = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
    slopes = [torch.linalg.matrix_norm(jacobian(step.run, point), 2).item() for point in x]
    assert max(slopes) <= float(bound) * (1 + 1e-12)
    if shift == 100:  # everything is active: the step is linear, I − BᵀB
        assert min(slopes) >= max(1 if len(weight) < 6 and not of_images else 0, size**2 - 1) * (1 - 1e-9)
    y = x + torch.randn(x.shape, generator=generator, dtype=torch.float64)
    moved = (step.run(x) - step.run(y)).flatten(1).norm(dim=1)
    assert (moved <= float(bound) * (x - y).flatten(1).norm(dim=1) * (1 + 1e-12)).all()


def test_a_bound_that_is_too_small_is_refuted():
    """At ‖B‖² = 5 the constant is 4: neither 3.9 nor 0.9 may pass, and 4 and a little does."""
    weight = 5**0.5 * torch.eye(3, dtype=torch.float64)
    layer = PotentialLinear(3, 3).double()
    layer.weight.data, layer.bias.data = weight, torch.ones(3, dtype=torch.float64)
    frozen = net_of(layer.float(), (3,)).frozen()
    assert [line.verdict for line in prove_again(frozen)][:1] == ["proved"]
    step = PotentialStep(weight, torch.ones(3, dtype=torch.float64))
    for bound, holds in ((4.0001, True), (3.9, False)):
        inner, wanted = step.reduced(Fraction(bound))
        assert inner.second_bound((3,)) is not None
        assert (wanted**2 >= 5) is holds
    assert step.reduced(Fraction(0.9))[0] is step
    assert step.second_bound((3,)) is None  # so that below 1 nothing is ever proved
    assert step.prove((3,), "auto", None)[0] >= Up(4.0)


@pytest.mark.parametrize("name", MAKERS)
def test_a_layer_keeps_its_promise_while_it_learns(name):
    make, shape = MAKERS[name]
    torch.manual_seed(0)
    layer = make()
    teacher, x = make(), torch.randn(16, *shape)
    for parameter in teacher.parameters():
        nn.init.normal_(parameter)
    target = teacher(x).detach()
    optimiser, losses = torch.optim.Adam(layer.parameters(), lr=0.05), []
    for _ in range(30):
        loss = (layer(x) - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        assert all(parameter.grad.isfinite().all() for parameter in layer.parameters())
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]
    net = net_of(layer, shape)
    assert 0.5 < net.bounds().layers[0].bound <= 1 + 1e-6
    if name.startswith("aol"):
        assert torch.linalg.matrix_norm(jacobian(layer, x[0]), 2) <= 1 + 1e-5
    again = make()
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again(x), layer(x))


@pytest.mark.parametrize("zero", ["kernel", "row"])
@pytest.mark.parametrize("make", [lambda: SLLLinear(4), lambda: CPLConv2d(2), lambda: AOLLinear(4, 4)])
def test_weights_of_zero_do_no_harm(make, zero):
    layer = make()
    with torch.no_grad():
        layer.kernel[slice(None) if zero == "kernel" else 0] = 0
    out = layer(torch.ones(1, *((4,) if layer.kernel.ndim == 2 else (2, 3, 3))))
    out.sum().backward()
    assert out.isfinite().all()
    assert layer.kernel.grad.isfinite().all()


def test_the_norm_for_training_is_slightly_above_the_norm():
    generator = torch.Generator().manual_seed(3)
    for shape in ((5, 9), (9, 5), (1, 4), (30, 30)):
        weight = torch.randn(shape, generator=generator)
        true = torch.linalg.matrix_norm(weight, 2)
        assert true * (1 - 1e-5) <= norm(weight) <= 1.03 * true
    kernel = torch.randn(4, 3, 3, 3, generator=generator, dtype=torch.float64)
    true = torch.linalg.matrix_norm(operator(kernel, (3, 12, 12)), 2)
    assert true <= norm(kernel) <= 1.1 * true


def test_overlaps_bound_the_gram_matrix_of_the_operator():
    generator = torch.Generator().manual_seed(4)
    kernel = torch.randn(4, 3, 3, 3, generator=generator, dtype=torch.float64)
    matrix = operator(kernel, (3, 5, 6))
    gram = (matrix @ matrix.mT).abs().view(4, 30, 4, 30).sum(dim=3)  # (i, pixel, j)
    found = overlaps(kernel)
    assert (gram <= found[:, None, :] * (1 + 1e-12)).all()
    torch.testing.assert_close(gram.amax(dim=1), found)  # in the middle of the image all shifts count
    flat = kernel.flatten(1)
    torch.testing.assert_close(overlaps(flat), (flat @ flat.mT).abs())


def test_the_identity_is_in_the_kernel():
    torch.manual_seed(0)
    layer = LinearResidualConv2d(3, 5, scale=0.25)
    layer.gain.data = torch.tensor([1.0, -2.0, 0.5])
    layer.bias.data = torch.tensor([0.1, 0.2, 0.3])
    x = torch.randn(2, *IMAGE)
    inner = nn.functional.conv2d(x, layer.kernel, padding=2)
    wanted = x + 0.25 * layer.gain.view(3, 1, 1) * inner + layer.bias.view(3, 1, 1)
    torch.testing.assert_close(layer(x), wanted)
    assert type(net_of(layer, IMAGE).frozen().network[0]) is nn.Conv2d


@pytest.mark.parametrize(
    "make",
    [
        lambda: SLLConv2d(3, 3, 2),
        lambda: CPLLinear(0),
        lambda: PotentialConv2d(2, 2, 4),
        lambda: AOLConv2d(2, 2, 2),
        lambda: AOLLinear(2, -1),
        lambda: LinearResidualConv2d(2, 4),
        lambda: LinearResidualConv2d(2, 3, scale=float("nan")),
    ],
)
def test_sizes_that_cannot_be_are_named(make):
    with pytest.raises(ArgumentError, match="Expected"):
        make()
