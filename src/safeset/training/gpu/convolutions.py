"""Convolutions in training: those of several networks at once, and in bfloat16."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from safeset.numerics.strict import Instead


def one_by_one() -> Instead:
    """While active, convolutions under `torch.func.vmap` are those of each network, one after another.

    torch's own rule makes one grouped convolution of them, which cuDNN computes in just as many kernels, slower ones,
    between copies of everything that goes in and comes out.
    """
    return Instead({torch.conv2d: _convolve})


def halves() -> Instead:
    """While active, convolutions take and give bfloat16, and linear layers float32 as ever."""
    return Instead({torch.conv2d: _half, torch.nn.functional.linear: _whole})


def _half(*args: Any, **kwargs: Any) -> Tensor:
    halved: list[Any] = [each.bfloat16() if isinstance(each, Tensor) else each for each in args]
    return torch.conv2d(*halved, **kwargs)


def _whole(*args: Any, **kwargs: Any) -> Tensor:
    # Layers that take their weights in the precision of what comes in have them in bfloat16 after a convolution.
    whole: list[Any] = [each.float() if isinstance(each, Tensor) else each for each in args]
    return torch.nn.functional.linear(*whole, **kwargs)


def _convolve(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    return _Convolution.apply(x, weight, bias, stride, padding, dilation, groups)  # type: ignore[no-any-return, no-untyped-call]


class _Convolution(torch.autograd.Function):
    """A convolution that knows how to be batched; only its rule for that is ever called."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: Any) -> Tensor:
        raise NotImplementedError

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        raise NotImplementedError

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Tensor, int]:
        def each(tensor: Tensor | None, dimension: int | None) -> Sequence[Tensor | None]:
            if tensor is None or dimension is None:
                return [tensor] * info.batch_size
            return tensor.unbind(dimension)

        parts = zip(*map(each, args[:3], in_dims[:3]), strict=True)
        return torch.stack([torch.conv2d(*part, *args[3:]) for part in parts]), 0
