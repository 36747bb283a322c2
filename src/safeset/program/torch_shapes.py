"""Rules of torch's layers that put the entries of points into other shapes: unflattening and padding."""

from typing import Any

import torch
from torch import nn

from safeset.errors import expected
from safeset.program.known_rule import KnownRule, PlainRule
from safeset.program.operation import Shape
from safeset.program.select import Reshape, Select


def _unflattened(layer: nn.Unflatten, shape: Shape) -> Reshape:
    """The shape that leaves nn.Unflatten."""
    if not isinstance(layer.dim, int) or layer.dim % (len(shape) + 1) == 0:
        raise expected("nn.Unflatten of a numbered axis of points", f"dim={layer.dim!r}")
    sizes: Any = layer.unflattened_size
    empty = torch.empty(1, *shape, device="meta")
    return Reshape(tuple(torch.ops.aten.unflatten.int(empty, layer.dim, list(sizes)).shape[1:]))


def _padded(axes: int, mode: str) -> PlainRule:
    """The rule of a layer that pads the last axes of points, with zeros or with their own entries."""

    def makes(layer: Any, shape: Shape) -> Select:
        if len(shape) != axes + 1:
            raise expected(f"points of {axes + 1} axes, channels first", shape)
        if getattr(layer, "value", 0.0) != 0.0:
            raise expected("padding with zeros", f"value={layer.value}")
        padding = [int(each) for each in layer.padding]
        count = torch.Size(shape).numel()
        places = torch.arange(1, count + 1, dtype=torch.float64, device="cpu").view(1, *shape)
        return Select(torch.ops.aten.pad.default(places, padding, mode)[0].to(torch.int64) - 1)

    return PlainRule(makes)


SHAPES: dict[type[nn.Module], KnownRule] = {
    nn.Unflatten: PlainRule(_unflattened),
    nn.ZeroPad1d: _padded(1, "constant"),
    nn.ZeroPad2d: _padded(2, "constant"),
    nn.ConstantPad1d: _padded(1, "constant"),
    nn.ConstantPad2d: _padded(2, "constant"),
    nn.CircularPad1d: _padded(1, "circular"),
    nn.CircularPad2d: _padded(2, "circular"),
    nn.ReflectionPad1d: _padded(1, "reflect"),
    nn.ReflectionPad2d: _padded(2, "reflect"),
    nn.ReplicationPad1d: _padded(1, "replicate"),
    nn.ReplicationPad2d: _padded(2, "replicate"),
}
