"""Factors of a forward that are weights outside of layers, such as `x * self.gain`: by them an estimate follows."""

from collections.abc import Sequence

from torch import fx

from safeset.capture.aten import name_of
from safeset.program.entries import Scale
from safeset.program.piecewise import PReLU
from safeset.program.program import Node

COMPUTED = ""  # instead of the name of a parameter: a factor that is computed from some
SAME_ENTRIES = {"view", "reshape", "unsqueeze", "squeeze", "expand", "permute", "transpose", "flatten", "unflatten"}
SAME_ENTRIES |= {"t", "clone", "detach", "alias", "contiguous", "to", "_to_copy", "neg", "abs"}  # up to their signs


class Factors:
    """Which constants of a graph are parameters, and which nodes of its program multiply with them."""

    def __init__(self) -> None:
        self.by_node: dict[str, str] = {}  # the name of a parameter, or COMPUTED, by that of the program's node
        self._parameters: dict[fx.Node, str] = {}

    def is_parameter(self, node: fx.Node, name: str) -> None:
        """A tensor that the graph takes is a parameter."""
        self._parameters[node] = name

    def computed(self, node: fx.Node) -> None:
        """A constant is computed from others."""
        read = self.read_by(node)
        if read:
            follows = len(read) == 1 and name_of(node.target) in SAME_ENTRIES
            self._parameters[node] = read[0] if follows else COMPUTED

    def made(self, node: fx.Node, nodes: Sequence[Node]) -> None:
        """An operation with numbers that train, its own or its inputs', has become some nodes of the program."""
        read = self.read_by(node)
        for each in nodes:
            if not read:
                self.by_node[each.name] = COMPUTED
            elif isinstance(each.operation, Scale | PReLU):
                follows = (
                    len(read) == 1 and isinstance(each.operation, Scale) and name_of(node.target) in ("mul", "mul_")
                )
                self.by_node[each.name] = read[0] if follows else COMPUTED

    def read_by(self, node: fx.Node) -> list[str]:
        """The parameters that an operation reads."""
        return [self._parameters[each] for each in node.all_input_nodes if each in self._parameters]
