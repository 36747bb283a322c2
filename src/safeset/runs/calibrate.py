"""The calibration of a run: scores of points that nothing else has seen, and the file that keeps them."""

import hashlib
import os
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from safeset.coverage.coverage import Coverage
from safeset.coverage.fit import ENOUGH, fit_logits
from safeset.coverage.logit_map import LogitMap
from safeset.data.dataset import CALIBRATION_SEED, Dataset, Progress, Split, draw_apart
from safeset.errors import ArgumentError, DataWarning, SafesetError, counted, expected
from safeset.inputs import as_device
from safeset.nets.certifying import Certifying
from safeset.recipes.recipe import FittedRecipe, absolute
from safeset.runs.data import as_of_run, load_run_data, load_whole, same_source
from safeset.runs.library import is_shipped
from safeset.runs.load import load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import json_text, write_whole
from safeset.system.provenance import provenance
from safeset.system.untrusted import MOST_BYTES, read_json, read_json_table

FORMAT = "safeset calibration 1"
OWN = "also_in_the_data_of_the_run"  # what is said of the user's own points, and of no others
ANY_ORDER = "digest_in_any_order"  # by which an evaluation notices the points
MOST_KNOWN = 0.5  # of the points may be training points too, by chance or as duplicates
ROWS_AT_ONCE = 256


class Drawn(NamedTuple):
    """Points to calibrate with.

    Attributes:
        points: with their labels.
        source: where they come from, in words.
        how: how they were drawn, in words.
        known: how many of them the run's own data has too; None where it was not looked at.
    """

    points: Split
    source: str
    how: str
    known: int | None


class Known(NamedTuple):
    """How many of some points a run's own data has too.

    Attributes:
        anywhere: in its training or test data.
        trained: among what was trained on, or chosen with: not those that the run has kept for calibration.
    """

    anywhere: int
    trained: int


def calibrate_run(
    run: Run,
    *,
    alpha: float | str = 0.1,
    k: int | None = None,
    score: str = "membership",
    tau: float | None = None,
    by_class: bool = False,
    confidence: float | str | None = None,
    source: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    command: str = "",
) -> tuple[Coverage, dict[str, Any]]:
    """Calibrate a run: its `Coverage`, and what calibration.json holds.

    Args:
        run: a run whose training has ended.
        alpha: how often the true class may be missing.
        k: as for `Coverage.calibrate`, with all that follows up to ``confidence``.
        score: which score; ``"fitted"`` is fitted to training points of the run.
        tau: of ``"soft-min"``.
        by_class: whether coverage holds for each true class by itself.
        confidence: of this calibration set.
        source: the user's own points, none of which was trained on; by default those that the run has kept.
        network: as for `load`.
        device: such as ``"cuda"``.
        progress: wraps the files that are decoded.
        command: what was typed, for the record.
    """
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    if unfinished:
        raise expected("a trained run to calibrate", f"{run.path}, at {unfinished}", "Let the training end first.")
    drawn = draw_points(run, recipe, source, progress)
    net = net.to(as_device(device))
    fit = fit_to_run(net, recipe, progress) if score == "fitted" else None
    coverage = Coverage.calibrate(
        net,
        drawn.points.exact,
        drawn.points.y,
        alpha=alpha,
        k=k,
        score=score,
        tau=tau,
        fit=fit,
        by_class=by_class,
        confidence=confidence,
    )
    about = {"count": len(drawn.points), "from": drawn.source, "drawn": drawn.how, "digest": drawn.points.digest()}
    about[ANY_ORDER] = digest_of_any_order(drawn.points)
    if source is not None:
        about["source"] = absolute(source)
        about[OWN] = "not compared" if drawn.known is None else drawn.known
    return coverage, {
        "format": FORMAT,
        "points": about,
        "command": command,
        **provenance(coverage.net.device),
        "coverage": coverage.to_record(),
    }


def fit_to_run(net: Certifying, recipe: FittedRecipe, progress: Progress | None = None) -> LogitMap:
    """The map of logits of the score ``"fitted"``, by training points of the run: none that it kept is among them."""
    try:
        points = load_run_data(recipe, progress=progress).train
    except (SafesetError, OSError) as error:
        remedy = f"({error}) Take --score soft-min, or in Python safeset.fit_logits, with points of your own."
        raise expected("the training points of the run, for the score 'fitted'", "others or none", remedy) from None
    some = torch.randperm(len(points), generator=torch.Generator().manual_seed(CALIBRATION_SEED))[:ENOUGH]
    return fit_logits(net, points[some].exact, points.y[some])


def draw_points(run: Run, recipe: FittedRecipe, source: str | None, progress: Progress | None = None) -> Drawn:
    """Points that the network was not trained on: kept by the run, or the user's own.

    Raises:
        ArgumentError: where there are none, the data has changed since the training, or they are the run's own data.
    """
    if source is not None:
        return _own_points(run, recipe, source, progress)
    if not recipe.calibration:
        remedy = (
            "Train with --calibrate 0.1, or name points of your own, none of which was trained on, with --data: on "
            "training points the scores are too good, and sets would hold the true class too rarely."
        )
        raise expected(f"points that {run.path} has kept for calibration", "none", remedy)
    points = load_whole(recipe, progress=progress)
    found = points.for_calibration(recipe.calibration).set_apart
    if found is None or found.digest() != recipe.task.set_apart:
        remedy = "Those that would be drawn now may have been trained on: name points of your own with --data."
        raise expected("the data as it was when the run was trained", f"other points in {recipe.data.source}", remedy)
    how = f"{recipe.calibration:g} of the training points, at random by the seed {CALIBRATION_SEED}, before training"
    return Drawn(found, f"{points.name}, kept for calibration", how, None)


def _own_points(run: Run, recipe: FittedRecipe, source: str, progress: Progress | None) -> Drawn:
    """All points of the user's own data, unless they are those of the run."""
    if same_source(source, recipe.data.source):
        kept = "Leave out --data to use what the run has kept for calibration, or name other points."
        remedy = kept if recipe.calibration else "Name points that were not trained on, or train with --calibrate 0.1."
        raise expected("points that the run has not seen", f"{source}: its own training and test data", remedy)
    whole = load_whole(recipe, source, progress, some_classes=True)
    points = joined((whole.train, whole.test))
    found = count_known(points, recipe)
    if found is None and _is_moved(run, recipe, whole):
        moved = f"Put it back to {recipe.data.source}, or a link to it; then leave out --data."
        remedy = moved if recipe.calibration else "Name points that were not trained on."
        raise expected("points that the run has not seen", f"{source}: its own training and test data, moved", remedy)
    known = found and found.anywhere
    if known and known > MOST_KNOWN * len(points):
        got = f"{source}: {known:,} of {len(points):,} points are in the data of the run"
        tests = "Evaluations are made with its test points: name others." if found and not found.trained else ""
        raise expected("points that the run has not seen", got, tests or "Name points that were not trained on.")
    if known is None:
        warnings.warn(
            f"The data of the run is not at hand, so {source} was not compared with it. Points that were trained on "
            "make sets that hold the true class too rarely.",
            DataWarning,
            stacklevel=3,
        )
    if known:
        warnings.warn(
            f"{counted(known, 'point')} of {source} {'is' if known == 1 else 'are'} in the data of the run too. If "
            "these are the same things and not only alike, the sets will hold the true class too rarely.",
            DataWarning,
            stacklevel=3,
        )
    return Drawn(points, str(source), "all points of the user's own data", known)


def _is_moved(run: Run, recipe: FittedRecipe, whole: Dataset) -> bool:
    """Whether data is the run's own, in another place: by the points that it has kept, or was evaluated on."""
    try:
        own = as_of_run(whole, recipe)
    except ArgumentError:  # too few to keep any
        return False
    kept = own.set_apart is not None and own.set_apart.digest() == recipe.task.set_apart
    return kept or own.test.digest() == read_json_table(run.evaluation).get("test")


def load_own_points(recipe: FittedRecipe, source: str, progress: Progress | None = None) -> Split:
    """All points of the user's own data, which may have some of the classes only."""
    other = load_whole(recipe, source, progress, some_classes=True)
    return joined((other.train, other.test))


def joined(splits: Sequence[Split]) -> Split:
    """The points of several splits, one after the other."""
    return Split(torch.cat([one.x for one in splits]), torch.cat([one.y for one in splits]))


def count_known(points: Split, recipe: FittedRecipe) -> Known | None:
    """How many points the run's own data has too, number by number; None where it cannot be loaded."""
    try:
        own = load_whole(recipe)
    except (SafesetError, OSError):
        return None
    train, given = _digests(own.train), _digests(points)
    every = {*train, *_digests(own.test)}
    stay = draw_apart(len(train), recipe.calibration)[0].tolist() if recipe.calibration else range(len(train))
    trained = {train[place] for place in stay}
    return Known(sum(one in every for one in given), sum(one in trained for one in given))


def _digests(split: Split) -> list[bytes]:
    parts = (split[places].exact for places in torch.split(torch.arange(len(split)), ROWS_AT_ONCE))
    return [hashlib.sha256(row.numpy().tobytes()).digest() for part in parts for row in part]


def was_calibrated_with(run: Run, whole: Dataset, points: Dataset) -> bool:
    """Whether data is what a run was calibrated with, in any order: all of its points, or those of one split.

    Args:
        run: a calibrated run.
        whole: the data before points were set apart.
        points: the same as the run's commands use it.
    """
    about = table_of_points(run)
    several = [(whole.train, whole.test), (whole.train,), (whole.test,), (points.test,)]
    return any(
        sum(map(len, splits)) == about.get("count") and digest_of_any_order(joined(splits)) == about.get(ANY_ORDER)
        for splits in several
    )


def digest_of_any_order(split: Split) -> str:
    """A digest of points and labels that is the same in every order."""
    rows = zip(_digests(split), split.y.tolist(), strict=True)
    return hashlib.sha256(b"".join(sorted(row + str(label).encode() for row, label in rows))).hexdigest()


def table_of_points(run: Run) -> dict[str, Any]:
    """What calibration.json says of its points: their digest, and where they came from."""
    found = read_json_table(run.calibration).get("points")
    return found if isinstance(found, dict) else {}


def check_free(run: Run, overwrite: bool) -> None:
    """Refuse to replace a calibration: thresholds that somebody uses do not change by accident.

    A model that comes with safeset is refused too, and a directory that cannot be written into: before long work.
    """
    if is_shipped(run.path):
        remedy = "Copy its directory, and calibrate the copy, with points of your own: --data."
        raise expected("a run to write the calibration into", f"{run.path}, which comes with safeset", remedy)
    if run.path.is_dir() and not os.access(run.path, os.W_OK | os.X_OK):
        remedy = "Copy its directory, and calibrate the copy."
        raise expected("a run to write the calibration into", f"{run.path}, which cannot be written into", remedy)
    if run.calibration.exists() and not overwrite:
        raise expected(
            "a run without a calibration", f"{run.calibration}, which is there", "To replace it: --overwrite."
        )


def write_calibration(run: Run, record: dict[str, Any]) -> None:
    """Write calibration.json, whole or not at all."""
    text = json_text(record) + "\n"
    if len(text) > MOST_BYTES:
        raise expected(f"a calibration of at most {MOST_BYTES:,} bytes", f"{len(text):,}", "Take fewer points.")
    write_whole(run.calibration, text)


def how_to_calibrate(run: Run, when: str = "First", again: str = "") -> str:
    """What to type: with points of the user's own where the run has kept none, or was calibrated with some."""
    about = table_of_points(run)
    if run.read_recipe().calibration and OWN not in about:
        return f"{when}: safeset calibrate {run.path}{again}"
    source = about.get("source") if isinstance(about.get("source"), str) else "FILE"
    return f"{when}: safeset calibrate {run.path} --data {source}{again}"


def read_coverage(run: Run, net: Certifying) -> Coverage | None:
    """The calibration of a run, for its net; None where it has none.

    Raises:
        ArgumentError: where calibration.json is damaged, or about other weights: it is never left out silently.
    """
    path = run.calibration
    if not path.exists() and not path.is_symlink():
        return None
    remedy = how_to_calibrate(run, "To calibrate again", " --overwrite")
    try:
        found = read_json(path)
    except ArgumentError as error:  # it names the file
        raise ArgumentError(f"{error} {remedy}") from None
    try:
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise expected(f"a calibration of the format {FORMAT!r}", "something else")
        return Coverage.from_record(found.get("coverage"), net)
    except ArgumentError as error:
        raise ArgumentError(f"In {path}: {error} {remedy}") from None
