"""Shortcuts: x + body(x)."""

from torch import Tensor, nn


class Residual(nn.Module):
    """x + body(x): its Lipschitz constant is at most 1 + that of the body."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.body(x)  # type: ignore[no-any-return]
