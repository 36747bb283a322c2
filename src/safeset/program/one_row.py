"""Signals of one dimension as images of one row: convolutions and pooling along the only axis."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor

from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Named, Operation, Part, Proved, Shape
from safeset.program.sliding import Sliding

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class OneRow(Operation):
    """What an operation on images does to signals (channels, n): they are its images (channels, 1, n)."""

    kind = "OneRow"
    inside: Sliding

    def constants(self) -> dict[str, Tensor]:
        """Those of the operation inside."""
        return self.inside.constants()

    def settings(self) -> dict[str, Any]:
        """Those of the operation inside, and which it is."""
        return {"inside": self.inside.kind, **self.inside.settings()}

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        out = self.inside.run(_aten.unsqueeze.default(*inputs, 2))
        return _aten.squeeze.dim(out, 2)  # type: ignore[no-any-return]

    def products(self, shape: Shape) -> int:
        """Those of the operation inside."""
        return self.inside.products(_image(shape))

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """That of images of one row."""
        return self.inside.prove(_image(shape), convolutions, witness)

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """That of images of one row."""
        return self.inside.work(_image(shape), witness)

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """That of images of one row."""
        return self.inside.rounding(_image(shape), bound, *before)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """That of images of one row."""
        found = self.inside.exact(deadline, x[0].like(x[0].integers[:, None]))
        return found.like(found.integers[:, 0])

    def second_bound(self, shape: Shape) -> ClosedForm | Iterator[Part] | None:
        """That of images of one row."""
        return self.inside.second_bound(_image(shape))

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """That of images of one row."""
        return self.inside.second_rounding(_image(shape), norm, *before)

    def portable(self, shape: Shape, name: Named) -> Mapping[str, Any] | None:
        """The checker knows images only."""
        return None


def _image(shape: Shape) -> Shape:
    channels, entries = shape
    return (channels, 1, entries)
