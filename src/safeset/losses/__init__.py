"""Losses: on logits and ⊥ (`cross_entropy`, `trades`), and with a margin for each class (`emma` and its relaxed forms).

All are pure functions of tensors, with gradients that are finite wherever the logits are.
"""

from safeset.losses.adaptive import adaptive_margins, annealed_cross_entropy, pair_table, soft_cross_entropy
from safeset.losses.emma import emma
from safeset.losses.instrumented import cross_entropy, trades
from safeset.losses.relaxations import RELAXATIONS

LOSSES = ("cross-entropy", "trades", "emma")

__all__ = [
    "LOSSES",
    "RELAXATIONS",
    "adaptive_margins",
    "annealed_cross_entropy",
    "cross_entropy",
    "emma",
    "pair_table",
    "soft_cross_entropy",
    "trades",
]
