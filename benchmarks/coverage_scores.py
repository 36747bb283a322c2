"""Conformal scores beside safeset's own: peers' as published and at their strongest, in plain float64, for comparison.

Each score is a function of logits and of how far an attacker may have moved the input: ``above(logits, epsilon)``
bounds the score anywhere within ε, ``above(logits, 0)`` is the score. Only safeset's own (`Coverage`) know of rounding.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from safeset import Coverage

POINTS_AT_ONCE = 256  # of a (points, classes, classes) table


@dataclass(frozen=True, eq=False)
class Method:
    """A score: what it is called, its bound within ε as a function of logits, and whether it knows of attackers."""

    name: str
    above: Callable[[Tensor, float], Tensor]
    parameters: dict[str, float]
    coverage: Coverage | None = None  # safeset's own, with every rounding accounted for
    is_protected: bool = True


@dataclass(frozen=True, eq=False)
class Head:
    """The rows of a head, its biases, and the proved Lipschitz constant of what it reads."""

    rows: Tensor
    scale: float

    @property
    def own(self) -> Tensor:
        """L_y = ‖w_y‖·s of each logit."""
        found: Tensor = self.rows.square().sum(dim=1).sqrt() * self.scale
        return found

    @property
    def centred(self) -> Tensor:
        """The same of f_y minus the mean logit."""
        return Head(self.rows - self.rows.mean(dim=0), self.scale).own

    @property
    def pairs(self) -> Tensor:
        """K_yj; ∞ for y = j."""
        found = torch.cdist(self.rows, self.rows, compute_mode="donot_use_mm_for_euclid_dist") * self.scale
        return found.fill_diagonal_(torch.inf)


def peers(head: Head) -> list[Method]:
    """Scores of others.

    ``lip-rcp``: the logit (a sigmoid of it, which changes nothing), shifted by one constant for all classes, the
    largest of the logits' own: less than the constant of the whole map. Stronger: each logit's own constant L_y;
    f_y/L_y; and the same of centred logits, whose constants are smaller.
    """
    own, centred, pairs = head.own, head.centred, head.pairs

    def from_mean(logits: Tensor) -> Tensor:
        return logits - logits.mean(dim=1, keepdim=True)

    def margin(logits: Tensor, epsilon: float) -> Tensor:
        own = torch.eye(len(pairs), dtype=torch.bool, device=logits.device)
        shift = (epsilon * pairs.nan_to_num(posinf=0.0)).masked_fill(own, torch.inf)  # not with itself
        some = torch.split(logits, POINTS_AT_ONCE)
        return torch.cat([(each[:, :, None] - each[:, None, :] + shift).amin(dim=2) for each in some])

    return [
        Method("unprotected (LAC)", lambda logits, epsilon: logits.softmax(dim=1), {}, is_protected=False),
        Method("lip-rcp, one constant", lambda logits, epsilon: logits + epsilon * own.max(), {}),
        Method("own constants", lambda logits, epsilon: logits + epsilon * own, {}),
        Method("f_y / L_y", lambda logits, epsilon: logits / own + epsilon, {}),
        Method("centred", lambda logits, epsilon: from_mean(logits) / centred + epsilon, {}),
        Method("logit margin", margin, {}),
    ]


def log_softmax(head: Head, beta: float, tau: float) -> Method:
    """f_y − βτ·logsumexp(f/τ), bounded by its tangent: concave in the features, slope w_y − β Σ p_j w_j."""

    def above(logits: Tensor, epsilon: float) -> Tensor:
        score = logits - beta * tau * torch.logsumexp(logits / tau, dim=1, keepdim=True)
        if not epsilon:
            return score
        mean = (logits / tau).softmax(dim=1) @ head.rows  # (batch, features)
        steep = torch.stack([(row - beta * mean).norm(dim=1) for row in head.rows], dim=1)
        return score + epsilon * head.scale * steep

    return Method("log-softmax", above, {"beta": beta, "tau": tau})
