"""What a linear operation stretches at least: vectors that are found by the power method. An upper bound it is not."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from safeset.numerics.integers import Deadline
from safeset.program.linear import Linear
from safeset.program.one_row import OneRow
from safeset.program.operation import Operation, Shape
from safeset.program.sliding import Conv2d


def power_method(
    operation: Operation, shape: Shape, deadline: Deadline, steps: int = 300, close: float = 1e-9
) -> tuple[float, Tensor]:
    """What the norm of a linear map is at least, ‖Av‖ / ‖v‖ in float64, and the vector v of the shape that enters.

    v ← AᵀAv, from a random start, until it gains less than ``close``, relative. Weights are scaled by a power of two,
    so that nothing overflows.
    """
    scaled, exponent = without_bias(operation), 0
    if isinstance(scaled, Linear | Conv2d):
        weight = scaled.weight.numpy()
        exponent = math.frexp(float(np.abs(weight).max(initial=0.0)))[1]
        scaled = replace(scaled, weight=torch.from_numpy(np.ldexp(weight, -exponent)))
    best, vector = 0.0, torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    following = vector
    with torch.enable_grad():
        for _ in range(steps):
            deadline.check()
            x = (following / following.norm()).requires_grad_()
            y = scaled.run(x[None])
            stretched = float(y.detach().norm() / x.detach().norm())
            if not stretched > best * (1 + close):
                break
            best, vector = stretched, x.detach()
            (following,) = torch.autograd.grad(y, x, y.detach())
    try:
        return math.ldexp(best, exponent), vector
    except OverflowError:
        return math.inf, vector


def without_bias(operation: Any) -> Any:
    """The same on the CPU, mapping 0 to 0."""
    if isinstance(operation, OneRow):
        return replace(operation, inside=without_bias(operation.inside))
    if isinstance(operation, Linear | Conv2d):
        return replace(operation, weight=operation.weight.cpu(), bias=None)
    return operation
