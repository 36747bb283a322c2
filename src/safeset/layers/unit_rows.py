"""A head whose rows have norm 1: differences of logits cannot be scaled up, only turned."""

import math

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count


class UnitRowLinear(nn.Module):
    """Wx + b whose rows are ``directions`` divided by their norms: (batch, into) → (batch, out). Usually the head.

    >>> UnitRowLinear(4, 3).weight.detach().norm(dim=1).round(decimals=5)
    tensor([1., 1., 1.])
    """

    directions: nn.Parameter
    bias: nn.Parameter | None

    def __init__(self, into: int, out: int, bias: bool = True) -> None:
        super().__init__()
        if as_count(into) is None or as_count(out) is None:
            raise expected("sizes of a layer to be integers ≥ 1", f"{into!r} and {out!r}")
        self.directions = nn.Parameter(torch.randn(out, into) / math.sqrt(into))
        self.bias = nn.Parameter(torch.zeros(out)) if bias else None

    @property
    def weight(self) -> Tensor:
        """(out, into) rows of norm 1, with gradient."""
        norms: Tensor = torch.linalg.vector_norm(self.directions, dim=1, keepdim=True)
        return self.directions / norms

    def forward(self, x: Tensor) -> Tensor:
        """Wx + b."""
        return nn.functional.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        out, into = self.directions.shape
        return f"{into}, {out}, bias={self.bias is not None}"
