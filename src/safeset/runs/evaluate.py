"""The evaluation of a run on labelled points, as its JSON file holds it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safeset.certificates.margins import METHODS
from safeset.data.dataset import Dataset, Progress
from safeset.errors import expected, nearest
from safeset.evaluation import evaluate, remarks
from safeset.guarantees.guarantee import Guarantee
from safeset.inputs import as_device
from safeset.nets.diagnosis import HARDLY
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import OWN_DATA, FittedRecipe, Recipe
from safeset.recipes.sections import Data as RecipeData
from safeset.runs.calibrate import read_coverage, was_calibrated_with
from safeset.runs.data import as_of_run, load_whole
from safeset.runs.evaluate_coverage import evaluate_coverage
from safeset.runs.load import load_run
from safeset.runs.onnx_models import STANDARD, about_file, check_classes, load_onnx, load_onnx_data
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.provenance import provenance, weights_digest
from safeset.system.workers import Workers

EXPLAINED = 256  # points by which it is explained why hardly anything is certified


def evaluate_run(
    run: Run,
    *,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    guarantee: str | None = None,
    source: str | None = None,
    per_class: bool = False,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[dict[str, Any], str]:
    """Evaluate a run: what its evaluation.json holds, and the units of ε; of a calibrated run also ``coverage``.

    Args:
        run: a run; of a training that has not ended the weights so far are evaluated, and ``unfinished`` says so.
        epsilons: radii; by default the run's own.
        methods: of ``uniform``, ``floating``, ``joint``.
        guarantee: as text; by default the run's own.
        source: other data, in the same form as the run's own.
        per_class: also by class.
        network: as for `load`.
        device: such as ``"cuda"``.
        progress: wraps the batches.
        report: is called with an explanation where hardly anything is certified.
    """
    _check_methods(methods)
    recipe = run.read_recipe()
    net, unfinished = load_run(run, network)
    net = net.to(as_device(device))
    coverage = read_coverage(run, net)  # before long work: it may not fit
    whole = Workers.here().in_turn(lambda: load_whole(recipe, source, progress))
    points = as_of_run(whole, recipe, source)
    other = replace(recipe, guarantee=guarantee).resolve_guarantee(points) if guarantee else None
    result = evaluate_net(
        net,
        recipe,
        points,
        epsilons=epsilons,
        methods=methods,
        guarantee=other,
        per_class=per_class,
        progress=progress,
    )
    if coverage is not None:
        radii = [net.epsilon] if epsilons is None else epsilons
        seen = source is not None and was_calibrated_with(run, whole, points)
        found = evaluate_coverage(coverage, points.test, radii, per_class=per_class, seen=seen, progress=progress)
        result["coverage"] = plain(found)
    if report:
        _explain(net, points, result["rows"], other, methods, report)
    return result | ({"unfinished": unfinished} if unfinished else {}), points.units


def evaluate_file(
    path: Path,
    *,
    epsilons: Sequence[float] | None,
    methods: Sequence[str] = METHODS,
    guarantee: str | None = None,
    source: str | None,
    per_class: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    report: Callable[[str], None] | None = None,
) -> tuple[dict[str, Any], str]:
    """Evaluate the network of an ONNX file on labelled points; arguments and what comes back as for `evaluate_run`."""
    _check_methods(methods)
    net, points = open_with_data(path, epsilons[0] if epsilons else None, guarantee, source, progress)
    net = net.to(as_device(device))
    options: dict[str, Any] = {"epsilons": epsilons, "methods": methods, "per_class": per_class, "progress": progress}
    result = _evaluated(net, points, **options) | about_file(path)
    if report:
        _explain(net, points, result["rows"], None, methods, report)
    return result, points.units


def open_with_data(
    path: Path, epsilon: float | None, guarantee: str | None, source: str | None, progress: Progress | None
) -> tuple[CertifiedNet, Dataset]:
    """The network of an ONNX file, its classes named as those of labelled points, and the points."""
    net = load_onnx(path, epsilon=epsilon)
    points = Workers.here().in_turn(lambda: load_onnx_data(net.input_shape, source, progress))
    check_classes(points, net.classes)
    asked = Recipe(RecipeData(OWN_DATA), guarantee=guarantee or STANDARD).resolve_guarantee(points)
    net.class_names, net.guarantee = points.class_names, asked
    net.guarantee.largest_k(net.classes)  # raises if there are too few classes
    return net, points


def _check_methods(methods: Sequence[str]) -> None:
    for method in methods:
        if method not in METHODS:
            raise expected(f"methods among {', '.join(METHODS)}", repr(method), nearest(method, METHODS))


def _explain(
    net: CertifiedNet,
    points: Dataset,
    rows: Sequence[dict[str, Any]],
    guarantee: Guarantee | None,
    methods: Sequence[str],
    report: Callable[[str], None],
) -> None:
    """Report why hardly anything is certified, where it is so."""
    if Workers.here().first and min(row["rejection_rate"] for row in rows) > 1 - HARDLY:
        some = points.test[torch.arange(0, len(points.test), max(1, len(points.test) // EXPLAINED))]
        radius, method = min(row["epsilon"] for row in rows), max(methods, key=METHODS.index)
        report(str(net.diagnose(some.exact, epsilon=radius, guarantee=guarantee, method=method)))


def is_own(
    recipe: Recipe,
    *,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    guarantee: str | None = None,
    source: str | None = None,
) -> bool:
    """Whether an evaluation with these arguments of `evaluate_run` holds all that a run's own has, and may replace it.

    >>> from safeset.recipes.sections import Data
    >>> recipe = Recipe(Data("digits"), guarantee="rt3", epsilon=0.3)
    >>> is_own(recipe), is_own(recipe, epsilons=[0.1, 0.3]), is_own(recipe, epsilons=[0.1]), is_own(recipe, source="x")
    (True, True, False, False)
    """
    same_points = source is None and guarantee in (None, recipe.guarantee)
    return same_points and (epsilons is None or recipe.epsilon in epsilons) and set(METHODS) <= set(methods)


def evaluate_net(net: CertifiedNet, recipe: FittedRecipe, points: Dataset, **options: Any) -> dict[str, Any]:
    """Evaluate a net on test points, as plain values for a JSON file: rows, and with what they were made."""
    about = {"split": recipe.split, "recipe": recipe.json_table(), "seed": recipe.seed}
    return _evaluated(net, points, **options) | about


def _evaluated(net: CertifiedNet, points: Dataset, **options: Any) -> dict[str, Any]:
    """The same, of a net without a recipe."""
    started = time.perf_counter()
    rows = evaluate(net, points.test, **options)
    guarantee = options.get("guarantee") or net.guarantee
    return {
        "data": points.name,
        "split": "test",
        "points": len(points.test),
        "units": points.units,
        "guarantee": str(guarantee),
        "rows": plain(rows),
        "prefer": "largest",  # of `vra`, `core_size` and `set_size`
        "remarks": remarks(rows, guarantee, net.classes),
        "bound_method": sorted({layer.method for layer in net.bounds().layers}),
        "dtype": "float64",
        "seconds": round(time.perf_counter() - started, 3),
        **provenance(net.device),
        "test": points.test.digest(),
        "weights": weights_digest(net.network.state_dict()),
    }
