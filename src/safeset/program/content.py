"""What a module is, so that a change can be noticed: how its layers are put together, and every number in them."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from safeset.program.registry import registration


@dataclass(frozen=True, eq=False)
class Content:
    """Types and attributes of all modules, with the rules that they have now, and their tensors by name."""

    structure: list[Any]
    tensors: dict[str, Tensor]

    @staticmethod
    def of(network: nn.Module) -> "Content":
        """That of a network as it is now; the tensors are the network's own."""
        structure = []
        for name, layer in network.named_modules(remove_duplicate=False):
            attributes = {key: value for key, value in vars(layer).items() if key not in _TORCH_OWN}
            structure.append((name, type(layer), registration(layer), attributes))
        tensors = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
        return Content(structure, {name: tensor.detach() for name, tensor in tensors})

    def kept(self) -> "Content":
        """A copy that shares no memory with the network, nor anything that its attributes hold."""
        return Content(copy.deepcopy(self.structure), {name: each.clone() for name, each in self.tensors.items()})

    def has_rules_of(self, other: "Content") -> bool:
        """Whether both have the same layers, by type and by the rules that were registered."""
        return [each[:3] for each in self.structure] == [each[:3] for each in other.structure]

    def equals(self, other: "Content") -> bool:
        """Whether both are the same, number by number, on the same device and in the same precision."""
        return same_values(self.structure, other.structure) and same_tensors(self.tensors, other.tensors)


def same_values(first: Any, second: Any) -> bool:
    """Whether both are equal, tensors that are no buffers number by number; not, where they cannot be compared."""
    if isinstance(first, Tensor) and isinstance(second, Tensor):
        return same_tensors({"": first.detach()}, {"": second.detach()})
    if isinstance(first, list | tuple) and type(first) is type(second) and len(first) == len(second):
        return all(same_values(one, two) for one, two in zip(first, second, strict=True))
    if isinstance(first, dict) and type(first) is type(second) and list(first) == list(second):
        return all(same_values(first[key], second[key]) for key in first)
    try:
        return bool(first == second)
    except (RuntimeError, ValueError):
        return False


def same_tensors(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether both have the same numbers by the same names, on the same device and in the same precision."""
    pairs = [(tensor, second.get(name)) for name, tensor in first.items()]
    return len(first) == len(second) and all(
        b is not None and a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
    )


_TORCH_OWN = set(vars(nn.Module()))  # tensors and submodules, compared as such; hooks, refused; the training flag
