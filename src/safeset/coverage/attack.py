"""Attacks on coverage: inputs within ε at which a class's score is low. Nothing here proves anything."""

import math

import torch
from torch import Tensor

from safeset.coverage.coverage import Coverage

STEPS = 10
INSIDE = 1 - 2.0**-40  # of ε: rounding must not lead out of the ball


class Attack:
    """Projected gradient on the score of chosen classes, as float64 computes it.

    Args:
        coverage: calibrated.
        steps: gradients for each point.
    """

    def __init__(self, coverage: Coverage, steps: int = STEPS) -> None:
        self.score, self.steps = coverage.score, steps
        self.layers = coverage.net.network  # the same as the program, with gradients that cost less
        self.fit = coverage.score.fit
        rows = coverage.net.bounds().head.rows.double()
        self.constants = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist") * coverage.scale
        if self.fit is not None:
            self.constants = torch.full_like(self.constants, self.fit.constant).fill_diagonal_(0.0)

    def lowered(self, x: Tensor, y: Tensor, epsilon: float) -> Tensor:
        """Points within ε of x at which the scores of the classes y are lowest, of those that were looked at.

        Args:
            x: (n, …) float64.
            y: (n,) classes.
            epsilon: how far.
        """
        constants = self.constants[y]
        column = (-1, *[1] * (x.ndim - 1))
        z, best, lowest = torch.zeros_like(x), x, torch.full((len(x),), math.inf, dtype=x.dtype, device=x.device)
        for step in range(self.steps + 1 if epsilon > 0 else 0):
            moved = (x + z).requires_grad_()
            with torch.enable_grad():
                found = self._scores(self.layers(moved), y, constants)
                (slope,) = torch.autograd.grad(found.sum(), moved)
            lower = found.detach() < lowest
            best = torch.where(lower.view(column), moved.detach(), best)
            lowest = torch.where(lower, found.detach(), lowest)
            slope = slope.nan_to_num()
            size = slope.flatten(1).norm(dim=1).clamp(min=torch.finfo(x.dtype).tiny)
            reach = epsilon * (1.0 if step == 0 else 0.02 + 0.4 * (1 - step / self.steps))
            z = z - slope * (reach / size).view(column)
            length = z.flatten(1).norm(dim=1)
            z = z * (epsilon * INSIDE / length.clamp(min=epsilon)).view(column)
        return best

    def _scores(self, logits: Tensor, y: Tensor, constants: Tensor) -> Tensor:
        """(n,) scores of the classes y; pairs with equal rows, whose gap nothing changes, are left out."""
        if self.fit is not None:
            logits = self.fit.logits(logits)
        gaps = logits.gather(1, y[:, None]) - logits
        radii = torch.where(constants > 0, gaps / constants.where(constants > 0, 1.0), math.inf)
        if self.score.k is not None:
            return radii.kthvalue(self.score.k, dim=1).values
        tau = self.score.softness
        return -tau * torch.logsumexp(-radii / tau, dim=1)
