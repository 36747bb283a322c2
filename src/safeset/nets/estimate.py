"""Lipschitz constants of a whole network for losses: power methods, with gradient. They prove nothing."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from safeset.certificates.constants import HeadConstants
from safeset.errors import expected, nearest
from safeset.program.from_modules import layer_names
from safeset.program.program import INPUT, Place
from safeset.program.rules import rule_of, training_rule
from safeset.system.streams import side_by_side

Vectors = Mapping[str, Tensor]


def start_vectors(network: nn.Module, places: Sequence[Place], seed: int) -> dict[str, Tensor]:
    """Random unit vectors, one for each layer before the head that needs one, by name."""
    generator, vectors = torch.Generator().manual_seed(seed), {}
    example = next(network.parameters())
    for place in places[:-1]:
        layer = network.get_submodule(place.name)
        shape = rule_of(layer, place.name).vector_shape(layer, place.shape) if place.is_layer else None
        if shape is not None:
            vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            vectors[place.name] = (vector / vector.norm()).to(example)
    return vectors


def estimate(
    network: nn.Module, places: Sequence[Place], weights: Mapping[str, Tensor], vectors: Vectors, iterations: int
) -> tuple[HeadConstants, dict[str, Tensor]]:
    """The head's constants and the next vectors, with some weights of the network replaced by others."""
    if list(layer_names(network)) != [place.name for place in places if place.is_layer]:
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
    called = _Estimate(network, places)
    if not given:
        return called(vectors, iterations)  # type: ignore[no-any-return]
    replaced = {f"network.{name}": tensor for name, tensor in given.items()}
    return torch.func.functional_call(called, replaced, (vectors, iterations))  # type: ignore[no-any-return]


class _Estimate(nn.Module):
    """An estimate as a forward, so that torch can put other weights in."""

    def __init__(self, network: nn.Module, places: Sequence[Place]) -> None:
        super().__init__()
        self.network, self.places = network, places

    def forward(self, vectors: Vectors, iterations: int) -> tuple[HeadConstants, dict[str, Tensor]]:
        *body, head = self.places
        rows: Tensor = self.network.get_submodule(head.name).weight  # type: ignore[assignment]
        following: dict[str, Tensor] = {}
        with torch.autocast(rows.device.type, enabled=False):
            factors = side_by_side(
                *(partial(self.factor, place, vectors, iterations, following) for place in body if place.is_layer)
            )
            scale = self.reach(body, iter(factors), head.inputs[0])
        return HeadConstants(rows, scale), following

    def reach(self, body: Sequence[Place], factors: Iterator[Tensor | float], end: int) -> Tensor | float:
        """The estimate of all up to a node: factors multiply along the graph, and add up where it joins."""
        reaches: dict[int, Tensor | float] = {INPUT: 1.0}
        for number, place in enumerate(body):
            before = [reaches[read] for read in place.inputs]
            reaches[number] = before[0] * next(factors) if place.is_layer else before[0] + before[1]
        return reaches[end]

    def factor(self, place: Place, vectors: Vectors, iterations: int, following: dict[str, Tensor]) -> Tensor | float:
        """The estimate of a layer; its next vector goes into ``following``."""
        layer = self.network.get_submodule(place.name)
        rule, vector = training_rule(layer, place.name), vectors.get(place.name)
        if vector is None and rule.vector_shape(layer, place.shape) is not None:
            remedy = "Start with those of net.start_vectors()."
            raise expected(f"a vector for the power method in layer {place.name!r}", "none", remedy)
        factor, vector = rule.estimate(layer, place.shape, vector, iterations)
        if vector is not None:
            following[place.name] = vector
        return factor
