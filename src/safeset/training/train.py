"""From a recipe to a trained net, and to a run directory that holds it."""

import statistics
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from safeset.cards import card
from safeset.data.dataset import KINDS, TEST_SHARE, Dataset, Split
from safeset.data.quality import report
from safeset.data.sources import SOURCES, load_data
from safeset.data.units import given_units
from safeset.errors import SafesetError, expected
from safeset.files import write_json, write_whole
from safeset.inputs import as_device, as_tensor
from safeset.jobs import evaluated
from safeset.net import CertifiedNet
from safeset.runs import Run, build, load
from safeset.training.loop import fit, some_of
from safeset.training.recipe import OWN_DATA, Data, Recipe
from safeset.training.shelf import find_recipe
from safeset.training.toml import differing
from safeset.training.watch import Silent, Watch
from safeset.workers import Workers, attempt


def train(
    recipe: Recipe | Mapping[str, Any] | str | Path,
    *,
    network: nn.Module | None = None,
    data: Dataset | tuple[Tensor, Tensor] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    checkpoint_minutes: float = 5.0,
    watch: Watch | None = None,
) -> CertifiedNet:
    """Train a net by a recipe; the command line's own function.

    Args:
        recipe: a `Recipe`, its plain values, the path of its TOML file, or the name of one that comes with safeset.
        network: an own module instead of the recipe's model; trained where it is.
        data: an own `Dataset`, or inputs (n, …) and labels (n,), instead of the recipe's.
        out: directory for the run: recipe, model, proved bounds, metrics, evaluation. Without it nothing is written.
        resume: continue the run in ``out``, to the bit on a CPU; if there is none, begin.
        device: such as ``"cuda"``; by default a GPU if there is one.
        checkpoint_minutes: between two checkpoints.
        watch: is told how it goes.

    Returns:
        The trained net, on its device; of several seeds (`Recipe.seeds`) the first, the others are in ``out``.

    Raises:
        SafesetError: for mistakes in the recipe or the data, a directory that is taken, a loss that is not finite.
    """
    as_device(device)  # a mistake in it is told before the data is loaded
    stated = as_recipe(recipe, own_data=data is not None)
    own = None if data is None else _dataset(data)
    fitted, points = prepared(stated, own, own_network=network is not None, watch=watch)
    return carried_out(
        fitted, points, network=network, out=out, resume=resume, device=device, minutes=checkpoint_minutes, watch=watch
    )


def prepared(
    recipe: Recipe, data: Dataset | None = None, *, own_network: bool = False, watch: Watch | None = None
) -> tuple[Recipe, Dataset]:
    """A recipe fitted to its data, and the data: what is trained on, and what is evaluated on."""
    if data is None:
        source, options, progress = recipe.data.source, recipe.data.options, _heard(watch).track
        data = Workers.here().in_turn(lambda: load_data(source, progress=progress, **options))
        report(data, oddities=source not in SOURCES)
    fitted = recipe.fitted(data, own_network=own_network)
    points = data.for_choices() if fitted.validation else data
    for split, what in ((points.train, "train on"), (points.test, "evaluate on")):
        if not len(split):
            remedy = "Classes of fewer than three points have none to hold out; give more, or a test split."
            raise expected(f"points of {points.name} to {what}", "none", remedy)
    return fitted, points


def carried_out(
    fitted: Recipe,
    points: Dataset,
    *,
    network: nn.Module | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    device: str | torch.device | None = None,
    minutes: float = 5.0,
    watch: Watch | None = None,
) -> CertifiedNet:
    """`train`, from what `prepared` gives."""
    workers, watch, place = Workers.here(), _heard(watch), as_device(device)
    if fitted.seeds > 1 and (network is not None or out is None):
        raise expected("a model by its name and a directory for several seeds", "an own network, or no `out`")
    recipes = [replace(fitted, seed=fitted.seed + one, seeds=1) for one in range(fitted.seeds)]
    nets = [build(one, network).to(place) for one in recipes]
    watched = some_of(points.test if fitted.validation else points.train)
    if out is None:
        fit(nets, fitted, points.train, watched, watch=watch)
        return nets[0].eval()
    run = Run(Path(out))
    runs = [run] if len(nets) == 1 else [Run(run.path / f"seed{one.seed}") for one in recipes]
    with ExitStack() as held:
        if workers.decide(lambda: _ended(run, fitted, resume, held)):
            if workers.first:
                watch.note(f"The training in {run.path} has ended already.")
                nets[0] = load(runs[0].path, network=network).to(place)
            workers.align(list(nets[0].state_dict().values()))
            return nets[0].eval()
        with _written(run):
            fit(nets, fitted, points.train, watched, watch=watch, run=run, minutes=minutes)
            results = [evaluated(net.eval(), one, points) for net, one in zip(nets, recipes, strict=True)]
            if workers.first:
                records = run.records()
                for each, net, one, result in zip(runs, nets, recipes, results, strict=True):
                    _finish(each, net, one, result, records)
                if len(nets) > 1:
                    write_json(run.evaluation, summary(results))
                run.checkpoint.unlink(missing_ok=True)
    return nets[0]


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


AS_BEGUN = "Leave out the recipe and the flags to continue it as it was begun."


def check_same(run: Run, wanted: Recipe, remedy: str = AS_BEGUN) -> None:
    """Complain if a run that was begun is to be continued with another recipe."""
    if not (run.begun and run.recipe.exists()):
        return
    stored = run.read_recipe()
    moved = replace(stored, data=replace(stored.data, source=wanted.data.source))  # the data itself is compared later
    before, now = moved.table(), wanted.table()
    for key in differing(before, now):
        got, old = (str(table.get(key, "its default"))[:300] for table in (now, before))
        raise expected(f"the recipe of the run to continue: `{key}` {old}", got, remedy)


def _ended(run: Run, fitted: Recipe, resume: bool, held: ExitStack) -> bool:
    """Take the run's directory until ``held`` is closed; whether a training to continue has ended in it already."""
    resume = resume or (attempt() > 0 and run.ours)  # a restart continues what this very job began
    _check_free(run, resume)
    held.enter_context(run.locked())
    _check_free(run, resume)  # again: another may have come first
    if run.recipe.exists() and resume:
        check_same(run, fitted)
        if run.done:
            return True
        if run.model.exists() and not run.checkpoint.exists():
            remedy = f"safeset evaluate {run.path} writes one; to train again, remove the directory."
            raise expected(f"an evaluation of the trained model in {run.path}", "none", remedy)
    with _written(run):
        write_whole(run.recipe, fitted.text())
    return False


@contextmanager
def _written(run: Run) -> Iterator[None]:
    """What the system says when a file cannot be written, in our words."""
    try:
        yield
    except OSError as error:
        raise SafesetError(
            f"Expected to write into {run.path}, but got: {error.strerror or error}. What was saved before is "
            "kept, and can be continued."
        ) from None


def _check_free(run: Run, resume: bool) -> None:
    """A run is continued only when asked, and nothing else is ever written into."""
    if run.path.exists() and not run.path.is_dir():
        raise expected("a directory for the run", f"{run.path}, which is a file")
    if run.recipe.exists() and run.begun and not resume:
        remedy = "Choose another --out, or continue with --resume."
        raise expected("a new directory for the run", f"{run.path}, which has one", remedy)
    if not run.recipe.exists() and run.path.is_dir() and any(each.name[0] != "." for each in run.path.iterdir()):
        raise expected("a new or empty directory for the run", f"{run.path}, which holds something else")


def _finish(run: Run, net: CertifiedNet, recipe: Recipe, result: dict[str, Any], records: list[dict[str, Any]]) -> None:
    """Write everything down."""
    run.path.mkdir(exist_ok=True)
    write_whole(run.recipe, recipe.text())
    run.save(net)
    run.write_bounds(net)
    write_json(run.evaluation, result)
    write_whole(run.card, card(recipe, result, records))


def summary(results: list[dict[str, Any]]) -> dict[str, Any]:
    """The evaluations of several seeds as one: each metric's mean, and its standard deviation in ``std``."""
    rows = []
    for same in zip(*(result["rows"] for result in results), strict=True):
        numbers = {name: [row[name] for row in same] for name in same[0] if name not in ("method", "epsilon", "points")}
        row = {name: same[0][name] for name in ("method", "epsilon", "points")}
        known = {name: values for name, values in numbers.items() if None not in values}
        row |= {name: statistics.fmean(known[name]) if name in known else None for name in numbers}
        rows.append({**row, "std": {name: statistics.stdev(values) for name, values in known.items()}})
    return {**results[0], "rows": rows, "seeds": [result["seed"] for result in results]}


def _dataset(data: Dataset | tuple[Tensor, Tensor]) -> Dataset:
    """A data set from inputs and labels: a fifth of each class is held out to test."""
    if isinstance(data, Dataset):
        return data
    if not isinstance(data, tuple | list) or len(data) != 2:
        raise expected("`data` to be a Dataset, or inputs and labels", type(data).__name__)
    x, y = as_tensor(data[0], "the inputs"), as_tensor(data[1], "the labels")
    if y.is_floating_point() or y.ndim != 1 or not len(y) or len(x) != len(y) or int(y.min()) < 0:
        got = f"{tuple(x.shape)} inputs and {tuple(y.shape)} labels, {y.dtype}"
        raise expected("inputs and for each a label, a whole number ≥ 0", got)
    if not bool(x.isfinite().all()):
        raise expected("finite inputs", "NaN or infinite ones")
    y = y.long()
    split = Split(x if x.dtype in KINDS else x.double(), y)
    names = tuple(map(str, range(int(y.max()) + 1)))
    units = given_units(split)
    return Dataset("own", *split.held_out(TEST_SHARE), names, units)
