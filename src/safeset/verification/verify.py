"""Does a query hold anywhere? *unsat* by proofs, *sat* by a point that is confirmed exactly, else *unknown*.

All verdicts are about the network in real arithmetic, its constants as they are: nothing of it is rounded. A proof
bounds the rounding of its own float64 arithmetic.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from safeset.errors import counted, expected
from safeset.inputs import as_number
from safeset.numerics.integers import Deadline, OutOfTimeError
from safeset.program.linear import Linear
from safeset.program.program import Node, Place, Program
from safeset.program.reorder import Flatten
from safeset.proofs.prove import Proof, prove
from safeset.verification.attack import attack
from safeset.verification.balls import Balls
from safeset.verification.branch import MOST_AT_ONCE, Bound, Outcome, divide
from safeset.verification.formula import Case
from safeset.verification.regions import Box, Boxes, box_of, narrowed
from safeset.verification.rows import Rows, is_contradiction
from safeset.verification.slopes import Slopes
from safeset.verification.vnnlib import REAL, Declared, Query
from safeset.verification.witness import Confirmation, Witness

SECONDS = 60.0
ATTACKS = 0.2  # of the time, before anything is proved
MOST_OUTPUTS = 2**12  # of a network without a linear head, which gets one


@dataclass(frozen=True, eq=False)
class Verdict:
    """The answer to a query.

    Attributes:
        answer: ``"sat"``, ``"unsat"`` or ``"unknown"``.
        reason: why, in words.
        witness: where it holds, if it does.
        timed_out: whether time was over.
        boxes: in how many boxes it was looked.
    """

    answer: str
    reason: str
    witness: Witness | None = None
    timed_out: bool = False
    boxes: int = 0


def verify(
    program: Program, query: Query, *, seconds: float = SECONDS, as_real: bool = False, seed: int = 0
) -> Verdict:
    """Decide a query, or say that it is not decided.

    Args:
        program: the network.
        query: what is asked of it.
        seconds: when to stop; a proof of the network's bounds that has begun is ended first.
        as_real: also decide queries that are declared for float32 or float64, as if they were about real numbers.
        seed: of the random points of the search.

    Raises:
        ArgumentError: if the query is about a network of another shape, or about floats.
    """
    limit = as_number(seconds)
    if limit is None or not limit > 0:
        raise expected("a time limit in seconds, above 0", repr(seconds)[:80])
    deadline = Deadline(time.perf_counter() + limit)
    program = with_head(program)
    _check_shapes(program, query)
    for declared in (query.inputs, query.outputs):
        if declared.type != REAL and not as_real:
            remedy = "Proofs are about real arithmetic: write real in the VNN-LIB file, or give --real (as_real=True)."
            raise expected(f"{declared.name} to be declared as real", declared.type, remedy)
    regions = [_Region.of(program, query, box, cases) for box, cases in boxes_of(query)]
    if not regions:
        return Verdict("unsat", "The inequalities contradict each other, whatever the network is.")
    looked = 0
    try:
        generator = torch.Generator().manual_seed(seed)
        early = Deadline(time.perf_counter() + ATTACKS * limit)
        for region in regions:
            if (witness := region.attacked(generator, early)) is not None:
                return Verdict("sat", "Confirmed exactly.", witness, boxes=looked)
        deadline.check()
        proof = prove(program)
        undecided = 0
        for region in regions:
            outcome = region.decided(proof, deadline)
            looked += outcome.boxes
            if outcome.witness is not None:
                return Verdict("sat", "Confirmed exactly.", outcome.witness, boxes=looked)
            undecided += not outcome.excluded
    except OutOfTimeError:
        return Verdict("unknown", f"Not decided in {limit:g} seconds.", timed_out=True, boxes=looked)
    if undecided:
        reason = "Some inputs have no bounds, or lie too close to the border of what is asked."
        return Verdict("unknown", reason, boxes=looked)
    return Verdict("unsat", f"Proved in {counted(looked, 'box', 'boxes')}.", boxes=looked)


def boxes_of(query: Query) -> list[tuple[Box, list[Case]]]:
    """The boxes that are not empty, and the cases in each, with what they have in common."""
    whole = box_of(query.inputs.size, query.common)
    found: dict[object, tuple[Box, list[Case]]] = {}
    for case in query.cases:
        box = narrowed(whole, case)
        key = None if box is whole else box
        together = (*query.common, *case)
        if not is_contradiction(together):
            found.setdefault(key, (box, []))[1].append(together)
    return [(box, cases) for box, cases in found.values() if not any(each.is_empty for each in box)]


@dataclass(frozen=True, eq=False)
class _Region:
    """The cases of one box."""

    program: Program
    query: Query
    box: Box
    cases: Sequence[Case]
    rows: Rows
    seen: list[tuple[int, Tensor]] = field(default_factory=list)  # cases that seem to hold at points, not confirmed

    @staticmethod
    def of(program: Program, query: Query, box: Box, cases: Sequence[Case]) -> "_Region":
        return _Region(program, query, box, cases, Rows.of(cases, query.inputs.size, query.outputs.size))

    def attacked(self, generator: torch.Generator, deadline: Deadline) -> Witness | None:
        """What gradients find in any case before the deadline."""
        around = Boxes.around(self.box)
        low, high = around.low.clamp(min=-1e3), around.high.clamp(max=1e3)  # some place where there is no bound
        finite = Boxes(torch.minimum(low, around.high), torch.maximum(high, around.low))
        finite = Boxes(finite.low.nan_to_num(), finite.high.nan_to_num())
        try:
            for case in range(len(self.cases)):
                for point in attack(self.program, self.rows, case, finite, generator, deadline):
                    if (found := self._confirmed(case, point, deadline, None)) is not None:
                        return found
                    self.seen.append((case, point))
        except OutOfTimeError:
            pass
        return None

    def _confirmed(self, case: int, point: Tensor, deadline: Deadline, balls: Balls | None) -> Witness | None:
        def holds(points: Tensor) -> bool:
            return balls is not None and self.rows.surely_hold(case, balls.upper_at(points)[0].tolist())

        return Confirmation(self.program, self.query, self.box, self.cases[case], holds).at(point, deadline)

    def decided(self, proof: Proof, deadline: Deadline) -> Outcome:
        """By branch and bound."""
        balls = Balls.of(self.program, proof, self.rows)
        for case, point in self.seen:
            if (found := self._confirmed(case, point, deadline, balls)) is not None:
                return Outcome(found, False, 0)
        slopes = Slopes.of(self.program, self.rows)
        bounds: list[Bound] = [balls] if slopes is None else [balls, slopes]
        most = MOST_AT_ONCE if slopes is None else slopes.most_boxes
        return divide(
            self.program,
            self.rows,
            bounds,
            Boxes.around(self.box),
            lambda case, point: self._confirmed(case, point, deadline, balls),
            deadline,
            min(most, MOST_AT_ONCE),
        )


def with_head(program: Program) -> Program:
    """The program with a linear head: the identity, if its last operation is something else."""
    last = program.nodes[-1] if program.nodes else None
    outputs = program.run(torch.zeros(1, *program.input_shape, dtype=torch.float64, device=program.device))
    shape, size = tuple(outputs.shape[1:]), outputs[0].numel()
    if last is not None and isinstance(last.operation, Linear) and len(shape) == 1:
        return program
    if size > MOST_OUTPUTS:
        raise expected(f"a network with at most {MOST_OUTPUTS:,} outputs", f"{size:,}")
    nodes, number = list(program.nodes), len(program.nodes)
    nodes.append(Node(Place("flat output", "Flatten", (number - 1,), shape, is_layer=True), Flatten(1, -1)))
    same = Linear(torch.eye(size, dtype=torch.float64, device=program.device), None)
    nodes.append(Node(Place("output", "Linear", (number,), (size,), is_layer=True), same))
    return Program(program.input_shape, tuple(nodes))


def _check_shapes(program: Program, query: Query) -> None:
    """Compare what is declared with what the network has; leading axes of size 1, such as a batch of one, are free."""
    for what, declared, own in (
        ("input", query.inputs, program.input_shape),
        ("output", query.outputs, (program.classes,)),
    ):
        if declared.size != math.prod(own) or not _agree(query, declared, own):
            got = f"{declared.name} of shape {list(declared.shape)}"
            raise expected(f"the {what} that the VNN-LIB file declares to have the network's shape {list(own)}", got)


def _agree(query: Query, declared: Declared, own: tuple[int, ...]) -> bool:
    """Whether the shapes are the same; version 1.0 has no shapes, and outputs are flat."""
    return query.version == "1.0" or len(own) == 1 or _without_ones(declared.shape) == _without_ones(own)


def _without_ones(shape: tuple[int, ...]) -> tuple[int, ...]:
    while shape and shape[0] == 1:
        shape = shape[1:]
    return shape
