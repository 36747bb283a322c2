"""A network taken apart into layers that safeset knows, and put together again as plain float64 layers."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

import safeset.lipschitz.activations  # noqa: F401  (registers torch's layers)
from safeset.errors import ArgumentError, UnsupportedLayerError, expected
from safeset.inputs import all_finite
from safeset.layers import Residual
from safeset.lipschitz.rules import Forward, Shape, check_untouched, registration, rule_of
from safeset.program.operations import Operation


@dataclass(frozen=True)
class Step:
    """A layer at its place: its name in the network, and the shape of one point that enters it."""

    name: str
    shape: Shape


@dataclass(frozen=True)
class Branch:
    """x + body(x)."""

    body: tuple["Step | Branch", ...]


Steps = tuple[Step | Branch, ...]


def freeze(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Steps, int]:
    """The network as it is certified and served, its layers in order, and its number of classes.

    The copy is in evaluation mode and float64; batch norm, normalisation and parametrisations are evaluated into plain
    layers. Layers have the same names in both. The network itself is not touched, nor run.

    Raises:
        UnsupportedLayerError: for layers without a rule, with hooks, or with a ``forward`` that is not their class's.
        ArgumentError: if shapes do not fit, weights are not finite, or the last layer is no linear head.
    """
    with torch.inference_mode(False), torch.no_grad(), _without_cache():
        frozen, steps, shape = _freeze(network, "", input_shape, [False])
    frozen.eval()
    head = steps[-1] if steps else None
    if not isinstance(head, Step) or type(frozen.get_submodule(head.name)) is not nn.Linear or len(head.shape) != 1:
        last = "something else"
        if isinstance(head, Step):
            last = f"{type(network.get_submodule(head.name)).__name__} on inputs of shape {head.shape}"
        remedy = "Give plain logits, without softmax, from flat features (nn.Flatten)."
        raise expected("the network's last layer to be the linear head, nn.Linear on flat features", last, remedy)
    if shape[0] < 2:
        raise expected("a head with at least 2 classes", f"{shape[0]}")
    return frozen, steps, shape[0]


@contextmanager
def _without_cache() -> Iterator[None]:
    """Evaluate parametrisations anew: in `parametrize.cached()` torch gives a copy the weights of its original."""
    before, parametrize._cache_enabled = parametrize._cache_enabled, 0
    try:
        yield
    finally:
        parametrize._cache_enabled = before


def _freeze(layer: nn.Module, name: str, shape: Shape, shared: list[bool]) -> tuple[nn.Module, Steps, Shape]:
    """Frozen layer, its steps, and the shape that leaves it.

    ``shared`` says whether the memory that enters is that of a shortcut: then nothing may be computed in place.
    """
    if type(layer) is nn.Sequential:
        check_untouched(layer, name)
        frozen, steps = nn.Sequential(), list[Step | Branch]()
        for child_name, child in layer._modules.items():  # named_children would skip a layer that comes twice
            if child is not None:
                part, more, shape = _freeze(child, _join(name, child_name), shape, shared)
                frozen.add_module(child_name, part)
                steps += more
        return frozen, tuple(steps), shape
    if type(layer) is Residual:
        check_untouched(layer, name)
        body, inner, out = _freeze(layer.body, _join(name, "body"), shape, [True])
        shared[0] = False
        if out != shape:
            raise expected(f"the body of the residual layer {name!r} to keep the shape {shape}", out)
        return Residual(body), (Branch(inner),), shape
    if any(isinstance(parameter, UninitializedParameter) for parameter in layer.parameters()):
        raise expected(f"layer {name!r} to have weights", f"a {type(layer).__name__} without", "Run the network once.")
    rule = rule_of(layer, name)
    try:
        plain = rule.freeze(copy.deepcopy(layer).double().eval(), shape).requires_grad_(False)
        rule_of(plain, name)
    except (UnsupportedLayerError, RuntimeError) as error:
        raise UnsupportedLayerError(f"In layer {name!r} ({type(layer).__name__}): {error}") from None
    if getattr(plain, "inplace", False):
        if shared[0]:
            raise UnsupportedLayerError(
                f"Expected inplace=False at the start of a residual layer, but got layer {name!r} with inplace=True, "
                "which would change the shortcut too."
            )
        plain.inplace = False  # type: ignore[assignment]
    out, same_memory = _probe(plain, rule_of(plain, name).operation(plain, shape), name, shape)
    shared[0] = shared[0] and same_memory
    return plain, (Step(name, shape),), out


def _join(name: str, child: str) -> str:
    return f"{name}.{child}" if name else child


def _probe(layer: nn.Module, operation: Operation, name: str, shape: Shape) -> tuple[Shape, bool]:
    """The shape of one point that leaves a frozen layer, and whether it is still in the same memory."""
    for part, tensor in layer.state_dict().items():
        if not tensor.is_meta and not all_finite(tensor):
            remedy = "Has the training diverged?"
            raise expected("finite weights", f"NaN or infinite ones in {_join(name, part)!r}", remedy)
    tensors = [*layer.parameters(), *layer.buffers()]
    zeros = torch.zeros(2, *shape, dtype=torch.float64, device=tensors[0].device if tensors else "cpu")
    what = f"layer {name!r} ({layer})"
    directly = operation.directly if isinstance(operation, Forward) else operation
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
        raise expected(f"{what} to be finite", "NaN or infinite outputs at 0", "Does a window lie in the padding?")
    if isinstance(operation, Forward):
        before = torch.linspace(-1.0, 1.0, zeros.numel(), dtype=torch.float64, device=zeros.device).view_as(zeros)
        directly(given := before.clone())
        if not torch.equal(given, before):  # the network would compute something else than its parts put together
            raise UnsupportedLayerError(f"Expected {what} to leave its input alone, but got one that works in place.")
    same_memory = out.untyped_storage().data_ptr() == zeros.untyped_storage().data_ptr()
    return tuple(out.shape[1:]), same_memory


def leaves(steps: Steps) -> Iterator[Step]:
    """All layers, those of branches too."""
    for step in steps:
        yield from leaves(step.body) if isinstance(step, Branch) else (step,)


def products(network: nn.Module, steps: Steps) -> int:
    """Multiplications that the network makes of one point, about: those of dense layers and convolutions."""
    total = 0
    for step in leaves(steps):
        layer = network.get_submodule(step.name)
        if isinstance(layer, nn.Linear):
            total += layer.weight.numel() * math.prod(step.shape[:-1])
        elif isinstance(layer, nn.Conv2d):
            strides = layer.stride if isinstance(layer.stride, tuple) else (layer.stride,) * 2
            total += layer.weight.numel() * math.prod(step.shape[1:]) // math.prod(strides)
    return total


def layer_names(network: nn.Module, name: str = "") -> Iterator[str]:
    """The names of a network's layers in order, as far as they can be seen without running it."""
    if type(network) is nn.Sequential:
        for child_name, child in network._modules.items():
            if child is not None:
                yield from layer_names(child, _join(name, child_name))
    elif type(network) is Residual:
        yield from layer_names(network.body, _join(name, "body"))
    else:
        yield name


def check_layers(network: nn.Module, steps: Steps) -> None:
    """Refuse hooks and replaced methods in any layer; layers that have come or gone are for `freeze` to see."""
    names = [step.name for step in leaves(steps)]
    known = set(names) if names == list(layer_names(network)) else set()
    for name, layer in network.named_modules():
        if name in known:
            rule_of(layer, name)
        else:
            check_untouched(layer, name)


@dataclass(frozen=True, eq=False)
class Content:
    """What a network is: how its layers are put together, and every number in them."""

    structure: list[Any]
    tensors: dict[str, Tensor]

    @staticmethod
    def of(network: nn.Module, input_shape: Shape) -> "Content":
        """That of a network as it is now, for inputs of a shape; the tensors are the network's own."""
        structure = []
        for name, layer in network.named_modules(remove_duplicate=False):
            attributes = {key: value for key, value in vars(layer).items() if key not in _TORCH_OWN}
            structure.append((name, type(layer), registration(type(layer)), attributes))
        tensors = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
        return Content([input_shape, *structure], {name: tensor.detach() for name, tensor in tensors})

    def equals(self, other: "Content") -> bool:
        """Whether both are the same, number by number, on the same device and in the same precision."""
        pairs = [(tensor, other.tensors.get(name)) for name, tensor in self.tensors.items()]
        try:
            same_structure = self.structure == other.structure
        except (RuntimeError, ValueError):  # an attribute that cannot be compared, such as a tensor that is no buffer
            return False
        return (
            same_structure
            and len(self.tensors) == len(other.tensors)
            and all(
                b is not None and a.device == b.device and a.dtype == b.dtype and torch.equal(a, b) for a, b in pairs
            )
        )


_TORCH_OWN = set(vars(nn.Module()))  # tensors and submodules, compared as such; hooks, refused; the training flag
