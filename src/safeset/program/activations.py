"""Smooth activations: functions φ of one number that need one of the library's, entry by entry.

Their steepest slopes are known to 30 digits. What the library's exp, tanh and the like lose by rounding nobody has
proved, so it is an assumption that certificates name; all else follows from it (docs/proofs.md, "Activations").
"""

from abc import abstractmethod
from dataclasses import dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from math import isfinite, prod

import numpy as np
import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import LEAST, UNIT, Carried, root
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Operation, Proved, Shape

_aten = torch.ops.aten

NEARLY = 64 * UNIT  # at least what each activation errs by, of 1 or of its argument, if the assumption is true
TINY = 64 * LEAST
ASSUMPTION = "exp, expm1, log1p, erf and tanh, as the library computes them, are within 8 units in the last place"
LARGEST_THRESHOLD = 700.0  # of softplus: above, exp overflows before it is left out


@dataclass(frozen=True, eq=False)
class Activation(Operation):
    """Some φ, of each entry."""

    @property
    @abstractmethod
    def steepest(self) -> Fraction:
        """No slope of φ is larger."""

    @property
    def at_zero(self) -> Fraction:
        """|φ(0)|, from above."""
        return Fraction(0)

    @property
    @abstractmethod
    def strays(self) -> tuple[Fraction, Fraction]:
        """(relative, absolute): what is computed at v is within relative·|v| + absolute of φ(v)."""

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The steepest slope."""
        return Up.above(self.steepest), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """As far as the library strays, at each entry."""
        entries, (relative, absolute) = Up(prod(shape)).root(), self.strays
        return before[0].bent(
            bound,
            zero=entries * Up.above(self.at_zero),
            relative=Up.above(relative),
            absolute=entries * Up.above(absolute),
        )

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition, where it has fractions."""
        return Multiples.from_fractions(np.vectorize(self.value, otypes=[object])(x[0].fractions()))

    def value(self, number: Fraction) -> Fraction:
        """Φ of one number, exactly."""
        raise self.unknown("fractions", "Its values are none.")

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The steepest slope."""
        return ClosedForm(self.steepest**2, float(self.steepest), "closed form: the steepest slope, to 30 digits")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """As far as the library strays, at each entry."""
        relative, absolute = self.strays
        zero, all_of_it = (root(prod(shape) * each**2) for each in (self.at_zero, absolute))
        return before[0].bent(norm, zero=zero, relative=relative, absolute=all_of_it)


@dataclass(frozen=True, eq=False)
class Library(Activation):
    """A φ that needs a function of the library."""

    @property
    def assumption(self) -> str:
        """What is not proved of the library."""
        return ASSUMPTION

    @property
    def strays(self) -> tuple[Fraction, Fraction]:
        """In proportion to what enters."""
        return NEARLY, TINY


@dataclass(frozen=True, eq=False)
class Tanh(Library):
    """The hyperbolic tangent."""

    kind = "Tanh"
    steepest = Fraction(1)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.tanh.default(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Sigmoid(Library):
    """1 / (1 + e⁻ˣ): ½ at 0."""

    kind = "Sigmoid"
    steepest = Fraction(1, 4)
    at_zero = Fraction(1, 2)
    strays = (Fraction(0), NEARLY)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.sigmoid.default(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class SiLU(Library):
    """x·sigmoid(x)."""

    kind = "SiLU"
    steepest = Fraction("1.099839320128866916958184924321")  # at 2.3993…

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.silu.default(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class GELU(Library):
    """x·½(1 + erf(x/√2)), or with tanh(√(2/π)(x + 0.044715x³)) instead of erf if ``approximate`` is ``"tanh"``."""

    kind = "GELU"
    approximate: str = "none"

    def __post_init__(self) -> None:
        """Refuse other forms."""
        if self.approximate not in ("none", "tanh"):
            raise expected("GELU with approximate='none' or 'tanh'", repr(self.approximate))

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.gelu.default(*inputs, approximate=self.approximate)  # type: ignore[no-any-return]

    @property
    def steepest(self) -> Fraction:
        """At √2, or near it."""
        by_erf, by_tanh = "1.128904145185154786340744442262", "1.128993068658771765455904470400"
        return Fraction(by_tanh if self.approximate == "tanh" else by_erf)


@dataclass(frozen=True, eq=False)
class Mish(Library):
    """x·tanh(softplus(x))."""

    kind = "Mish"
    steepest = Fraction("1.088498161251727861228293627393")  # at 1.4905…

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.mish.default(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Softplus(Library):
    """log(1 + e^(beta·x)) / beta.

    Where beta·x is above the threshold torch gives x instead: what runs jumps there, by log(1 + e^−threshold) / beta,
    and has no Lipschitz constant. What is bounded is the function without the jump; the jump counts as rounding.
    """

    kind = "Softplus"
    steepest = Fraction(1)
    beta: float = 1.0
    threshold: float = 20.0

    def __post_init__(self) -> None:
        """Refuse what would overflow."""
        if not (0 < self.beta < float("inf") and -LARGEST_THRESHOLD <= self.threshold <= LARGEST_THRESHOLD):
            what = f"softplus with a finite beta > 0 and a threshold in −{LARGEST_THRESHOLD:g}…{LARGEST_THRESHOLD:g}"
            raise expected(what, f"beta={self.beta}, threshold={self.threshold}")

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.softplus.default(*inputs, self.beta, self.threshold)  # type: ignore[no-any-return]

    @property
    def at_zero(self) -> Fraction:
        """(log 2) / beta."""
        return _softplus(Fraction(0)) / Fraction(self.beta)

    @property
    def strays(self) -> tuple[Fraction, Fraction]:
        """In proportion to what enters, and the jump: it is largest where the threshold is reached but for rounding."""
        threshold = Fraction(self.threshold)
        jump = _softplus(-threshold + 2 * UNIT * abs(threshold))
        return NEARLY, (NEARLY + jump) / Fraction(self.beta) + TINY


@dataclass(frozen=True, eq=False)
class ELU(Library):
    """scale·x, and scale·alpha·(e^(input_scale·x) − 1) below 0; SELU and CELU are such."""

    kind = "ELU"
    alpha: float = 1.0
    scale: float = 1.0
    input_scale: float = 1.0

    def __post_init__(self) -> None:
        """Refuse what grows without end below 0."""
        if not all(map(isfinite, (self.alpha, self.scale, self.input_scale))) or self.input_scale < 0:
            raise expected("finite alpha and scales of ELU, the input's ≥ 0", self)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.elu.default(*inputs, self.alpha, self.scale, self.input_scale)  # type: ignore[no-any-return]

    @property
    def steepest(self) -> Fraction:
        """On either side of 0."""
        below = Fraction(self.alpha) * Fraction(self.scale) * Fraction(self.input_scale)
        return max(abs(Fraction(self.scale)), abs(below))

    @property
    def strays(self) -> tuple[Fraction, Fraction]:
        """In proportion to what enters, and to the slopes."""
        least = 1 + self.steepest + abs(Fraction(self.alpha) * Fraction(self.scale))
        return NEARLY * self.steepest, TINY * least


def _softplus(number: Fraction) -> Fraction:
    """log(1 + e^number), from above; the exp and ln of decimals are rounded correctly."""
    with localcontext() as context:
        context.prec = 400  # so that nothing of 1 + e^−700 is lost
        power = (Decimal(number.numerator) / Decimal(number.denominator)).exp()
        return Fraction((1 + power).ln()) * (1 + Fraction(1, 10**30))
