"""The spectral norm of a zero-padded convolution, from above: tori, and what they give away taken back.

The operator is a corner of a circular convolution on any torus large enough. The Fourier transform takes that one apart
into small matrices B(φ), one for each frequency, and so bounds the norm, by a little too much: waves that fill the
torus do not fit into the image. Two steps take that back; docs/proofs.md has the inequalities.

- The few waves that are stretched by more than √shift are set apart. The others are bounded by the shift; those few
  count as they are inside the image, where they overlap.
- The operator's own largest singular vectors, as far as they are known, are split off, and each counts with its own
  stretch, which is computed. What is left over of the waves without these vectors is small. Then the bound is exact,
  to rounding.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from safeset.lipschitz.convolution import Convolution
from safeset.lipschitz.dense import (
    absolute_norm,
    gram_matrix,
    mirrored,
    product_norm,
    shifted_bound,
)
from safeset.lipschitz.waves import Waves
from safeset.numerics.circle import circle
from safeset.numerics.directed import Up, gamma

ELEMENTS_AT_ONCE = 2**20  # of the frequencies' matrices: 8 MB stay in a processor's cache

Grid = tuple[int, Tensor, Tensor]  # pixels of one kind: which part of a wave's vector is theirs, their rows and columns


@dataclass(frozen=True, eq=False)
class Torus:
    """The least torus of a convolution whose weights are scaled, seen from its outputs or from its inputs.

    From the outputs, A Aᵀ ≤ the same of the torus, whose waves have the matrices B(φ)B(φ)*; from the inputs, Aᵀ A and
    B(φ)*B(φ). B(φ)[o, (i, r)] = Σ over taps with d·t = s·m + r of w[o, i, t]·exp(2πi Σ φ·m/N) for pixel r of a cell.
    """

    convolution: Convolution
    outputs: bool

    @staticmethod
    def smaller(convolution: Convolution) -> "Torus":
        """From the side with fewer numbers."""
        return Torus(convolution, math.prod(convolution.outputs) <= math.prod(convolution.inputs))

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the vectors of this side."""
        return self.convolution.outputs if self.outputs else self.convolution.inputs

    @property
    def cells(self) -> tuple[int, int]:
        """Cells along both axes."""
        return self.convolution.rows.least_torus, self.convolution.columns.least_torus

    @property
    def side(self) -> int:
        """Of the matrices of waves, as real ones."""
        out, into = self.convolution.kernel.shape[:2]
        return 2 * (out if self.outputs else into * len(self._taps))

    @property
    def cost(self) -> float:
        """Floating-point operations to bound all waves, about: products, and the eigenvectors of some."""
        out, into = self.convolution.kernel.shape[:2]
        inner = 2 * (into * len(self._taps) if self.outputs else out)
        return len(self.frequencies) * float(max(self.side, 16)) ** 2 * (2 * inner + 10 * self.side)

    def gram(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Other side's vectors Aᵀv (or A v), and A Aᵀv (or Aᵀ A v), of vectors (k, *shape)."""
        if self.outputs:
            image = self.convolution.transposed(vectors)
            return image, self.convolution.apply(image)
        image = self.convolution.apply(vectors)
        return image, self.convolution.transposed(image)

    @cached_property
    def frequencies(self) -> Tensor:
        """(frequencies, 3): φ for both axes, one of φ and −φ, and how many of these two there are."""
        first, second = self.cells
        kept = []
        for a in range(first // 2 + 1):
            alone = (2 * a) % first == 0  # its own conjugate along this axis
            others = range(second // 2 + 1 if alone else second)
            kept += [(a, b, 1 if alone and (2 * b) % second == 0 else 2) for b in others]
        return torch.tensor(kept, device=self.convolution.kernel.device)

    @cached_property
    def _taps(self) -> dict[tuple[int, int], Tensor]:
        """Taps by the pixel of a cell that they read: (taps, 4) shifts in cells, row taps and column taps."""
        groups: dict[tuple[int, int], list[tuple[int, int, int, int]]] = {}
        rows, columns = self.convolution.rows, self.convolution.columns
        for th in range(rows.kernel):
            for tw in range(columns.kernel):
                (mh, rh), (mw, rw) = (
                    divmod(rows.dilation * th, rows.stride),
                    divmod(columns.dilation * tw, columns.stride),
                )
                groups.setdefault((rh, rw), []).append((mh, mw, th, tw))
        return {key: torch.tensor(group, device=self.convolution.kernel.device) for key, group in groups.items()}

    @cached_property
    def _circle(self) -> tuple[Tensor, Tensor, Tensor]:
        """Cosines and sines of a common period of both axes, and how many of its steps a turn by one cell takes."""
        period = math.lcm(*self.cells)
        device = self.convolution.kernel.device
        cosines, sines = (part.to(device) for part in circle(period))
        return cosines, sines, torch.tensor([period // n for n in self.cells], device=device)

    def matrices(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Frequencies, some at a time, and B(φ) as real matrices of twice the size (B(φ)* from the inputs)."""
        kernel = self.convolution.kernel
        cosines, sines, turn = self._circle
        out, into = kernel.shape[:2]
        step = max(1, ELEMENTS_AT_ONCE // (4 * out * into * len(self._taps)))
        for some in torch.split(self.frequencies, step):
            real, imaginary = [], []
            for taps in self._taps.values():
                angles = (some[:, None, :2] * turn * taps[:, :2]).sum(dim=2) % len(cosines)  # (frequencies, taps)
                weights = kernel[:, :, taps[:, 2], taps[:, 3]].reshape(-1, len(taps)).mT  # (taps, out·in)
                real.append((cosines[angles] @ weights).view(-1, out, into))
                imaginary.append((sines[angles] @ weights).view(-1, out, into))
            both = _as_real(torch.cat(real, dim=2), torch.cat(imaginary, dim=2))
            yield some, both if self.outputs else both.mT

    @property
    def matrix_error(self) -> Up:
        """How far the computed B(φ) is from its exact value: √2·γ_{T+1}·‖Σ|w|‖ for T taps."""
        kernel = self.convolution.kernel
        sums = [kernel[:, :, taps[:, 2], taps[:, 3]].abs().sum(dim=2) for taps in self._taps.values()]
        most = max(map(len, self._taps.values()))
        return Up(2.0).root() * gamma(most + 1) * absolute_norm(torch.cat(sums, dim=1)) * (1 + gamma(most))

    def waves(self, shift: float) -> Waves | None:
        """The waves that are stretched by more than √shift, and a proof about all others; None if there is none."""
        found: list[Tensor] = []
        vectors: list[Tensor] = []
        most, magnitude = Up(shift), Up(0.0)
        for frequencies, wide in self.matrices():
            gram, terms = gram_matrix(wide)
            magnitude = max(magnitude, product_norm(wide))
            high = _above(gram, shift)
            if not bool(high.all()):
                proved = shifted_bound(gram[~high], shift)
                if proved is None:
                    return None
                most = max(most, proved + gamma(terms) * magnitude)
            if bool(high.any()):
                chosen, gram = frequencies[high], gram[high]
                apart, left = self._set_apart(chosen, gram, shift)
                # The eigenvectors are rounded: what is left over may reach a little higher than the shift.
                proved = shifted_bound(left, shift * (1 + 1e-9))
                if proved is None:
                    return None
                scale = product_norm(apart * (self._multiple(chosen).sqrt() * (1 + 1e-15))[:, None, None])
                most = max(most, proved + gamma(terms + apart.shape[-1] + 2) * (magnitude + scale))
                place, rank = (apart != 0).any(dim=1)[:, ::2].nonzero(as_tuple=True)
                half = self.side // 2
                found.append(chosen[place])
                vectors.append(torch.complex(apart[:, :half, ::2], apart[:, half:, ::2]).mT[place, rank])
        error = self.matrix_error
        most = most + error * (magnitude.root() * 2 + error)
        return Waves(self, shift, most, torch.cat([self.frequencies[:0], *found]), _joined(vectors, self))

    def _multiple(self, frequencies: Tensor) -> Tensor:
        """Cells / (1 or 2 conjugates): what the square of a wave's vector counts, as waves are not normalised."""
        return (self.cells[0] * self.cells[1]) / frequencies[:, 2].double()

    def _set_apart(self, frequencies: Tensor, gram: Tensor, shift: float) -> tuple[Tensor, Tensor]:
        """Vectors U of the waves above the shift, (frequencies, side, 2·waves) as real, and gram − multiple·U Uᵀ."""
        half = self.side // 2
        values, vectors = torch.linalg.eigh(torch.complex(gram[:, :half, :half], gram[:, half:, :half]))
        count = int((values > shift).sum(dim=1).amax())
        values, vectors = values[:, half - count :], vectors[:, :, half - count :]
        multiple = self._multiple(frequencies)
        length = ((values - shift).clamp(min=0.0) / multiple[:, None]).sqrt()
        vectors = vectors * length[:, None]
        # Columns u and i·u in turn.
        apart = torch.stack(
            [torch.cat([vectors.real, vectors.imag], dim=1), torch.cat([-vectors.imag, vectors.real], dim=1)], dim=3
        ).flatten(2)
        left = gram - multiple[:, None, None] * (apart @ apart.mT)
        return apart, mirrored(left)

    @cached_property
    def grids(self) -> list[Grid]:
        """The pixels of this side that waves reach, by their place in a cell."""
        rows, columns = self.convolution.rows, self.convolution.columns
        if self.outputs:
            live = [axis.reads.any(dim=1).nonzero()[:, 0] for axis in (rows, columns)]
            return [(0, live[0], live[1])]
        places = []
        for group, (rh, rw) in enumerate(self._taps):
            pixels = [
                ((torch.arange(axis.size, device="cpu") + axis.before) % axis.stride == r).nonzero()[:, 0]
                for axis, r in ((rows, rh), (columns, rw))
            ]
            places.append((group, pixels[0], pixels[1]))
        return places

    def cell_of(self, ys: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        """The cells of pixels of this side along both axes."""
        if self.outputs:
            return ys, xs
        rows, columns = self.convolution.rows, self.convolution.columns
        return (ys + rows.before) // rows.stride, (xs + columns.before) // columns.stride


def _above(gram: Tensor, shift: float) -> Tensor:
    """Which of the matrices reach above the shift, as a factorisation has it."""
    shifted = -gram
    diagonal = shifted.diagonal(dim1=1, dim2=2).add_(shift)
    failed: Tensor = torch.linalg.cholesky_ex(shifted).info != 0
    return failed | (diagonal <= 0).any(dim=1)


def _as_real(real: Tensor, imaginary: Tensor) -> Tensor:
    """Complex matrices as real ones of twice the size."""
    return torch.cat([torch.cat([real, -imaginary], dim=2), torch.cat([imaginary, real], dim=2)], dim=1)


def _joined(vectors: list[Tensor], torus: Torus) -> Tensor:
    empty = torch.zeros(0, torus.side // 2, dtype=torch.complex128, device=torus.convolution.kernel.device)
    return torch.cat([empty, *vectors])
