"""A program as a module of PyTorch: for what was read from a file, and has no modules of its own."""

import re
from typing import Any

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import all_finite
from safeset.program.operation import Operation
from safeset.program.program import INPUT, Node, Program


class ProgramNetwork(nn.Module):
    """A network that computes what a program computes; the program's numbers are its weights, and do not train.

    >>> from safeset.program.from_modules import program_of
    >>> network = ProgramNetwork(program_of(nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)), (2,)))
    >>> network(torch.zeros(5, 2)).shape, list(network.state_dict())[:2]
    (torch.Size([5, 3]), ['0_weight', '0_bias'])
    """

    def __init__(self, program: Program) -> None:
        super().__init__()
        self.input_shape = program.input_shape
        self.places = list(program.places)
        self.kinds: list[type[Operation]] = []
        self.settings: list[dict[str, Any]] = []
        self.names: list[dict[str, str]] = []  # of each node's weights, by their names in its operation
        for node in program.nodes:
            self.kinds.append(type(node.operation))
            self.settings.append(node.operation.settings())
            self.names.append({part: self._keep(node, part) for part in node.operation.constants()})

    @property
    def program(self) -> Program:
        """With the weights as they are now."""
        return Program(self.input_shape, tuple(map(self._node, range(len(self.places)))))

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) → (batch, classes), in the precision of the weights."""
        return self.program.run(x.to(next(self.parameters()).dtype))

    def extra_repr(self) -> str:
        """Its operations, for printing."""
        return "\n".join(f"({place.name}): {place.type}" for place in self.places)

    def _keep(self, node: Node, part: str) -> str:
        """Store a constant under a name that torch takes, and that is not taken yet."""
        plain = re.sub(r"\W+", "_", f"{node.name}_{part}").strip("_")
        found, count = plain, 1
        while hasattr(self, found):
            count += 1
            found = f"{plain}_{count}"
        tensor = node.operation.constants()[part].detach().clone()
        if tensor.is_floating_point():
            self.register_parameter(found, nn.Parameter(tensor, requires_grad=False))
        else:
            self.register_buffer(found, tensor)
        return found

    def _node(self, number: int) -> Node:
        tensors = {part: getattr(self, name).detach() for part, name in self.names[number].items()}
        return Node(self.places[number], self.kinds[number](**self.settings[number], **tensors))


def check_program(program: Program) -> None:
    """Refuse a program whose weights are not finite, or whose values are not of the shapes that it says."""
    zeros = torch.zeros(1, *program.input_shape, dtype=torch.float64, device=program.device)
    values = {INPUT: zeros}
    for number, node in enumerate(program.nodes):
        for part, tensor in node.operation.constants().items():
            if not all_finite(tensor):
                raise expected("finite weights", f"NaN or infinite ones in {part} of {node.name!r}")
        given = [values[read] for read in node.inputs]
        if tuple(given[0].shape[1:]) != node.shape:
            raise expected(f"{node.name!r} to take inputs of shape {node.shape}", tuple(given[0].shape[1:]))
        values[number] = node.operation.run(*given)
