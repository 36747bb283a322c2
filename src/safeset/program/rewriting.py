"""A program while a pass rewrites it: nodes are replaced one at a time, and what nobody reads any more is left out."""

from collections.abc import Iterator
from dataclasses import replace

from safeset.program.operation import Operation
from safeset.program.program import INPUT, Node, Program


class Rewriting:
    """The nodes of a program, each after those that it reads, and which of them is the answer."""

    def __init__(self, program: Program) -> None:
        self.input_shape = program.input_shape
        self.nodes = list(program.nodes)
        self.answer = len(self.nodes) - 1

    def operation(self, number: int) -> Operation | None:
        """That of a node; None of the input."""
        return None if number == INPUT else self.nodes[number].operation

    def readers(self, number: int) -> list[int]:
        """The nodes that read this one and count for the answer."""
        return [each for each in sorted(self._live) if number in self.nodes[each].inputs]

    def is_read_once(self, number: int) -> bool:
        """Whether one node reads it, and nobody else needs it."""
        return (
            number not in (INPUT, self.answer)
            and sum(self.nodes[each].inputs.count(number) for each in self.readers(number)) == 1
        )

    def put(self, number: int, operation: Operation) -> None:
        """Another operation at the same place."""
        self.nodes[number] = replace(self.nodes[number], operation=operation)

    def leave_out(self, number: int, instead: int) -> None:
        """Let all that read a node read an earlier one instead."""
        assert instead < number
        for reader in range(number + 1, len(self.nodes)):
            place = self.nodes[reader].place
            reads = tuple(instead if each == number else each for each in place.inputs)
            self.nodes[reader] = replace(self.nodes[reader], place=replace(place, inputs=reads))
        if self.answer == number:
            self.answer = instead

    @property
    def live(self) -> Iterator[int]:
        """The nodes that count for the answer, in order, as they are now."""
        return iter(sorted(self._live))

    @property
    def _live(self) -> set[int]:
        found, open_ = set(), [self.answer]
        while open_:
            number = open_.pop()
            if number != INPUT and number not in found:
                found.add(number)
                open_ += self.nodes[number].inputs
        return found

    def program(self) -> Program:
        """What it has become."""
        numbers = {INPUT: INPUT}
        nodes: list[Node] = []
        for number in self.live:
            node = self.nodes[number]
            reads = tuple(numbers[each] for each in node.inputs)
            numbers[number] = len(nodes)
            nodes.append(replace(node, place=replace(node.place, inputs=reads)))
        return Program(self.input_shape, tuple(nodes))
