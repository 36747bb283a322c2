"""Operations that only put entries in another order, or into another shape: permutations, 1-Lipschitz and exact."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from safeset.layers.permutations import shifted_channels
from safeset.numerics.integers import Deadline
from safeset.numerics.multiples import Multiples
from safeset.program.operation import ClosedForm, Named, Shape
from safeset.program.pointwise import Unrounded

_aten = torch.ops.aten


@dataclass(frozen=True, eq=False)
class Reorder(Unrounded):
    """Another order."""

    def order(self, shape: Shape) -> NDArray[np.int64]:
        """Where the entries that leave come from, as places in what enters, flattened."""
        places = torch.arange(math.prod(shape), dtype=torch.float64, device="cpu").view(1, *shape)
        with torch.no_grad():
            return self.run(places)[0].to(torch.int64).numpy()

    def exact(self, deadline: Deadline, *x: Multiples) -> Multiples:
        """The same entries."""
        return x[0].like(x[0].integers.reshape(-1)[self.order(x[0].integers.shape)])

    def second_bound(self, shape: Shape) -> ClosedForm | None:
        """1, if every entry is seen to leave exactly once."""
        if not np.array_equal(np.sort(self.order(shape), axis=None), np.arange(math.prod(shape))):
            return None
        return ClosedForm(Fraction(1), 1.0, "seen to be a permutation")


@dataclass(frozen=True, eq=False)
class Identity(Reorder):
    """x itself; what dropout is in evaluation."""

    kind = "Identity"

    def run(self, *inputs: Tensor) -> Tensor:
        """Nothing."""
        return inputs[0]

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its name."""
        return {"kind": "identity"}


@dataclass(frozen=True, eq=False)
class Flatten(Reorder):
    """Axes start to end, counted with the batch, as one."""

    kind = "Flatten"
    start: int
    end: int

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.flatten.using_ints(*inputs, self.start, self.end)  # type: ignore[no-any-return]

    def portable(self, shape: Shape, name: Named) -> dict[str, Any] | None:
        """If all axes of a point become one."""
        return {"kind": "flatten"} if (self.start, self.end) == (1, -1) else None


@dataclass(frozen=True, eq=False)
class Unshuffle(Reorder):
    """Squares of size × size pixels as channels."""

    kind = "PixelUnshuffle"
    size: int

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.pixel_unshuffle.default(*inputs, self.size)  # type: ignore[no-any-return]

    def portable(self, shape: Shape, name: Named) -> dict[str, Any]:
        """By its size."""
        return {"kind": "unshuffle", "size": [self.size]}


@dataclass(frozen=True, eq=False)
class Shuffle(Reorder):
    """Channels as squares of size × size pixels."""

    kind = "PixelShuffle"
    size: int

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.pixel_shuffle.default(*inputs, self.size)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ChannelShuffle(Reorder):
    """Channels of groups, dealt out in turn."""

    kind = "ChannelShuffle"
    groups: int

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        return _aten.channel_shuffle.default(*inputs, self.groups)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class ChannelShift(Reorder):
    """Some channels a pixel down, as many up, right and left, around the edges; the rest stay."""

    kind = "ChannelShift"
    part: int

    def run(self, *inputs: Tensor) -> Tensor:
        """By ATen."""
        (x,) = inputs
        moving = shifted_channels(x.shape[1], self.part)
        *groups, still = _aten.split_with_sizes.default(x, [moving] * 4 + [x.shape[1] - 4 * moving], 1)
        ways = ((1, 2), (-1, 2), (1, 3), (-1, 3))
        moved = [_aten.roll.default(one, [by], [axis]) for one, (by, axis) in zip(groups, ways, strict=True)]
        return _aten.cat.default([*moved, still], 1)  # type: ignore[no-any-return]
