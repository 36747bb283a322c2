"""Programs in exact arithmetic: what they are, not what a float64 program computes of them."""

from torch import Tensor, nn

from safeset.numerics.integers import NEVER, Deadline
from safeset.numerics.multiples import Array, Multiples
from safeset.program.from_modules import program_of
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
    number = Multiples.of(x) if isinstance(x, Tensor) else Multiples.from_fractions(x)
    if isinstance(program, nn.Module):
        program = program_of(program, number.integers.shape)
    values = {INPUT: number}
    for place, node in enumerate(program.nodes):
        deadline.check()
        values[place] = node.operation.exact(deadline, *(values[read] for read in node.inputs))
    return values[len(program.nodes) - 1].fractions()
