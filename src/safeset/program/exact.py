"""Programs in exact arithmetic: what they are, not what a float64 program computes of them."""

from collections.abc import Sequence
from fractions import Fraction

from torch import Tensor, nn

from safeset.numerics.integers import NEVER, Deadline
from safeset.numerics.multiples import Array, Multiples
from safeset.program.from_modules import program_of
from safeset.program.l2_pool import ROOT_ERROR, RootOfSquares
from safeset.program.program import INPUT, Program


def evaluate(program: Program | nn.Module, x: Tensor | Array, deadline: Deadline = NEVER) -> Array:
    """What a program, or a module, is at one point, exactly.

    Args:
        program: a program, or layers that become one.
        x: one point without the batch, finite floats or an array of fractions.
        deadline: when to stop.

    Returns:
        Fractions: (classes,) logits for a whole network.

    Raises:
        UnsupportedLayerError: for operations whose definition is not known.
        OutOfTimeError: after the deadline.

    >>> import torch
    >>> layer = nn.Linear(2, 1)
    >>> layer.weight.data, layer.bias.data = torch.tensor([[0.5, 1.0]]), torch.tensor([0.25])
    >>> evaluate(layer, torch.tensor([1.0, 2.0**-60]))
    array([Fraction(864691128455135233, 1152921504606846976)], dtype=object)
    """
    number = _start(x)
    if isinstance(program, nn.Module):
        program = program_of(program, number.integers.shape)
    return _values(program, number, deadline, roots=False)[len(program.nodes) - 1].fractions()


def enclose(
    program: Program, x: Tensor | Array, bounds: Sequence[float], deadline: Deadline = NEVER
) -> tuple[Array, Fraction]:
    """The same where roots are computed, which are no fractions: they are rounded, to hundreds of digits.

    Args:
        program: whose operations are as for `evaluate`, or L2 pooling.
        x: as for `evaluate`.
        bounds: of each of the program's layers, a finite bound of its Lipschitz constant.
        deadline: when to stop.

    Returns:
        Fractions, and how far any of them may be from what the program is there: 0 where there is no root.

    Raises:
        UnsupportedLayerError: as for `evaluate`.
        OutOfTimeError: after the deadline.
    """
    values = _values(program, _start(x), deadline, roots=True)
    errors, following = {INPUT: Fraction(0)}, iter(bounds)
    for place, node in enumerate(program.nodes):
        # The norm of a sum, or of parts side by side, is at most the sum of norms.
        stretch = Fraction(next(following)) if node.place.is_layer else Fraction(1)
        errors[place] = sum((errors[each] for each in node.inputs), Fraction(0)) * max(Fraction(1), stretch)
        if isinstance(node.operation, RootOfSquares):
            errors[place] += values[place].integers.size * ROOT_ERROR
    last = len(program.nodes) - 1
    return values[last].fractions(), errors[last]


def _values(program: Program, x: Multiples, deadline: Deadline, *, roots: bool) -> dict[int, Multiples]:
    """What every node is, by its number; with ``roots`` those that are no fractions are rounded, else refused."""
    values = {INPUT: x}
    for place, node in enumerate(program.nodes):
        deadline.check()
        read = [values[each] for each in node.inputs]
        if roots and isinstance(node.operation, RootOfSquares):
            values[place] = node.operation.rounded(*read)
        else:
            values[place] = node.operation.exact(deadline, *read)
    return values


def _start(x: Tensor | Array) -> Multiples:
    return Multiples.of(x) if isinstance(x, Tensor) else Multiples.from_fractions(x)
