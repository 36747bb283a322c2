"""The waves of a torus that are stretched most: set apart, and counted as they are inside the image.

See `torus.py`, which finds them; docs/proofs.md has the inequalities.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from safeset.lipschitz.convolution import kernel_norm
from safeset.lipschitz.dense import (
    frobenius,
    gram_matrix,
    mirrored,
    row_sum,
    shifted_bound,
    spectral_bound,
)
from safeset.numerics.directed import Up, gamma

if TYPE_CHECKING:
    from safeset.lipschitz.torus import Torus

ELEMENTS_AT_ONCE = 2**20  # of waves: 8 MB stay in a processor's cache


@dataclass(frozen=True, eq=False)
class Waves:
    """Waves T with ‖A x‖² ≤ rest·‖x‖² + ‖T x‖² for every x of the torus's side (Aᵀ x from the outputs).

    Attributes:
        torus: what they belong to.
        shift: above which waves are set apart.
        rest: proved to be enough for all others.
        frequencies: (waves, 3).
        vectors: (waves, side/2) complex, one value for each channel.
    """

    torus: "Torus"
    shift: float
    rest: Up
    frequencies: Tensor
    vectors: Tensor

    def stretched(self) -> Tensor:
        """The squared stretch of each wave, about: (waves,)."""
        return self.shift + self.vectors.abs().square().sum(dim=1) * self.torus._multiple(self.frequencies)

    def rows(self) -> Iterator[tuple[slice, Tensor]]:
        """T inside the image: some channels at a time, (2·waves, channels, height, width), real and imaginary parts."""
        torus = self.torus
        channels, height, width = torus.shape
        device = self.vectors.device
        cosines, sines, turn = torus._circle
        per_channel = 2 * len(self.vectors) * height * width
        for start in range(0, channels, step := max(1, ELEMENTS_AT_ONCE // max(1, per_channel))):
            some = slice(start, min(start + step, channels))
            part = torch.zeros(
                2, len(self.vectors), some.stop - start, height, width, dtype=torch.float64, device=device
            )
            for group, ys, xs in torus.grids:
                ys, xs = ys.to(device), xs.to(device)
                cell_y, cell_x = torus.cell_of(ys, xs)
                down = self.frequencies[:, :1] * turn[0] * cell_y  # (waves, rows)
                right = self.frequencies[:, 1:2] * turn[1] * cell_x
                angles = (down[:, :, None] + right[:, None, :]) % len(cosines)
                cosine, sine = cosines[angles][:, None], sines[angles][:, None]  # (waves, 1, rows, columns)
                own = self.vectors[:, group * channels + start : group * channels + some.stop, None, None]
                at = (slice(None), slice(None), ys[:, None], xs)
                part[0][at] = own.real * cosine - own.imag * sine
                part[1][at] = own.real * sine + own.imag * cosine
            yield some, part.flatten(0, 1)

    @cached_property
    def error(self) -> Up:
        """‖T − T as computed‖: each entry, two products of a rounded cosine and sine, errs by γ₃(|re| + |im|)."""
        _, height, width = self.torus.shape
        return gamma(3) * 2 * Up(height * width).root() * frobenius(torch.view_as_real(self.vectors))

    def overlaps(self, vectors: Tensor) -> tuple[Tensor, Tensor, Up]:
        """T Tᵀ and T V, as computed, for V (size, k), and a bound of ‖T‖_F."""
        count, like = 2 * len(self.vectors), vectors.new_zeros
        among, across, size = like(count, count), like(count, vectors.shape[1]), Up(0.0)
        shaped = vectors.view(*self.torus.shape, -1)
        for some, part in self.rows():
            flat = part.flatten(1)
            among += flat @ flat.mT
            across += flat @ shaped[some].flatten(0, 2)
            size = size + frobenius(flat) * frobenius(flat)
        return among, across, size.root()

    def bound_without(self, overlaps: tuple[Tensor, Tensor, Up], length: Up, skew: Up) -> Up:
        """Rest + ‖T w‖² for unit vectors w orthogonal to V, from above.

        Args:
            overlaps: those with V.
            length: a bound of ‖V‖_F.
            skew: a bound of ‖VᵀV − I‖.
        """
        if not len(self.vectors):
            return self.rest
        among, across, size = overlaps
        numbers, k = math.prod(self.torus.shape), across.shape[1]
        part = 1 - 2 * float(skew) if skew < 0.25 else 0.0  # at most 1 / (1 + skew)
        among = mirrored(among - part * (across @ across.mT))
        top = max(float(torch.linalg.eigvalsh(among)[-1]), 0.0)
        excess = Up(top * 2.0**-40 + 2.0**-60)
        while (proved := shifted_bound(among[None], float(excess + top))) is None:
            excess = excess * 4
        product = gamma(numbers + 1) * size * length  # of T V
        known = frobenius(across)
        rounding = gamma(numbers + k + 3) * (size * size + known * known) + product * (known * 2 + product)
        return self.rest + _square((proved + rounding).root() + self.error)

    def bound(self, vectors: Tensor | None, gap: int) -> Up:
        """An upper bound of ‖A‖²: σ² ≤ max(‖[Aᵀ V; R·2^gap]‖² / (1 − ‖VᵀV − I‖), rest + ‖T w‖² + 4^−gap).

        Args:
            vectors: (k, *shape), near the largest singular vectors of this side, which need not be orthonormal; or
                None, and the bound is rest + ‖T‖².
            gap: the exponent of the weight of R = A Aᵀ V − V Λ, what they lack of being singular vectors.
        """
        size = math.prod(self.torus.shape)
        if vectors is None:
            nothing = self.torus.convolution.kernel.new_zeros(size, 0)
            return self.bound_without(self.overlaps(nothing), Up(0.0), Up(0.0)) * _ROOM
        kernel = self.torus.convolution.kernel
        basis = torch.linalg.qr(vectors.to(kernel).flatten(1).mT).Q  # (size, k)
        k, length = basis.shape[1], frobenius(basis)
        own, terms = gram_matrix(basis.mT[None])
        skew = row_sum(own[0] - torch.eye(k, dtype=own.dtype, device=own.device)) + gamma(terms + 1) * (length * length)
        if not skew < 0.25:
            return Up(math.inf)
        others = self.bound_without(self.overlaps(basis), length, skew)
        image, back = self.torus.gram(basis.mT.reshape(k, *self.torus.shape))
        image, back = image.flatten(1), back.flatten(1)
        values = back @ basis
        lack = torch.addmm(back, values, basis.mT, alpha=-1.0)
        products = gamma(max(kernel.shape[:2]) * kernel[0, 0].numel())
        norm, image_length = kernel_norm(kernel), frobenius(image)
        image_error = products * norm * length
        lack_error = norm * image_error + products * norm * image_length
        lack_error = lack_error + gamma(k + 1) * (frobenius(back) + frobenius(values) * length)
        lack, lack_error = lack * 2.0**gap, lack_error * 2.0**gap  # exact
        stacked = torch.cat([image, lack], dim=1)
        # An error of the lack counts with the lack, which is small, not with the image: ‖[I; L + E]‖² ≤ ‖[I; L]‖² + …
        stretch = _square(spectral_bound(stacked) + image_error) + lack_error * (frobenius(lack) * 2 + lack_error)
        stretch = stretch * (1 + skew * 2)
        return max(stretch, others + 4.0**-gap) * _ROOM


_ROOM = 1 + 2.0**-50  # for all that underflows: norms are at least 1


def _square(number: Up) -> Up:
    return number * number
