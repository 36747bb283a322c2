"""From a recipe to a trained net, and to a run directory that holds it."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safeset.data.dataset import KINDS, TEST_SHARE, Dataset, Split
from safeset.data.given import Given, Points, read_given
from safeset.data.quality import report
from safeset.data.sources import SOURCES, load_data
from safeset.data.units import given_units
from safeset.errors import expected
from safeset.inputs import as_device, as_tensor, check_names
from safeset.nets.net import CertifiedNet
from safeset.recipes.library import find_recipe
from safeset.recipes.recipe import OWN_DATA, FittedRecipe, Recipe
from safeset.recipes.sections import Data
from safeset.runs.evaluate import evaluate_net
from safeset.runs.load import build_net, load
from safeset.runs.own_networks import Factory, make_network
from safeset.runs.run import Run
from safeset.system.files import write_json
from safeset.system.workers import Workers
from safeset.training.directory import ended, finish, keep, summary, written
from safeset.training.loop import Interrupted, fit, some_of
from safeset.training.pictures import draw_curves, draw_samples
from safeset.training.plan import at_chance, describe_training, top1
from safeset.training.watch import Silent, Watch, automatic


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
        resume: continue the run in ``out``, to the bit on a CPU; if there is none, begin.
        device: such as ``"cuda"``; by default a GPU if there is one.
        checkpoint_minutes: between two checkpoints.
        watch: is told how it goes, instead of a progress bar.
        progress: whether to show how it goes; by default in a terminal and in a notebook.

    Returns:
        The trained net, on its device: with the weights of the best epoch, where points are held out to choose it
        (`Recipe.hold_out`), else with the last ones. Of several seeds (`Recipe.seeds`) the first, the others are in
        ``out``.

    Raises:
        SafesetError: for mistakes in the recipe or the data, a directory that is taken, a loss that is not finite.
    """
    as_device(device)  # a mistake in it is told before the data is loaded
    stated = as_recipe(recipe, own_data=data is not None)
    own = None if data is None else _dataset(data, class_names)
    watch = automatic(progress) if watch is None else watch
    try:
        fitted, points = prepared(stated, own, own_network=network is not None, watch=watch)
        if network is not None and not isinstance(network, nn.Module):
            network = make_network(network, points.input_shape, points.classes, seed=fitted.seed)
        return carried_out(
            fitted,
            points,
            network=network,
            out=out,
            resume=resume,
            device=device,
            minutes=checkpoint_minutes,
            watch=watch,
        )
    finally:
        watch.end()


def prepared(
    recipe: Recipe, data: Dataset | None = None, *, own_network: bool = False, watch: Watch | None = None
) -> tuple[FittedRecipe, Dataset]:
    """A recipe fitted to its data, and the data: what is trained on, and what is evaluated on."""
    if data is None:
        source, options, progress = recipe.data.source, recipe.data.options, _heard(watch).track
        data = Workers.here().in_turn(lambda: load_data(source, progress=progress, **options))
        report(data, oddities=source not in SOURCES)
    fitted = recipe.fit(data, own_network=own_network)
    points = data.for_choices() if fitted.validation else data
    for split, what in ((points.train, "train on"), (points.test, "evaluate on")):
        if not len(split):
            remedy = "Classes of fewer than three points have none to hold out; give more, or a test split."
            raise expected(f"points of {points.name} to {what}", "none", remedy)
    return fitted, points


def carried_out(
    fitted: FittedRecipe,
    points: Dataset,
    *,
    network: nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    minutes: float = 5.0,
    watch: Watch | None = None,
    pictures: bool = True,
) -> CertifiedNet:
    """`train`, from what `prepared` gives; with or without pictures at the end."""
    workers, watch, place = Workers.here(), _heard(watch), as_device(device)
    if fitted.seeds > 1 and (network is not None or out is None):
        raise expected("a model by its name and a directory for several seeds", "an own network, or no `out`")
    recipes = [replace(fitted, seed=fitted.seed + one, seeds=1) for one in range(fitted.seeds)]
    nets = [build_net(one, network).to(place) for one in recipes]
    split, watched, on = _watched(fitted, points)
    about = describe_training(fitted, points, len(points.train) - len(split), nets, place)
    if out is None:
        watch.introduce(about)
        fit(nets, fitted, split, watched, on=on, watch=watch)
        _check_outcome(nets, points, watch)
        return nets[0].eval()
    run = Run(Path(out))
    runs = [run] if len(nets) == 1 else [Run(run.path / f"seed{one.seed}") for one in recipes]
    with ExitStack() as held:
        if workers.decide(lambda: ended(run, fitted, resume, held)):
            if workers.first:
                watch.note(f"The training in {run.path} has ended already.")
                nets[0] = load(runs[0].path, network=network).to(place)
            workers.align(list(nets[0].state_dict().values()))
            return nets[0].eval()
        watch.introduce(about)  # only now: the directory, and the recipe of a run to continue, are as they should be
        with written(run):
            if workers.first:
                for each in {run, *runs}:
                    each.forget_model()
            try:
                outcomes = fit(nets, fitted, split, watched, on=on, watch=watch, run=run, minutes=minutes)
            except Interrupted as stopped:
                if workers.first:
                    keep(runs, nets, recipes, f"epoch {stopped.epoch} of {fitted.epochs}", watch)
                raise
            results = [evaluate_net(net.eval(), one, points) for net, one in zip(nets, recipes, strict=True)]
            if workers.first:
                records = run.records()
                for each, net, one, result, outcome in zip(runs, nets, recipes, results, outcomes, strict=True):
                    finish(each, net, one, result, records, outcome)
                if len(nets) > 1:
                    write_json(run.evaluation, summary(results))
                run.checkpoint.unlink(missing_ok=True)
        if workers.first:
            _check_outcome(nets, points, watch)
        if workers.first and pictures:
            draw_curves(run, records, outcomes[0].epoch if fitted.hold_out and len(nets) == 1 else None)
            for each, net in zip(runs, nets, strict=True):
                draw_samples(each, net, points)
    return nets[0]


def _watched(fitted: FittedRecipe, points: Dataset) -> tuple[Split, Split, str]:
    """What to train on, the points on which each epoch is estimated, and what those are."""
    if fitted.hold_out:
        rest, held = points.train.held_out(fitted.hold_out)
        return rest, some_of(held), "held-out"
    if fitted.validation:
        return points.train, some_of(points.test), "validation"
    return points.train, some_of(points.train), "training"


def _check_outcome(nets: Sequence[CertifiedNet], points: Dataset, watch: Watch) -> None:
    """Say it if nothing was learnt."""
    said = [at_chance(top1(net.eval(), points.test), points.test.y) for net in nets]
    for each in dict.fromkeys(filter(None, said)):
        watch.note(each)


def _heard(watch: Watch | None) -> Watch:
    """Who is told how it goes: of several workers the first one's."""
    return watch if watch is not None and Workers.here().first else Silent()


def as_recipe(recipe: Recipe | Mapping[str, Any] | str | Path, *, own_data: bool = False) -> Recipe:
    """A recipe, however it is given."""
    if isinstance(recipe, str | Path):
        recipe = Recipe.read(find_recipe(str(recipe)))
    if isinstance(recipe, Mapping):
        recipe = Recipe.from_table({**recipe, "data": {"source": OWN_DATA}} if own_data else recipe)
    if not isinstance(recipe, Recipe):
        raise expected("a recipe: its values, its file's path or its name", repr(recipe)[:80])
    return replace(recipe, data=Data(OWN_DATA)) if own_data else recipe


def _dataset(data: Dataset | Given, class_names: Sequence[str] | None = None) -> Dataset:
    """A data set from inputs and labels: a fifth of each class is held out to test, unless test points are given."""
    if isinstance(data, Dataset):
        if class_names is not None:
            raise expected("class names in the Dataset", "`class_names` beside it")
        return data
    points, names = read_given(data)
    parts = [_split(*pair) for pair in points]
    classes = 1 + max(int(part.y.max()) for part in parts)
    chosen = class_names or names or tuple(map(str, range(classes)))
    train, test = parts if len(parts) == 2 else parts[0].held_out(TEST_SHARE)
    return Dataset("own", train, test, check_names(chosen), given_units(parts))


def _split(x: Points, y: Points) -> Split:
    """Inputs and labels, checked."""
    x, y = as_tensor(x, "the inputs"), as_tensor(y, "the labels")
    if y.is_floating_point() or y.ndim != 1 or not len(y) or len(x) != len(y) or int(y.min()) < 0:
        got = f"{tuple(x.shape)} inputs and {tuple(y.shape)} labels, {y.dtype}"
        raise expected("inputs and for each a label, a whole number ≥ 0", got)
    if not bool(x.isfinite().all()):
        raise expected("finite inputs", "NaN or infinite ones")
    return Split(x if x.dtype in KINDS else x.double(), y.long())
