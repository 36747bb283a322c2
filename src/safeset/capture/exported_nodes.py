"""Nodes of an exported graph: which can be read, and what torch says of their values."""

from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload

from safeset.capture.aten import NOTHING, name_of
from safeset.capture.aten_handlers import HANDLERS
from safeset.capture.expressions import Squares
from safeset.capture.graph import View
from safeset.errors import UnsupportedLayerError

NOT_PLAIN = (
    "only plain operations are read: leave torch.cond, torch.vmap, torch.func, autocast and modes of gradients out of "
    "the forward"
)


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
    """Refuse to compute with the size of the batch: views have one of their own."""
    kinds = (torch.SymInt, torch.SymFloat)
    if name_of(node.target) in HANDLERS and any(
        isinstance(each.meta.get("val"), kinds) for each in node.all_input_nodes
    ):
        raise UnsupportedLayerError("numbers must not depend on the size of the batch")
