"""Operations that put entries of values, and constants, at places that are known: they compute nothing.

They are run twice: on the numbers of entries with zeros for constants, which says where entries come from, and on the
constants with zeros for values, which says what is added.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from safeset.capture import expressions as ex
from safeset.capture.aten_refusals import REFUSED, SQUARES
from safeset.capture.expressions import Squares
from safeset.capture.graph import Graph, View
from safeset.errors import UnsupportedLayerError

JOINING = frozenset({"cat", "concat", "concatenate", "stack", "hstack", "vstack", "column_stack"})
WRITING = frozenset({"slice_scatter", "select_scatter", "diagonal_scatter", "copy", "where", "masked_fill"})
PLACING = JOINING | WRITING
# What gives constants in the shape of a value; what is not initialised is 0 here, and compared with the network.
FILLING: Mapping[str, Callable[..., Tensor]] = {
    "zeros_like": torch.zeros_like,
    "ones_like": torch.ones_like,
    "full_like": torch.full_like,
    "empty_like": torch.zeros_like,
    "new_zeros": Tensor.new_zeros,
    "new_ones": Tensor.new_ones,
    "new_full": Tensor.new_full,
    "new_empty": Tensor.new_zeros,
}


def placed(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """Values and constants at places that do not depend on the input."""
    kind = str(target._schema.name).removeprefix("aten::")
    if kind in ("where", "masked_fill"):
        condition, *values = args if kind == "where" else (args[1], args[2], args[0])
        if not isinstance(condition, Tensor):
            raise UnsupportedLayerError(REFUSED["where"])
        args, kwargs, target = tuple(map(_as_tensor, values)), {}, partial(torch.where, condition.cpu())
    found = View(target(*_each(args, _numbers), **kwargs))
    constant = target(*_each(args, _constants), **kwargs)
    if not bool(constant.any()):
        return found
    if not bool((constant == constant[:1]).all()):
        raise UnsupportedLayerError("constants that are others for each point of a batch")
    return ex.added(graph, found, constant[0], name)


def filled(kind: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Tensor:
    """A constant in the shape of a value, or of a shape that is given, and of a type."""
    value, *others = args
    return FILLING[kind](value.places, *others, dtype=kwargs.get("dtype"))


def _as_tensor(value: Any) -> Any:
    """A number as a tensor."""
    return torch.tensor(value, dtype=torch.float64) if isinstance(value, int | float) else value


def _each(value: Any, function: Any) -> Any:
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if isinstance(value, list | tuple):
        return [_each(each, function) for each in value]
    return function(value) if isinstance(value, View | Tensor) else value


def _numbers(value: View | Tensor) -> Tensor:
    return value.places if isinstance(value, View) else torch.zeros_like(value, dtype=torch.float64, device="cpu")


def _constants(value: View | Tensor) -> Tensor:
    return torch.zeros_like(value.places) if isinstance(value, View) else value.double().cpu()
