"""What is done with a trained net: evaluate it on its data, certify users' files."""

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.margins import METHODS
from safeset.data.dataset import Dataset, Progress
from safeset.data.decoding import colour
from safeset.data.points import Point, read_points
from safeset.data.quality import report
from safeset.data.sources import load_data
from safeset.data.units import check_fits
from safeset.errors import expected, nearest
from safeset.evaluation import evaluate, remarks
from safeset.inputs import as_device
from safeset.nets.diagnosis import HARDLY
from safeset.nets.net import CertifiedNet
from safeset.proofs.portable import proof_of
from safeset.recipes.recipe import OWN_DATA, Data, Recipe
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run, loaded
from safeset.system.provenance import provenance, weights_digest
from safeset.system.workers import Workers

POINTS_AT_ONCE = 64
OPTIONS = {"folder": ("size", "background", "skip_bad"), ".npz": ("units", "background")}  # of a run's for other data
EXPLAINED = 256  # points from which it is said why hardly anything is certified
Tell = Callable[[str], None]


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
    tell: Tell | None = None,
) -> tuple[dict[str, Any], str]:
    """The evaluation as it is written down, and the units of ε.

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
        tell: is called with an explanation where hardly anything is certified.
    """
    for method in methods:
        if method not in METHODS:
            raise expected(f"methods among {', '.join(METHODS)}", repr(method), nearest(method, METHODS))
    recipe = run.read_recipe()
    net, unfinished = loaded(run, network)
    net = net.to(as_device(device))
    points = Workers.here().in_turn(lambda: run_data(recipe, source, progress))
    stated = replace(recipe, guarantee=guarantee).bound(points) if guarantee else None
    result = evaluated(
        net,
        recipe,
        points,
        epsilons=epsilons,
        methods=methods,
        guarantee=stated,
        per_class=per_class,
        progress=progress,
    )
    if tell and Workers.here().first and min(row["rejection_rate"] for row in result["rows"]) > 1 - HARDLY:
        some = points.test[torch.arange(0, len(points.test), max(1, len(points.test) // EXPLAINED))]
        radius = min(row["epsilon"] for row in result["rows"])
        tell(str(net.diagnose(some.exact, epsilon=radius, guarantee=stated, method=max(methods, key=METHODS.index))))
    return result | ({"unfinished": unfinished} if unfinished else {}), points.units


def is_own(
    recipe: Recipe,
    *,
    epsilons: Sequence[float] | None = None,
    methods: Sequence[str] = METHODS,
    guarantee: str | None = None,
    source: str | None = None,
) -> bool:
    """Whether an evaluation with these arguments of `evaluate_run` holds all that a run's own has, and may replace it.

    >>> recipe = Recipe(Data("digits"), guarantee="rt3", epsilon=0.3)
    >>> is_own(recipe), is_own(recipe, epsilons=[0.1, 0.3]), is_own(recipe, epsilons=[0.1]), is_own(recipe, source="x")
    (True, True, False, False)
    """
    same_points = source is None and guarantee in (None, recipe.guarantee)
    return same_points and (epsilons is None or recipe.epsilon in epsilons) and set(METHODS) <= set(methods)


def run_data(recipe: Recipe, source: str | None = None, progress: Progress | None = None) -> Dataset:
    """The data of a fitted recipe, or other data of the same shape and classes."""
    task, own = recipe.task, recipe.data
    assert task is not None
    if source is None and own.source == OWN_DATA:
        raise expected("the data of the run", "none: it was given in Python", "Name a file or folder with --data.")
    points = load_data(source or own.source, progress=progress, **_options(own, source))
    report(points, oddities=False)
    if points.input_shape != task.input_shape or points.class_names != task.class_names:
        got = f"{points.input_shape} and {len(points.class_names)} classes"
        names = sorted(set(points.class_names) ^ set(task.class_names))
        also = f", other names: {', '.join(names[:5])}" if names else ""
        raise expected(f"data as trained on: {task.input_shape} and {len(task.class_names)} classes", got + also)
    check_fits(points, task.units, task.range, columns=source is not None)
    return points.for_choices() if recipe.validation else points


def evaluated(net: CertifiedNet, recipe: Recipe, points: Dataset, **options: Any) -> dict[str, Any]:
    """The evaluation of a run as it is written down: rows, and with what they were made."""
    started = time.perf_counter()
    rows = evaluate(net, points.test, **options)
    guarantee = options.get("guarantee") or net.guarantee
    return {
        "data": points.name,
        "split": recipe.split,
        "points": len(points.test),
        "units": points.units,
        "guarantee": str(guarantee),
        "rows": plain(rows),
        "prefer": "largest",  # of `vra`, `core_size` and `set_size`
        "remarks": remarks(rows, guarantee, net.classes),
        "bound_method": sorted({layer.method for layer in net.bounds().layers}),
        "dtype": "float64",
        "seconds": round(time.perf_counter() - started, 3),
        **provenance(next(net.parameters()).device),
        "test": points.test.digest(),
        "weights": weights_digest(net.network.state_dict()),
        "recipe": written(recipe),
        "seed": recipe.seed,
    }


def written(recipe: Recipe) -> Any:
    """A recipe as it stands in JSON files."""
    return json.loads(json.dumps(recipe.table(), default=str))


def _options(own: Data, source: str | None) -> dict[str, Any]:
    """The options of a run's data that other data can have too."""
    path = Path(source or own.source)
    if source is None or path.suffix.lower() in (".csv", ".tsv"):
        return own.options
    known = OPTIONS.get("folder" if path.is_dir() else path.suffix.lower(), ())
    return {name: value for name, value in own.options.items() if name in known}


def certify_files(
    path: Path,
    files: Sequence[str],
    *,
    epsilon: float | None = None,
    method: str | None = None,
    guarantee: str | None = None,
    prefer: str = "smallest",
    background: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    stdin: BinaryIO | None,
    tell: Tell | None = None,
    proofs: list[dict[str, Any]] | None = None,
) -> Iterator[dict[str, Any]]:
    """A record for each point: its name, what `Certificate.records` gives, the units of ε, and what became of an image.

    ``resized_from`` has the ``width`` and the ``height`` in pixels of an image that was resized, ``composited`` says
    whether a transparent one was put on a background. A point that cannot be read has a ``problem`` instead. A radius
    is None where no perturbation can break it. Several workers take turns of points, and the first gets all the
    records, in order; the others get none. ``tell`` is called at the end with an explanation, where hardly anything was
    certified. To ``proofs``, where there is a list, proofs of the certified points are added (`Certificate.proof`),
    with their names.
    """
    workers = Workers.here()
    if workers.count > 1 and "-" in files:
        raise expected("files by name where several workers share them", "-", "Name the files, or start one worker.")
    if background is not None:
        colour(background)  # a mistake in it is told before anything is proved
    run = Run(path)
    recipe = run.read_recipe()
    net, unfinished = loaded(run, network)
    if proofs is not None and not run.model.is_file():
        raise expected(f"weights at {run.model}, which a proof is about", "none yet", "Let the training end first.")
    stored, net = net.network, net.to(as_device(device)).frozen()
    task = recipe.task
    assert task is not None
    points = read_points(
        files,
        input_shape=net.input_shape,
        units=task.units,
        seen=task.range,
        ranges=recipe.data.ranges,
        one_hot=recipe.data.one_hot if isinstance(recipe.data.one_hot, Mapping) else None,
        background=background or recipe.data.background,
        stdin=stdin,
        chosen=lambda place: place // POINTS_AT_ONCE % workers.count == workers.rank,
    )

    seen: list[Tensor] = []
    options: dict[str, Any] = {"epsilon": epsilon, "method": method, "guarantee": guarantee}

    def certified(some: Sequence[Point]) -> Iterator[dict[str, Any]]:
        good, read = [point.x for point in some if point.x is not None], [each for each in some if each.x is not None]
        seen.extend(good[: POINTS_AT_ONCE - len(seen)])
        answers: Iterator[dict[str, Any]] = iter(())
        if good:
            x = torch.stack(good).to(next(net.parameters()).device)
            found = net.certify(x, prefer=prefer, **options)
            answers = iter(found.records())
            if proofs is not None and bool(found.certified.any()):
                proofs.append(_named_proof(found, stored, read))
        for point in some:
            if point.x is None:
                yield {"name": point.name, "problem": point.problem}
                continue
            yield {
                "name": point.name,
                **plain(next(answers)),
                "units": task.units,
                "resized_from": _size(point.resized_from),
                "composited": point.composited,
                **({"unfinished": unfinished} if unfinished else {}),
            }

    read = proved = 0
    while any(turn := workers.everyones(list(certified(list(islice(points, POINTS_AT_ONCE)))))):
        for record in (record for records in turn for record in records) if workers.first else ():
            read += "problem" not in record
            proved += record.get("certified", False)
            yield record
    if tell and seen and proved < HARDLY * read:
        tell(str(net.diagnose(torch.stack(seen).to(next(net.parameters()).device), **options)))


def _size(found: tuple[int, int] | None) -> dict[str, int] | None:
    """(height, width) by their names: nobody can take one for the other."""
    return None if found is None else {"width": found[1], "height": found[0]}


def _named_proof(found: Certificate, stored: nn.Module, read: Sequence[Point]) -> dict[str, Any]:
    """The proof of those points that are certified, with their names, and whether the checker can decode the image."""
    proof = proof_of(found[found.certified], stored)
    certified = (point for point, holds in zip(read, found.certified.tolist(), strict=True) if holds)
    for one, point in zip(proof["certificates"], certified, strict=True):
        changed = point.composited or point.resized_from is not None
        one |= {"name": point.name, "as in its file": point.name.lower().endswith(".png") and not changed}
    return proof


def plain(value: Any) -> Any:
    """The same without ∞ and NaN, which JSON has no numbers for: they are None."""
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
