"""The error function, and GELU written with it by hand, as other libraries export it."""

from dataclasses import dataclass
from fractions import Fraction
from math import isfinite

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.program.activations import GELU, Library

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Erf(Library):
    """The error function: steepest at 0, where its slope is 2/√π."""

    kind = "Erf"
    steepest = Fraction("1.128379167095512573896158903122")

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.erf.default(*inputs)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ErfGELU(Library):
    """x·½(1 + erf(rate·x)): GELU with √½ as its rate, up to the digits that a file has of that.

    With t = rate·x its slope is ½(1 + erf t) + t·e^(−t²)/√π whatever the rate is: as steep as GELU's.
    """

    kind = "GELU"
    rate: float

    def __post_init__(self) -> None:
        """Refuse what is not GELU's form."""
        if not (isfinite(self.rate) and self.rate > 0):
            raise expected("a finite rate > 0 in GELU", self.rate)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        found = _aten.add.Scalar(_aten.erf.default(_aten.mul.Scalar(x, self.rate)), 1.0)
        return _aten.mul.Tensor(_aten.mul.Scalar(x, 0.5), found)  # type: ignore[no-any-return]

    @property
    def steepest(self) -> Fraction:
        """As GELU."""
        return GELU().steepest
