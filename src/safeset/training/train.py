"""From a recipe to a trained net, and to a run directory that holds it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safeset.data.dataset import Dataset, Split
from safeset.data.from_python import Given, as_dataset
from safeset.data.quality import report
from safeset.data.sources import SOURCES, load_data
from safeset.errors import expected
from safeset.inputs import as_device
from safeset.nets.net import CertifiedNet
from safeset.recipes.library import find_recipe
from safeset.recipes.recipe import OWN_DATA, FittedRecipe, Recipe
from safeset.recipes.sections import Data
from safeset.runs.data import loading_options
from safeset.runs.evaluate import evaluate_net
from safeset.runs.load import build_net, load
from safeset.runs.own_networks import Factory, make_network
from safeset.runs.run import Run
from safeset.system.files import write_json
from safeset.system.workers import Workers
from safeset.training.directory import explain_write_errors, save_interrupted, summary, take_directory, write_run
from safeset.training.estimates import choose_points
from safeset.training.interruption import Interrupted
from safeset.training.loop import Outcome, fit
from safeset.training.pictures import draw_curves, draw_samples
from safeset.training.plan import at_chance, count_right, describe_training
from safeset.training.watch import Silent, Watch, choose_watch


@dataclass(frozen=True)
class TrainedRun:
    """What a training into a directory gives.

    Attributes:
        net: the trained net, on its device; of several seeds the first.
        recipe: by which it was trained.
        evaluation: as it was written; None where the training had ended before, and the directory holds one.
    """

    net: CertifiedNet
    recipe: FittedRecipe
    evaluation: dict[str, Any] | None


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    network: nn.Module | Factory | None = None,
    data: Dataset | Given | None = None,
    class_names: Sequence[str] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    checkpoint_minutes: float = 5.0,
    watch: Watch | None = None,
    progress: bool | None = None,
) -> CertifiedNet:
    """Train a net by a recipe; the command line's own function.

    Args:
        recipe: a `Recipe`, its plain values, the path of its TOML file, or the name of one that comes with safeset.
        network: an own module instead of the recipe's model, trained where it is; or a function that makes one, of
            ``input_shape`` and ``classes`` if it takes them.
        data: own data instead of the recipe's: a `Dataset` of safeset; inputs (n, …) and labels (n,), or those to train
            and those to test, as tensors or arrays: ``(x, y)``, ``(x, y, x_test, y_test)``; a `TensorDataset`, another
            data set of torch, or a `DataLoader`, or two of them. What brings no test points has a fifth held out.
        class_names: one for each label, for own data.
        out: directory for the run: recipe, model, proved bounds, metrics, evaluation. Without it nothing is written.
        resume: continue the run in ``out``, bit for bit on a CPU; if there is none, begin.
        device: such as ``"cuda"``; by default a GPU if there is one.
        checkpoint_minutes: between two checkpoints.
        watch: to whom progress is reported, instead of a progress bar.
        progress: whether to show progress; by default in a terminal and in a notebook.

    Returns:
        The trained net, on its device: with the weights of the best epoch, where points are held out to choose it
        (`Recipe.hold_out`), else with the last ones. Of several seeds (`Recipe.seeds`) the first, the others are in
        ``out``.

    Raises:
        SafesetError: for mistakes in the recipe or the data, a directory that is taken, a loss that is not finite.
    """
    as_device(device)  # a mistake in it is reported before the data is loaded
    written = as_recipe(recipe, own_data=data is not None)
    own = None if data is None else as_dataset(data, class_names)
    watch = choose_watch(progress) if watch is None else watch
    try:
        fitted, points = prepare_training(written, own, own_network=network is not None, watch=watch)
        module = make_own_network(network, fitted)
        if out is None:
            return train_net(fitted, points, network=module, device=device, watch=watch)
        return train_run(
            fitted,
            points,
            network=module,
            out=Path(out),
            resume=resume,
            device=device,
            minutes=checkpoint_minutes,
            watch=watch,
        ).net
    finally:
        watch.end()


def as_recipe(recipe: Recipe | Mapping[str, Any] | str | Path, *, own_data: bool = False) -> Recipe:
    """A recipe, however it is given."""
    if isinstance(recipe, str | Path):
        recipe = Recipe.read(find_recipe(str(recipe)))
    if isinstance(recipe, Mapping):
        recipe = Recipe.from_table({**recipe, "data": {"source": OWN_DATA}} if own_data else recipe)
    if not isinstance(recipe, Recipe):
        raise expected("a recipe: its values, its file's path or its name", repr(recipe)[:80])
    return replace(recipe, data=Data(OWN_DATA)) if own_data else recipe


def prepare_training(
    recipe: Recipe, data: Dataset | None = None, *, own_network: bool = False, watch: Watch | None = None
) -> tuple[FittedRecipe, Dataset]:
    """Load the data of a recipe, and fit the recipe to it: to what is trained on, and what is evaluated on."""
    if data is None:
        source, options, progress = recipe.data.source, loading_options(recipe), _watch_here(watch).track
        data = Workers.here().in_turn(lambda: load_data(source, progress=progress, **options))
        report(data, oddities=source not in SOURCES)
    if recipe.calibration:
        data = data.for_calibration(recipe.calibration)
    fitted = recipe.fit(data, own_network=own_network)
    points = data.for_choices() if fitted.validation else data
    for split, what in ((points.train, "train on"), (points.test, "evaluate on")):
        if not len(split):
            remedy = "Classes of fewer than three points have none to hold out; give more, or a test split."
            raise expected(f"points of {points.name} to {what}", "none", remedy)
    return fitted, points


def make_own_network(network: nn.Module | Factory | None, recipe: FittedRecipe) -> nn.Module | None:
    """A user's own network, made by its factory if it is not there yet; None where the recipe names a model."""
    if network is None or isinstance(network, nn.Module):
        return network
    return make_network(network, recipe.task.input_shape, len(recipe.task.class_names), seed=recipe.seed)


def train_net(
    recipe: FittedRecipe,
    points: Dataset,
    *,
    network: nn.Module | None = None,
    device: str | torch.device | None = None,
    watch: Watch | None = None,
) -> CertifiedNet:
    """`train` without a directory, from what `prepare_training` gives."""
    _check_seeds(recipe, several=False)
    watch, net = _watch_here(watch), build_net(recipe, network).to(as_device(device))
    split, watched, on = _choose_splits(recipe, points)
    watch.introduce(describe_training(recipe, points, len(points.train) - len(split), [net]))
    fit([net], recipe, split, watched, on=on, watch=watch)
    _report_chance([net], points, watch)
    return net.eval()


def train_run(
    recipe: FittedRecipe,
    points: Dataset,
    *,
    out: Path,
    network: nn.Module | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    minutes: float = 5.0,
    watch: Watch | None = None,
    pictures: bool = True,
) -> TrainedRun:
    """`train` into a directory, from what `prepare_training` gives; with or without pictures at the end."""
    _check_seeds(recipe, several=network is None)
    watch = _watch_here(watch)
    job = _Job(recipe, points, network, as_device(device), Run(out), watch)
    with ExitStack() as held:
        if job.workers.decide(lambda: take_directory(job.run, recipe, resume, held)):
            return TrainedRun(job.load_ended(network), recipe, None)
        watch.introduce(job.text)  # only now: the directory, and the recipe of a run to continue, are as they should be
        with explain_write_errors(job.run):
            outcomes = job.fit(minutes)
            evaluation = job.evaluate(outcomes)
        if job.workers.first:
            _report_chance(job.nets, points, watch)
        if job.workers.first and pictures:
            job.draw_pictures(outcomes)
    return TrainedRun(job.nets[0], recipe, evaluation)


class _Job:
    """The nets of one training, one for each seed, and the directories into which they go."""

    def __init__(
        self,
        recipe: FittedRecipe,
        points: Dataset,
        network: nn.Module | None,
        device: torch.device,
        run: Run,
        watch: Watch,
    ) -> None:
        self.recipe, self.points, self.run, self.watch, self.workers = recipe, points, run, watch, Workers.here()
        self.recipes = [replace(recipe, seed=recipe.seed + one, seeds=1) for one in range(recipe.seeds)]
        self.runs = [run] if recipe.seeds == 1 else [Run(run.path / f"seed{one.seed}") for one in self.recipes]
        self.nets = [build_net(one, network).to(device) for one in self.recipes]
        self.split, self.watched, self.on = _choose_splits(recipe, points)
        self.text = describe_training(recipe, points, len(points.train) - len(self.split), self.nets)

    def load_ended(self, network: nn.Module | None) -> CertifiedNet:
        """The first net, where the training has ended before; only the first worker reads its weights."""
        net = self.nets[0]
        if self.workers.first:
            self.watch.note(f"The training in {self.run.path} has ended already.")
            net = load(self.runs[0].path, network=network).to(net.device)
        self.workers.align(list(net.state_dict().values()))
        return net.eval()

    def fit(self, minutes: float) -> list[Outcome]:
        """Train the nets; what an interruption leaves can be used by every command."""
        if self.workers.first:
            for each in {self.run, *self.runs}:
                each.forget_model()
        try:
            return fit(
                self.nets,
                self.recipe,
                self.split,
                self.watched,
                on=self.on,
                watch=self.watch,
                run=self.run,
                minutes=minutes,
            )
        except Interrupted as stopped:
            if self.workers.first:
                so_far = f"epoch {stopped.epoch} of {self.recipe.epochs}"
                save_interrupted(self.runs, self.nets, self.recipes, so_far, self.watch)
            raise

    def evaluate(self, outcomes: Sequence[Outcome]) -> dict[str, Any]:
        """Evaluate the nets, all workers together, and write all that the directories hold."""
        results = [evaluate_net(net.eval(), one, self.points) for net, one in zip(self.nets, self.recipes, strict=True)]
        evaluation = results[0] if len(results) == 1 else summary(results)
        if self.workers.first:
            records = self.run.records()
            for each in zip(self.runs, self.nets, self.recipes, results, outcomes, strict=True):
                write_run(*each, records)
            if len(results) > 1:
                write_json(self.run.evaluation, evaluation)
            for file in (self.run.checkpoint, *self.run.path.glob(f"{self.run.teacher.stem}-*.safetensors")):
                file.unlink(missing_ok=True)
        return evaluation

    def draw_pictures(self, outcomes: Sequence[Outcome]) -> None:
        """Draw the curves of the training, and samples of each net."""
        chosen = self.recipe.held_out_share and len(self.nets) == 1
        draw_curves(self.run, self.run.records(), outcomes[0].epoch if chosen else None)
        for run, net in zip(self.runs, self.nets, strict=True):
            draw_samples(run, net, self.points)


def _check_seeds(recipe: FittedRecipe, *, several: bool) -> None:
    """Refuse several seeds where only one net can be trained."""
    if recipe.seeds > 1 and not several:
        raise expected("a model by its name and a directory for several seeds", "an own network, or no `out`")


def _choose_splits(recipe: FittedRecipe, points: Dataset) -> tuple[Split, Split, str]:
    """What to train on, the points on which each epoch is estimated, and what those are."""
    if recipe.held_out_share:
        rest, held = points.train.held_out(recipe.held_out_share)
        return rest, choose_points(held), "held-out"
    if recipe.validation:
        return points.train, choose_points(points.test), "validation"
    return points.train, choose_points(points.train), "training"


def _report_chance(nets: Sequence[CertifiedNet], points: Dataset, watch: Watch) -> None:
    """Report it if nothing was learnt."""
    found = [at_chance(count_right(net.eval(), points.test), points.test.y) for net in nets]
    for each in dict.fromkeys(filter(None, found)):
        watch.note(each)


def _watch_here(watch: Watch | None) -> Watch:
    """To whom this worker reports: of several workers only the first reports to the user."""
    return watch if watch is not None and Workers.here().first else Silent()
