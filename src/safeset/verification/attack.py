"""The search for an input at which a case holds: from random points along gradients, inside the box."""

from collections.abc import Iterator

import torch
from torch import Tensor

from safeset.numerics.integers import Deadline
from safeset.program.program import Program
from safeset.verification.regions import Boxes
from safeset.verification.rows import Rows

STARTS, STEPS = 32, 24
NUMBERS_AT_ONCE = 2**24  # of the points of one step
FEW = 3  # points that are worth an exact look


def attack(
    program: Program, rows: Rows, case: int, box: Boxes, generator: torch.Generator, deadline: Deadline
) -> Iterator[Tensor]:
    """Points, (inputs,) each, of a finite box at which a case seems to hold, the best ones first.

    Nothing of this is exact: whoever asks must confirm what is found.
    """
    inputs = box.low.shape[1]
    starts = max(2, min(STARTS, NUMBERS_AT_ONCE // inputs))
    width = box.high - box.low
    share = torch.rand(starts, inputs, generator=generator, dtype=torch.float64)
    share[: starts // 4] = share[: starts // 4].round()  # corners
    points = box.low + share * width
    points[0] = box.centres[0]
    best, least = points, torch.full((starts,), torch.inf, dtype=torch.float64)
    for step in range(STEPS):
        deadline.check()
        points = points.clamp(box.low, box.high).detach().requires_grad_()
        with torch.enable_grad():
            outputs = program.run(points.view(-1, *program.input_shape)).flatten(1)
            excess = rows.excess(points, outputs)[:, case]
            total = excess.clamp(min=-1e300).sum()
            gradient = torch.autograd.grad(total, points)[0] if total.requires_grad else torch.zeros_like(points)
        excess, points = excess.detach(), points.detach()
        better = excess < least
        best, least = torch.where(better[:, None], points, best), torch.where(better, excess, least)
        if bool((least < 0).any()):
            break
        points = points - 0.25 * 0.85**step * width * gradient.sign()
    for place in least.argsort()[:FEW].tolist():
        if least[place] <= 0:
            yield best[place]
