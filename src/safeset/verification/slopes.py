"""How low inequalities can be in a box, for dense ReLU networks: each ReLU between two lines, last to first.

Of a row A·z + constant, where z = Wa + b are the numbers before a ReLU, a row of the numbers before the last ReLU is
made, and so on, until one of the inputs is left, whose least value in the box is known (the bounds of Zhang et al.,
2018). Every line is a true inequality for *any* float64 coefficients, so only two kinds of errors count, and both are
collected in one number that is subtracted at the end: a product that was rounded, times the largest |a| of the box;
and sums of constants. docs/proofs.md has the inequalities.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from safeset.numerics.directed import SUBNORMAL, gamma, up
from safeset.program.linear import Linear
from safeset.program.pointwise import ReLU
from safeset.program.program import Program
from safeset.program.reorder import Flatten, Identity
from safeset.verification.balls import least_products, products_up
from safeset.verification.regions import Boxes
from safeset.verification.rows import Matrix, Rows

MOST_NEURONS = 2**11  # of one layer: the rows of a batch take (boxes · neurons²) numbers
NUMBERS_AT_ONCE = 2**23  # 64 MB


@dataclass(frozen=True, eq=False)
class Layer:
    """Wx + b."""

    weight: Tensor
    bias: Tensor

    @property
    def terms(self) -> int:
        """Of one sum over its outputs, with room for a constant and two more roundings."""
        return max(self.weight.shape) + 3


@dataclass(frozen=True, eq=False)
class Line:
    """Rows that are at least coefficients·(what a layer reads) + constant − error."""

    coefficients: Tensor  # (boxes, rows, entries)
    constant: Tensor  # (boxes, rows)
    error: Tensor  # (boxes, rows)

    def before(self, layer: Layer, sizes: Tensor) -> "Line":
        """Of z = Wa + b as one of a, whose entries are at most ``sizes``, (boxes, entries)."""
        magnitude = self.coefficients.abs()
        made = self.coefficients @ layer.weight
        constant = self.constant + (self.coefficients * layer.bias).sum(dim=2)
        # |fl(AW)·a − AW·a| ≤ γ·|A||W||a|, and the constant is a sum of one term more than A has.
        reach = up(products_up(sizes, layer.weight.abs().T) + layer.bias.abs())  # (boxes, outputs)
        rounded = products_up(magnitude, reach[:, :, None])[:, :, 0]
        rounded = up(up(rounded + self.constant.abs()) * float(gamma(layer.terms)))
        # A product that underflows errs by 2⁻¹⁰⁷⁵ for each pair of entries, times |a|.
        lost = up(layer.terms * SUBNORMAL * up(sizes.sum(dim=1, keepdim=True) * 2 + 2))
        return Line(made, constant, up(up(self.error + rounded) + lost))

    def through_relu(self, low: Tensor, high: Tensor) -> "Line":
        """Of a = ReLU(z) as one of z, which lies between low and high, (boxes, entries).

        Where A ≥ 0, ReLU(z) ≥ αz for any α in [0, 1]; where A < 0, ReLU(z) ≤ s(z − low) if s·(high − low) ≥ high.
        """
        open_ = (low < 0) & (high > 0)
        under = torch.where(open_, (high >= -low).double(), (low >= 0).double())
        # high − low is rounded down and the quotient up; s may come out slightly above 1, which is allowed.
        slope = torch.where(open_, up(high / -up(low - high)), (low >= 0).double())
        shift = torch.where(open_, up(-slope * low), 0.0)
        a = self.coefficients
        falls = a < 0
        made = a * torch.where(falls, slope[:, None], under[:, None])
        # Each product rounds once (and may underflow); 2|z| covers it.
        sizes = torch.maximum(low.abs(), high.abs())
        rounded = products_up(up(up(made.abs() * float(gamma(1))) + SUBNORMAL), sizes[:, :, None])[:, :, 0]
        lifted = products_up(torch.where(falls, -a, 0.0), shift[:, :, None])[:, :, 0]
        return Line(made, self.constant, up(up(self.error + rounded) + lifted))

    def least(self, boxes: Boxes) -> Tensor:
        """The least value in the boxes: (boxes, rows)."""
        a, widest = self.coefficients, boxes.magnitudes[:, :, None]
        found = a.clamp(min=0) @ boxes.low[:, :, None] + a.clamp(max=0) @ boxes.high[:, :, None]
        found = found[:, :, 0] + self.constant
        rounded = up(products_up(a.abs(), widest)[:, :, 0] + self.constant.abs())
        rounded = up(up(rounded * float(gamma(2 * a.shape[2] + 2))) + 2 * a.shape[2] * SUBNORMAL)
        return -up(up(self.error + rounded) - found)


@dataclass(frozen=True, eq=False)
class Slopes:
    """The rows of some cases on a dense ReLU network."""

    layers: tuple[Layer, ...]
    rows: Rows

    @staticmethod
    def of(program: Program, rows: Rows) -> "Slopes | None":
        """None if the program is something else than dense layers and ReLU in turn, or too large."""
        layers = dense_layers(program)
        return None if layers is None else Slopes(layers, rows)

    @property
    def most_boxes(self) -> int:
        """How many boxes fit into memory at a time."""
        most = max(max(layer.weight.shape) for layer in self.layers)
        return max(1, NUMBERS_AT_ONCE // (most * max(2 * most, len(self.rows.bounds))))

    def lower(self, boxes: Boxes) -> tuple[Tensor, Tensor]:
        """What each row is at least, (boxes, rows), and how much each input counts, (boxes, inputs)."""
        known: list[tuple[Tensor, Tensor]] = []  # before each ReLU
        for number, layer in enumerate(self.layers[:-1]):
            every = torch.eye(len(layer.bias), dtype=torch.float64)
            ends = self._back(number, Matrix(torch.cat([every, -every]), None), known, boxes).least(boxes)
            low, high = ends[:, : len(every)], -ends[:, len(every) :]
            known.append((low, high))
        line = self._back(len(self.layers) - 1, self.rows.y, known, boxes)
        low = line.least(boxes)
        if self.rows.x is not None:
            least, off = least_products(self.rows.x, boxes)
            low = -up(up(off - least) - low)
        slopes = line.coefficients.abs().mean(dim=1)
        return low, slopes * (boxes.high - boxes.low)

    def _back(self, last: int, given: Matrix, known: list[tuple[Tensor, Tensor]], boxes: Boxes) -> Line:
        """Rows of what layer ``last`` gives, as rows of the input."""
        shape = (len(boxes), len(given.near))
        none = torch.zeros(shape, dtype=torch.float64)
        line = Line(given.near.expand(len(boxes), -1, -1), none, none)
        sizes = [boxes.magnitudes, *(torch.maximum(-low, high).clamp(min=0) for low, high in known)]
        if given.off is not None:
            layer = self.layers[last]
            reach = up(products_up(sizes[last], layer.weight.abs().T) + layer.bias.abs())
            line = Line(line.coefficients, none, products_up(reach, given.off.T))
        for number in range(last, -1, -1):
            line = line.before(self.layers[number], sizes[number])
            if number:
                line = line.through_relu(*known[number - 1])
        return line


def dense_layers(program: Program) -> tuple[Layer, ...] | None:
    """The dense layers of a chain in which a ReLU follows each but the last; None for any other program."""
    layers: list[Layer] = []
    bent = True
    for number, node in enumerate(program.nodes):
        operation = node.operation
        if node.inputs != (number - 1,):
            return None
        if isinstance(operation, Flatten | Identity):
            continue
        if isinstance(operation, ReLU) and layers:
            bent = True
        elif isinstance(operation, Linear) and bent and operation.weight.shape[1] == node_size(node.shape):
            if max(operation.weight.shape) > MOST_NEURONS:
                return None
            bias = operation.weight.new_zeros(len(operation.weight)) if operation.bias is None else operation.bias
            layers.append(Layer(operation.weight, bias))
            bent = False
        else:
            return None
    return tuple(layers) if layers and not bent else None


def node_size(shape: tuple[int, ...]) -> int:
    """How many numbers enter."""
    return int(torch.Size(shape).numel())
