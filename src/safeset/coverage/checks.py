"""What a calibration is made of, checked: labels, levels, radii, and whether a network is the one it is about."""

import math
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from safeset.coverage.ranks import as_level
from safeset.coverage.scores import Geometry, Score
from safeset.errors import expected
from safeset.inputs import Numbers, as_tensor, as_written, check_epsilon
from safeset.numerics.directed import up
from safeset.numerics.strict import strict_arithmetic
from safeset.program.program import Program

BITS = 20  # of the stored scale: room for what a proof differs by on another machine
LARGEST = 2.0**1000  # far below overflow


def check_flag(value: Any, name: str) -> bool:
    """A boolean, or an error."""
    if not isinstance(value, bool):
        raise expected(f"{name} to be True or False", repr(value)[:80])
    return value


def coarse(scale: float) -> float:
    """A scale rounded up to 20 bits, so that a proof that differs in its last bits finds it large enough.

    >>> coarse(1.0), coarse(1.0000001) == 1 + 2**-19
    (1.0, True)
    """
    if not scale < LARGEST:
        raise expected(
            f"a finite Lipschitz constant of the features, below {LARGEST:.0e}", scale, "The weights are too large."
        )
    mantissa, exponent = math.frexp(scale)
    return max(scale, math.ldexp(math.ceil(math.ldexp(mantissa, BITS)), exponent - BITS))


def head_rows(program: Program) -> Tensor:
    """(classes, features) float64 rows of a program's head."""
    return program.head.weight.double()


def geometry_of(program: Program, scale: float, score: Score) -> Geometry:
    """What a score needs of a program's head, on features whose Lipschitz constant is at most scale.

    Raises:
        ArgumentError: for a map of logits whose constant is too small for this network.
    """
    with strict_arithmetic():
        head = program.head
        if score.fit is None:
            biases = torch.zeros_like(head.weight[:, 0]) if head.bias is None else head.bias
            return Geometry.of(head.weight, biases, scale)
        mapped = score.fit.head(head_rows(program), scale)
        if not mapped.constant <= score.fit.constant:
            remedy = "Fit it with this network: safeset.fit_logits(net, x, y)."
            raise expected(
                f"a map of logits whose constant is at least {mapped.constant!r}", repr(score.fit.constant), remedy
            )
        return Geometry.mapped(mapped, score.fit.constant, scale)


def check_net(program: Program, proved: float, wanted: Program, scale: float) -> None:
    """Refuse another network, and a scale that is not proved to be large enough."""
    if program is not wanted and not program.equals(wanted):
        raise expected("points of the network that was calibrated", "those of another", "Take coverage.net.measure(x).")
    if not proved <= scale:
        raise expected(
            f"a Lipschitz constant of the features of at most {scale!r}, the one that was calibrated with",
            repr(proved),
            "Here less is proved than where it was calibrated: net.bounds(convolutions='exact') may prove as much, or "
            "calibrate again.",
        )


def radius_above(epsilon: Any) -> float:
    """ε as a float64 that is at least as large."""
    radius, exact = check_epsilon(epsilon), as_written(epsilon)
    return up(radius) if exact is not None and Fraction(radius) < exact else radius


def check_confidence(confidence: Any) -> Fraction | None:
    """A confidence as it is written, or None."""
    return None if confidence is None else as_level(confidence, "`confidence`", "0.95")


def check_labels(y: Numbers, points: int, classes: int) -> Tensor:
    """Labels (n,) as integers on the CPU, if there is one for each point."""
    labels = as_tensor(y, "`y`").detach().cpu()
    if labels.shape != (points,) or labels.is_floating_point():
        raise expected(f"`y` to be integers of shape ({points},)", f"shape {tuple(labels.shape)}, {labels.dtype}")
    labels = labels.long()  # torch compares no uint16 to uint64
    if points and not bool(((labels >= 0) & (labels < classes)).all()):
        raise expected(f"labels in 0..{classes - 1}", f"{labels.min().item()}..{labels.max().item()}")
    return labels
