"""Guaranteed coverage at every ε, after the fact: of labelled points, and of the population that they come from."""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from torch import Tensor

from safeset.coverage.checks import radius_above
from safeset.coverage.ranks import as_level
from safeset.errors import expected
from safeset.inputs import check_epsilon
from safeset.numerics.directed import up
from safeset.numerics.strict import plainly


class Curve(NamedTuple):
    """Guaranteed coverage of labelled points at every ε, for sets whose rule stays the same.

    Attributes:
        epsilons: what the attacker may change, in the units of the network's input.
        shares: of these points, how many keep their label in the set whatever is done to them within ε.
        population: at least this in the population that the points were drawn from independently, for all ε at once,
            with probability 1 − δ.
        delta: δ.
    """

    epsilons: list[float]
    shares: list[float]
    population: list[float]
    delta: float


@plainly
def curve(
    reached: Tensor, needed: Tensor, epsilons: Sequence[float], *, rule: float, delta: float, is_concave: bool
) -> Curve:
    """The curve of points whose labels have scores of at least ``reached`` and thresholds ``needed``, (n,) each.

    Args:
        reached: scores of the labels, rounded down.
        needed: thresholds of the labels.
        epsilons: what the attacker may change.
        rule: the ε that the sets are made for.
        delta: of the bound for the population: at most 1/2, for which Massart's inequality has a factor of 1.
        is_concave: whether sets are made by a tangent: then nothing is known to be gained where ε is below the rule's.
    """
    if not len(reached):
        raise expected("at least one point", "none")
    risk = float(as_level(delta, "`delta`"))
    if not risk <= 0.5:
        raise expected("`delta` to be at most 0.5", delta)
    if not isinstance(epsilons, Iterable) or (isinstance(epsilons, Tensor | np.ndarray) and epsilons.ndim != 1):
        raise expected("`epsilons` to be a list of numbers ≥ 0", repr(epsilons)[:80])
    fixed, radii = check_epsilon(rule), [radius_above(each) for each in epsilons]
    more = [up(each - fixed) if each != fixed else 0.0 for each in radii]
    if is_concave:
        more = [max(0.0, each) for each in more]
    always = needed == -math.inf  # all classes are in every set
    kept = (always | (reached >= (up(needed + each) if each else needed)) for each in more)
    shares = [float(each.double().mean()) for each in kept]
    less = math.sqrt(math.log(1 / risk) / (2 * len(reached)))
    return Curve(radii, shares, [max(0.0, share - less) for share in shares], risk)
