"""Certificates of users' own files by a trained run: one record for each point."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import shown_epsilon
from safeset.coverage.coverage import Coverage
from safeset.coverage.words import probability
from safeset.data.decoding import colour
from safeset.data.points import Point, read_points
from safeset.errors import expected
from safeset.inputs import as_device
from safeset.nets.diagnosis import HARDLY
from safeset.nets.frozen import FrozenNet
from safeset.nets.net import CertifiedNet
from safeset.nets.points import Measured
from safeset.proofs import check
from safeset.proofs.portable import proof_of
from safeset.recipes.recipe import FittedRecipe
from safeset.recipes.sections import Data
from safeset.runs.calibrate import read_coverage
from safeset.runs.load import load, load_run
from safeset.runs.onnx_models import is_onnx
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.workers import Workers

POINTS_AT_ONCE = 64


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
    report: Callable[[str], None] | None = None,
    proofs: list[dict[str, Any]] | None = None,
    alpha: float | str | None = None,
) -> Iterator[dict[str, Any]]:
    """A record for each point: its name, what `Certificate.records` gives, the units of ε, and what became of an image.

    ``resized_from`` has the ``width`` and the ``height`` in pixels of an image that was resized, ``composited`` says
    whether a transparent one was put on a background, ``grey`` whether a grey one was repeated in 3 channels. A point
    that cannot be read has a ``problem`` instead. Where the run is calibrated, ``coverage_set`` has the classes that
    hold the true one with a probability, and what that means in ``words``. A radius is None where no perturbation can
    break it. Several workers take turns of points, and the first gets all the records, in order; the others get none.

    Args:
        path: the directory of a run, or an ONNX file; of a training that has not ended the weights so far are used.
        files: images, folders, .csv or .npz files; ``-`` for standard input.
        epsilon: radius; by default the run's own, and to be given for an ONNX file.
        method: ``uniform``, ``floating`` or ``joint`` (the default).
        guarantee: as text; by default the run's own, and ``standard`` for an ONNX file.
        prefer: ``smallest`` or ``largest`` certified answers.
        background: colour behind transparent images; by default that of the training.
        network: as for `load`.
        device: such as ``"cuda"``.
        stdin: what ``-`` stands for.
        report: is called at the end with an explanation, where hardly anything was certified.
        proofs: a list to which proofs of the certified points are added (`Certificate.proof`), with their names.
        alpha: how often the true class may be missing from the sets that cover; by default as it was calibrated.
    """
    workers = Workers.here()
    if workers.count > 1 and "-" in files:
        raise expected("files by name where several workers share them", "-", "Name the files, or start one worker.")
    if background is not None:
        colour(background)  # a mistake in it is reported before anything is proved
    trained, unfinished, data = _open(path, network, epsilon, guarantee, proofs is not None)
    place, units = as_device(device), trained.units
    net = trained.to(place).frozen()
    coverage = _read_coverage(path, net, alpha)
    options: dict[str, Any] = {"epsilon": epsilon, "method": method, "guarantee": guarantee}
    about = {"unfinished": unfinished} if unfinished else {}
    examined: list[Tensor] = []  # some points, for an explanation

    def certify(some: Sequence[Point]) -> list[dict[str, Any]]:
        """The records of some points, in their order."""
        points, inputs = [each for each in some if each.x is not None], [each.x for each in some if each.x is not None]
        examined.extend(inputs[: POINTS_AT_ONCE - len(examined)])
        answers: Iterator[dict[str, Any]] = iter(())
        if inputs:
            measured = net.measure(torch.stack(inputs).to(place))
            found = measured.certificate(prefer=prefer, **options)
            answers = iter(found.records())
            if coverage is not None:
                sets = covering_sets(coverage, measured, found.epsilon, found.names)
                answers = (one | {"coverage_set": each} for one, each in zip(found.records(), sets, strict=True))
            if proofs is not None and bool(found.certified.any()):
                proofs.append(_named_proof(found, trained.network, points, units))
        return [
            {"name": each.name, "problem": each.problem}
            if each.x is None
            else _record(each, next(answers), units) | about
            for each in some
        ]

    points = _read_points(net, data, files, background, stdin, workers)
    read = proved = 0
    while any(turn := workers.everyones(certify(list(islice(points, POINTS_AT_ONCE))))):
        for record in (record for records in turn for record in records) if workers.first else ():
            read += "problem" not in record
            proved += record.get("certified", False)
            yield record
    if report and examined and proved < HARDLY * read:
        report(str(net.diagnose(torch.stack(examined).to(place), **options)))


def _read_coverage(path: Path, net: FrozenNet, alpha: float | str | None) -> Coverage | None:
    """The calibration of a run, at another level if one is asked for; None where there is none."""
    found = None if is_onnx(path) else read_coverage(Run(path), net)
    if found is not None or alpha is None:
        return found if found is None or alpha is None else found.at(alpha)
    if is_onnx(path):
        raise expected("a run, which can be calibrated, for `alpha`", path, "Leave --alpha out.")
    raise expected("a calibrated run for `alpha`", f"{path}, which is not", f"First: safeset calibrate {path}")


def covering_sets(
    coverage: Coverage, points: Measured, epsilon: float, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """For each point the classes that hold the true one with a probability, in words that are no certificate's."""
    words = (
        f"{probability(coverage)}, for inputs like the {len(coverage):,} calibration points, the true class is among "
        f"these, also after any change of L2 norm ≤ {shown_epsilon(epsilon)}"
    )
    about = {"alpha": float(coverage.alpha), "epsilon": epsilon, "words": words}
    for row in coverage.sets(points, epsilon).tolist():
        yield {"classes": [name for name, member in zip(names, row, strict=True) if member], **about}


def _open(
    path: Path, network: nn.Module | Factory | None, epsilon: float | None, guarantee: str | None, proof: bool
) -> tuple[CertifiedNet, str, FittedRecipe | None]:
    """A net, where its training stands, and the recipe that says how its points are read; an ONNX file has none."""
    if is_onnx(path):
        if proof:
            raise expected("a run, whose weights a proof is about", path, "Leave --proof out.")
        return load(path, network=network, epsilon=epsilon, guarantee=guarantee), "", None
    run = Run(path)
    recipe, (trained, unfinished) = run.read_recipe(), load_run(run, network)
    if proof and not run.model.is_file():
        raise expected(f"weights at {run.model}, which a proof is about", "none yet", "Let the training end first.")
    return trained, unfinished, recipe


def _read_points(
    net: FrozenNet,
    recipe: FittedRecipe | None,
    files: Sequence[str],
    background: str | None,
    stdin: BinaryIO | None,
    workers: Workers,
) -> Iterator[Point]:
    """The points of files that are this worker's turn, as a network takes them that was trained by a recipe."""
    data = Data("") if recipe is None else recipe.data
    return read_points(
        files,
        input_shape=net.input_shape,
        units=net.units,
        seen=None if recipe is None else recipe.task.range,
        ranges=data.ranges,
        one_hot=data.one_hot if isinstance(data.one_hot, Mapping) else None,
        background=background or data.background,
        stdin=stdin,
        chosen=lambda place: place // POINTS_AT_ONCE % workers.count == workers.rank,
    )


def _record(point: Point, answer: dict[str, Any], units: str) -> dict[str, Any]:
    """What is written of one point, as plain values."""
    return {
        "name": point.name,
        **plain(answer),
        "units": units,
        "resized_from": _resized_from(point),
        "composited": point.composited,
        "grey": point.grey,
    }


def _resized_from(point: Point) -> dict[str, int] | None:
    """The size of an image before it was resized, by name, so that nobody takes the width for the height."""
    if point.resized_from is None:
        return None
    height, width = point.resized_from
    return {"width": width, "height": height}


def _named_proof(found: Certificate, network: nn.Module, points: Sequence[Point], units: str) -> dict[str, Any]:
    """The proof of those points that are certified: names, units, and whether the checker can compare the file."""
    proof = proof_of(found[found.certified], network)
    certified = (point for point, holds in zip(points, found.certified.tolist(), strict=True) if holds)
    for one, point in zip(proof["certificates"], certified, strict=True):
        resized = {} if point.resized_from is None else {"resized_from": _resized_from(point)}
        one |= {"name": point.name, "units": units, **resized, "as in its file": _is_as_in_its_file(point)}
    return proof


def _is_as_in_its_file(point: Point) -> bool:
    """Whether the checker reads from the point's file what was certified."""
    if point.x is None or point.x.ndim != 3 or point.composited or point.resized_from is not None:
        return False
    try:
        channels, height, width = point.x.shape
        pixels = check.pixels_of(check.read(point.name, check.MOST_BYTES), channels, height, width)
    except (check.UncheckedError, OSError, ValueError):
        return False
    return [n / 255 for n in pixels] == point.x.flatten().tolist()
