"""Nodes of an exported graph: which can be read, and what torch says of their values."""

from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from safeset.capture.aten import NOTHING, SHAPING, SILENT, name_of
from safeset.capture.comparison import DEPENDS
from safeset.capture.expressions import Squares
from safeset.capture.graph import View
from safeset.errors import UnsupportedLayerError

NOT_PLAIN = (
    "only plain operations are read: leave torch.cond, torch.vmap, torch.func, autocast and modes of gradients out of "
    "the forward"
)

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)
SUMS = frozenset({"add", "sub", "mul", "neg"})  # of sizes: shapes of several axes in one
# To these a size in a list is the size of an axis.
SHAPED = SHAPING | {"zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty", "repeat"}


def is_plain(node: fx.Node) -> bool:
    """Whether a node is an operation of ATen, or one of Python on sizes: others run graphs, or leave a mode behind."""
    on_sizes = getattr(node.target, "__module__", None) in ("_operator", "math", "torch")
    return node.op == "call_function" and (isinstance(node.target, OpOverload) or on_sizes)


def let_inactive_dropout_share(graph: fx.Graph) -> None:
    """Say that dropout that drops nothing gives its own input: torch's rewriting takes it for a copy.

    Then what is written into one of both would be missing in the other.
    """
    for node in graph.nodes:
        if node.op == "call_function" and name_of(node.target) in NOTHING and len(node.args) == 3:
            value, share, is_active = node.args
            if share == 0 or is_active is False:
                node.target, node.args = torch.ops.aten.alias.default, (value,)


def check_types(node: fx.Node, found: Any) -> None:
    """Refuse values that are rounded to another type, as by writing into zeros of float32."""
    given: Any = node.meta.get("val")
    pairs = zip(found, given, strict=False) if isinstance(found, list | tuple) else [(found, given)]
    for value, described in pairs:
        if isinstance(value, View | Squares) and isinstance(described, Tensor) and described.dtype != torch.float64:
            raise UnsupportedLayerError(
                f"values that are rounded to {described.dtype}: networks are certified in float64, so give tensors "
                "that are made on the way the type of a value, dtype=x.dtype"
            )


def check_numbers(node: fx.Node) -> None:
    """Refuse to compute with the size of a batch: it may be nothing but an axis of a shape.

    A few sizes can be tried, but not all: max(size, 100) is the same for all that are.
    """
    given = [each for each in node.all_input_nodes if isinstance(each.meta.get("val"), SYMBOLS)]
    if not given or name_of(node.target) in SILENT:
        return
    if isinstance(node.meta.get("val"), torch.SymBool):
        is_fine = all(_is_only_asserted(user) for user in node.users)
    elif isinstance(node.meta.get("val"), SYMBOLS):
        is_fine = name_of(node.target) in SUMS
    else:
        in_lists = {each for argument in node.args if isinstance(argument, list | tuple) for each in argument}
        alone = {each for each in (*node.args, *node.kwargs.values()) if isinstance(each, fx.Node)}
        is_fine = name_of(node.target) in SHAPED and in_lists.issuperset(given) and alone.isdisjoint(given)
    if not is_fine:
        raise UnsupportedLayerError(DEPENDS)


def _is_only_asserted(node: fx.Node) -> bool:
    """Whether a condition on sizes is nothing but what torch.export asserts of them."""
    return name_of(node.target) in SILENT or (
        isinstance(node.meta.get("val"), torch.SymBool) and all(_is_only_asserted(user) for user in node.users)
    )
