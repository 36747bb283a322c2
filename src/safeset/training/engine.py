"""Steps, one after another: eager, or captured as one CUDA graph; of one network, or several seeds; by one or more."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from safeset.data.augmentation import move_images
from safeset.data.dataset import Split
from safeset.errors import expected
from safeset.nets.net import CertifiedNet
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.recipes.recipe import FittedRecipe
from safeset.system.workers import Workers
from safeset.training.gpu.blocks import can_fuse
from safeset.training.gpu.convolutions import one_by_one
from safeset.training.manifold import orthogonal_weights, return_to_manifold, turn_gradients
from safeset.training.state import State
from safeset.training.step import objective

WARM_UP = 3  # steps before a capture, as torch asks for


class Engine:
    """Takes the steps of a training. All that changes lies on the device, so that nothing waits for it.

    Args:
        net: layers, guarantee and ε.
        recipe: what is trained, and how.
        split: what to train on, on the device.
        state: parameters, optimiser and power vectors, changed in place; stacks of them where there are several seeds.
        seeds: one for each network: its order of points, and how they are moved.
        captured: whether the step is captured as a CUDA graph: gather, augmentation, power iterations, forward,
            margins, loss, backward and optimiser are then one launch.
        workers: who shares the batches. Each takes its share of every batch, and their gradients are added up, so that
            a step is the same whoever takes it, but for rounding.
    """

    def __init__(
        self,
        net: CertifiedNet,
        recipe: FittedRecipe,
        split: Split,
        state: State,
        seeds: Sequence[int],
        *,
        captured: bool,
        workers: Workers | None = None,
    ) -> None:
        self.recipe, self.split, self.state, self.seeds = recipe, split, state, tuple(seeds)
        self.workers = workers or Workers()
        self.batch = min(recipe.batch, len(split))  # of all workers
        if self.batch < self.workers.count:
            raise expected(f"a batch of at least a point for each of {self.workers.count} workers", self.batch)
        half, fused = recipe.precision == "bfloat16" and split.y.is_cuda, can_fuse(split.y.device)
        self._value = objective(net, recipe.loss, half=half, fused=fused)
        if len(self.seeds) > 1:
            self._value = torch.func.vmap(self._value, in_dims=(0, 0, 0, 0, None), randomness="different")
        self._orthogonal = orthogonal_weights(net, state.parameters)
        device, count = split.y.device, len(self.seeds)
        self.total = torch.zeros(count, dtype=torch.float64, device=device)  # sums of the losses of this epoch
        self.last = torch.zeros(count, device=device)  # losses of the last step
        self._order = torch.zeros(count, len(split), dtype=torch.int64, device=device)
        self._moves = torch.zeros(count, len(split), 5, dtype=torch.int64, device=device)
        self._within = torch.arange(self.batch, device=device)[self.workers.share(self.batch)]
        self._place = torch.zeros((), dtype=torch.int64, device=device)  # of the next step in the epoch
        self._weight = torch.zeros((), device=device)
        work = count * len(self._within) * net.products
        self._small = device.type == "cpu" and work <= FEW_PRODUCTS
        self._captured = captured
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def steps(self) -> int:
        """Steps in an epoch: a last batch that is not full is left out."""
        return max(1, len(self.split) // self.batch)

    def start(self, epoch: int, step: int = 0, losses: Sequence[float] | None = None) -> None:
        """Begin an epoch, or go on in the middle of one: order, moves, rate and λ depend on its number only."""
        epochs = self.recipe.epochs
        for place, seed in enumerate(self.seeds):
            order, moves = draw_order(self.recipe, len(self.split), seed, epoch)
            self._order[place].copy_(order)
            self._moves[place].copy_(moves)
        self.state.set_rate(self.recipe.optimiser.rate(epoch, epochs))
        self._weight.fill_(self.recipe.loss.weight(epoch, epochs))
        self._place.fill_(step)
        self.total.copy_(torch.tensor(losses or [0.0] * len(self.seeds), dtype=torch.float64))
        if self._captured and self._graph is None:
            self._capture()

    def step(self) -> None:
        """The next step of the epoch."""
        if self._graph is not None:
            self._graph.replay()
        else:
            with one_thread(self._small):
                self._step()

    def _step(self) -> None:
        state = self.state
        x, y = self._points()
        with one_by_one() if len(self.seeds) > 1 else nullcontext():
            loss, following = self._value(state.parameters, state.vectors, x, y, self._weight)
        state.optimiser.zero_grad()
        if self.workers.joined:
            loss = loss * (len(self._within) / self.batch)
        loss.sum().backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            last = loss.detach().view(len(self.seeds)).clone()
            if self.workers.joined:
                gradients = [each.grad for each in state.parameters.values() if each.grad is not None]
                for vector in following.values():  # their sum is then the first worker's vector, bit for bit
                    vector.mul_(self.workers.first)
                self.workers.add([last, *gradients, *following.values()])
        turn_gradients(self._orthogonal)
        state.optimiser.step()
        return_to_manifold(self._orthogonal)
        with torch.no_grad():
            for name, vector in state.vectors.items():
                vector.copy_(following[name])
            self.last.copy_(last)
            self.total.add_(self.last)
            self._place.add_(1)

    def _points(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels of the next step: (batch, …), or (seeds, batch, …)."""
        some = self._place * self.batch + self._within
        places = self._order.index_select(1, some).flatten()
        y = self.split.y[places]
        if self.recipe.augmentation:
            images = move_images(self.split.x, places, self._moves.index_select(1, some).flatten(0, 1))
            x = Split(images, y).inputs
        else:
            x = Split(self.split.x[places], y).inputs
        if len(self.seeds) == 1:
            return x, y
        return x.view(len(self.seeds), -1, *x.shape[1:]), y.view(len(self.seeds), -1)

    def _capture(self) -> None:
        """Capture the step; the steps that this takes leave no trace."""
        mine = [self._place, self.total, self.last]
        before = [*self.state.tensors(), *mine]
        kept = [tensor.detach().clone() for tensor in before]
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self._place.zero_()
                self._step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        warn = torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch
        warn(False)  # the branches of a step meet in the gradients of the parameters: on purpose
        try:
            with torch.cuda.graph(graph):
                self._step()
        finally:
            warn(True)
        with torch.no_grad():
            known = {id(tensor) for tensor in before}
            for tensor in self.state.tensors():
                if id(tensor) not in known:  # what the optimiser remembers came with the first step: nothing before
                    tensor.zero_()
            for tensor, content in zip(before, kept, strict=True):
                tensor.copy_(content)
        self._graph = graph


def draw_order(recipe: FittedRecipe, count: int, seed: int, epoch: int) -> tuple[Tensor, Tensor]:
    """The order of ``count`` points in an epoch, and how each place of it is moved: (count,) and (count, 5).

    Drawn on the CPU from seed and epoch alone, so that every device and every resumed run sees the same.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)
    return order, recipe.augmentation.draw(count, generator)


@contextmanager
def fast_arithmetic(device: torch.device, precision: str) -> Iterator[None]:
    """TF32 for float32 products, and cuDNN's fastest ways, on a GPU: for training, never for proofs; restored after."""
    if device.type != "cuda":
        yield
        return
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark
    rounded = precision != "float32"
    matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = rounded, rounded, True
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.benchmark = before
