"""One layer as it is certified: plain and float64, as its rule freezes it, and looked at once."""

import copy
import math

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from safeset.errors import ArgumentError, UnsupportedLayerError, expected
from safeset.inputs import all_finite
from safeset.program.operation import Operation, Shape
from safeset.program.own import OwnLayer
from safeset.program.rules import rule_of


def join_names(name: str, child: str) -> str:
    """The name of a part of a module that has a name."""
    return f"{name}.{child}" if name else child


def check_weights(layer: nn.Module, name: str) -> None:
    """Refuse a layer whose weights are not there yet, or are complex."""
    for part, tensor in (*layer.named_parameters(), *layer.named_buffers()):
        if isinstance(tensor, UninitializedParameter | UninitializedBuffer):
            owner = part.rpartition(".")[0]
            got = f"a {type(layer.get_submodule(owner)).__name__} without"
            whole = join_names(name, owner) if owner else name
            raise expected(f"layer {whole!r} to have weights", got, "Run the network once.")
        if tensor.is_complex():
            raise expected(f"real weights in layer {name!r}", f"complex numbers in {part!r}")


def freeze_layer(layer: nn.Module, name: str, shape: Shape, *, shared: bool = False) -> nn.Module:
    """A layer as its rule freezes it; ``shared`` says whether the memory that enters is that of a shortcut too."""
    check_weights(layer, name)
    rule = rule_of(layer, name)
    try:
        made = rule.freeze(copy.deepcopy(layer).double().eval(), shape)
        plain = copy.deepcopy(made).requires_grad_(False)  # a rule may return what somebody else holds
        rule_of(plain, name)
    except (UnsupportedLayerError, RuntimeError) as error:
        raise UnsupportedLayerError(f"In layer {name!r} ({type(layer).__name__}): {error}") from None
    if getattr(plain, "inplace", False):
        if shared:
            raise UnsupportedLayerError(
                f"Expected inplace=False at the start of a residual layer, but got layer {name!r} with "
                "inplace=True, which would change the shortcut too."
            )
        plain.inplace = False  # type: ignore[assignment]
    return plain


def probe(layer: nn.Module, operation: Operation, name: str, shape: Shape) -> tuple[Shape, bool]:
    """The shape of one point that leaves a frozen layer, and whether it is still in the same memory."""
    for part, tensor in layer.state_dict().items():
        if not tensor.is_meta and not all_finite(tensor):
            remedy = "Has the training diverged?"
            raise expected("finite weights", f"NaN or infinite ones in {join_names(name, part)!r}", remedy)
    tensors = [*layer.parameters(), *layer.buffers()]
    zeros = torch.zeros(2, *shape, dtype=torch.float64, device=tensors[0].device if tensors else "cpu")
    what = f"layer {name!r} ({layer})"
    own = operation.computation if isinstance(operation, OwnLayer) else None
    directly = operation.run if own is None else own
    try:
        out = directly(zeros)
    except (RuntimeError, ArgumentError) as error:
        raise ArgumentError(
            f"Expected {what} to take inputs of shape {shape}: check input_shape. {str(error).splitlines()[0]}"
        ) from None
    if not isinstance(out, Tensor) or out.shape[0] != 2 or math.prod(out.shape) == 0:
        raise expected(f"{what} to map a batch of points to a batch of points", f"{shape} → {out.shape}")
    if out.is_meta:
        raise expected("weights on a device", "a network on meta")
    if not bool(out.isfinite().all()):
        raise expected(f"{what} to be finite", "NaN or infinite outputs at 0", "Does a patch lie in the padding?")
    if own is not None:
        before = torch.linspace(-1.0, 1.0, zeros.numel(), dtype=torch.float64, device=zeros.device).view_as(zeros)
        own(given := before.clone())
        if not torch.equal(given, before):  # the network would compute something else than its parts put together
            raise UnsupportedLayerError(f"Expected {what} to leave its input alone, but got one that works in place.")
    same_memory = out.untyped_storage().data_ptr() == zeros.untyped_storage().data_ptr()
    return tuple(out.shape[1:]), same_memory
