"""Any module as a program: `torch.export` writes down what its forward computes, and each operation becomes nodes."""

import logging
import operator
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from typing import Any

import torch
from torch import Tensor, fx, nn

from safeset.capture.aten import computes_with_batch, handle
from safeset.capture.aten_refusals import REFUSED
from safeset.capture.comparison import DEPENDS, ONE_TENSOR
from safeset.capture.exported_nodes import (
    NOT_PLAIN,
    check_numbers,
    check_types,
    is_plain,
    let_inactive_dropout_share,
)
from safeset.capture.expressions import FIXED, Absent, Squares
from safeset.capture.factors import Factors
from safeset.capture.graph import POINTS, Graph, View
from safeset.capture.in_place import roots_of_writes, writes
from safeset.capture.source_lines import cannot_export, operation_name, source_line
from safeset.capture.squares import Signs
from safeset.errors import ArgumentError, SafesetError, UnsupportedLayerError, expected
from safeset.numerics.strict import without_modes
from safeset.program.content import Content, same_values
from safeset.program.freezing import freeze_layer, probe
from safeset.program.linear import Linear
from safeset.program.operation import Shape
from safeset.program.program import Program
from safeset.program.registry import has_rule, plain_type
from safeset.program.reorder import Reorder
from safeset.program.rules import rule_of

LARGE = (nn.Linear, nn.Conv2d, nn.Conv1d)


@dataclass(frozen=True, eq=False)
class Exported:
    """What a network's forward computes, as torch.export wrote it down.

    Attributes:
        graph: operations of ATen.
        roots: for values that are written into, the value whose place each takes.
        names: for each tensor that the graph takes, the name of the parameter or buffer that it is.
        constants: tensors that the forward itself makes, by the graph's names.
        is_rewritten: whether writes into views were taken out of it: then what enters a layer cannot be seen, as some
            of the operations in it say where others have written.
        input_shape: of one input.
        form: types, attributes and methods of all modules, without their tensors.
        factors: the parameters outside of layers that nodes of its program multiply with, once it was read.
    """

    graph: fx.Graph
    roots: Mapping[fx.Node, fx.Node]
    names: Mapping[str, str]
    constants: Mapping[str, Tensor]
    is_rewritten: bool
    input_shape: Shape
    form: tuple[Any, ...]
    factors: dict[str, str] = field(default_factory=dict)

    def is_of(self, network: nn.Module, input_shape: Shape) -> bool:
        """Whether it is what a network computes that may have other weights."""
        return self.input_shape == input_shape and same_values(self.form, Content.of(network).form)


def export(network: nn.Module, input_shape: Shape) -> Exported:
    """What a network in float64 and evaluation mode computes.

    Raises:
        UnsupportedLayerError: if torch.export cannot see that, with the user's own line.
    """
    example = torch.zeros(POINTS, *input_shape, dtype=torch.float64, device=_device(network))
    batch = torch.export.Dim("batch")
    with without_modes(), torch.no_grad(), _quietly():
        try:
            whole = torch.export.export(network, (example,), dynamic_shapes=({0: batch},), strict=False)
            let_inactive_dropout_share(whole.graph)
            roots = roots_of_writes(whole.graph)
            is_rewritten = roots is None
            if roots is None:
                whole, roots = whole.run_decompositions({}), {}
        except SafesetError:
            raise
        except Exception as error:  # whatever a user's forward may raise
            raise UnsupportedLayerError(cannot_export(network, error)) from None
    signature = whole.graph_signature
    if signature.buffers_to_mutate or signature.user_inputs_to_mutate:
        raise UnsupportedLayerError(
            "Expected a forward without effects, but got one that changes its input or its buffers in evaluation mode."
        )
    names = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    constants = {key: whole.constants[name] for key, name in signature.inputs_to_lifted_tensor_constants.items()}
    form = Content.of(network).form
    return Exported(whole.graph, roots, names, constants, is_rewritten, input_shape, form)


def program_of_export(exported: Exported, network: nn.Module, input_shape: Shape) -> Program:
    """The program of an exported network, with the weights that it has now; it ends in a linear head."""
    found, *others = (
        _Reading(exported, network, Graph(input_shape, _device(network), points)).program()
        for points in ((POINTS, POINTS + 1) if computes_with_batch(exported.graph) else (POINTS,))
    )
    if not all(found.equals(other) for other in others):
        raise UnsupportedLayerError(DEPENDS)
    return found


@dataclass
class _Reading:
    """An exported graph on its way to a program."""

    exported: Exported
    network: nn.Module
    graph: Graph
    factors: Factors = field(default_factory=Factors)

    def program(self) -> Program:
        values: dict[fx.Node, Any] = {}
        tensors = {
            **dict(self.network.named_parameters(remove_duplicate=False)),
            **dict(self.network.named_buffers(remove_duplicate=False)),
        }
        layers = _Layers({}, set()) if self.exported.is_rewritten else _layers(self.exported.graph, self.network)
        for node in self.exported.graph.nodes:
            if node.op == "placeholder":
                values[node] = self._given(node, tensors)
            elif node.op == "output":
                self.exported.factors.update(self.factors.by_node)
                return self._finished(values, node)
            elif node in layers.inside:
                continue
            else:
                layer = layers.ends.get(node)
                for inner in (node,) if layer is None else self._without_rule(values, layer):
                    self._assign(values, inner, self._computed(values, inner, layer))
        raise AssertionError("a graph ends with its output")

    def _given(self, node: fx.Node, tensors: Mapping[str, Tensor]) -> Any:
        if node.name in self.exported.names:
            name = self.exported.names[node.name]
            if isinstance(tensors[name], nn.Parameter):
                self.factors.is_parameter(node, name)
            return tensors[name].detach()
        if node.name in self.exported.constants:
            return self.exported.constants[node.name]
        return self.graph.input()

    def _computed(self, values: Mapping[fx.Node, Any], node: fx.Node, layer: "_Layer | None") -> Any:
        """What one operation gives, in a layer that has a rule or outside: of constants a constant, of views a view."""
        if not is_plain(node):
            raise self._refusal(node, UnsupportedLayerError(NOT_PLAIN))
        try:
            check_numbers(node)
        except UnsupportedLayerError as error:
            raise self._refusal(node, error) from None
        given: Any = fx.map_arg((node.args, node.kwargs), values.__getitem__)
        args, kwargs = tuple(given[0]), dict(given[1])
        target: Any = node.target
        if not _depends(args, kwargs):
            self.factors.computed(node)
        if target is operator.getitem:
            return args[0][args[1]]
        if str(target) == "aten.sym_size.int":
            return args[0].shape[args[1]]
        if not _depends(args, kwargs):
            if torch.Tag.nondeterministic_seeded in getattr(target, "tags", ()):
                raise self._refusal(node, UnsupportedLayerError("what is random has no certificate"))
            with torch.no_grad():
                return target(*args, **kwargs)
        try:
            before, self.graph.is_trained = len(self.graph.nodes), bool(self.factors.read_by(node))
            found = handle(self.graph, target, args, kwargs, operation_name(node) if layer is None else layer.name)
            if self.graph.is_trained:
                self.factors.made(node, self.graph.nodes[before:])
            self.graph.is_trained = False
            check_types(node, found)
            return found
        except Exception as error:  # whatever torch says of shapes that do not fit
            raise self._refusal(node, error) from None

    def _assign(self, values: dict[fx.Node, Any], node: fx.Node, value: Any) -> None:
        """A value under its own name, and under those of all that are in the same memory."""
        values[node] = value
        if writes(node.target):
            for other, root in self.exported.roots.items():
                if root is self.exported.roots[node] and other in values:
                    values[other] = value

    def _without_rule(self, values: dict[fx.Node, Any], layer: "_Layer") -> tuple[fx.Node, ...]:
        """Nothing, if a layer's rule gives its value; else the operations that it consists of.

        A rule is asked if the graph has the layer as one value in, one value out; not of layers whose weights are
        large and whose operations say the same, because a rule makes copies.
        """
        if plain_type(layer.module) in LARGE:
            return layer.nodes
        inputs = {read for inner in layer.nodes for read in inner.all_input_nodes if read not in layer.nodes}
        views = [values[read] for read in inputs if isinstance(values[read], View)]
        if len(views) != 1 or not all(isinstance(values[read], View | Tensor | int | float) for read in inputs):
            return layer.nodes
        try:
            found = self._by_rule(layer, views[0])
        except UnsupportedLayerError:
            return layer.nodes
        except (ArgumentError, RuntimeError) as error:
            raise self._refusal(layer.nodes[-1], error) from None
        self._assign(values, layer.nodes[-1], found)
        return ()

    def _by_rule(self, layer: "_Layer", x: View) -> View:
        plain = freeze_layer(layer.module, layer.name, x.point)
        operation = rule_of(plain, layer.name).value(plain, x.point)
        if isinstance(operation, Reorder):
            return x.map(lambda places: operation.run(places))
        probe(plain, operation, layer.name, x.point)
        return self.graph.add(operation, x, name=layer.name, kind=type(plain).__name__)

    def _finished(self, values: Mapping[fx.Node, Any], node: fx.Node) -> Program:
        found = node.args[0]
        while isinstance(found, list | tuple) and len(found) == 1:
            found = found[0]
        value = values.get(found) if isinstance(found, fx.Node) else None
        if not isinstance(value, View) or len(value.shape) != 2:
            got = f"shape {value.shape}" if isinstance(value, View) else _described(found)
            raise expected("a network that gives one tensor of logits, (batch, classes)", got, ONE_TENSOR)
        return self.graph.finished(with_head(self.graph, value))

    def _refusal(self, node: fx.Node, error: Exception) -> UnsupportedLayerError:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        if any("MultiheadAttention" in str(kind) for _, kind in (node.meta.get("nn_module_stack") or {}).values()):
            reason = REFUSED["scaled_dot_product_attention"]  # whatever it does first, such as moving the batch
        return UnsupportedLayerError(
            f"Expected operations with a Lipschitz constant that safeset can prove, but got {node.target}"
            f"{source_line(node)}: {reason}. To teach safeset a layer of your own: safeset.register_layer."
        )


def with_head(graph: Graph, logits: View) -> View:
    """The logits as a linear head gives them: as they are, if one does, else by the identity as a head."""
    found = graph.operation_of(logits)
    if found is not None and isinstance(found[0], Linear) and len(found[1].shape) == 2:
        return logits
    classes = logits.shape[1]
    identity = torch.eye(classes, dtype=torch.float64, device=graph.device)
    return graph.add(Linear(identity, None), logits, name="logits", kind=FIXED)


@dataclass(frozen=True, eq=False)
class _Layer:
    """A call of a layer that has a rule, and the operations that it consists of."""

    name: str
    module: nn.Module
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True, eq=False)
class _Layers:
    """Calls of layers with rules, by the operation that each ends with, and the operations inside."""

    ends: dict[fx.Node, _Layer]
    inside: set[fx.Node]


def _layers(graph: fx.Graph, network: nn.Module) -> _Layers:
    """The calls of layers that have a rule; those of which more than one value leaves are left as operations."""
    modules = dict(network.named_modules(remove_duplicate=False))
    calls: dict[tuple[str, str], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.op == "call_function":
            for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
                if path in modules and has_rule(modules[path]):
                    calls.setdefault((key, path), []).append(node)
                    break
    found = _Layers({}, set())
    for (_, path), nodes in calls.items():
        leaving = [node for node in nodes if any(user not in nodes for user in node.users)]
        if len(leaving) == 1 and leaving[0] is nodes[-1]:
            found.ends[nodes[-1]] = _Layer(path, modules[path], tuple(nodes))
            found.inside.update(nodes[:-1])
    return found


def _depends(*values: Any) -> bool:
    """Whether something depends on the input."""
    for value in values:
        if isinstance(value, list | tuple):
            if _depends(*value):
                return True
        elif isinstance(value, dict):
            if _depends(*value.values()):
                return True
        elif isinstance(value, View | Squares | Signs | Absent):
            return True
    return False


def _described(found: Any) -> str:
    """What a network gives instead of one tensor."""
    return f"{len(found)} values" if isinstance(found, list | tuple) else "something that the input does not change"


@contextmanager
def _quietly() -> Iterator[None]:
    """Without what torch.export says on the way."""
    logger = logging.getLogger("torch")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)


def _device(network: nn.Module) -> torch.device:
    tensors = (*network.parameters(), *network.buffers())
    return tensors[0].device if tensors else torch.device("cpu")
