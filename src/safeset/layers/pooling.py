"""Pooling by the length of what is pooled: 1-Lipschitz, and unlike a mean it hides no change."""

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count


class L2Pool(nn.Module):
    """√(the sum of squares) over all pixels of a channel, or over disjoint squares of ``size`` × ``size`` pixels.

    (batch, n, h, w) → (batch, n, 1, 1), or (batch, n, h/size, w/size): 1-Lipschitz, because |‖u‖ − ‖v‖| ≤ ‖u − v‖. At
    0 its gradient is taken to be 0.

    >>> L2Pool()(torch.tensor([[[[3.0, 0.0], [0.0, 4.0]]]]))
    tensor([[[[5.]]]])
    """

    def __init__(self, size: int | None = None) -> None:
        super().__init__()
        if size is not None and as_count(size) is None:
            raise expected("`size` to be an integer ≥ 1, or None for all pixels", repr(size))
        self.size = size

    def forward(self, x: Tensor) -> Tensor:
        """Lengths."""
        batch, channels, height, width = x.shape
        size = (height, width) if self.size is None else (self.size, self.size)
        if height % size[0] or width % size[1]:
            raise expected(f"images whose sides are multiples of {self.size}", (height, width))
        squares = x.reshape(batch, channels, height // size[0], size[0], width // size[1], size[1])
        lengths: Tensor = torch.linalg.vector_norm(squares, dim=(3, 5))
        return lengths

    def extra_repr(self) -> str:
        """The size, for printing."""
        return "" if self.size is None else f"{self.size}"
