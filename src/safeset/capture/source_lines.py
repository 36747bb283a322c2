"""Where an operation of an exported graph stands in the user's own code."""

import os
import re
from pathlib import Path

import torch
from torch import fx, nn


def operation_name(node: fx.Node) -> str:
    """The module that an operation is in, and what it is called in the graph, without its number."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    kind = re.sub(r"_\d+$", "", node.name)
    return f"{path}.{kind}" if path else kind


def source_line(node: fx.Node) -> str:
    """Where in the user's own code an operation stands: the innermost line outside of torch."""
    frames = re.findall(
        r'File "([^"]+)", line (\d+), in [^\n]*(?:\n\s*(?!File "|\s)([^\n]+))?', node.meta.get("stack_trace") or ""
    )
    torch_home = f"{Path(torch.__file__).parent}{os.sep}"
    own = [frame for frame in frames if not frame[0].startswith(torch_home)]
    if not own:
        return f" in layer {operation_name(node)!r}"
    path, line, code = own[-1]
    return f" at `{code.strip()}` ({path}, line {line})" if code else f" ({path}, line {line})"


def cannot_export(network: nn.Module, error: Exception) -> str:
    """Why torch.export does not see what a network computes, and what it needs."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    reason = lines[0] if lines else type(error).__name__
    own = re.findall(r'File "([^"]+)", line (\d+)', str(error))
    torch_home = f"{Path(torch.__file__).parent}{os.sep}"
    where = next((f" ({path}, line {line})" for path, line in reversed(own) if not path.startswith(torch_home)), "")
    return (
        f"Expected a network that torch.export can capture, but got a {type(network).__name__} that it refuses"
        f"{where}: {reason.rstrip('.')}. Branches and loops must not depend on values of the input, each point of a "
        "batch must be computed alone, the size of the batch must stay open (for len(x) write x.shape[0]), and "
        "input_shape must be the shape of one input."
    )
