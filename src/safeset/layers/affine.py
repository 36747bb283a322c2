"""Scales and shifts: numbers for each channel, or for each pixel."""

import torch
from torch import Tensor, nn

from safeset.errors import expected
from safeset.inputs import as_count, as_tensor


class ChannelAffine(nn.Module):
    """scale·x + shift, channel by channel: what normalisation and batch norm are in a frozen network.

    (batch, n, …) → (batch, n, …); scale and shift are (n,).
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        scale, shift = as_tensor(scale, "`scale`"), as_tensor(shift, "`shift`")
        if scale.ndim != 1 or scale.shape != shift.shape:
            raise expected("`scale` and `shift` to be numbers for each channel", f"{scale.shape} and {shift.shape}")
        self.register_buffer("scale", scale.detach().clone())
        self.register_buffer("shift", shift.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        """scale·x + shift."""
        return x * per_channel(self.scale, x) + per_channel(self.shift, x)

    def extra_repr(self) -> str:
        """The number of channels, for printing."""
        return f"{len(self.scale)}"


class Normalize(nn.Module):
    """(x − mean) / std, channel by channel, or with one number for all.

    It counts in the Lipschitz constant, so ε stays in the input's own units.

    >>> Normalize(mean=[0.5], std=[0.25])(torch.ones(1, 1))
    tensor([[2.]])
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor | list[float], std: Tensor | list[float]) -> None:
        super().__init__()
        parts = [as_tensor(part, f"`{name}`") for part, name in ((mean, "mean"), (std, "std"))]
        if parts[0].ndim != 1 or parts[0].shape != parts[1].shape or not bool((parts[1] > 0).all()):
            raise expected("`mean` and `std` to be numbers for each channel, each std above 0", f"{mean} and {std}")
        for name, part in zip(("mean", "std"), parts, strict=True):
            self.register_buffer(name, part.detach().to(torch.get_default_dtype(), copy=True))

    def forward(self, x: Tensor) -> Tensor:
        """(x − mean) / std."""
        return (x - per_channel(self.mean, x)) / per_channel(self.std, x)

    def extra_repr(self) -> str:
        """Mean and standard deviation, for printing."""
        return f"mean={self.mean.tolist()}, std={self.std.tolist()}"


class Centre(nn.Module):
    """x − mean, with one number for all or one for each channel: images in [0, 1] become centred, at no cost.

    >>> Centre()(torch.tensor([[0.25, 1.0]]))
    tensor([[-0.2500,  0.5000]])
    """

    mean: Tensor

    def __init__(self, mean: float | Tensor | list[float] = 0.5) -> None:
        super().__init__()
        numbers = as_tensor(mean, "`mean`")
        if numbers.ndim > 1 or not numbers.numel() or not (numbers.is_meta or bool(numbers.isfinite().all())):
            raise expected("`mean` to be a number, or one for each channel, all finite", mean)
        self.register_buffer("mean", numbers.detach().reshape(-1).to(torch.get_default_dtype(), copy=True))

    def forward(self, x: Tensor) -> Tensor:
        """The difference."""
        return x - per_channel(self.mean, x)

    def extra_repr(self) -> str:
        """The mean, for printing."""
        return f"{self.mean.tolist()}"


class PositionBias(nn.Module):
    """x + p with one learned number for each pixel, the same in all channels; or for each pixel and channel.

    (batch, n, h, w) → the same. p starts at 0.

    Args:
        height: of the image.
        width: of the image.
        channels: give it for a number for each pixel and channel.
    """

    def __init__(self, height: int, width: int, channels: int = 1) -> None:
        super().__init__()
        sizes = [as_count(each) for each in (channels, height, width)]
        if not all(sizes):
            raise expected("`height`, `width` and `channels` to be integers ≥ 1", f"{height}, {width}, {channels}")
        self.bias = nn.Parameter(torch.zeros(*sizes))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        return x + self.bias

    def extra_repr(self) -> str:
        """The sizes, for printing."""
        return ", ".join(map(str, self.bias.shape))


def per_channel(numbers: Tensor, x: Tensor) -> Tensor:
    """(n,) numbers in a shape that goes with (batch, n, …)."""
    return numbers.view(-1, *(1,) * (x.ndim - 2))
