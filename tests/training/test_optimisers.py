"""Muon's step in few passes is its definition, and so is the running mean of parameters."""

import pytest
import torch

from safeset import CertifiedNet, create_model
from safeset.layers.orthogonal import polish
from safeset.recipes.library import assemble_recipe
from safeset.training.optimisers import ITERATIONS, MOMENTUM, QUINTIC, turn
from safeset.training.state import State


def defined(q, gradient, momentum, rate):
    """A step of Muon of one matrix, line by line as its docstring says it."""
    inner = q.T @ gradient
    square = len(q) == q.shape[1]
    if square:
        along = inner - inner.T
    elif len(q) > q.shape[1]:
        along = gradient - q @ (inner + inner.T) / 2
    else:
        outer = q @ gradient.T
        along = gradient - (outer + outer.T) @ q / 2
    momentum = MOMENTUM * momentum + along
    x = along + MOMENTUM * momentum
    x = x / (x.norm() + 1e-12)
    a, b, c = QUINTIC
    for _ in range(ITERATIONS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    q = q - rate * (q @ x if square else x)
    return 1.5 * q - 0.5 * q @ q.T @ q, momentum


@pytest.mark.parametrize("shape", [(6, 6), (8, 5), (5, 8)])
@pytest.mark.parametrize("rate", [0.02, torch.tensor(0.02, dtype=torch.float64)])
@pytest.mark.parametrize("size", [1.0, 0.0])
def test_muon_turns_as_it_is_defined(shape, rate, size):
    generator = torch.Generator().manual_seed(0)
    q, gradients, momenta = (torch.randn(3, *shape, generator=generator, dtype=torch.float64) for _ in range(3))
    q, gradients, momenta = polish(q), size * gradients, size * momenta
    found = turn(q, gradients, momenta, rate)
    for place in range(3):
        one = defined(q[place], gradients[place], momenta[place], rate)
        torch.testing.assert_close(tuple(each[place] for each in found), one, atol=1e-12, rtol=1e-10)


def test_the_mean_follows_the_parameters():
    recipe = assemble_recipe("digits/rt3", {"optimiser.average": 0.5})
    net = CertifiedNet(
        create_model("cnn-1c1f", input_shape=(1, 8, 8), classes=10),
        input_shape=(1, 8, 8),
        guarantee="standard",
        epsilon=0.1,
    )
    state = State.start([net], recipe, [0])
    means = {name: each.double().clone() for name, each in state.average.items()}
    for step in range(1, 12):
        with torch.no_grad():
            for each in state.parameters.values():
                each.add_(torch.randn_like(each))
        state.follow_average()
        decay = min(0.5, (1 + step) / (10 + step))
        means = {name: decay * mean + (1 - decay) * state.parameters[name].detach() for name, mean in means.items()}
    torch.testing.assert_close(
        {name: each.double() for name, each in state.average.items()}, means, atol=1e-6, rtol=1e-6
    )
