"""All that a report shows of a run, measured once: nothing here is recomputed in another way than elsewhere."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from safeset.data.dataset import PIXELS, Dataset, Progress
from safeset.inputs import as_device
from safeset.nets.explanation import Explanation
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe
from safeset.report.observer import Example, Observer, choose_radii
from safeset.report.surface import Surface, draw_surface
from safeset.runs.affinity_suggestion import AffinitySuggestion, suggest_for_net
from safeset.runs.calibrate import read_coverage, was_calibrated_with
from safeset.runs.data import as_of_run, load_whole
from safeset.runs.evaluate import evaluate_net
from safeset.runs.evaluate_coverage import evaluate_coverage
from safeset.runs.library import title_of
from safeset.runs.load import load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain

FIRST = 512  # points by which the range of ε is chosen
EXPLAINED = 256  # points at which it is said what the bounds cost
PROPOSED = 4096  # points from which affinity sets are proposed, at the most


@dataclass(frozen=True, eq=False)
class Findings:
    """A run as a report shows it.

    Attributes:
        name: the directory as it was typed.
        recipe: by which it was trained.
        recipe_text: the file.
        evaluation: at the run's own ε, with classes, as `evaluate_net` gives it.
        points: the data; its test points are shown.
        radii: ε along the curves.
        curves: for each method the metrics at each of them.
        together: (classes, classes) the number of smallest certified answers that hold both classes.
        examples: test points with their certificates.
        covers: what the proofs are about, in words.
        records: lines of metrics.jsonl.
        unfinished: where the training stands if it has not ended.
        explanation: where the bounds come from.
        suggestion: affinity sets to choose from; None for other data, and where there are fewer than three classes.
        surface: the decision surface of data in the plane.
        coverage: of a calibrated run, at each ε along the curves, as `evaluate_coverage` gives it; with ``details`` by
            class, and at the run's own ε under attack.
    """

    name: str
    recipe: FittedRecipe
    recipe_text: str
    evaluation: dict[str, Any]
    points: Dataset
    radii: list[float]
    curves: dict[str, list[dict[str, Any]]]
    together: Tensor
    examples: list[Example]
    covers: str
    records: list[dict[str, Any]]
    unfinished: str
    explanation: Explanation | None = None
    suggestion: AffinitySuggestion | None = None
    surface: Surface | None = None
    coverage: dict[str, Any] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Of the classes."""
        return self.points.class_names

    @property
    def epsilon(self) -> float:
        """The run's own."""
        return self.recipe.epsilon

    @cached_property
    def brightness(self) -> tuple[float, float]:
        """The numbers of black and white in images."""
        low, high = (0.0, 1.0) if self.points.units == PIXELS else self.points.range
        return low, high if high > low else low + 1.0

    @property
    def units(self) -> str:
        """What ε and radii are measured in, with the norm."""
        return f"L2, {self.points.units}"


def look_at(
    run: Run,
    *,
    source: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    details: bool = True,
    progress: Progress | None = None,
) -> Findings:
    """Measure all that is shown of a run.

    Args:
        run: of a training that has not ended the weights so far are shown, and ``unfinished`` says so.
        source: other data, in the same form as the run's own.
        network: as for `load`.
        device: such as ``"cuda"``.
        details: whether also what the curves do without: explanation, suggestion, surface.
        progress: wraps the batches.
    """
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    net = net.to(as_device(device))
    coverage = read_coverage(run, net)  # before long work: it may not fit
    whole = load_whole(recipe, source, progress)
    points = as_of_run(whole, recipe, source)
    some = points.test[torch.arange(min(FIRST, len(points.test)))]
    radii = choose_radii(net.certify(some.to(net.device).exact), recipe.epsilon)
    observer = Observer(points.test.y, classes=net.classes, epsilon=recipe.epsilon, radii=radii)
    evaluation = evaluate_net(net, recipe, points, per_class=True, progress=progress, watch=observer.watch)
    more = _details(net, recipe, points, source is None, progress) if details else {}
    if coverage is not None and len(points.test):
        seen = source is not None and was_calibrated_with(run, whole, points)
        attacked = [recipe.epsilon] if details else []
        several: dict[str, Any] = {"attacked": attacked, "per_class": details, "seen": seen, "progress": progress}
        more["coverage"] = plain(evaluate_coverage(coverage, points.test, radii, **several))
    return Findings(
        name=title_of(run.path),
        recipe=recipe,
        recipe_text=run.recipe.read_text(errors="replace"),
        evaluation=evaluation,
        points=points,
        radii=radii,
        curves=observer.curves(),
        together=observer.together,
        examples=observer.examples(),
        covers=observer.covers,
        records=run.records(),
        unfinished=unfinished,
        **more,
    )


def _details(
    net: CertifiedNet, recipe: FittedRecipe, points: Dataset, own: bool, progress: Progress | None
) -> dict[str, Any]:
    some = points.test[torch.arange(0, len(points.test), max(1, len(points.test) // EXPLAINED))].to(net.device)
    found: dict[str, Any] = {"explanation": net.explain(some.exact, some.y)}
    if own and net.classes > 2:  # of other data it would take the points that are shown here
        found["suggestion"] = suggest_for_net(net, recipe, points, other=False, at_most=PROPOSED, progress=progress)
    if points.input_shape == (2,):
        found["surface"] = draw_surface(net, points)
    return found
