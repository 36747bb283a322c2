"""Which rule each type of layer has: the one table that `register_layer` writes."""

import itertools
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

if TYPE_CHECKING:
    from safeset.program.rules import LayerRule

RULES: dict[type[nn.Module], tuple["LayerRule", dict[str, Any], int]] = {}  # with the type's methods, and a number
registrations = itertools.count(1)


def registration(layer: nn.Module) -> int:
    """A number for the rule that a layer has now, another one whenever it is registered again; 0 if it has none."""
    kind = plain_type(layer)
    return RULES[kind][2] if kind in RULES else 0


def has_rule(layer: nn.Module) -> bool:
    """Whether there is a rule for a layer's exact type."""
    return plain_type(layer) in RULES


def is_taken(layer: nn.Module) -> bool:
    """Whether there is a rule for a layer's exact type, and for its settings."""
    kind = plain_type(layer)
    return kind in RULES and RULES[kind][0].takes(layer)


def plain_type(layer: nn.Module) -> type[nn.Module]:
    """The layer's type, or what it was before `torch.nn.utils.parametrize` made a type of its own for it."""
    kind = type(layer)
    if kind in RULES or not is_parametrized(layer):
        return kind
    base = kind.__bases__[0]
    behaviour = {name for name, value in vars(kind).items() if callable(value) or hasattr(value, "__get__")}
    injected = {"__getstate__", "__deepcopy__", *layer.parametrizations}  # type: ignore[misc]
    plain = kind.__name__ == f"Parametrized{base.__name__}" and len(kind.__bases__) == 1 and behaviour <= injected
    return base if plain else kind
