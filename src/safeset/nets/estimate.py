"""Lipschitz constants of a whole network for losses: power methods, with gradient. They prove nothing."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn

from safeset.certificates.constants import HeadConstants
from safeset.errors import expected, nearest
from safeset.lipschitz.rules import rule_of, training_rule
from safeset.program.from_modules import Branch, Step, Steps, layer_names, leaves
from safeset.system.streams import side_by_side

Vectors = Mapping[str, Tensor]


def start_vectors(network: nn.Module, steps: Steps, seed: int) -> dict[str, Tensor]:
    """Random unit vectors, one for each layer before the head that needs one, by name."""
    generator, vectors = torch.Generator().manual_seed(seed), {}
    example = next(network.parameters())
    for step in leaves(steps[:-1]):
        layer = network.get_submodule(step.name)
        shape = rule_of(layer, step.name).vector_shape(layer, step.shape)
        if shape is not None:
            vector = torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")
            vectors[step.name] = (vector / vector.norm()).to(example)
    return vectors


def estimate(
    network: nn.Module, steps: Steps, weights: Mapping[str, Tensor], vectors: Vectors, iterations: int
) -> tuple[HeadConstants, dict[str, Tensor]]:
    """The head's constants and the next vectors, with some weights of the network replaced by others."""
    if list(layer_names(network)) != [step.name for step in leaves(steps)]:
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
    called = _Estimate(network, steps)
    if not given:
        return called(vectors, iterations)  # type: ignore[no-any-return]
    replaced = {f"network.{name}": tensor for name, tensor in given.items()}
    return torch.func.functional_call(called, replaced, (vectors, iterations))  # type: ignore[no-any-return]


class _Estimate(nn.Module):
    """An estimate as a forward, so that torch can put other weights in."""

    def __init__(self, network: nn.Module, steps: Steps) -> None:
        super().__init__()
        self.network, self.steps = network, steps

    def forward(self, vectors: Vectors, iterations: int) -> tuple[HeadConstants, dict[str, Tensor]]:
        *body, last = self.steps
        assert isinstance(last, Step)
        rows: Tensor = self.network.get_submodule(last.name).weight  # type: ignore[assignment]
        following: dict[str, Tensor] = {}
        with torch.autocast(rows.device.type, enabled=False):
            scale = self.product(tuple(body), vectors, iterations, following)
        return HeadConstants(rows, scale), following

    def product(self, steps: Steps, vectors: Vectors, iterations: int, following: dict[str, Tensor]) -> Tensor | float:
        """The product of the estimates of layers in a row; their next vectors go into ``following``."""
        product: Tensor | float = 1.0
        for factor in side_by_side(*(partial(self.factor, step, vectors, iterations, following) for step in steps)):
            product = product * factor
        return product

    def factor(
        self, step: Step | Branch, vectors: Vectors, iterations: int, following: dict[str, Tensor]
    ) -> Tensor | float:
        """The estimate of a layer, or of a residual block."""
        if isinstance(step, Branch):
            return 1 + self.product(step.body, vectors, iterations, following)
        layer = self.network.get_submodule(step.name)
        rule, vector = training_rule(layer, step.name), vectors.get(step.name)
        if vector is None and rule.vector_shape(layer, step.shape) is not None:
            remedy = "Start with those of net.start_vectors()."
            raise expected(f"a vector for the power method in layer {step.name!r}", "none", remedy)
        factor, vector = rule.estimate(layer, step.shape, vector, iterations)
        if vector is not None:
            following[step.name] = vector
        return factor
