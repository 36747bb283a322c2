"""What changes from step to step, and its checkpoints: one file, without pickles."""

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from safeset.errors import SafesetError
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.checkpoint import group_tensors
from safeset.system.files import read_tensors, write_tensors
from safeset.system.workers import Workers
from safeset.training.best import Best
from safeset.training.optimisers import make_optimiser

VERSION = "1"


@dataclass(frozen=True)
class Position:
    """The next step: its epoch, its place in the epoch, and what has been summed up so far."""

    epoch: int = 0
    step: int = 0
    losses: tuple[float, ...] | None = None  # of each seed, summed over the steps of this epoch
    seconds: float = 0.0  # spent in training


@dataclass
class State:
    """Parameters, buffers, optimiser and power vectors: of one net, and its own; or stacked, of one for each seed.

    Where points are held out, the best weights so far too; and where the recipe says so, a running mean of the
    parameters, which is what is evaluated and served.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimiser: torch.optim.Optimizer
    vectors: dict[str, Tensor]
    random: Tensor | None = None  # of the CPU's generator, where a checkpoint was taken
    best: Best | None = None
    average: dict[str, Tensor] | None = None
    taken: Tensor | None = None  # steps that the average has followed
    decay: float = 0.0  # of the average

    @classmethod
    def start(
        cls, nets: Sequence[CertifiedNet], recipe: FittedRecipe, seeds: Sequence[int], *, held_out: int = 0
    ) -> "State":
        """Before the first step; with so many points that are held out to choose the best weights."""
        first = nets[0]
        vectors = [net.start_vectors(seed) for net, seed in zip(nets, seeds, strict=True)]
        parameters: dict[str, Tensor] = dict(first.named_parameters())
        if len(nets) > 1:
            all_of = [dict(net.named_parameters()) for net in nets]
            parameters = {
                name: torch.stack([each[name].detach() for each in all_of]).requires_grad_() for name in parameters
            }
        together = vectors[0] if len(nets) == 1 else _stack(vectors)
        state = cls(
            parameters,
            dict(first.named_buffers()),
            make_optimiser(recipe.optimiser, first, parameters),
            {name: vector.clone() for name, vector in together.items()},
        )
        if recipe.optimiser.average is not None:
            state.average = {name: each.detach().clone() for name, each in parameters.items()}
            state.taken = torch.zeros((), device=first.device)
            state.decay = recipe.optimiser.average
        if held_out:
            state.best = Best.start(state.weights(len(nets)), len(nets), held_out)
        return state

    def weights(self, count: int) -> dict[str, Tensor]:
        """What is served, by name, stacked where there are several nets; of one net its buffers too."""
        return {**self.served, **self.buffers} if count == 1 else self.served

    @property
    def served(self) -> dict[str, Tensor]:
        """The parameters that are evaluated and served."""
        return self.parameters if self.average is None else self.average

    def one(self, place: int, count: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The parameters that are served, and the power vectors, of one of ``count`` nets."""
        if count == 1:
            return self.served, self.vectors
        return tuple({name: each[place] for name, each in group.items()} for group in (self.served, self.vectors))  # type: ignore[return-value]

    def tensors(self) -> list[Tensor]:
        """All that a step changes."""
        means = [] if self.average is None or self.taken is None else [self.taken, *self.average.values()]
        return [*self.parameters.values(), *self.vectors.values(), *_moments(self.optimiser).values(), *means]

    def set_rate(self, rate: Tensor) -> None:
        """The learning rate of the next step; a group of parameters may have a part of it."""
        for group in self.optimiser.param_groups:
            factor = group.get("factor", 1.0)
            if isinstance(group["lr"], Tensor):
                torch.mul(rate, factor, out=group["lr"])  # a captured step sees it too
            else:
                group["lr"] = float(rate * factor)

    @torch.no_grad()
    def follow_average(self) -> None:
        """Let the running mean follow the parameters, after a step."""
        if self.average is None or self.taken is None:
            return
        self.taken.add_(1)
        grown = (1 + self.taken) / (10 + self.taken)  # a small decay first, so that the start is soon forgotten
        rest = 1 - grown.clamp(max=self.decay)
        means = list(self.average.values())
        ways = torch._foreach_sub([self.parameters[name] for name in self.average], means)  # all at once: few kernels
        torch._foreach_mul_(ways, rest)
        torch._foreach_add_(means, ways)

    @torch.no_grad()
    def forget_moments(self, known: Collection[int]) -> None:
        """Set what the optimiser remembers since tensors of these ids were all that it had to what it starts from."""
        for name, tensor in _moments(self.optimiser).items():
            if id(tensor) not in known:
                tensor.fill_(1.0 if name.endswith(".mu_product") else 0.0)  # NAdam's product of momenta starts at 1

    def save(self, path: Path, position: Position, data: str) -> None:
        """Write a checkpoint, whole or not at all.

        Args:
            path: the file.
            position: the next step.
            data: digest of what is trained on.
        """
        groups: dict[str, dict[str, Tensor]] = {
            "parameters": self.parameters,
            "buffers": self.buffers,
            "optimiser": _moments(self.optimiser),
            "vectors": self.vectors,
            "random": {"cpu": torch.get_rng_state()},
            **({"best": self.best.weights} if self.best else {}),
        }
        if self.average is not None and self.taken is not None:
            groups |= {"average": self.average, "averaged": {"steps": self.taken}}
        flat = {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}
        texts = {"version": VERSION, "data": data, "position": json.dumps(asdict(position))}
        if self.best:
            texts["best"] = json.dumps(self.best.table())
        write_tensors(path, flat, texts)

    def load(self, path: Path, data: str, workers: Workers) -> Position:
        """Continue where a checkpoint stands, that the first worker reads; at the beginning if there is none.

        Raises:
            SafesetError: if the file is not a checkpoint, or that of another training.
        """
        found = workers.decide(lambda: read_tensors(path) if path.exists() else None)
        if found is None:
            return Position()
        try:
            position = self._take_over(*found, path, data)
            _check(position, self)
        except (LookupError, TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise SafesetError(
                f"Expected a checkpoint of this training at {path}, but got something else "
                f"({type(error).__name__}: {str(error)[:200]}). Train into another directory."
            ) from None
        return position

    def _take_over(self, tensors: dict[str, Tensor], metadata: dict[str, str], path: Path, data: str) -> Position:
        if metadata.get("version") != VERSION or "position" not in metadata:
            raise SafesetError(f"Expected a checkpoint of this version of safeset at {path}, but got something else.")
        if metadata.get("data") != data:
            raise SafesetError(
                f"Expected the data that {path} was trained on, but got other data: it has changed since. Train into "
                "another directory."
            )
        groups = group_tensors(tensors)
        _restore(self.parameters, groups["parameters"], "parameters")
        _restore(self.buffers, groups["buffers"], "buffers")
        _restore(self.vectors, groups["vectors"], "power vectors")
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in groups["optimiser"].items():
            place, _, rest = name.partition(".")
            moments.setdefault(int(place), {})[rest] = tensor
        self.optimiser.load_state_dict({**self.optimiser.state_dict(), "state": moments})
        if self.average is not None and self.taken is not None:
            _restore(self.average, groups["average"], "averages of parameters")
            _restore({"steps": self.taken}, groups["averaged"], "averaged steps")
        self.random = groups["random"]["cpu"]
        if self.best is not None:
            self.best.restore(json.loads(metadata["best"]), groups["best"])
        return Position(**json.loads(metadata["position"]))


def _check(position: Position, state: State) -> None:
    """Refuse what safeset does not write, before it is trained with."""
    if not all(isinstance(each, int) and each >= 0 for each in (position.epoch, position.step)):
        raise ValueError(f"epoch {position.epoch!r}, step {position.step!r}")
    if not all(isinstance(each, float) for each in (position.seconds, *(position.losses or ()))):
        raise ValueError("losses or seconds that are no numbers")
    for parameter, remembered in state.optimiser.state.items():
        for name, content in remembered.items():
            if isinstance(content, Tensor) and content.numel() != 1 and content.shape != parameter.shape:
                raise ValueError(f"{name} of another shape")
    torch.Generator().set_state(state.random)  # type: ignore[arg-type]  # raises for what is no state


def _stack(each: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.stack([one[name] for one in each]) for name in each[0]}


def _moments(optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """What an optimiser remembers of each parameter, by its place and name."""
    return {
        f"{place}.{name}": content
        for place, remembered in optimiser.state_dict()["state"].items()
        for name, content in remembered.items()
        if isinstance(content, Tensor)
    }


def _restore(into: dict[str, Tensor], saved: dict[str, Tensor], what: str) -> None:
    if into.keys() != saved.keys() or any(into[name].shape != saved[name].shape for name in into):
        raise SafesetError(f"Expected {what} of the recipe's own network in the checkpoint, but got others.")
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(saved[name])
