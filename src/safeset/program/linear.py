"""Affine operations without sliding: dense layers, and scale and shift for each channel."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import prod
from typing import Any

import torch
from torch import Tensor

from safeset.errors import expected
from safeset.lipschitz.dense import absolute_norm, isometry_bound, spectral_proof
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.forward_error_exact import Carried
from safeset.lipschitz.forward_error_exact import absolute_norm as exact_absolute_norm
from safeset.lipschitz.witness import Witness, claimed
from safeset.numerics.directed import Up, row_norms
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.numerics.products import dot
from safeset.program.operation import ClosedForm, Named, Operation, Part, Proved, Shape

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Linear(Operation):
    """Wx + b, on the last axis: weight (out, in), bias (out,)."""

    kind = "Linear"
    weight: Tensor
    bias: Tensor | None

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.linear.default(*inputs, self.weight, self.bias)  # type: ignore[no-any-return]

    def products(self, shape: Shape) -> int:
        """One for each weight, at each place."""
        return self.weight.numel() * prod(shape[:-1])

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """By the Gram matrix; a witness spares its eigenvalues."""
        return dense_proof(self.weight, witness)

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """The Gram matrix, its eigenvalues, a factorisation and its check."""
        return dense_work(self.weight, witness)

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """Sums of as many products as there are features, at each place."""
        places, (outputs, features) = prod(shape[:-1]), self.weight.shape
        return before[0].affine(
            sigma=bound,
            alpha=absolute_norm(self.weight),
            fan_in=features,
            bias=bias_norm(self.bias) * Up(places).root(),
            outputs=places * outputs,
        )

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        weight, values = Multiples.of(self.weight), x[0].integers
        product = dot(weight.integers, values.reshape(-1, values.shape[-1]).T, deadline).T
        return shifted(Multiples(product.reshape(*values.shape[:-1], -1), x[0].unit * weight.unit), self.bias, -1)

    def second_bound(self, shape: Shape) -> Iterator[Part]:
        """The matrix as a kernel of one tap."""
        yield Part(self.weight.detach().cpu().numpy()[:, :, None, None], [(0, 0, 0)], [(0, 0, 0)])

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same sums."""
        places = prod(shape[:-1])
        return before[0].summed(
            norm,
            terms=self.weight.shape[1],
            absolute=exact_absolute_norm(self.weight),
            bias=self.bias,
            places=places,
            outputs=places * self.weight.shape[0],
        )

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """On flat features."""
        return {"kind": "linear", "weight": name("weight"), "bias": name("bias")} if len(shape) == 1 else None


@dataclass(frozen=True, eq=False)
class ChannelAffine(Operation):
    """scale·x + shift, channel by channel: what normalisation and batch norm are in evaluation."""

    kind = "ChannelAffine"
    scale: Tensor
    shift: Tensor

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen: one product, one sum."""
        (x,) = inputs
        if x.shape[1] != len(self.scale):  # one channel would be repeated, and the norm larger
            raise expected(f"points with {len(self.scale)} channels", f"{x.shape[1]}")
        shape = (-1, *(1,) * (x.ndim - 2))
        product = _aten.mul.Tensor(x, self.scale.view(shape))
        return _aten.add.Tensor(product, self.shift.view(shape))  # type: ignore[no-any-return]

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The largest |scale|."""
        return Up(float(self.scale.abs().amax())), "closed form", None

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """One product and one sum for each entry."""
        bias = bias_norm(self.shift) * Up(prod(shape[1:])).root()
        return before[0].affine(sigma=bound, alpha=bound, fan_in=1, bias=bias, outputs=prod(shape))

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        scale = Multiples.of(_along(self.scale, x[0].integers.ndim, 0))
        return shifted(Multiples(x[0].integers * scale.integers, x[0].unit * scale.unit), self.shift, 0)

    def second_bound(self, shape: Shape) -> ClosedForm:
        """The largest scale, as a fraction."""
        largest = max(abs(Fraction(scale)) for scale in self.scale.detach().cpu().tolist())
        return ClosedForm(largest**2, float(largest), "closed form: the largest scale, as a fraction")

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """One product and one sum for each entry."""
        return before[0].summed(
            norm, terms=1, absolute=norm, bias=self.shift, places=prod(shape[1:]), outputs=prod(shape)
        )

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its numbers."""
        return {"kind": "affine", "weight": name("scale"), "bias": name("shift")}


def dense_proof(weight: Tensor, witness: Witness | None) -> Proved:
    """A bound of a matrix's norm: as an isometry, if it is nearly one; else by its Gram matrix, and with a witness."""

    def at(given: Witness) -> Up | None:
        found = spectral_proof(weight, given.shift)
        return None if found is None else found[0]

    if witness is not None and witness.kind == "dense" and (bound := witness.confirmed(at)) is not None:
        return bound, "dense", witness
    if (bound := isometry_bound(weight)) is not None:
        return bound, "orthogonal", None
    found = spectral_proof(weight)
    assert found is not None  # without a shift it is looked for until there is one
    bound = claimed(found[0])
    return bound, "dense", Witness("dense", float(bound), found[1])


def dense_work(weight: Tensor, witness: Witness | None) -> float:
    """Floating-point operations of `dense_proof`, about: the Gram matrix, its eigenvalues, a factorisation."""
    small, large = sorted(weight.shape[:2])
    return 2.0 * small**2 * large + (4.0 if witness else 20.0) * small**3


def bias_norm(bias: Tensor | None) -> Up:
    """‖b‖₂ from above; 0 without a bias."""
    return Up(0.0) if bias is None else Up(float(row_norms(bias.detach().double())))


def shifted(x: Multiples, bias: Tensor | None, axis: int) -> Multiples:
    """The sum of x and a bias along the first or the last axis."""
    return x if bias is None else x + Multiples.of(_along(bias, x.integers.ndim, axis))


def _along(numbers: Tensor, dimensions: int, axis: int) -> Tensor:
    """(n,) numbers in a shape that goes with arrays whose axis, the first or the last, has n places."""
    return numbers.view(*([-1] + [1] * (dimensions - 1) if axis == 0 else [-1]))
