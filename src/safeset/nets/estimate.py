"""Lipschitz constants of a whole network for losses: power methods, with gradient. They prove nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter

import torch
from torch import Tensor, nn

from safeset.capture.expressions import FIXED
from safeset.capture.factors import COMPUTED
from safeset.certificates.constants import HeadConstants
from safeset.errors import UnsupportedLayerError, expected, nearest
from safeset.program.from_modules import is_plain, layer_names
from safeset.program.joining import Join
from safeset.program.linear import ChannelAffine, Linear
from safeset.program.operation import Operation, Shape
from safeset.program.program import INPUT, Place, Program
from safeset.program.registry import has_rule, plain_type
from safeset.program.rules import training_rule
from safeset.program.sliding import Conv2d, Sliding
from safeset.program.torch_images import estimate_convolution
from safeset.system.streams import side_by_side

Vectors = Mapping[str, Tensor]


@dataclass(frozen=True)
class Part:
    """What an estimate must know of a node.

    Attributes:
        place: where it stands.
        layer: the name of the module that it is, if that has a rule; it trains.
        factor: the Lipschitz constant of what is no module and has no weights.
        weight: the parameter outside of layers that it multiplies with; it trains too.
        convolution: as what the layer was captured, if it is one of torch's convolutions; without its weights. The
            layer's own padding may have been captured before it, and a signal as an image of one row.
    """

    place: Place
    layer: str | None
    factor: float | None
    weight: str | None = None
    convolution: Conv2d | None = None


def parts_of(network: nn.Module, program: Program, weights: Mapping[str, str]) -> tuple[Part, ...]:
    """The nodes of a network's program as an estimate sees them.

    Args:
        network: the module.
        program: what it computes.
        weights: the names of parameters outside of layers that nodes multiply with, `COMPUTED` where it is of several.
    """
    modules, plain, parts = dict(network.named_modules(remove_duplicate=False)), is_plain(network), []
    for node in program.nodes:
        name = node.name.partition("@")[0]  # a layer that is called twice is two nodes
        module = modules.get(name) if node.place.is_layer else None
        if module is not None and not has_rule(module):
            module = None
        if module is not None and plain:
            parts.append(Part(node.place, name, None))
        elif module is not None and not _is_empty(module):
            parts.append(Part(node.place, name, None, convolution=_without_weights(module, node.operation)))
        elif node.name in weights:
            parts.append(Part(node.place, None, None, weights[node.name]))
        else:
            weighted = isinstance(node.operation, Linear | ChannelAffine | Sliding) and node.operation.constants()
            fixed = not weighted or node.place.type == FIXED
            factor = float(node.operation.prove(node.shape, "auto", None)[0]) if fixed else None
            parts.append(Part(node.place, None, factor))
    return tuple(parts)


def _is_empty(layer: nn.Module) -> bool:
    """Whether it has neither parameters nor buffers: then the operation that it was captured as is all of it."""
    return not [*layer.parameters(), *layer.buffers()]


def _without_weights(layer: nn.Module, operation: Operation) -> Conv2d | None:
    """What one of torch's convolutions was captured as; None for other layers."""
    if plain_type(layer) not in (nn.Conv1d, nn.Conv2d) or not isinstance(operation, Conv2d):
        return None
    return replace(operation, weight=operation.weight.to("meta"), bias=None)


def start_vectors(network: nn.Module, parts: Sequence[Part], seed: int) -> dict[str, Tensor]:
    """Random unit vectors, one for each layer before the head that needs one, by name."""
    generator, vectors = torch.Generator().manual_seed(seed), {}
    example = next(network.parameters())
    for part in parts[:-1]:
        if part.layer is None:
            continue
        layer = network.get_submodule(part.layer)
        shape = _vector_shape(part, layer)
        if shape is not None:
            vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            vectors[part.place.name] = (vector / vector.norm()).to(example)
    return vectors


def _vector_shape(part: Part, layer: nn.Module) -> Shape | None:
    """Shape of the vector that the estimate of a layer keeps between batches."""
    if part.convolution is not None:
        return part.place.shape
    return training_rule(layer, part.layer or "").vector_shape(layer, part.place.shape)


def estimate(
    network: nn.Module, parts: Sequence[Part], weights: Mapping[str, Tensor], vectors: Vectors, iterations: int
) -> tuple[HeadConstants, dict[str, Tensor]]:
    """The head's constants and the next vectors, with some weights of the network replaced by others."""
    if is_plain(network) and list(layer_names(network)) != [
        part.place.name for part in parts if part.layer is not None
    ]:
        raise expected("the layers that the net was made of", "others", "Make a new CertifiedNet of the new network.")
    if not isinstance(iterations, int) or iterations < 0:
        raise expected("`steps` to be an integer ≥ 0", repr(iterations))
    if not isinstance(vectors, Mapping):
        raise expected("`vectors` by name", type(vectors).__name__, "Start with those of net.start_vectors().")
    # A parametrisation may write into its buffers (spectral norm does): it gets copies.
    copies = {name: tensor.clone() for name, tensor in network.named_buffers() if "parametrizations." in name}
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name in weights.keys() - own.keys():
        raise expected("weights by their names in the network", repr(name), nearest(name, own))
    given = {**copies, **{name: tensor for name, tensor in weights.items() if tensor is not own[name]}}
    called = _Estimate(network, parts)
    if not given:
        return called(vectors, iterations)  # type: ignore[no-any-return]
    replaced = {f"network.{name}": tensor for name, tensor in given.items()}
    return torch.func.functional_call(called, replaced, (vectors, iterations))  # type: ignore[no-any-return]


class _Estimate(nn.Module):
    """An estimate as a forward, so that torch can put other weights in."""

    def __init__(self, network: nn.Module, parts: Sequence[Part]) -> None:
        super().__init__()
        self.network, self.parts = network, parts

    def forward(self, vectors: Vectors, iterations: int) -> tuple[HeadConstants, dict[str, Tensor]]:
        *body, head = self.parts
        rows = self.rows(head)
        following: dict[str, Tensor] = {}
        with torch.autocast(rows.device.type, enabled=False):
            factors = side_by_side(*(partial(self.factor, part, vectors, iterations, following) for part in body))
            scale = self.reach(body, factors, head.place.inputs[0])
        return HeadConstants(rows, scale), following

    def rows(self, head: Part) -> Tensor:
        """The head's weights; those of the identity, where logits are no layer's."""
        if head.layer is not None:
            return self.network.get_submodule(head.layer).weight  # type: ignore[return-value]
        if head.factor is None:
            raise _only_certified(head.place)
        example = next(self.network.parameters())
        return torch.eye(head.place.shape[0], device=example.device, dtype=example.dtype)

    def reach(self, body: Sequence[Part], factors: Sequence[Tensor | float], end: int) -> Tensor | float:
        """The estimate of all up to a node: factors multiply along the graph, and add up where it joins."""
        reaches: dict[int, Tensor | float] = {INPUT: 1.0}
        for number, (part, factor) in enumerate(zip(body, factors, strict=True)):
            before = [reaches[read] for read in part.place.inputs]
            if part.place.type == Join.kind:
                reaches[number] = sum(each * each for each in before) ** 0.5
            else:
                reaches[number] = _times(factor, sum(before[1:], start=before[0]))
        return reaches[end]

    def factor(self, part: Part, vectors: Vectors, iterations: int, following: dict[str, Tensor]) -> Tensor | float:
        """The estimate of a layer; its next vector goes into ``following``."""
        place = part.place
        if part.weight:
            return attrgetter(part.weight)(self.network).abs().amax()  # type: ignore[no-any-return]
        if part.layer is None:
            if part.factor is None:
                raise _only_certified(place, part.weight)
            return part.factor
        layer = self.network.get_submodule(part.layer)
        vector = vectors.get(place.name)
        if vector is None and _vector_shape(part, layer) is not None:
            remedy = "Start with those of net.start_vectors()."
            raise expected(f"a vector for the power method in layer {place.name!r}", "none", remedy)
        if part.convolution is not None:
            weight = layer.weight.view(part.convolution.weight.shape)  # type: ignore[operator]
            found = replace(part.convolution, weight=weight)
            factor, vector = estimate_convolution(found, place.shape, vector, iterations)
        else:
            factor, vector = training_rule(layer, part.layer).estimate(layer, place.shape, vector, iterations)
        if vector is not None:
            following[place.name] = vector
        return factor


def _times(factor: Tensor | float, reach: Tensor | float) -> Tensor | float:
    """Their product; most layers have a factor of 1, which is no work for a GPU, nor for its gradient."""
    if isinstance(factor, float) and factor == 1:
        return reach
    return factor if isinstance(reach, float) and reach == 1 else factor * reach


def _only_certified(place: Place, weight: str | None = None) -> UnsupportedLayerError:
    if weight == COMPUTED:
        return UnsupportedLayerError(
            f"Expected factors of a forward to be parameters or constants, but got a {place.type} ({place.name!r}) "
            "that is computed from parameters outside of layers, which a loss would not follow: multiply with the "
            "parameter itself, or use a layer. Without that it can only be certified."
        )
    return UnsupportedLayerError(
        f"Expected weights in layers that have a rule, such as nn.Linear, but got a {place.type} whose weights the "
        f"forward takes from elsewhere ({place.name!r}): it can only be certified."
    )
