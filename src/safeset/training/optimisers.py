"""The optimisers that recipes name: torch's own, and Muon for weights that stay orthogonal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam

from safeset.errors import expected
from safeset.layers import PositionBias
from safeset.layers.orthogonal import retract, riemannian
from safeset.recipes.sections import Optimiser
from safeset.training.manifold import orthogonal_weights

MOMENTUM, BETAS = 0.95, (0.9, 0.99)
QUINTIC = (3.4445, -4.7750, 2.0315)  # Muon's iteration: all singular values to about 1, quickly
ITERATIONS = 5


def make_optimiser(recipe: Optimiser, net: nn.Module, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer:
    """The optimiser that a recipe names, of parameters by name; on a GPU one that can be captured."""
    rate, decay, every = recipe.rate.start, recipe.weight_decay, list(parameters.values())
    if recipe.name == "sgd":
        return torch.optim.SGD(every, lr=rate, momentum=0.9, weight_decay=decay)
    on_gpu = every[0].is_cuda
    start = torch.tensor(rate, device=every[0].device) if on_gpu else rate
    if recipe.name == "muon":
        return Muon(_groups(recipe, net, parameters), lr=start)
    if recipe.name == "nadam":
        return torch.optim.NAdam(every, lr=start, weight_decay=decay, capturable=on_gpu)
    kind = torch.optim.Adam if recipe.name == "adam" else torch.optim.AdamW
    return kind(every, lr=start, weight_decay=decay, fused=True, capturable=on_gpu)


def _groups(recipe: Optimiser, net: nn.Module, parameters: Mapping[str, Tensor]) -> list[dict[str, Any]]:
    """Orthogonal weights, position biases and all others, each with its rate in parts of the recipe's."""
    turned = orthogonal_weights(net, parameters)
    if not turned:
        raise expected("a network with orthogonal layers for muon, such as shift-net", "one without")
    positions = [parameters[f"{name}.bias"] for name, layer in net.named_modules() if isinstance(layer, PositionBias)]
    known = {id(each) for each in (*turned, *positions)}
    others = [each for each in parameters.values() if id(each) not in known]
    peak = recipe.rate.start
    groups: Iterable[tuple[list[Tensor], float | None, bool]] = (
        (turned, peak, True),
        (positions, recipe.rate_of_positions, False),
        (others, recipe.rate_of_others, False),
    )
    return [
        {"params": members, "factor": 1.0 if rate is None else rate / peak, "turned": is_turned}
        for members, rate, is_turned in groups
        if members
    ]


class Muon(torch.optim.Optimizer):
    """Orthogonal weights turned by Muon (`turn`), other parameters by Adam: nothing waits for the device.

    Args:
        groups: parameters, and whether they are ``turned``.
        lr: a number, or on a GPU a tensor.
    """

    def __init__(self, groups: Sequence[dict[str, Any]], lr: float | Tensor) -> None:
        # By "capturable" torch brings the counts of steps to the device when a checkpoint is read.
        super().__init__(groups, {"lr": lr, "capturable": True})
        for group in self.param_groups:
            group["lr"] = lr.clone() if isinstance(lr, Tensor) else lr  # each has its own: their rates differ

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Change the parameters in place."""
        for group in self.param_groups:
            members = [each for each in group["params"] if each.grad is not None]
            if group["turned"]:
                for shape in dict.fromkeys(each.shape for each in members):
                    self._turn([each for each in members if each.shape == shape], group["lr"])
            else:
                self._adapt(members, group["lr"])

    def _turn(self, weights: list[Tensor], rate: float | Tensor) -> None:
        momenta = [self._remembered(each, "momentum") for each in weights]
        gradients = [each.grad for each in weights if each.grad is not None]
        turned, following = turn(_together(weights), _together(gradients), _together(momenta), rate)
        together = [*turned.chunk(len(weights)), *following.chunk(len(weights))]
        changed = [*weights, *momenta]
        torch._foreach_copy_(changed, [new.view_as(each) for new, each in zip(together, changed, strict=True)])

    def _adapt(self, parameters: list[Tensor], rate: float | Tensor) -> None:
        for each in parameters:
            if "step" not in self.state[each]:
                self.state[each]["step"] = torch.zeros((), device=each.device)
        adam(
            parameters,
            [each.grad for each in parameters if each.grad is not None],
            [self._remembered(each, "exp_avg") for each in parameters],
            [self._remembered(each, "exp_avg_sq") for each in parameters],
            [],
            [self.state[each]["step"] for each in parameters],
            fused=True,
            amsgrad=False,
            beta1=BETAS[0],
            beta2=BETAS[1],
            lr=rate,
            weight_decay=0.0,
            eps=1e-8,
            maximize=False,
        )

    def _remembered(self, parameter: Tensor, name: str) -> Tensor:
        """What is remembered of a parameter, 0 at first."""
        state = self.state[parameter]
        if name not in state:
            state[name] = torch.zeros_like(parameter)
        found: Tensor = state[name]
        return found


def turn(matrices: Tensor, gradients: Tensor, momenta: Tensor, rate: float | Tensor) -> tuple[Tensor, Tensor]:
    """One step of Muon on the manifold of orthogonal matrices: (n, rows, columns) each → the matrices and momenta.

    For square Q along the skew part A = QᵀG − GᵀQ of the gradient G: with Nesterov's momentum it becomes nearly
    orthogonal itself (`orthogonalise`), O, and Q ← Q(I − rate·O). Others move along the tangent part. One Newton–Schulz
    step leads back.
    """
    square = matrices.shape[-1] == matrices.shape[-2]
    if square:
        inner = matrices.mT @ gradients
        along = inner - inner.mT
    else:
        along = riemannian(matrices, gradients)
    # Each line is one pass over memory: sums with a factor in them, which also take a mixture of precisions.
    momenta = torch.add(along, momenta, alpha=MOMENTUM)
    direction = orthogonalise(torch.add(along, momenta, alpha=MOMENTUM))
    moved = matrices.to(direction.dtype) @ direction if square else direction
    if isinstance(rate, Tensor):
        return retract(torch.addcmul(matrices, moved, rate, value=-1)), momenta
    return retract(torch.add(matrices, moved, alpha=-rate)), momenta


def orthogonalise(matrices: Tensor) -> Tensor:
    """Nearly the orthogonal factor of each matrix, by quintic Newton–Schulz steps: (n, rows, columns) → the same.

    Singular values end between about .7 and 1.2, those of 0 stay 0. On a GPU in bfloat16, which is enough.

    >>> torch.linalg.svdvals(orthogonalise(torch.diag(torch.tensor([3.0, 0.5]))[None]))[0].round(decimals=1) > 0.6
    tensor([True, True])
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalise(matrices.mT).mT  # products of wide matrices are the cheapest
    first, third, fifth = QUINTIC
    size = torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-12
    x = torch.empty_like(matrices, dtype=torch.bfloat16 if matrices.is_cuda else matrices.dtype)
    torch.div(matrices, size, out=x)  # which rounds in the same pass
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        gram = torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth)
        x = torch.baddbmm(x, gram, x, beta=first)
    return x


def _together(tensors: Sequence[Tensor]) -> Tensor:
    """Matrices of one shape, or stacks of them, as one stack."""
    return torch.cat([each.reshape(-1, *each.shape[-2:]) for each in tensors])
