"""PyTorch's operations, by their names in ATen: what each makes of values."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, fx

from safeset.capture import expressions as ex
from safeset.capture.aten_arithmetic import Arguments
from safeset.capture.aten_handlers import HANDLERS, PLACES
from safeset.capture.aten_refusals import REFUSED, SQUARES
from safeset.capture.expressions import Absent, Squares
from safeset.capture.graph import Graph, View
from safeset.capture.placing import FILLING, PLACING, filled, placed
from safeset.errors import UnsupportedLayerError

# Operations that compute nothing: they are asked where entries come from, by running them on the entries' numbers.
STRUCTURE = frozenset(
    """
    alias channel_shuffle chunk clone constant_pad_nd contiguous detach diagonal expand expand_as flatten flip fliplr
    flipud gather hsplit im2col index index_select lift_fresh_copy moveaxis movedim mT narrow native_channel_shuffle
    numpy_T pad _pad_circular permute pixel_shuffle pixel_unshuffle reflection_pad1d reflection_pad2d repeat
    repeat_interleave replication_pad1d replication_pad2d reshape _reshape_alias roll rot90 select slice split
    split_with_sizes squeeze swapaxes swapdims t take_along_dim tensor_split tile transpose unbind unflatten unfold
    unsafe_chunk unsafe_split _unsafe_view unsqueeze upsample_nearest1d upsample_nearest2d view view_as vsplit
    """.split()  # noqa: SIM905
)
# What is proved is float64: a value that is cast to something coarser would be another one.
CASTS = frozenset({"_to_copy", "to", "type_as", "double", "float", "half", "bfloat16"})
NOTHING = frozenset({"dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout", "native_dropout"})
# To these the size of a batch can be nothing but an axis's own.
SHAPING = frozenset({"view", "reshape", "_reshape_alias", "_unsafe_view", "expand", "unflatten"})
# What torch.export writes down about shapes, which are known here.
SILENT = frozenset(
    {
        "_assert_scalar",
        "_assert_async",
        "_assert_tensor_metadata",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
    }
)


def name_of(target: Any) -> str:
    """The name of an operation without its overload: conv2d for aten.conv2d.default, relu_ for aten.relu_.default."""
    return str(target._schema.name).removeprefix("aten::") if hasattr(target, "_schema") else target.__name__


def computes_with_batch(graph: fx.Graph) -> bool:
    """Whether the size of a batch is used for more than the shapes of values, such as how far they are rolled."""
    sizes = (node for node in graph.nodes if str(node.target) == "aten.sym_size.int")
    users = (user for node in sizes for user in node.users if user.op == "call_function")
    return any(name_of(user.target) not in SHAPING | SILENT for user in users)


def bound_arguments(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Arguments:
    """A call's arguments by name, those that were left out with their defaults."""
    given = {}
    for place, argument in enumerate(target._schema.arguments):
        if place < len(args):
            given[argument.name] = args[place]
        elif argument.name in kwargs:
            given[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    if "self" in given:
        given["input"] = given.pop("self")
    return Arguments(**given)


def handle(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """What an operation makes of its arguments, some of which are views.

    Raises:
        UnsupportedLayerError: with the reason, if that is not known or has no Lipschitz constant.
    """
    kind = name_of(target)
    if getattr(target._schema, "is_mutable", False):  # the value that it replaces is for the reader to know
        kind = kind.removesuffix("_")
    for value in (*args, *kwargs.values()):
        if isinstance(value, Absent):
            raise UnsupportedLayerError(value.reason)
    if kind in SILENT:
        return None
    if kind in NOTHING:
        return _unless_training(kind, bound_arguments(target, args, kwargs))
    if kind in CASTS:
        return _cast(bound_arguments(target, args, kwargs))
    if kind in PLACING:
        return placed(graph, target, args, kwargs, name)
    if kind in FILLING:
        return filled(kind, args, kwargs)
    if kind in STRUCTURE:
        return _moved(graph, target, args, kwargs, name)
    if kind in HANDLERS:
        return HANDLERS[kind](graph, bound_arguments(target, args, kwargs), name)
    reason = REFUSED.get(kind, f"safeset knows no Lipschitz constant of {target}")
    raise UnsupportedLayerError(reason)


def _moved(graph: Graph, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> Any:
    """What happens to entries: the operation on their numbers."""
    given = bound_arguments(target, args, kwargs)
    if isinstance(given.input, Squares) and given.input.shape is None:
        moved = _moved(graph, target, (given.input.roots, *args[1:]), kwargs, name)
        several = isinstance(moved, list)
        found = [Squares(each, factor=given.input.factor) for each in (moved if several else [moved])]
        return found if several else found[0]
    if not isinstance(given.input, View):
        raise UnsupportedLayerError("a place that depends on the input")
    if isinstance(getattr(given, "dtype", None), torch.dtype):
        raise UnsupportedLayerError("the bits of a value as numbers of another type")
    padding = getattr(given, "value", None)
    if padding:  # around the entries are zeros, to which the number is added
        zeros = {**vars(given), "value": 0.0}
        moved = View(target(zeros.pop("input").places, *zeros.values()))
        around = target(torch.zeros_like(given.input.places[:1]), given.pad, *_last(given))
        return ex.added(graph, moved, around[0], name)
    return _views(target(*_places(args), **{key: _places(value) for key, value in kwargs.items()}))


def _last(given: Arguments) -> tuple[Any, ...]:
    """What follows ``pad`` in the call of a padding."""
    return (given.mode, given.value) if hasattr(given, "mode") else (given.value,)


def _places(value: Any) -> Any:
    """Views as the numbers of their entries."""
    if isinstance(value, Squares):
        raise UnsupportedLayerError(SQUARES)
    if isinstance(value, list | tuple):
        return [_places(each) for each in value]
    if isinstance(value, View):
        return value.places.contiguous()  # how a value lies in memory is not that of its entries' numbers
    return value.cpu() if isinstance(value, Tensor) else value


def _views(value: Any) -> Any:
    return [_views(each) for each in value] if isinstance(value, list | tuple) else View(value)


def _cast(a: Arguments) -> View:
    if not isinstance(a.input, View):
        raise UnsupportedLayerError("a cast to the type of a value")
    other = getattr(a, "other", None)
    wanted = other.dtype if isinstance(other, Tensor) else getattr(a, "dtype", None)
    if wanted not in (None, torch.float64):
        raise UnsupportedLayerError(
            f"a cast to {wanted}: networks are certified in float64, so leave the type of values alone"
        )
    return a.input


def _unless_training(kind: str, a: Arguments) -> Any:
    if getattr(a, "train", False):
        raise UnsupportedLayerError(f"{kind} that is active in evaluation mode is random")
    return (a.input, PLACES) if kind == "native_dropout" else a.input
