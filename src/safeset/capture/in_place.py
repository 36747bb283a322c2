"""Operations of an exported graph that write into their input: which values they replace, where that is plain to see.

`torch.export` can rewrite a graph without effects, but takes longer for that than for all the rest. In most networks
the only effects are those of ``ReLU(inplace=True)`` and ``x += shortcut``, on values that no view shares.
"""

from collections.abc import Mapping
from typing import Any

from torch import fx

from safeset.capture.aten import name_of

# What certainly gives values in memory of their own; others may be views.
FRESH = frozenset(
    [
        "adaptive_avg_pool2d",
        "add",
        "avg_pool2d",
        "batch_norm",
        "cat",
        "clamp",
        "conv1d",
        "conv2d",
        "div",
        "elu",
        "gelu",
        "hardtanh",
        "leaky_relu",
        "linear",
        "matmul",
        "max_pool2d",
        "mean",
        "mul",
        "relu",
        "sigmoid",
        "silu",
        "sub",
        "sum",
        "tanh",
    ]
)


def roots_of_writes(graph: fx.Graph) -> Mapping[fx.Node, fx.Node] | None:
    """For each value in memory of its own, and for what is written into it, the value that the memory began with.

    Returns:
        None, if something is written where that cannot be seen here, such as into a view or an input.
    """
    roots: dict[fx.Node, fx.Node] = {}
    seen: set[fx.Node] = set()  # roots that something may be a view of
    for node in graph.nodes:
        if node.op != "call_function":
            continue
        if writes(node.target):
            first = node.args[0]
            root = roots.get(first) if isinstance(first, fx.Node) else None
            if root is None or root in seen or not name_of(node.target).endswith("_"):
                return None
            roots[node] = root
        elif hasattr(node.target, "_schema") and name_of(node.target) in FRESH:
            roots[node] = node
        else:
            seen.update(roots[read] for read in node.all_input_nodes if read in roots)
    return roots


def writes(target: Any) -> bool:
    """Whether an operation writes into its input."""
    return bool(getattr(getattr(target, "_schema", None), "is_mutable", False))
