"""What a sliding operation reads, in integers, for the auditor: nothing here is shared with `lipschitz.convolution`."""

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from safeset.numerics.integers import Incidence, incidences
from safeset.numerics.multiples import Array

if TYPE_CHECKING:
    from safeset.program.sliding import Sliding


class Line(NamedTuple):
    """One axis: at tap t output o reads pixel stride·o + dilation·t − before, if there is one."""

    outputs: int
    taps: int
    stride: int
    dilation: int
    before: int


def lines(sliding: "Sliding", size: tuple[int, ...]) -> list[Line]:
    """The two axes, on images of a size."""
    found = []
    parts = zip(sliding.kernel, sliding.stride, sliding.dilation, size, strict=True)
    for place, (taps, stride, dilation, n) in enumerate(parts):
        spare = dilation * (taps - 1)
        if isinstance(sliding.padding, str):
            padding = spare if sliding.padding == "same" else 0  # what is odd goes to the end
            before = padding // 2
        else:
            before = sliding.padding[place]
            padding = 2 * before
        room = n + padding - spare - 1
        outputs = room // stride + 1
        if getattr(sliding, "ceil", False) and room % stride and stride * outputs < n + before:
            outputs += 1  # a kernel may end beyond the padding, but must start before it
        found.append(Line(outputs, taps, stride, dilation, before))
    return found


def outputs_of(sliding: "Sliding", shape: tuple[int, ...]) -> list[int]:
    """Rows and columns that leave, of images (channels, height, width)."""
    return [line.outputs for line in lines(sliding, shape[1:])]


def incidences_of(sliding: "Sliding", shape: tuple[int, ...]) -> list[list[Incidence]]:
    """What the outputs read, along each axis of images."""
    return [incidences(n, *line) for n, line in zip(shape[1:], lines(sliding, shape[1:]), strict=True)]


def patches(sliding: "Sliding", image: Array, padding: int) -> list[tuple[tuple[int, int], Array]]:
    """For each tap what the outputs read there, (channels, height', width')."""
    both = lines(sliding, image.shape[1:])
    sizes = [
        max(line.before + n, line.stride * (line.outputs - 1) + line.dilation * (line.taps - 1) + 1)
        for n, line in zip(image.shape[1:], both, strict=True)
    ]
    padded: Array = np.full((len(image), *sizes), padding, dtype=object)
    inside = (slice(line.before, line.before + n) for n, line in zip(image.shape[1:], both, strict=True))
    padded[:, *inside] = image
    found = []
    for first, second in product(*(range(line.taps) for line in both)):
        rows, columns = (
            slice(line.dilation * t, line.dilation * t + line.stride * (line.outputs - 1) + 1, line.stride)
            for t, line in zip((first, second), both, strict=True)
        )
        found.append(((first, second), padded[:, rows, columns]))
    return found
