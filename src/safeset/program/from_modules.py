"""Modules as they are certified: plain float64 layers, and the program that they are."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

import safeset.program.lipschitz_layers  # noqa: F401  (registers safeset's layers, and torch's)
from safeset.errors import ArgumentError, UnsupportedLayerError, expected
from safeset.inputs import all_finite
from safeset.layers import Residual
from safeset.numerics.strict import strict_arithmetic
from safeset.program.linear import Linear
from safeset.program.operation import Operation, Shape
from safeset.program.own import OwnLayer
from safeset.program.program import INPUT, Node, Place, Program
from safeset.program.rules import check_untouched, rule_of
from safeset.program.total import Sum


def capture(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    """The network as it is certified and served: plain layers, and their program, which ends in a linear head.

    The layers are in evaluation mode and float64; batch norm, normalisation and parametrisations are evaluated. They
    have the same names as before. The network itself is not touched, nor run.

    Raises:
        UnsupportedLayerError: for layers without a rule, with hooks, or with a ``forward`` that is not their class's.
        ArgumentError: if shapes do not fit, weights are not finite, or the last layer is no linear head.
    """
    frozen, program = _captured(network, input_shape)
    head = program.nodes[-1] if program.nodes else None
    if head is None or not isinstance(head.operation, Linear) or len(head.shape) != 1:
        last = "something else"
        if head is not None and head.place.is_layer:
            last = f"{type(network.get_submodule(head.name)).__name__} on inputs of shape {head.shape}"
        remedy = "Give plain logits, without softmax, from flat features (nn.Flatten)."
        raise expected("the network's last layer to be the linear head, nn.Linear on flat features", last, remedy)
    if program.classes < 2:
        raise expected("a head with at least 2 classes", f"{program.classes}")
    return frozen, program


def program_of(network: nn.Module, input_shape: Shape) -> Program:
    """What a network, or a part of one, computes; with or without a head."""
    return _captured(network, input_shape)[1]


def _captured(network: nn.Module, input_shape: Shape) -> tuple[nn.Module, Program]:
    with torch.inference_mode(False), strict_arithmetic(), _without_cache():
        building = _Building()
        frozen, _, _ = building.add(network, "", INPUT, input_shape, [False])
    return frozen.eval(), Program(input_shape, tuple(building.nodes))


@contextmanager
def _without_cache() -> Iterator[None]:
    """Evaluate parametrisations again: in `parametrize.cached()` torch gives a copy the weights of its original."""
    before, parametrize._cache_enabled = parametrize._cache_enabled, 0
    try:
        yield
    finally:
        parametrize._cache_enabled = before


@dataclass
class _Building:
    """The nodes of a program so far."""

    nodes: list[Node] = field(default_factory=list)

    def append(self, place: Place, operation: Operation) -> int:
        """One more node; its number."""
        self.nodes.append(Node(place, operation))
        return len(self.nodes) - 1

    def add(
        self, layer: nn.Module, name: str, source: int, shape: Shape, shared: list[bool]
    ) -> tuple[nn.Module, int, Shape]:
        """The nodes of a module that reads ``source``.

        ``shared`` says whether the memory that enters is that of a shortcut: then nothing may be computed in place.

        Returns:
            The frozen module, the node that it ends with, and the shape that leaves it.
        """
        if type(layer) is nn.Sequential:
            check_untouched(layer, name)
            frozen = nn.Sequential()
            for child_name, child in layer._modules.items():  # named_children would skip a layer that comes twice
                if child is not None:
                    part, source, shape = self.add(child, _join(name, child_name), source, shape, shared)
                    frozen.add_module(child_name, part)
            return frozen, source, shape
        if type(layer) is Residual:
            check_untouched(layer, name)
            body, end, out = self.add(layer.body, _join(name, "body"), source, shape, [True])
            shared[0] = False
            if out != shape:
                raise expected(f"the body of the residual layer {name!r} to keep the shape {shape}", out)
            total = self.append(Place(name, "Residual", (source, end), shape, is_layer=False), Sum())
            return Residual(body), total, shape
        plain = self._frozen(layer, name, shape, shared)
        operation = rule_of(plain, name).value(plain, shape)
        out, same_memory = _probe(plain, operation, name, shape)
        shared[0] = shared[0] and same_memory
        return plain, self.append(Place(name, type(plain).__name__, (source,), shape, is_layer=True), operation), out

    def _frozen(self, layer: nn.Module, name: str, shape: Shape, shared: list[bool]) -> nn.Module:
        """A layer as its rule freezes it."""
        if any(isinstance(parameter, UninitializedParameter) for parameter in layer.parameters()):
            got = f"a {type(layer).__name__} without"
            raise expected(f"layer {name!r} to have weights", got, "Run the network once.")
        rule = rule_of(layer, name)
        for part, tensor in (*layer.named_parameters(), *layer.named_buffers()):
            if tensor.is_complex():
                raise expected(f"real weights in layer {name!r}", f"complex numbers in {part!r}")
        try:
            made = rule.freeze(copy.deepcopy(layer).double().eval(), shape)
            plain = copy.deepcopy(made).requires_grad_(False)  # a rule may return what somebody else holds
            rule_of(plain, name)
        except (UnsupportedLayerError, RuntimeError) as error:
            raise UnsupportedLayerError(f"In layer {name!r} ({type(layer).__name__}): {error}") from None
        if getattr(plain, "inplace", False):
            if shared[0]:
                raise UnsupportedLayerError(
                    f"Expected inplace=False at the start of a residual layer, but got layer {name!r} with "
                    "inplace=True, which would change the shortcut too."
                )
            plain.inplace = False  # type: ignore[assignment]
        return plain


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
        raise expected(f"{what} to be finite", "NaN or infinite outputs at 0", "Does a window lie in the padding?")
    if own is not None:
        before = torch.linspace(-1.0, 1.0, zeros.numel(), dtype=torch.float64, device=zeros.device).view_as(zeros)
        own(given := before.clone())
        if not torch.equal(given, before):  # the network would compute something else than its parts put together
            raise UnsupportedLayerError(f"Expected {what} to leave its input alone, but got one that works in place.")
    same_memory = out.untyped_storage().data_ptr() == zeros.untyped_storage().data_ptr()
    return tuple(out.shape[1:]), same_memory


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


def check_layers(network: nn.Module, places: Sequence[Place]) -> None:
    """Refuse hooks and replaced methods in any layer; layers that have come or gone are for `capture` to see."""
    names = [place.name for place in places if place.is_layer]
    known = set(names) if names == list(layer_names(network)) else set()
    for name, layer in network.named_modules():
        if name in known:
            rule_of(layer, name)
        else:
            check_untouched(layer, name)
