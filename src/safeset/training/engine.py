"""Steps, one after another: eager, or captured as one CUDA graph; of one network, or several seeds; by one or more."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor

from safeset.data.dataset import Split
from safeset.nets.net import CertifiedNet
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.recipes.recipe import FittedRecipe
from safeset.system.streams import beginning
from safeset.system.workers import Workers
from safeset.training.batches import Batches
from safeset.training.capture import capture_step, entry
from safeset.training.gpu.blocks import can_fuse
from safeset.training.gpu.convolutions import one_by_one
from safeset.training.manifold import orthogonal_weights, return_to_manifold, turn_gradients
from safeset.training.state import State
from safeset.training.step import objective
from safeset.training.teacher import Teachers
from safeset.training.views import again, make_views


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

    Attributes:
        teachers: who are asked about the images of each step, if any (`listen_to`).
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
        self.recipe, self.state, self.seeds = recipe, state, tuple(seeds)
        self.workers = workers or Workers()
        self.batches = Batches(
            split, recipe.augmentation, net.classes, batch=recipe.batch, seeds=seeds, workers=self.workers
        )
        half, fused = recipe.precision == "bfloat16" and split.y.is_cuda, can_fuse(split.y.device)
        self._value = objective(net, recipe.loss, half=half, fused=fused, alone=len(self.seeds) == 1)
        if len(self.seeds) > 1:
            soft = 0 if recipe.augmentation.mixes else None
            self._value = torch.func.vmap(self._value, in_dims=(0, 0, 0, 0, None, None, soft), randomness="different")
        turns = recipe.optimiser.name == "muon"  # which turns orthogonal weights itself
        self._orthogonal = [] if turns else orthogonal_weights(net, state.parameters)
        device, count = split.y.device, len(self.seeds)
        self.total = torch.zeros(count, dtype=torch.float64, device=device)  # sums of the losses of this epoch
        self.last = torch.zeros(count, device=device)  # losses of the last step
        self._place = torch.zeros((), dtype=torch.int64, device=device)  # of the next step in the epoch
        self._rates = torch.zeros(self.steps, dtype=torch.float64, device=device)  # of each step in the epoch
        self._weights, self._radii = (torch.zeros(self.steps, device=device) for _ in range(2))
        work = count * self.batches.own * net.products
        self._small = device.type == "cpu" and work <= FEW_PRODUCTS
        self._captured = captured
        self.teachers: Teachers | None = None
        self._replay: Callable[[], None] | None = None

    def listen_to(self, teachers: Teachers, *, tick: Callable[[], None] = lambda: None) -> None:
        """Learn from teachers too, before the first step: they are asked in each, or now about views of every point.

        Args:
            teachers: who are asked.
            tick: called after some views; it may raise an error.
        """
        if not teachers.settings.views:
            self.teachers = teachers
            return
        given = (self.batches.split, self.batches.augmentation, self.batches.classes, teachers)
        views = make_views(*given, seed=self.recipe.seed, tick=tick)
        self.batches = Batches(
            views.split,
            again(self.batches.augmentation),
            self.batches.classes,
            batch=self.recipe.batch,
            seeds=self.seeds,
            workers=self.workers,
            views=views.count,
            target=views.target,
        )

    @property
    def steps(self) -> int:
        """Steps in an epoch."""
        return self.batches.steps

    def start(self, epoch: int, step: int = 0, losses: Sequence[float] | None = None) -> None:
        """Begin an epoch, or go on in the middle of one: order, moves, rates and λ depend on its number only."""
        self.batches.start(epoch)
        optimiser, loss, when = self.recipe.optimiser, self.recipe.loss, (epoch, self.recipe.epochs, self.steps)
        for table, values in (
            (self._rates, optimiser.rate.in_epoch(*when)),
            (self._weights, loss.weight.in_epoch(*when)),
            (self._radii, loss.radius.by_step(*when)),
        ):
            table.copy_(torch.tensor(values, dtype=torch.float64))
        self._place.fill_(step)
        self.total.copy_(torch.tensor(losses or [0.0] * len(self.seeds), dtype=torch.float64))
        if self._captured and self._replay is None:
            before = [*self.state.tensors(), self._place, self.total, self.last]
            known = {id(tensor) for tensor in before}
            self._replay = capture_step(self._step, before, lambda: self.state.forget_moments(known))
        if self._place.is_cuda:  # of noise that is drawn there
            torch.cuda.manual_seed(self.seeds[0] * 1_000_003 + epoch)

    def step(self) -> None:
        """The next step of the epoch."""
        if self._replay is not None:
            self._replay()
        else:
            with one_thread(self._small):
                self._step()

    def _step(self) -> None:
        with beginning():
            self._compute()

    def _compute(self) -> None:
        state, points = self.state, self.batches.take(self._place)
        state.set_rate(entry(self._rates, self._place))
        target = points.target
        if self.teachers is not None:
            target = self.teachers.soften(points.x, points.soft(self.batches.classes))
        given = (points.x, points.y, entry(self._weights, self._place), entry(self._radii, self._place), target)
        with one_by_one() if len(self.seeds) > 1 else nullcontext():
            loss, following = self._value(state.parameters, state.vectors, *given)
        state.optimiser.zero_grad()
        if self.workers.joined:
            loss = loss * (self.batches.own / self.batches.size)
        (loss.sum() if loss.ndim else loss).backward()  # type: ignore[no-untyped-call]
        gradients = [each.grad for each in state.parameters.values() if each.grad is not None]
        with torch.no_grad():
            last = loss.detach().view(len(self.seeds))
            if self.workers.joined:
                for vector in following.values():  # their sum is then the first worker's vector, bit for bit
                    vector.mul_(self.workers.first)
                self.workers.add([last, *gradients, *following.values()])
        turn_gradients(self._orthogonal)
        if self.recipe.optimiser.clip is not None:
            clip_gradients(gradients, self.recipe.optimiser.clip, len(self.seeds))
        state.optimiser.step()
        return_to_manifold(self._orthogonal)
        state.follow_average()
        with torch.no_grad():
            if state.vectors and following is not state.vectors:  # a loss without estimates gives back what it got
                torch._foreach_copy_(list(state.vectors.values()), [following[name] for name in state.vectors])
            self.last.copy_(last)
            self.total.add_(self.last)
            self._place.add_(1)


@torch.no_grad()
def clip_gradients(gradients: Sequence[Tensor], most: float, count: int = 1) -> None:
    """Scale the gradients of each network so that their norm together is at most this; nothing waits for the device.

    Args:
        gradients: changed in place; of several networks stacked.
        most: the largest norm.
        count: of networks.
    """
    squares = torch.stack([each.view(count, -1).square().sum(dim=1) for each in gradients]).sum(dim=0)
    factors = (most / squares.sqrt()).clamp(max=1.0)  # (count,)
    for each in gradients:
        each.view(count, -1).mul_(factors[:, None])


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
