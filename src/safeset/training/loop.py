"""The loop: from a net and points to trained parameters, safe to interrupt at any moment."""

import math
import signal
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from safeset.certificates.certify_logits import certify_logits
from safeset.certificates.constants import HeadConstants
from safeset.data.dataset import Split
from safeset.errors import SafesetError, counted
from safeset.evaluation import Metrics
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.run import Run
from safeset.system.workers import LostWorkerError, Workers
from safeset.training.engine import Engine, fast_arithmetic
from safeset.training.state import Position, State
from safeset.training.step import called
from safeset.training.watch import Watch

WATCHED = 1000  # points on which an epoch's metrics are estimated
AGREE = 16  # captured steps after which workers ask each other whether to stop
GLANCE = 0.25  # seconds between two looks at the loss, which a GPU must be waited for


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


class Interrupted(SafesetError):  # noqa: N818  (no mistake)
    """A signal asked the training to stop; the nets have the best weights so far, or the last ones."""

    def __init__(self, number: int, epoch: int, epochs: int, run: Run, saved: bool) -> None:
        state = (
            "All is saved" if saved else "This could not be saved" if run.checkpoint.exists() else "Nothing is saved"
        )
        self._state = f"Interrupted in epoch {epoch} of {epochs}. {state}; continue with"
        super().__init__(f"{self._state}: safeset train --resume --out {run.path}")
        self.signal, self.epoch = number, epoch
        self.told = not Workers.here().first  # one message is enough
        self.exit_code = 128 + number

    def continued_by(self, what: str) -> "Interrupted":
        """The same, to be continued in another way."""
        self.args = (f"{self._state} {what}.",)
        return self


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
        recipe: fitted to the data.
        split: what to train on.
        watched: points on which metrics are estimated after each epoch; where the recipe holds points out, those.
        on: what the watched points are: ``held-out``, ``validation`` or ``training``.
        watch: is told how it goes.
        run: where checkpoints go; a checkpoint that is there is continued, on a CPU to the bit.
        minutes: between two checkpoints.

    Returns:
        How it ended, for each net.

    Raises:
        Interrupted: after a signal, when all is saved.
        SafesetError: if a loss is not finite any more.
    """
    net, epochs = nets[0], recipe.epochs
    device = next(net.parameters()).device
    seeds = [recipe.seed + place for place in range(len(nets))]
    split, watched = split.to(device), watched.to(device)
    state = State.start(nets, recipe, seeds, held_out=len(watched) if recipe.hold_out else 0)
    workers = Workers.here()
    data = split.digest() if run is not None or workers.count > 1 else ""
    workers.check_same(data, "data")
    workers.check_same({key: value for key, value in recipe.table().items() if key != "data"}, "recipe")
    position = state.load(run.checkpoint, data, workers) if run is not None else Position()
    keeper = run if workers.first else None  # of checkpoints and metrics
    if keeper is not None:
        keeper.forget(position.epoch)
    net.guarantee.prepare(net.classes, device)
    _for_training(net)
    captured = device.type == "cuda" and recipe.optimiser.name != "sgd"
    engine = Engine(net, recipe, split, state, seeds, captured=captured, workers=workers)
    started = time.perf_counter() - position.seconds
    watch.begin(epochs, engine.steps, position.epoch * engine.steps + position.step)
    with ExitStack() as held:
        held.enter_context(_random(recipe.seed, state, workers))
        held.enter_context(fast_arithmetic(device, recipe.precision))
        if device.type == "cuda":
            held.enter_context(torch.cuda.device(device))  # where new streams and Triton's kernels are
        asked = held.enter_context(_signals(run is not None, workers))
        saved = looked = time.perf_counter()
        for epoch in range(position.epoch, epochs):
            if state.best is not None and state.best.exhausted(epoch, recipe.patience):
                said = f"No higher held-out VRA in {counted(recipe.patience or 1, 'epoch')}"
                watch.note(f"{said}: stopped after epoch {epoch} of {epochs}.")
                break
            workers.align(state.tensors())
            engine.start(epoch, position.step, position.losses)
            for step in range(position.step, engine.steps):
                done, stop = step, 0
                try:
                    engine.step()
                    done = step + 1
                    if not captured or workers.count == 1 or done % AGREE == 0:
                        stop = asked()
                except LostWorkerError:  # a step that fails leaves everything as it was
                    if keeper is not None:
                        position = Position(epoch, done, tuple(engine.total.tolist()), time.perf_counter() - started)
                        _save(state, keeper, position, data, watch)
                    raise

                now = time.perf_counter()
                due = keeper is not None and (stop > 0 or now - saved >= 60 * minutes)
                glance = workers.first and (due or now - looked >= GLANCE)
                watch.step(_finite(engine.last, epoch, step, run) if glance else None)
                looked = now if glance else looked
                written = True
                if due and keeper is not None:
                    position = Position(epoch, done, tuple(engine.total.tolist()), now - started)
                    written = _save(state, keeper, position, data, watch)
                    saved = now
                if stop and run is not None:
                    watch.end()
                    _settle(nets, state, epoch)
                    raise Interrupted(stop, epoch + 1, epochs, run, written)
            _finite(engine.total, epoch, engine.steps - 1, run)
            losses = (engine.total / engine.steps).tolist()
            rates = [estimated(net, *state.one(place, len(nets)), watched, recipe) for place in range(len(nets))]
            each = [{"loss": loss, **found} for loss, found in zip(losses, rates, strict=True)]
            record: dict[str, Any] = {
                "epoch": epoch + 1,
                **{name: statistics.fmean(one[name] for one in each) for name in each[0]},
                **({"seeds": dict(zip(map(str, seeds), each, strict=True))} if len(nets) > 1 else {}),
                "on": on,
                "rate": recipe.optimiser.rate(epoch, epochs),
                "seconds": round(time.perf_counter() - started, 3),
            }
            if state.best is not None:
                state.best.consider(epoch + 1, each, state.weights(len(nets)))
            if keeper is not None:
                _append(keeper, record, watch)
            watch.epoch(record)
            position = Position(epoch + 1, 0, None, record["seconds"])
        watch.end()
        written = keeper is None or _save(state, keeper, position, data, watch)
        outcomes = _settle(nets, state, position.epoch)
        if run is not None and (stop := asked()):
            raise Interrupted(stop, position.epoch, epochs, run, written)
    return outcomes


@torch.no_grad()
def _settle(nets: Sequence[CertifiedNet], state: State, trained: int) -> list[Outcome]:
    """Give each net its weights: the best, where there are any, else those after the last step."""
    outcomes = []
    for place, net in enumerate(nets):
        own = {**dict(net.named_parameters()), **dict(net.named_buffers())}
        for name, stacked in state.parameters.items() if len(nets) > 1 else ():
            own[name].copy_(stacked[place])
        epoch, last = trained, None
        if state.best is not None and state.best.kept[place][0]:
            epoch = state.best.kept[place][0]
            last = {name: tensor.detach().clone() for name, tensor in net.network.state_dict().items()}
            for name, tensor in state.best.one(place).items():
                own[name].copy_(tensor)
        outcomes.append(Outcome(epoch, trained, last if epoch < trained else None))
    return outcomes


@torch.no_grad()
def estimated(
    net: CertifiedNet, parameters: dict[str, Tensor], vectors: dict[str, Tensor], split: Split, recipe: FittedRecipe
) -> dict[str, float]:
    """VRA, rejection rate and accuracy on some points, from the power method's constants: estimates, nothing proved."""
    net.eval()
    constants, _ = net.estimate(parameters, vectors, max(2, recipe.loss.power_steps))
    constants = HeadConstants(constants.rows.detach().double(), float(constants.scale))
    metrics = Metrics()
    part = split[torch.arange(len(split), device=split.y.device)[Workers.here().share(len(split))]]
    if len(part):
        logits = called(net, parameters, part.inputs).double()
        found = certify_logits(logits, constants, net.epsilon, net.guarantee, method=recipe.loss.margins)
        metrics.update(found, part.y)
    _for_training(net)
    rates = metrics.compute()
    return {name: rates[name] for name in ("vra", "rejection_rate", "accuracy", "top1")}


def _save(state: State, run: Run, position: Position, data: str, watch: Watch) -> bool:
    """Write a checkpoint; one that cannot be written is told, and training goes on with the last good one."""
    for name, tensor in state.parameters.items():
        if not bool(tensor.isfinite().all()):
            raise _not_finite(f"the parameter {name}", position.epoch, position.step, run)
    try:
        state.save(run.checkpoint, position, data)
    except OSError as error:
        kept = "the last good one is kept" if run.checkpoint.exists() else "there is none yet"
        watch.note(f"No checkpoint could be written to {run.path} ({error.strerror or error}); {kept}.")
        return False
    return True


def _append(run: Run, record: dict[str, Any], watch: Watch) -> None:
    """Add a line to metrics.jsonl; one that cannot be written is reported, and training goes on."""
    try:
        run.append(record)
    except OSError as error:
        watch.note(f"The metrics of epoch {record['epoch']} could not be written ({error.strerror or error}).")


def _for_training(net: CertifiedNet) -> None:
    """Training mode, but for batch norm: it is certified with its running statistics, so it trains with them."""
    net.train()
    for layer in net.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()


def _finite(losses: Tensor, epoch: int, step: int, run: Run | None) -> float:
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
def _signals(catch: bool, workers: Workers) -> Iterator[Callable[[], int]]:
    """What asks all workers for the signal that wants them to stop, 0 if there is none; a second one stops at once."""
    asked: list[int] = []
    if not catch or threading.current_thread() is not threading.main_thread():
        yield lambda: workers.largest(0)
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before: dict[int, Any] = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: workers.largest(asked[0] if asked else 0)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _random(seed: int, state: State, workers: Workers) -> Iterator[None]:
    """Random numbers of the recipe's seed, for layers such as dropout; the caller's own are left alone."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + workers.rank * 1_000_003)
        if state.random is not None and workers.first:
            torch.set_rng_state(state.random)
        yield


def some_of(split: Split) -> Split:
    """Points for the metrics of each epoch, always the same."""
    return split[torch.randperm(len(split), generator=torch.Generator().manual_seed(0))[:WATCHED]]
