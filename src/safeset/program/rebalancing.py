"""The same program with channels of other sizes between its layers, so that its layers' bounds multiply up to less.

For a positive diagonal T and an activation φ with φ(T x) = T φ(x), W₂ φ(W₁ x) = (W₂T⁻¹) φ(TW₁ x): the network is the
same, and its bound ‖W₂T⁻¹‖·‖TW₁‖ may be smaller. What comes out is what is proved and what runs.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from safeset.program.balance import Balance
from safeset.program.entries import Scale, Shift
from safeset.program.factors import Factors
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation
from safeset.program.program import Program
from safeset.program.sliding import Conv2d

WORTH = 1e-3  # what the logarithm of the bound must fall by
NORMAL = 2.0**-1022  # smaller numbers have fewer digits


def rebalance(program: Program, *, powers_of_two: bool = True) -> Program:
    """The program with factors between its layers that make its estimated bound smaller; itself if none are found.

    Of a program whose norms are dear to follow (a ResNet-18), no factors are looked for.

    Args:
        program: that ends in a linear head; other programs count by the norm of the last layer.
        powers_of_two: take such factors only. Weights and values then have the same digits as before, and logits are
            the same bit for bit, unless a value on the way becomes subnormal. Other factors gain more; logits then
            differ by rounding.
    """
    if not program.nodes:
        return program
    with torch.no_grad():
        factors = Factors(program)
        if factors.count == 1:
            return program
        balance = Balance(program, factors)
        if balance.is_dear:
            return program
        logs = balance.search()
        powers = balance.towards_integers(logs) if powers_of_two else logs / np.log(2)
        after = rescaled(program, factors, powers.double())
        nothing = torch.zeros_like(logs)
        if after is None or not balance.estimate(powers * np.log(2)) < balance.estimate(nothing) - WORTH:
            return program
        return after


def rescaled(program: Program, factors: Factors, powers: Tensor) -> Program | None:
    """The program with factors of 2^power; None if some weight would lose digits or overflow.

    Args:
        program: whose channels have ``factors``.
        factors: of ``program``.
        powers: (factors.count,) float64; the first is 0.
    """
    nodes = []
    for number, node in enumerate(program.nodes):
        leaving, entering = (powers[torch.from_numpy(factors.of[at])] for at in (number, node.inputs[0]))
        before, after = node.operation, _between(node.operation, entering, leaving)
        is_exact = not _are_integers(powers) or _is_same(_between(after, -entering, -leaving), before)
        if after is not before and not (is_exact and _is_sound(before) and _is_sound(after)):
            return None
        nodes.append(replace(node, operation=after))
    return Program(program.input_shape, tuple(nodes))


def _between(operation: Operation, entering: Tensor, leaving: Tensor) -> Operation:
    """D_out f(D_in⁻¹ x), with the powers of two that are the diagonals of D_in and D_out."""
    if not bool(entering.any() or leaving.any()):
        return operation
    if isinstance(operation, Linear | Conv2d):
        groups = operation.groups if isinstance(operation, Conv2d) else 1
        powers = leaving.view(groups, -1, 1) - entering.view(groups, 1, -1)  # (groups, out / groups, in / groups)
        weight, bias = operation.weight, operation.bias
        scaled = weight * _two_to(powers.flatten(0, 1), weight)
        return replace(operation, weight=scaled, bias=None if bias is None else bias * _two_to(leaving, bias))
    if isinstance(operation, ChannelAffine):
        scale, shift = operation.scale, operation.shift
        return ChannelAffine(scale * _two_to(leaving - entering, scale), shift * _two_to(leaving, shift))
    if isinstance(operation, Scale):
        return Scale(operation.scale * _two_to(leaving - entering, operation.scale))
    if isinstance(operation, Shift):
        return Shift(operation.shift * _two_to(leaving, operation.shift))
    return operation  # homogeneous: it has the same factors before and after it


def _two_to(powers: Tensor, like: Tensor) -> Tensor:
    """2^powers, exactly where they are integers, with as many axes as ``like``."""
    whole = powers.floor()
    numbers = np.ldexp(np.exp2((powers - whole).numpy()), whole.numpy().astype(np.int64))
    return torch.from_numpy(numbers).to(like.device).view(*powers.shape, *(1,) * (like.ndim - powers.ndim))


def _are_integers(powers: Tensor) -> bool:
    return bool((powers == powers.round()).all())


def _is_sound(operation: Operation) -> bool:
    """Whether all numbers are finite, and none is so small that it has lost digits."""
    numbers = (each.abs() for each in operation.constants().values() if each.is_floating_point())
    return all(bool(((each == 0) | (each >= NORMAL) & each.isfinite()).all()) for each in numbers)


def _is_same(undone: Operation, before: Operation) -> bool:
    """Whether T⁻¹(T W) = W, bit for bit."""
    pairs = zip(undone.constants().values(), before.constants().values(), strict=True)
    return all(torch.equal(one, two.expand_as(one)) for one, two in pairs)
