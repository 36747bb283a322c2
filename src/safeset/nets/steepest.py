"""Where a network is steep: points and pairs of logits, found by search. A lower bound of its Lipschitz constant."""

import math

import torch
from torch import Tensor

from safeset.program.program import Program

POINTS = (4, 32)  # that are moved: fewer in a large network
PRODUCTS = 2**31  # of all points together in one pass, about
STEPS = 40
SCALES = 8  # sizes of steps, each half of the one before


def steepest(program: Program, x: Tensor) -> float:
    """The largest ‖∇(f_j − f_i)‖ that is found from some points on, for any pair: a Lipschitz bound is no less.

    Points climb along the gradient, with some noise, by steps of many sizes, wherever that makes it steeper; the pair
    is the one that a step has moved apart most. It is always the same for the same points. In float64, which rounds.

    Args:
        program: with a head.
        x: (points, *input_shape) where to start.
    """
    generator = torch.Generator().manual_seed(0)
    some = max(POINTS[0], min(POINTS[1], PRODUCTS // max(1, program.products)))
    points = x[:some].to(program.device, torch.float64)
    points = points[points.flatten(1).isfinite().all(dim=1)]
    if not len(points):
        return 0.0
    logits, slopes = _slopes(program, points, None)
    best = slopes.flatten(1).norm(dim=1)
    size = max(1.0, float(points.flatten(1).norm(dim=1).median()))
    for step in range(STEPS):
        noise = torch.randn(points.shape, generator=generator, dtype=torch.float64).to(points.device)
        ways = _unit(_unit(slopes) + 0.5 * _unit(noise))
        tried = points + ways * size * 0.5 ** (step % SCALES)
        there, found = _slopes(program, tried, logits)
        norms = found.flatten(1).norm(dim=1)
        steeper = norms > best  # not where it is NaN
        best = torch.where(steeper, norms, best)
        logits = torch.where(steeper[:, None], there, logits)
        chosen = steeper.view(-1, *(1,) * (points.ndim - 1))
        points, slopes = torch.where(chosen, tried, points), torch.where(chosen, found, slopes)
    most = float(best.amax())
    return most if math.isfinite(most) else 0.0


def _slopes(program: Program, x: Tensor, before: Tensor | None) -> tuple[Tensor, Tensor]:
    """Logits, and the gradients of the pair that is farthest apart, or has moved apart most since ``before``."""
    with torch.enable_grad():
        entering = x.clone().requires_grad_()
        logits = program.run(entering)
        moved = logits.detach() if before is None else logits.detach() - before
        pair = torch.stack([moved.argmax(dim=1), moved.argmin(dim=1)], dim=1)
        above, below = logits.gather(1, pair).unbind(dim=1)
        (slopes,) = torch.autograd.grad((above - below).sum(), entering)
    return logits.detach(), slopes


def _unit(vectors: Tensor) -> Tensor:
    """Each of length 1, or 0."""
    norms: Tensor = vectors.flatten(1).norm(dim=1).clamp(min=1e-300)
    return vectors / norms.view(-1, *(1,) * (vectors.ndim - 1))
