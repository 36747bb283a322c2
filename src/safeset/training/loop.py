"""The loop: from a net and points to trained parameters, safe to interrupt at any moment."""

import json
import math
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from safeset.data.dataset import Split
from safeset.errors import SafesetError, counted
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.run import Run
from safeset.system.workers import LostWorkerError, Workers
from safeset.training.engine import Engine, fast_arithmetic
from safeset.training.estimates import estimate_rates, set_training_mode
from safeset.training.interruption import Interrupted, catch_signals
from safeset.training.manifold import polish_weights
from safeset.training.state import Position, State
from safeset.training.teacher import Teachers, train_teachers
from safeset.training.watch import Watch

AGREE = 16  # captured steps after which workers ask each other whether to stop
GLANCE = 0.25  # seconds between two looks at the loss, because each look waits for the GPU


@dataclass(frozen=True)
class Outcome:
    """How the training of a net has ended, or how far it has come.

    Attributes:
        epoch: after which the net had its weights: the best one where points are held out, else the last.
        trained: epochs that are done.
        last: the weights after the last step by name, where the net has those of an earlier epoch.
    """

    epoch: int
    trained: int
    last: dict[str, Tensor] | None = None


def fit(
    nets: Sequence[CertifiedNet],
    recipe: FittedRecipe,
    split: Split,
    watched: Split,
    *,
    on: str = "training",
    watch: Watch,
    run: Run | None = None,
    minutes: float = 5.0,
) -> list[Outcome]:
    """Train the parameters of a net, where they lie; or of several, of seeds one after another, all at once.

    On a GPU the step is captured as a CUDA graph, where the optimiser can be.

    Args:
        nets: on the device to train on; the k-th has the seed of the recipe plus k.
        recipe: what is trained, and how.
        split: what to train on.
        watched: points on which metrics are estimated after each epoch; where the recipe holds points out, those.
        on: what the watched points are: ``held-out``, ``validation`` or ``training``.
        watch: to whom progress is reported.
        run: where checkpoints go; a checkpoint that is there is continued, on a CPU bit for bit.
        minutes: between two checkpoints.

    Returns:
        How it ended, for each net.

    Raises:
        Interrupted: after a signal, when all is saved.
        SafesetError: if a loss is not finite any more.
    """
    loop = _Loop(nets, recipe, split, watched, on, watch, run, minutes)
    with loop.setting():
        loop.find_teachers(split)
        for epoch in range(loop.position.epoch, recipe.epochs):
            if loop.is_exhausted(epoch):
                break
            loop.take_steps(epoch)
            loop.record_epoch(epoch)
        return loop.finish()


class _Asked(Exception):  # noqa: N818  (no mistake)
    """A signal asked to stop while teachers were trained."""

    def __init__(self, stop: int) -> None:
        super().__init__(stop)
        self.stop = stop


class _Loop:
    """A training under way: what `fit` was given, and what has come of it so far."""

    def __init__(
        self,
        nets: Sequence[CertifiedNet],
        recipe: FittedRecipe,
        split: Split,
        watched: Split,
        on: str,
        watch: Watch,
        run: Run | None,
        minutes: float,
    ) -> None:
        net = nets[0]
        self.nets, self.recipe, self.on, self.watch, self.run, self.minutes = nets, recipe, on, watch, run, minutes
        self.device = net.device
        self.workers = Workers.here()
        self.seeds = [recipe.seed + place for place in range(len(nets))]
        self.watched, split = watched.to(self.device), split.to(self.device)
        self.state = State.start(nets, recipe, self.seeds, held_out=len(watched) if recipe.held_out_share else 0)
        self.digest = split.digest() if run is not None or self.workers.count > 1 else ""
        self.workers.check_same(self.digest, "data")
        self.workers.check_same({key: each for key, each in recipe.table().items() if key != "data"}, "recipe")
        self.position = Position()  # of the next step
        if run is not None:
            self.position = self.state.load(run.checkpoint, self.digest, self.workers)
        self.keeper = run if self.workers.first else None  # of checkpoints and metrics
        if self.keeper is not None:
            self.keeper.forget(self.position.epoch)
        net.guarantee.prepare(net.classes, self.device)
        set_training_mode(net)
        self.captured = self.device.type == "cuda" and recipe.optimiser.name != "sgd"
        self.engine = Engine(net, recipe, split, self.state, self.seeds, captured=self.captured, workers=self.workers)
        self.started = time.perf_counter() - self.position.seconds
        self.saved = self.looked = self.started  # when, by the same clock
        watch.begin(recipe.epochs, self.engine.steps, self.position.epoch * self.engine.steps + self.position.step)

    @contextmanager
    def setting(self) -> Iterator[None]:
        """Random numbers, arithmetic, device and signals as a training has them; all of it is restored after."""
        with ExitStack() as held:
            held.enter_context(_random_numbers(self.recipe.seed, self.state, self.workers))
            held.enter_context(fast_arithmetic(self.device, self.recipe.precision))
            if self.device.type == "cuda":
                held.enter_context(torch.cuda.device(self.device))  # where new streams and Triton's kernels are
            self.asked = held.enter_context(catch_signals(self.run is not None, self.workers))
            self.saved = self.looked = time.perf_counter()
            yield

    def find_teachers(self, split: Split) -> None:
        """Train the teachers that the recipe asks for, or read them where that was done before."""
        settings, recipe, watch = self.recipe.teacher, self.recipe, self.watch
        if settings is None:
            return
        points = f"{counted(settings.count, 'teacher')} for {counted(settings.epochs, 'epoch')}"
        watch.introduce(f"First {points}: ResNet-9 of width {settings.width}, noise σ = {settings.noise:g}")
        about = [recipe.table().get(key) for key in ("teacher", "augmentation", "seed")]
        try:
            networks = train_teachers(
                split.to(self.device),
                recipe.augmentation,
                self.nets[0].classes,
                settings,
                seed=recipe.seed,
                path=None if self.keeper is None else self.keeper.teacher,
                label=json.dumps([*about, self.digest], sort_keys=True),
                tick=self._look_for_signals,
                due=self._is_due,
            )
            self.engine.listen_to(Teachers(networks, settings), tick=self._look_for_signals)
        except _Asked as asked:  # here, where random numbers are the student's again: a checkpoint holds them
            assert self.run is not None  # else nobody asks
            saved = self._save()
            _settle(self.nets, self.state, self.position.epoch)
            raise Interrupted(asked.stop, self.position.epoch + 1, recipe.epochs, self.run, saved) from None

    def _is_due(self) -> bool:
        """Whether it is time to save; then the clock starts again."""
        now = time.perf_counter()
        due = now - self.saved >= 60 * self.minutes
        self.saved = now if due else self.saved
        return due

    def _look_for_signals(self) -> None:
        """Leave the training of teachers where a signal asks for it."""
        if self.run is not None and (stop := self.asked()):
            raise _Asked(stop)

    def is_exhausted(self, epoch: int) -> bool:
        """Whether the recipe's patience has come to its end before this epoch."""
        patience, best = self.recipe.patience, self.state.best
        if patience is None or best is None or not best.is_exhausted(epoch, patience):
            return False
        found = f"No higher held-out VRA in {counted(patience, 'epoch')}"
        self.watch.note(f"{found}: stopped after epoch {epoch} of {self.recipe.epochs}.")
        return True

    def take_steps(self, epoch: int) -> None:
        """Take the steps of an epoch, or those that are left of it; save a checkpoint when it is due."""
        self.workers.align(self.state.tensors())
        self.engine.start(epoch, self.position.step, self.position.losses)
        for step in range(self.position.step, self.engine.steps):
            stop = self._take_step(epoch, step)
            now = time.perf_counter()
            due = self.keeper is not None and (stop > 0 or now - self.saved >= 60 * self.minutes)
            glance = self.workers.first and (due or now - self.looked >= GLANCE)
            self.watch.step(_mean_loss(self.engine.last, epoch, step, self.run) if glance else None)
            self.looked = now if glance else self.looked
            saved = self._save_at(epoch, step + 1) if due else True
            self.saved = now if due else self.saved
            if stop and self.run is not None:
                self.watch.end()
                _settle(self.nets, self.state, epoch)
                raise Interrupted(stop, epoch + 1, self.recipe.epochs, self.run, saved)
        _mean_loss(self.engine.total, epoch, self.engine.steps - 1, self.run)

    def _take_step(self, epoch: int, step: int) -> int:
        """Take a step, and give the signal that asks to stop, 0 if there is none."""
        done = step
        try:
            self.engine.step()
            done = step + 1
            # Asking costs a message between workers: captured steps are too short to ask after each.
            often = not self.captured or self.workers.count == 1
            return self.asked() if often or done % AGREE == 0 else 0
        except LostWorkerError:  # a step that fails leaves everything as it was
            self._save_at(epoch, done)
            raise

    def record_epoch(self, epoch: int) -> None:
        """Estimate the metrics of an epoch, keep its weights if they are the best, and write and report its line."""
        nets, state = self.nets, self.state
        losses = (self.engine.total / self.engine.steps).tolist()
        rates = [
            estimate_rates(nets[0], *state.one(place, len(nets)), self.watched, self.recipe.loss)
            for place in range(len(nets))
        ]
        each = [{"loss": loss, **found} for loss, found in zip(losses, rates, strict=True)]
        record: dict[str, Any] = {
            "epoch": epoch + 1,
            **{name: statistics.fmean(one[name] for one in each) for name in each[0]},
            **({"seeds": dict(zip(map(str, self.seeds), each, strict=True))} if len(nets) > 1 else {}),
            "on": self.on,
            "rate": self.recipe.optimiser.rate.in_epoch(epoch, self.recipe.epochs, self.engine.steps)[-1],
            "seconds": round(time.perf_counter() - self.started, 3),
        }
        if state.best is not None:
            state.best.consider(epoch + 1, each, state.weights(len(nets)))
        if self.keeper is not None:
            _append(self.keeper, record, self.watch)
        self.watch.epoch(record)
        self.position = Position(epoch + 1, 0, None, record["seconds"])

    def finish(self) -> list[Outcome]:
        """Save the last checkpoint, and give the nets their weights."""
        self.watch.end()
        saved = self._save()
        outcomes = _settle(self.nets, self.state, self.position.epoch)
        if self.run is not None and (stop := self.asked()):
            raise Interrupted(stop, self.position.epoch, self.recipe.epochs, self.run, saved)
        return outcomes

    def _save_at(self, epoch: int, step: int) -> bool:
        """Save a checkpoint before this step of an epoch."""
        if self.keeper is None:
            return True
        losses = tuple(self.engine.total.tolist())
        self.position = Position(epoch, step, losses, time.perf_counter() - self.started)
        return self._save()

    def _save(self) -> bool:
        """Save a checkpoint; one that cannot be written is reported, and training goes on with the last good one."""
        run, position = self.keeper, self.position
        if run is None:
            return True
        for name, tensor in self.state.parameters.items():
            if not bool(tensor.isfinite().all()):
                raise _not_finite(f"the parameter {name}", position.epoch, position.step, run)
        try:
            self.state.save(run.checkpoint, position, self.digest)
        except OSError as error:
            kept = "the last good one is kept" if run.checkpoint.exists() else "there is none yet"
            self.watch.note(f"No checkpoint could be written to {run.path} ({error.strerror or error}); {kept}.")
            return False
        return True


@torch.no_grad()
def _settle(nets: Sequence[CertifiedNet], state: State, trained: int) -> list[Outcome]:
    """Give each net its weights: the best, where there are any, else those after the last step."""
    outcomes = []
    for place, net in enumerate(nets):
        own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        for name, served in state.one(place, len(nets))[0].items():
            own[name].copy_(served)
        epoch, last = trained, None
        if state.best is not None and state.best.kept[place][0]:
            epoch = state.best.kept[place][0]
            last = {name: tensor.detach().clone() for name, tensor in net.network.state_dict().items()}
            for name, tensor in state.best.one(place).items():
                own[name].copy_(tensor)
        polish_weights(net)
        outcomes.append(Outcome(epoch, trained, last if epoch < trained else None))
    return outcomes


def _append(run: Run, record: dict[str, Any], watch: Watch) -> None:
    """Add a line to metrics.jsonl; one that cannot be written is reported, and training goes on."""
    try:
        run.append(record)
    except OSError as error:
        watch.note(f"The metrics of epoch {record['epoch']} could not be written ({error.strerror or error}).")


def _mean_loss(losses: Tensor, epoch: int, step: int, run: Run | None) -> float:
    """The mean of the losses, if all are finite."""
    value = losses.mean().item()
    if not math.isfinite(value):
        raise _not_finite(f"a loss of {value}", epoch, step + 1, run)
    return value


def _not_finite(what: str, epoch: int, step: int, run: Run | None) -> SafesetError:
    kept = f" The last good checkpoint stays in {run.path}." if run is not None and run.checkpoint.exists() else ""
    return SafesetError(
        f"Expected finite numbers, but got {what} in epoch {epoch + 1}, step {step}. Try a lower rate "
        f"(optimiser.rate, such as 1e-4; --set optimiser.rate=1e-4 at the command line), or a smaller epsilon.{kept}"
    )


@contextmanager
def _random_numbers(seed: int, state: State, workers: Workers) -> Iterator[None]:
    """Random numbers of the recipe's seed, for layers such as dropout; the caller's own are left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + workers.rank * 1_000_003)
        if state.random is not None and workers.first:
            torch.set_rng_state(state.random)
        yield
