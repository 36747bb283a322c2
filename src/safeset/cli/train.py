"""The command that trains: from flags to a recipe, then the training, then its evaluation on the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from safeset.cli import show_answers
from safeset.cli.options import (
    Background,
    Changes,
    Device,
    Drop,
    Epsilon,
    GuaranteeText,
    Label,
    NetworkName,
    OneHot,
    Size,
    SkipBad,
    Units,
    changes,
    data_settings,
    own_network,
    radius,
)
from safeset.errors import SafesetError, expected
from safeset.terminal import console

if TYPE_CHECKING:
    from safeset.recipes.recipe import Recipe
    from safeset.runs.own_networks import Factory
    from safeset.training.train import TrainedRun


def train(
    recipe: Annotated[str | None, typer.Argument(help="A recipe's TOML file, or its name: `safeset models`.")] = None,
    data: Annotated[str | None, typer.Option(help="A name (`safeset data list`), a folder, .npz or .csv.")] = None,
    guarantee: GuaranteeText = None,
    epsilon: Epsilon = None,
    epochs: Annotated[int | None, typer.Option()] = None,
    out: Annotated[Path | None, typer.Option(help="Directory for the run. Default: runs/DATA-GUARANTEE.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    model: Annotated[str | None, typer.Option(help="A network: `safeset models`.")] = None,
    network: NetworkName = None,
    batch: Annotated[int | None, typer.Option(help="Points in a step.")] = None,
    loss: Annotated[str | None, typer.Option(help="cross-entropy, trades or emma.")] = None,
    seed: Annotated[int | None, typer.Option()] = None,
    seeds: Annotated[int | None, typer.Option(help="So many networks at once: this seed and the next.")] = None,
    size: Size = None,
    background: Background = None,
    label: Label = None,
    drop: Drop = None,
    one_hot: OneHot = None,
    units: Units = None,
    skip_bad: SkipBad = False,
    validation: Annotated[
        bool,
        typer.Option("--validation", help="Hold out a tenth of the training data to evaluate on: for choices."),
    ] = False,
    hold_out: Annotated[
        float | None,
        typer.Option(help="Share of the training data that chooses the best epoch. Default: 0.1 of your own data."),
    ] = None,
    calibrate: Annotated[
        float | None,
        typer.Option(help="Share of the training data, drawn at random, that only `safeset calibrate` sees."),
    ] = None,
    patience: Annotated[int | None, typer.Option(help="Stop after so many epochs that were not better.")] = None,
    change: Changes = None,
    checkpoint_minutes: Annotated[float, typer.Option(min=0, help="Between two checkpoints.")] = 5.0,
    device: Device = None,
) -> None:
    """Train a certified classifier by a recipe, or with defaults on your own data."""
    flags = {
        "data.source": data,
        "guarantee": guarantee,
        "epsilon": radius(epsilon),
        "epochs": epochs,
        "model": model,
        "network": network,
        "batch": batch,
        "loss.name": loss,
        "seed": seed,
        "seeds": seeds,
        "validation": validation or None,
        "hold_out": hold_out,
        "calibration": calibrate,
        "patience": patience,
    }
    of_data = data_settings(
        size=size, background=background, label=label, drop=drop, one_hot=one_hot, units=units, skip_bad=skip_bad
    )
    given = {key: value for key, value in flags.items() if value is not None}
    given |= {f"data.{key}": value for key, value in of_data.items()} | changes(change or [])
    try:
        if network is not None and "model" in given:
            raise expected("one of --model and --network", "both")
        factory = own_network(network)
        written = _find_recipe(recipe, given, out, resume=resume)
        path = out or _default_path(written)
        _check_network(written, factory)
        trained = _train(written, factory, path, resume=resume, minutes=checkpoint_minutes, device=device)
    except KeyboardInterrupt:
        raise Stopped(out) from None
    if trained is not None:
        _show_evaluation(trained, path)
        one = path / f"seed{written.seed}" if written.seeds > 1 else path  # any of several networks
        again = f" --network {network}" if network else ""
        steps = [f"safeset certify {one} FILE…{again}", f"safeset evaluate {one} --per-class{again}"]
        if written.calibration:  # what was kept back is of no use before
            steps.insert(0, f"safeset calibrate {one}{again}")
        console.out.print(f"\nThe run is {path}. Next: {', '.join(steps)}")


class Stopped(SafesetError):  # noqa: N818  (no mistake)
    """A training was interrupted where no step could be finished: before the first one, or a second time."""

    exit_code = 130

    def __init__(self, path: Path | None) -> None:
        if path is not None and (path / "checkpoint.safetensors").exists():
            kept = f"What was saved last is kept; continue with: safeset train --resume --out {path}"
        else:
            kept = "Nothing is trained or saved yet: to begin, run the same command again."
        super().__init__(f"Interrupted. {kept}")


def _find_recipe(recipe: str | None, given: dict[str, Any], out: Path | None, *, resume: bool) -> "Recipe":
    """The recipe that the flags mean: that of the run to continue, or of a file or a name, or none; with changes."""
    from safeset.recipes.library import assemble_recipe
    from safeset.runs.run import Run

    if resume and recipe is None and out is not None and Run(out).recipe.exists():
        return Run(out).read_recipe().with_changes(given)
    if resume and recipe is None and "data.source" not in given:
        raise expected("a run to continue", f"none in {out}" if out else "none named", "Name its directory with --out.")
    return assemble_recipe(recipe, given)


def _default_path(recipe: "Recipe") -> Path:
    """Where the run of a recipe goes by default."""
    from safeset.runs.card import name_for

    return Path("runs") / name_for(recipe)


def _check_network(recipe: "Recipe", factory: "Factory | None") -> None:
    """Refuse a recipe of a user's own network where the flag does not say that its code may run."""
    if factory is None and (recipe.network or recipe.model == "own"):
        remedy = f"Give --network {recipe.network or 'MODULE:FACTORY'}: your own code is run only by that flag."
        raise expected("the network to train", "none", remedy)


def _train(
    recipe: "Recipe", factory: "Factory | None", path: Path, *, resume: bool, minutes: float, device: str | None
) -> "TrainedRun | None":
    """Train with a progress bar; what came of it, on the first worker."""
    from safeset.inputs import as_device
    from safeset.system.memory import keep_freed_memory
    from safeset.system.workers import join_workers
    from safeset.training.train import make_own_network, prepare_training, train_run

    keep_freed_memory()
    watch = console.TrainingWatch(typed=True)
    with join_workers(device) as workers:
        try:
            as_device(device)  # a mistake in it is reported before the data is loaded
            fitted, points = prepare_training(recipe, own_network=factory is not None, watch=watch)
            network = make_own_network(factory, fitted)
            trained = train_run(
                fitted, points, out=path, network=network, resume=resume, device=device, minutes=minutes, watch=watch
            )
        except KeyboardInterrupt:
            raise Stopped(path) from None
        finally:
            watch.end()
    return trained if workers.first else None


def _show_evaluation(trained: "TrainedRun", path: Path) -> None:
    """Show the evaluation of a training; where it had ended before, the one that its directory holds."""
    if trained.evaluation is not None:
        show_answers.show_evaluation(trained.evaluation, trained.recipe.task.units)
        return
    from safeset.runs.run import Run
    from safeset.system.untrusted import read_json_table

    run = Run(path)
    units = run.read_recipe().task.units
    try:
        show_answers.show_evaluation(read_json_table(run.evaluation), units)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, OverflowError):
        remedy = "safeset evaluate writes it again."
        raise expected(f"an evaluation in {run.evaluation}", "something else", remedy) from None
