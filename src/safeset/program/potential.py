"""A step down a convex potential, x − Bᵀ·relu(Bx + c): what SLL and CPL layers are once their weights are fixed."""

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from safeset.lipschitz.forward_error import Affine, Rounding
from safeset.lipschitz.forward_error_exact import Carried, Line, root, squares
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.linear import Linear, bias_norm
from safeset.program.operation import Operation, Proved, Shape
from safeset.program.pointwise import ReLU
from safeset.program.sliding import Conv2d


@dataclass(frozen=True, eq=False)
class PotentialStep(Operation):
    """x − Bᵀ·relu(Bx + c): max(1, ‖B‖² − 1)-Lipschitz (docs/proofs.md).

    B is a matrix (hidden, n), or a convolution (hidden, n, size, size) with zeros around the image and an odd size.
    """

    kind = "PotentialStep"
    weight: Tensor
    bias: Tensor

    @property
    def there(self) -> Linear | Conv2d:
        """Bx + c."""
        return self._linear(self.weight, self.bias)

    @property
    def back(self) -> Linear | Conv2d:
        """Bᵀy: of a convolution one with the kernel turned around."""
        turned = self.weight.transpose(0, 1)
        return self._linear((turned if turned.ndim == 2 else turned.flip(2, 3)).contiguous(), None)

    def _linear(self, weight: Tensor, bias: Tensor | None) -> Linear | Conv2d:
        if weight.ndim == 2:
            return Linear(weight, bias)
        height, width = weight.shape[2:]
        return Conv2d((1, 1), (height // 2, width // 2), (1, 1), weight, bias, 1)

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        hidden = torch.ops.aten.relu.default(self.there.run(x))
        return torch.ops.aten.sub.Tensor(x, self.back.run(hidden))  # type: ignore[no-any-return]

    def products(self, shape: Shape) -> int:
        """There and back."""
        return 2 * self.there.products(shape)

    def prove(self, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """max(1, ‖B‖² − 1), from a bound of ‖B‖."""
        norm, method, found = self.there.prove(shape, convolutions, witness)
        square = norm * norm
        return Up(1.0) if square <= 2 else Up(math.nextafter(float(square) - 1, math.inf)), method, found

    def work(self, shape: Shape, witness: Witness | None) -> float:
        """That of ‖B‖."""
        return self.there.work(shape, witness)

    def rounding(self, shape: Shape, bound: Up, *before: Rounding) -> Rounding:
        """What the step itself loses at what the program computes so far; what was lost before is stretched by L.

        From a bound L ≥ max(1, ‖B‖² − 1) follow ‖B‖² ≤ 1 + L, and ‖Bᵀrelu(c)‖ ≤ ‖B‖‖c‖ for the size at 0.
        """
        norm, (entering,) = (bound + 1).root(), before
        here = Rounding(Affine(Up(0.0), Up(0.0)), entering.size + entering.error, entering.peak)
        hidden = self.there.rounding(shape, norm, here).exact(Up(1.0))
        lost = here.plus(self.back.rounding(self._hidden(shape), norm, hidden))
        zero = norm * bias_norm(self.bias) * Up(self._places(shape)).root()
        return Rounding(entering.error * bound + lost.error, entering.size * bound + zero, lost.peak)

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """By definition."""
        hidden = ReLU().exact(deadline, self.there.exact(deadline, *x))
        step = self.back.exact(deadline, hidden)
        return x[0] + step.like(-step.integers)

    def reduced(self, bound: Fraction) -> tuple[Operation, Fraction]:
        """The bound holds if it is at least 1, and ‖B‖² ≤ 1 + bound."""
        if bound < 1:
            return self, bound
        more = 1 + bound
        return self.there, Fraction(math.isqrt(more.numerator * more.denominator << 256), more.denominator << 128)

    def second_rounding(self, shape: Shape, norm: Fraction, *before: Carried) -> Carried:
        """The same, in fractions."""
        stretch, (entering,) = root(1 + norm), before
        here = Carried(Line(Fraction(0), Fraction(0)), entering.together, entering.reached)
        hidden = self.there.second_rounding(shape, stretch, here).unrounded(Fraction(1))
        lost = here.plus(self.back.second_rounding(self._hidden(shape), stretch, hidden))
        zero = stretch * root(squares(self.bias) * self._places(shape))
        size = entering.size.times(norm).raised(zero)
        return Carried(entering.strays.times(norm) + lost.strays, size, lost.reached)

    def _hidden(self, shape: Shape) -> Shape:
        """The shape between both."""
        return (*shape[:-1], len(self.weight)) if self.weight.ndim == 2 else (len(self.weight), *shape[1:])

    def _places(self, shape: Shape) -> int:
        """That have the bias."""
        return math.prod(shape[:-1] if self.weight.ndim == 2 else shape[1:])
