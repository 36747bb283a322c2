"""Branch and bound: boxes in which no case can hold are proved to be so, others are divided, until time is over."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from safeset.numerics.integers import Deadline
from safeset.program.program import Program
from safeset.verification.regions import Boxes
from safeset.verification.rows import Rows
from safeset.verification.witness import Witness

MOST_AT_ONCE = 512  # boxes
NUMBERS_AT_ONCE = 2**22  # of the inputs of these
PRODUCTS_AT_ONCE = 2**30  # of the network at these

Confirm = Callable[[int, Tensor], Witness | None]  # a case and a point


class Bound(Protocol):
    """Knows how low rows can be in boxes."""

    def lower(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """What each row is at least, (boxes, rows), and how much each input counts, (boxes, inputs)."""


@dataclass(frozen=True)
class Outcome:
    """What has come of a box: a witness, or whether all of it was excluded; and in how many boxes."""

    witness: Witness | None
    excluded: bool
    boxes: int


def divide(
    program: Program,
    rows: Rows,
    bounds: Sequence[Bound],
    box: Boxes,
    confirm: Confirm,
    deadline: Deadline,
    most: int = MOST_AT_ONCE,
) -> Outcome:
    """Exclude every case everywhere in a box, or find a point at which one holds.

    Args:
        program: the network.
        rows: of the cases.
        bounds: of these rows; the last one says along which input a box is divided.
        box: one box.
        confirm: decides exactly about a point at which a case seems to hold.
        deadline: when to stop; `OutOfTimeError` is raised then.
        most: boxes at a time.
    """
    most = max(1, min(most, NUMBERS_AT_ONCE // box.low.shape[1], PRODUCTS_AT_ONCE // max(1, program.products)))
    waiting, open_ = box, torch.ones(1, len(rows.members), dtype=torch.bool)
    looked, stuck = 0, False
    while len(waiting):
        deadline.check()
        some, cases = waiting[-most:], open_[-most:]
        waiting, open_ = waiting[:-most], open_[:-most]
        looked += len(some)
        for bound in bounds:
            low, counts = bound.lower(some)
            cases = cases & ~rows.excludes(low)
        left = cases.any(dim=1)
        some, cases, counts = some[left], cases[left], counts[left]
        if not len(some):
            continue
        if (witness := _look(program, rows, some, cases, confirm)) is not None:
            return Outcome(witness, False, looked)
        axes, can = _axes(some, counts)
        stuck = stuck or not bool(can.all())
        halves, divided = some[can].divided(axes[can])
        assert bool(divided.all())  # `_axes` has looked
        waiting, open_ = waiting.and_others(halves), torch.cat([open_, cases[can], cases[can]])
    return Outcome(None, not stuck, looked)


def _axes(boxes: Boxes, counts: Tensor) -> tuple[Tensor, Tensor]:
    """Along which input to divide each box, (boxes,), and which boxes can be divided at all."""
    middle = boxes.centres
    possible = (boxes.low < middle) & (middle < boxes.high) & (boxes.high - boxes.low).isfinite()
    wanted = torch.where(possible, counts.nan_to_num(0.0, 0.0, 0.0).clamp(min=0), -1.0)
    # Where nothing counts, the widest.
    widest = torch.where(possible, boxes.high - boxes.low, -1.0)
    axes = torch.where(wanted.amax(dim=1) > 0, wanted.argmax(dim=1), widest.argmax(dim=1))
    return axes, possible.any(dim=1)


def _look(program: Program, rows: Rows, boxes: Boxes, cases: Tensor, confirm: Confirm) -> Witness | None:
    """A witness among the centres, if the best of them seems to be one."""
    centres = boxes.centres.nan_to_num()
    with torch.no_grad():
        outputs = program.run(centres.view(-1, *program.input_shape)).flatten(1)
        excess = torch.where(cases, rows.excess(centres, outputs), torch.inf)
    place = int(excess.argmin())
    number, case = divmod(place, excess.shape[1])
    return confirm(case, centres[number]) if excess[number, case] <= 0 else None
