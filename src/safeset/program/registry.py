"""Which rule each type of layer has: the one table that `register_layer` writes."""

import itertools
from typing import TYPE_CHECKING, Any

from torch import nn

if TYPE_CHECKING:
    from safeset.program.rules import LayerRule

RULES: dict[type[nn.Module], tuple["LayerRule", dict[str, Any], int]] = {}  # with the type's methods, and a number
registrations = itertools.count(1)


def registration(kind: type[nn.Module]) -> int:
    """A number for the rule that a type has now, another one whenever it is registered again; 0 if it has none."""
    return RULES[kind][2] if kind in RULES else 0
