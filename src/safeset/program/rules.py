"""What safeset knows of each type of layer: the one place where a layer is registered.

A rule says how a layer is frozen into plain float64, what its Lipschitz constant is estimated at in training, what it
is proved to be, and how the rounding of its float64 program adds up. Dispatch is by exact type: a subclass may compute
anything, so it has no rule until it is given one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from safeset.errors import UnsupportedLayerError, expected
from safeset.layers import Residual
from safeset.lipschitz.forward_error import Rounding
from safeset.lipschitz.witness import Witness
from safeset.numerics.directed import Up
from safeset.program.content import Content
from safeset.program.operation import Operation, Proved, Shape
from safeset.program.own import OwnLayer
from safeset.program.registry import RULES, plain_type, registrations

Computation = Callable[[Tensor], Tensor]  # of a batch
Bound = tuple[Up, str]  # a proved Lipschitz constant, and how it was proved
Estimate = tuple[Tensor | float, Tensor | None]  # a Lipschitz constant for losses, and the power method's next vector


@dataclass(frozen=True, eq=False)
class Forward:
    """What a layer's own ``forward`` computes, as its class has it."""

    layer: nn.Module

    def __call__(self, x: Tensor) -> Tensor:
        """Of a batch."""
        return type(self.layer).forward(self.layer, x)  # type: ignore[no-any-return]


class LayerRule(ABC):
    """What safeset must know of a type of layer; subclass it and call `register_layer` to add your own.

    In every method ``shape`` is that of one point that enters the layer, without the batch.
    """

    def takes(self, layer: Any) -> bool:
        """Whether this rule covers the layer's settings; with others torch.export reads its ``forward``."""
        return True

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The layer as it is certified and served: plain, in evaluation, of a type that has a rule.

        ``layer`` is a private copy in float64 and evaluation mode. What it computes must depend on nothing but its
        parameters, its buffers and its public attributes: changes are noticed there. By default the copy itself.
        """
        return layer  # type: ignore[no-any-return]

    def operation(self, layer: Any, shape: Shape) -> Computation:
        """What the frozen layer computes of a batch: this is what runs when points are certified.

        ``layer`` is a private copy that does not change any more. By default its ``forward``, as its class has it; the
        layers that safeset knows are computed without asking any module.
        """
        return Forward(layer)

    def value(self, layer: Any, shape: Shape) -> Operation:
        """What the frozen layer becomes in a program: by default something that asks this rule."""
        return OwnLayer(layer, self, shape, Content.of(layer).kept())

    def vector_shape(self, layer: Any, shape: Shape) -> Shape | None:
        """Shape of the vector that `estimate` keeps between batches; None if it needs none."""
        return None

    @abstractmethod
    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The Lipschitz constant for losses, with gradient, of the layer that trains."""

    @abstractmethod
    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """An upper bound of the Lipschitz constant of the frozen layer, and the name of its method."""

    def prove(self, layer: Any, shape: Shape, convolutions: str, witness: Witness | None) -> Proved:
        """The same as `bound`, and with what it was proved; quickly, if a witness of an earlier proof is confirmed.

        By default no witness is used, and none is made.
        """
        return *self.bound(layer, shape, convolutions), None

    def work(self, layer: Any, shape: Shape, witness: Witness | None) -> float:
        """Floating-point operations of `prove`, about: to show how far a proof is, and to share it among threads."""
        return 0.0

    @abstractmethod
    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """What the frozen layer's float64 program adds to the rounding."""


def register_layer(kind: type[nn.Module], rule: LayerRule) -> None:
    """Teach safeset a type of layer. The proof is then the rule's responsibility.

    >>> class Negation(nn.Module):
    ...     def forward(self, x):
    ...         return -x
    >>> register_layer(Negation, ExactRule())  # computed without rounding, 1-Lipschitz, maps 0 to 0
    """
    if not isinstance(kind, type) or not issubclass(kind, nn.Module) or not isinstance(rule, LayerRule):
        raise expected("a type of layer and a LayerRule, such as ExactRule()", f"{kind!r} and {rule!r}")
    RULES[kind] = (rule, methods(kind), next(registrations))


def rule_of(layer: nn.Module, name: str = "") -> LayerRule:
    """The rule of a layer's exact type.

    Raises:
        UnsupportedLayerError: if it has none, or if hooks or another ``forward`` change what it computes.
    """
    kind = plain_type(layer)
    if kind not in RULES:
        raise UnsupportedLayerError(
            f"Expected layers whose Lipschitz constant safeset can prove, but got {_called(layer, name)}. "
            f"{_remedy(layer)}To add a layer of your own: safeset.register_layer({kind.__name__}, rule), where rule is "
            "a safeset.LayerRule with its estimate, bound and rounding. Supported, by their exact types, are "
            f"nn.Sequential, Residual, {', '.join(sorted(known.__name__ for known in RULES))}."
        )
    check_untouched(layer, name)
    rule, known_methods, _ = RULES[kind]
    home = {each.__module__ for each in kind.__mro__}  # a patch from before the layer became known comes from elsewhere
    if methods(kind) != known_methods or getattr(kind.forward, "__module__", "") not in home:
        raise UnsupportedLayerError(
            f"Expected the forward of {kind.__name__}, but got another in {_called(layer, name)}."
        )
    return rule


def training_rule(layer: nn.Module, name: str = "") -> LayerRule:
    """The rule of a layer's exact type, for estimates: quickly, without looking for hooks and patches."""
    found = RULES.get(plain_type(layer))
    return rule_of(layer, name) if found is None else found[0]


def check_untouched(layer: nn.Module, name: str = "") -> None:
    """Refuse hooks, replaced methods and tensors that are not plain: they could compute anything."""
    module = nn.modules.module
    hooks = [layer._forward_hooks, layer._forward_pre_hooks]
    hooks += [module._global_forward_hooks, module._global_forward_pre_hooks]
    if any(hooks):
        remedy = (
            "Remove them (remove_weight_norm, remove_spectral_norm, prune.remove of torch.nn.utils); what "
            "torch.nn.utils.parametrizations does needs none."
        )
        raise UnsupportedLayerError(f"Expected no forward hooks, but got some on {_called(layer, name)}. {remedy}")
    # An attribute that hides a method of its class, or that a property of the class hides, changes what a layer does.
    own = {*vars(layer), *layer._parameters, *layer._buffers, *layer._modules} - {"_compiled_call_impl"}
    of_classes = (vars(each)[name] for each in type(layer).__mro__ for name in own & vars(each).keys())
    if "__deepcopy__" in own or any(callable(each) or hasattr(each, "__get__") for each in of_classes):
        raise UnsupportedLayerError(f"Expected the forward of its class, but got another in {_called(layer, name)}.")
    container = _CONTAINERS.get(type(layer))
    if nn.Module._call_impl is not _CALL or (container is not None and methods(type(layer)) != container):
        raise UnsupportedLayerError(f"Expected torch's own forward, but got another in {_called(layer, name)}.")
    for tensor in (*layer.parameters(recurse=False), *layer.buffers(recurse=False)):
        if type(tensor) not in (Tensor, nn.Parameter):
            raise UnsupportedLayerError(
                f"Expected plain tensors, but got {type(tensor).__name__} in {_called(layer, name)}."
            )


def methods(kind: type[nn.Module]) -> dict[str, Any]:
    """All that a type of layer, and those it is made from, can call: so that a patch is noticed."""
    classes = [each for each in kind.__mro__ if each not in (nn.Module, object)]
    own = {(each, name): value for each in classes for name, value in vars(each).items() if callable(value)}
    return {**{f"{each.__qualname__}.{name}": value for (each, name), value in own.items()}, "()": kind.__call__}


_CALL = nn.Module._call_impl
_CONTAINERS: dict[type[nn.Module], dict[str, Any]] = {kind: methods(kind) for kind in (nn.Sequential, Residual)}


_REFUSED: dict[tuple[type[nn.Module], ...], str] = {
    (nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d): (
        "It divides by what it measures of its input, so it has no finite Lipschitz constant: use batch norm, whose "
        "statistics are constants in evaluation, or subtract the mean by a linear layer. "
    ),
    (nn.MultiheadAttention,): (
        "Attention multiplies its input with itself: its slope grows with its input, and no Lipschitz constant is "
        "finite. Mix pixels by convolutions, shifts or pooling instead. "
    ),
}


def _remedy(layer: nn.Module) -> str:
    """What to do about a layer that is not known."""
    inner = next((attribute for attribute in ("_orig_mod", "module") if attribute in layer._modules), None)
    if inner:
        return f"Give the network inside, its .{inner}. "
    refused = next((text for kinds, text in _REFUSED.items() if isinstance(layer, kinds)), None)
    if refused:
        return refused
    if "softmax" in type(layer).__name__.lower():
        return "Leave it out: the network must give plain logits. "
    if next(layer.children(), None) is not None:
        return (
            "It has a forward of its own, and safeset cannot see in which order that calls its layers: write it as "
            "nn.Sequential, for instance nn.Sequential(m.features, nn.Flatten(), m.classifier), and x + f(x) as "
            "safeset.layers.Residual(f). "
        )
    known = next((base.__name__ for base in type(layer).__mro__ if base in RULES), None)
    return f"As a subclass of {known} it could compute anything: use {known} itself. " if known else ""


def _called(layer: nn.Module, name: str) -> str:
    return f"layer {name!r} of type {type(layer).__name__}" if name else f"a {type(layer).__name__}"


@dataclass(frozen=True)
class ExactRule(LayerRule):
    """A layer that is computed without rounding, is L-Lipschitz and maps 0 to 0.

    Args:
        lipschitz: L as a function of layer and shape, from above; 1 by default.
        frozen: what the layer becomes when frozen, if not itself.
        computes: what it computes, made from the frozen layer; by default its own ``forward``.
    """

    lipschitz: Callable[[Any, Shape], Up] = lambda layer, shape: Up(1.0)
    frozen: Callable[[Any, Shape], nn.Module] = lambda layer, shape: layer
    computes: Callable[[Any], Computation] | None = None

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself, or what was given."""
        return self.frozen(layer, shape)

    def operation(self, layer: Any, shape: Shape) -> Computation:
        """Its forward, or what was given."""
        return super().operation(layer, shape) if self.computes is None else self.computes(layer)

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """L."""
        return float(self.lipschitz(layer, shape)), None

    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """L."""
        return self.lipschitz(layer, shape), "closed form"

    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """E and r times L."""
        return before.exact(bound)
