"""What a node of a program computes: the contract that every kind of operation fulfils, in one class of its own.

An operation is a value: a kind, and constants in float64 that never change. It knows all that is asked of it: what it
computes by ATen's own operations (nothing that anybody patches is on the way), what it is exactly, how its Lipschitz
constant is proved, how its rounding adds up, and all of that a second time, by ways that share no expression with the
first.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline, Floats, Incidence
from safeset.numerics.multiples import Multiples

Shape = tuple[int, ...]  # of one point, without the batch
Proved = tuple[Up, str, Witness | None]  # a proved Lipschitz constant, how it was proved, and with what
Named = Callable[[str], str | None]  # the name that one of the constants has in a file of weights

CONVOLUTIONS = ("auto", "exact", "torus")


class ClosedForm(NamedTuple):
    """The least Lipschitz constant by a formula: its square exactly, the constant, and why."""

    square: Fraction
    constant: float
    why: str


class Part(NamedTuple):
    """A linear map as a kernel and what its outputs read along each axis; its norm is ``divisor`` times too large."""

    kernel: Floats
    rows: list[Incidence]
    columns: list[Incidence]
    divisor: int = 1


@dataclass(frozen=True, eq=False)
class Operation(ABC):
    """One kind of operation with its constants.

    ``shape`` is that of one point that enters, ``before`` what is known at each input.

    Attributes:
        kind: what it is called, for people.
    """

    kind: ClassVar[str]

    # -- what it is ---------------------------------------------------------------------------------------------------

    def constants(self) -> dict[str, Tensor]:
        """Its tensors, by the names that they have in a layer."""
        return {each.name: value for each in fields(self) if isinstance(value := getattr(self, each.name), Tensor)}

    def settings(self) -> dict[str, Any]:
        """What else it is made of, as plain values."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.name not in self.constants()}

    @property
    def assumption(self) -> str | None:
        """What is believed of the library, not proved, in words that go on after "assuming that"; None if nothing."""
        return None

    def __deepcopy__(self, memo: Any) -> "Operation":
        """A copy with tensors of its own."""
        parts = {each.name: copy.deepcopy(getattr(self, each.name), memo) for each in fields(self)}
        return type(self)(**parts)

    # -- the program --------------------------------------------------------------------------------------------------

    @abstractmethod
    def run(self, *inputs: Tensor) -> Tensor:
        """Of a batch, (batch, *shape) → (batch, …), by ATen's own operations. Nothing is computed in place."""

    def products(self, shape: Shape) -> int:
        """Multiplications of one point, about."""
        return 0

    # -- proofs -------------------------------------------------------------------------------------------------------

    @abstractmethod
    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """An upper bound of the Lipschitz constant, its method and its witness; quick if a given one is confirmed."""

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """Floating-point operations of `prove`, about: to show how far a proof is, and to share it among threads."""
        return 0.0

    def refinement(self, shape: Shape) -> tuple[float, float]:
        """What an exact bound takes beyond a rough one, in floating-point operations, about, and what it may gain."""
        return 0.0, 0.0

    def reach(self, bound: Up, *before: Up) -> Up:
        """The Lipschitz constant of all up to here, from its own bound and those of all up to its inputs."""
        return bound * before[0]

    @abstractmethod
    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """What its float64 program adds to the rounding."""

    # -- the same again, for the auditor and for sceptics -------------------------------------------------------------

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """What it is at one point, without rounding."""
        raise self.unknown("exact arithmetic")

    def second_bound(self, shape: Shape) -> ClosedForm | Iterator[Part] | None:
        """What its Lipschitz constant is by definition: a formula, or the linear map itself; None if unknown."""
        return None

    def reduced(self, bound: Fraction) -> tuple["Operation", Fraction]:
        """Another operation, and what its Lipschitz constant must be at most, for the bound of this one to hold."""
        return self, bound

    def second_reach(self, bound: Fraction, *before: Fraction) -> Fraction:
        """`reach` in fractions."""
        return bound * before[0]

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """What its rounding adds, in fractions, if its Lipschitz constant is at most ``norm``."""
        raise self.unknown("fractions")

    def portable(self, shape: Shape, name: Named) -> Mapping[str, Any] | None:
        """Plain values from which `check.py` knows it; None if it does not."""
        return None

    def unknown(
        self,
        where: str,
        why: str = "Layers of your own have no second form: what they are is known to their rule alone.",
    ) -> UnsupportedLayerError:
        """That nothing is known of it elsewhere than in its own rule."""
        return UnsupportedLayerError(f"Expected an operation that is known in {where}, but got {self}. {why}")
