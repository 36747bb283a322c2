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
from torch.nn.utils.parametrize import is_parametrized

from safeset.errors import UnsupportedLayerError
from safeset.lipschitz.rounding import Rounding
from safeset.lipschitz.upward import Up

Shape = tuple[int, ...]  # of one point, without the batch
Bound = tuple[Up, str]  # a proved Lipschitz constant, and how it was proved
Estimate = tuple[Tensor | float, Tensor | None]  # a Lipschitz constant for losses, and the power method's next vector

CONVOLUTIONS = ("auto", "exact", "torus")


class LayerRule(ABC):
    """What safeset must know of a type of layer; subclass it and call `register_layer` to add your own.

    In every method ``shape`` is that of one point that enters the layer, without the batch.
    """

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """The layer as it is certified and served: plain, in evaluation, of a type that has a rule.

        ``layer`` is a private copy in float64 and evaluation mode. What it computes must depend on nothing but its
        parameters, its buffers and its public attributes: changes are noticed there. By default the copy itself.
        """
        return layer  # type: ignore[no-any-return]

    def vector_shape(self, layer: Any, shape: Shape) -> Shape | None:
        """Shape of the vector that `estimate` keeps between batches; None if it needs none."""
        return None

    @abstractmethod
    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """The Lipschitz constant for losses, with gradient, of the layer that trains."""

    @abstractmethod
    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """An upper bound of the Lipschitz constant of the frozen layer, and the name of its method."""

    @abstractmethod
    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """What the frozen layer's float64 program adds to the rounding."""


_RULES: dict[type[nn.Module], tuple[LayerRule, dict[str, Any]]] = {}


def register_layer(kind: type[nn.Module], rule: LayerRule) -> None:
    """Teach safeset a type of layer. The proof is then the rule's responsibility.

    >>> class Negation(nn.Module):
    ...     def forward(self, x):
    ...         return -x
    >>> register_layer(Negation, ExactRule())  # computed without rounding, 1-Lipschitz, maps 0 to 0
    """
    _RULES[kind] = (rule, methods(kind))


def rule_of(layer: nn.Module, name: str = "") -> LayerRule:
    """The rule of a layer's exact type.

    Raises:
        UnsupportedLayerError: if it has none, or if hooks or another ``forward`` change what it computes.
    """
    kind = _plain_type(layer)
    if kind not in _RULES:
        raise UnsupportedLayerError(
            f"Expected layers whose Lipschitz constant safeset can prove, but got {_called(layer, name)}. Supported "
            f"are {', '.join(sorted(known.__name__ for known in _RULES))}, nn.Sequential and Residual of these, each "
            f"by its exact type. To add your own: safeset.register_layer({kind.__name__}, rule), where rule is a "
            "safeset.LayerRule with its estimate, bound and rounding."
        )
    check_untouched(layer, name)
    rule, known_methods = _RULES[kind]
    if methods(kind) != known_methods:
        raise UnsupportedLayerError(
            f"Expected the forward of {kind.__name__}, but got another in {_called(layer, name)}."
        )
    return rule


def check_untouched(layer: nn.Module, name: str = "") -> None:
    """Refuse hooks, replaced methods and tensors that are not plain: they could compute anything."""
    module = nn.modules.module
    hooks = [layer._forward_hooks, layer._forward_pre_hooks]
    hooks += [module._global_forward_hooks, module._global_forward_pre_hooks]
    if any(hooks):
        remedy = "Remove them (torch.nn.utils.prune.remove); torch.nn.utils.parametrizations work without hooks."
        raise UnsupportedLayerError(f"Expected no forward hooks, but got some on {_called(layer, name)}. {remedy}")
    own = set(vars(layer)) - {"_compiled_call_impl"}  # compiled or not, a layer computes the same
    if "__deepcopy__" in own or any(callable(getattr(type(layer), attribute, None)) for attribute in own):
        raise UnsupportedLayerError(f"Expected the forward of its class, but got another in {_called(layer, name)}.")
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


def _plain_type(layer: nn.Module) -> type[nn.Module]:
    """The layer's type, or what it was before `torch.nn.utils.parametrize` made a type of its own for it."""
    kind = type(layer)
    if kind in _RULES or not is_parametrized(layer):
        return kind
    base = kind.__bases__[0]
    behaviour = {name for name, value in vars(kind).items() if callable(value) or hasattr(value, "__get__")}
    injected = {"__getstate__", "__deepcopy__", *layer.parametrizations}  # type: ignore[misc]
    plain = kind.__name__ == f"Parametrized{base.__name__}" and len(kind.__bases__) == 1 and behaviour <= injected
    return base if plain else kind


def _called(layer: nn.Module, name: str) -> str:
    return f"layer {name!r} of type {type(layer).__name__}" if name else f"a {type(layer).__name__}"


@dataclass(frozen=True)
class ExactRule(LayerRule):
    """A layer that is computed without rounding, is L-Lipschitz and maps 0 to 0.

    Args:
        lipschitz: L as a function of layer and shape, from above; 1 by default.
        frozen: what the layer becomes when frozen, if not itself.
    """

    lipschitz: Callable[[Any, Shape], Up] = lambda layer, shape: Up(1.0)
    frozen: Callable[[Any, Shape], nn.Module] = lambda layer, shape: layer

    def freeze(self, layer: Any, shape: Shape) -> nn.Module:
        """Itself, or as told."""
        return self.frozen(layer, shape)

    def estimate(self, layer: Any, shape: Shape, vector: Tensor | None, steps: int) -> Estimate:
        """L."""
        return float(self.lipschitz(layer, shape)), None

    def bound(self, layer: Any, shape: Shape, convolutions: str) -> Bound:
        """L."""
        return self.lipschitz(layer, shape), "closed form"

    def rounding(self, layer: Any, shape: Shape, bound: Up, before: Rounding) -> Rounding:
        """E and r times L."""
        return before.exact(bound)
