"""Convolution, bias, MinMax and downsampling as one layer of training: the products, and one pass over memory.

On a GPU a step of training mostly waits for memory: bias, MinMax and downsampling, each for itself, go over a
convolution's output five times forward and as often backward. Here Triton goes over it once, by the kernels of
`safeset.training.gpu.kernels`. Images lie channels last in between, as tensor cores take them.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any, TypeGuard, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from safeset.errors import UnsupportedLayerError, expected
from safeset.layers import InvertibleDownsampling, LinearResidualConv2d, MinMax
from safeset.layers.min_max import in_front
from safeset.program.rules import check_untouched
from safeset.training.gpu.shifts import shift_part

Kind = TypeVar("Kind", bound=nn.Module)
Part = Callable[[Tensor, bool], Tensor]
TRITON = find_spec("triton") is not None
LARGEST = 2**31  # numbers in a tensor: kernels count in 32 bits
KERNELS = "safeset.training.gpu.kernels"
SIZES = (1, 2, 4)  # of squares that kernels can downsample


@cache
def can_fuse(device: torch.device) -> bool:
    """Whether blocks are faster than their layers there: on a GPU, with a Triton that works (it needs a compiler)."""
    if device.type != "cuda" or not TRITON:
        return False
    tiny = torch.zeros(1, 2, 1, 1, device=device)
    try:
        _passes(tiny).finish(
            tiny, tiny.flatten(), tiny.clone(), torch.zeros(1, 1, 1, 1, dtype=torch.bool, device=device), 1
        )
    except Exception as error:  # whatever Triton, the compiler or the driver raise
        text = f"{type(error).__name__}: {str(error)[:200]}"
        warnings.warn(f"Triton does not work here ({text}): training takes longer.", RuntimeWarning, stacklevel=2)
        return False
    return True


@dataclass(frozen=True)
class Block:
    """A convolution with a bias, MinMax, and perhaps downsampling.

    Attributes:
        layer: the convolution, or a linear residual one, whose kernel has the identity in it.
        size: of the squares that become pixels; 1 without downsampling.
        flat: whether a `Flatten` comes next: then the channels of the output lie first in memory, else last.
    """

    layer: nn.Conv2d | LinearResidualConv2d
    size: int
    flat: bool

    def __call__(self, x: Tensor, half: bool) -> Tensor:
        """(batch, c, h, w) → (batch, c', h', w'), with gradient; the products in bfloat16 if asked."""
        layer = self.layer
        assert layer.bias is not None
        given = (x[None], layer.weight[None], layer.bias[None])
        return _Block.apply(*given, self, half)[0].squeeze(0)  # type: ignore[no-any-return, no-untyped-call]

    def convolution(self) -> tuple[Any, ...]:
        """Stride, padding, dilation; not transposed; groups: as torch's own functions take them."""
        layer = self.layer
        if isinstance(layer, LinearResidualConv2d):
            middle = layer.kernel.shape[2] // 2
            return (1, 1), (middle, middle), (1, 1), False, (0, 0), 1
        return layer.stride, layer.padding, layer.dilation, False, (0, 0), layer.groups


def blocks_of(network: nn.Module, *, shifts: bool = False) -> list[nn.Module | Part]:
    """The layers of a network in a row, blocks where there are any, also those of shift nets if asked.

    Of another network, itself.
    """
    if not _plain(network, nn.Sequential):
        return [network]
    layers: list[nn.Module] = list(network)
    found: list[nn.Module | Part] = []
    while layers:
        known = shift_part(layers) if shifts else None
        if known is not None and all(_plain(each, type(each)) for each in layers[: known[1]]):
            found.append(known[0])
            layers = layers[known[1] :]
            continue
        layer = layers.pop(0)
        if not (_fits(layer) and layers and _plain(layers[0], MinMax)):
            found.append(layer)
            continue
        layers.pop(0)
        size, behind = 1, layers[0] if layers else None
        if behind is not None and _plain(behind, InvertibleDownsampling) and behind.size in SIZES:
            size = behind.size
            layers.pop(0)
        found.append(Block(layer, size, flat=any(type(each) is nn.Flatten for each in layers[:1])))
    return found


class InBlocks(nn.Module):
    """The logits of a net by blocks; its parameters have the names that they have in the net.

    Args:
        network: the net's.
        half: whether the products of blocks are in bfloat16.
        shifts: whether layers of shift nets are blocks too; those of several networks at once cannot be.
    """

    def __init__(self, network: nn.Module, *, half: bool = False, shifts: bool = False) -> None:
        super().__init__()
        self.network, self.halved, self.parts = network, half, blocks_of(network, shifts=shifts)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, *input_shape) → (batch, classes)."""
        for part in self.parts:
            x = part(x) if isinstance(part, nn.Module) else part(x, self.halved)
        return x


def _plain(layer: nn.Module, kind: type[Kind]) -> TypeGuard[Kind]:
    """Whether a layer is exactly of this type, unchanged and without hooks."""
    try:
        check_untouched(layer)
    except UnsupportedLayerError:
        return False
    return type(layer) is kind and not (layer._backward_hooks or layer._backward_pre_hooks)


def _fits(layer: nn.Module) -> TypeGuard[nn.Conv2d | LinearResidualConv2d]:
    if _plain(layer, nn.Conv2d):
        zeros = layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
        return zeros and _in_halves(layer.weight, layer.bias)
    return _plain(layer, LinearResidualConv2d) and _in_halves(layer.kernel, layer.bias)


def _in_halves(kernel: Tensor, bias: Tensor | None) -> bool:
    """Whether channels can be compared in pairs, as the passes do it: with biases, in float32."""
    return bias is not None and len(kernel) % 2 == 0 and kernel.dtype == torch.float32


class _Block(torch.autograd.Function):
    """Blocks of several networks, one after another: x (networks, batch, c, h, w), weights and biases stacked too.

    It can be differentiated once.
    """

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor, block: Block, half: bool) -> tuple[Tensor, Tensor]:
        for place in range(len(x)):
            images, weights = _ready(x[place], half), _ready(weight[place], half)
            found = _last(torch.ops.aten.convolution(images, weights, None, *block.convolution()))
            if place == 0:
                out, swapped = _room(len(x), found, block)
            _passes(found).finish(found, bias[place].contiguous(), out[place], swapped[place], block.size)
        return out, swapped

    @staticmethod
    def setup_context(
        ctx: Any, inputs: tuple[Tensor, Tensor, Tensor, Block, bool], output: tuple[Tensor, Tensor]
    ) -> None:
        x, weight, _, ctx.block, ctx.half = inputs
        ctx.set_materialize_grads(False)  # no zeros for what has no gradient
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:
        x, weight, swapped = ctx.saved_tensors
        wanted = [ctx.needs_input_grad[0], True, False]
        layout = torch.contiguous_format if ctx.block.flat else torch.channels_last
        inputs, weights, biases = [], [], []
        for place in range(len(x)):
            images, own = _ready(x[place], ctx.half), _ready(weight[place], ctx.half)
            following = gradient[place].contiguous(memory_format=layout)
            batch, height, width, channels = swapped.shape[1:]
            found = images.new_empty(batch, height, width, 2 * channels).permute(0, 3, 1, 2)
            biases.append(_passes(found).unfinish(following, swapped[place], found, ctx.block.size))
            one = torch.ops.aten.convolution_backward(found, images, own, None, *ctx.block.convolution(), wanted)
            inputs.append(one[0])
            weights.append(one[1].to(weight.dtype))
        before = _stack(inputs).to(x.dtype) if wanted[0] else None
        return before, torch.stack(weights), torch.stack(biases), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        stacks = in_front(info.batch_size, args[:3], in_dims[:3])
        found = _Block.apply(*(each.flatten(0, 1) for each in stacks), *args[3:])  # type: ignore[no-untyped-call]
        return tuple(each.unflatten(0, stacks[0].shape[:2]) for each in found), (0, 0)


def finish(found: Tensor, bias: Tensor, out: Tensor, swapped: Tensor, size: int) -> None:
    """Bias, MinMax and downsampling.

    Args:
        found: (batch, c, h, w), a convolution's output without bias, channels last in memory.
        bias: (c,).
        out: (batch, c·size², h/size, w/size), to be written.
        swapped: (batch, h, w, c/2), to be written: whether the first of two channels is below the second.
        size: of the squares that become pixels.
    """
    first, second = (found.float() + bias[:, None, None]).chunk(2, dim=1)
    swapped.copy_((first < second).permute(0, 2, 3, 1))
    out.copy_(functional.pixel_unshuffle(torch.cat(_exchange(first, second, swapped), dim=1), size))


def unfinish(gradient: Tensor, swapped: Tensor, found: Tensor, size: int) -> Tensor:
    """From the gradient of ``out`` to that of ``found``, which is written; returns that of the bias, (c,)."""
    larger, smaller = functional.pixel_shuffle(gradient.float(), size).chunk(2, dim=1)
    both = torch.cat(_exchange(larger, smaller, swapped), dim=1)
    found.copy_(both)
    return both.sum(dim=(0, 2, 3))


def _exchange(first: Tensor, second: Tensor, swapped: Tensor) -> list[Tensor]:
    where = swapped.permute(0, 3, 1, 2)
    return [torch.where(where, second, first), torch.where(where, first, second)]


def _passes(found: Tensor) -> ModuleType:
    """Who has `finish` and `unfinish` for such a tensor: Triton, or torch here."""
    return import_module(KERNELS if found.is_cuda and found.numel() < LARGEST else __name__)


def _ready(tensor: Tensor, half: bool) -> Tensor:
    """Images or weights, as they go into products."""
    return _last(tensor.bfloat16() if half else tensor)


def _last(tensor: Tensor) -> Tensor:
    return tensor.contiguous(memory_format=torch.channels_last)


def _room(count: int, found: Tensor, block: Block) -> tuple[Tensor, Tensor]:
    """Memory for what `finish` writes, of so many networks."""
    batch, channels, height, width = found.shape
    if height % block.size or width % block.size:
        raise expected(f"height and width to be multiples of {block.size}", f"{height} × {width} pixels")
    swapped = found.new_empty(count, batch, height, width, channels // 2, dtype=torch.bool)
    channels, height, width = channels * block.size**2, height // block.size, width // block.size
    if block.flat:
        return found.new_empty(count, batch, channels, height, width, dtype=torch.float32), swapped
    return found.new_empty(count, batch, height, width, channels).permute(0, 1, 4, 2, 3), swapped


def _stack(images: list[Tensor]) -> Tensor:
    """Images of several networks, channels last as they are."""
    if len(images) == 1:
        return images[0][None]
    return torch.stack([each.permute(0, 2, 3, 1) for each in images]).permute(0, 1, 4, 2, 3)
