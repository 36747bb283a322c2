"""A model that is open for questions: its net, frozen and proved, and how its answers are written down."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import nn

from safeset.certificates.certificate import Certificate
from safeset.coverage.coverage import Coverage
from safeset.coverage.words import covering_set, probability, words_of_set
from safeset.data.points import Point
from safeset.data.records import record_of_point, size_before
from safeset.errors import expected
from safeset.inputs import as_device
from safeset.nets.frozen import FrozenNet
from safeset.nets.net import CertifiedNet
from safeset.nets.points import Measured
from safeset.proofs import check
from safeset.proofs.portable import proof_of
from safeset.recipes.recipe import FittedRecipe
from safeset.recipes.sections import Data
from safeset.runs.calibrate import how_to_calibrate, read_coverage
from safeset.runs.library import is_onnx, is_shipped
from safeset.runs.load import load, load_run
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.provenance import weights_digest


@dataclass(frozen=True, eq=False)
class OpenModel:
    """A run or an ONNX file that answers.

    Attributes:
        path: where it is.
        trained: the net, whose weights are those of the file.
        net: the same, frozen.
        recipe: says how its points are read; an ONNX file has none.
        unfinished: where its training stands, if it has not ended.
        coverage: of a calibrated run.
    """

    path: Path
    trained: CertifiedNet
    net: FrozenNet
    recipe: FittedRecipe | None
    unfinished: str
    coverage: Coverage | None

    @cached_property
    def weights(self) -> str:
        """The digest of the weights, as proofs, evaluations and audits have it."""
        return weights_digest(self.trained.network.state_dict())

    def coverage_at(self, alpha: float | str | None) -> Coverage | None:
        """The calibration, at another level if one is asked for; None where there is none."""
        if alpha is None:
            return self.coverage
        if self.coverage is not None:
            return self.coverage.at(alpha)
        if is_onnx(self.path):
            raise expected("a run, which can be calibrated, for `alpha`", self.path, "Leave --alpha out.")
        remedy = how_to_calibrate(Run(self.path))
        if is_shipped(self.path):
            remedy = "It comes with safeset: copy its directory, and calibrate the copy with points of your own."
        raise expected("a calibrated run for `alpha`", f"{self.path}, which is not", remedy)

    def reading(self, background: str | None = None) -> dict[str, Any]:
        """How points become inputs of the net, as `read_points` and `read_contents` take it."""
        data = Data("") if self.recipe is None else self.recipe.data
        return {
            "input_shape": self.net.input_shape,
            "units": self.net.units,
            "seen": None if self.recipe is None else self.recipe.task.range,
            "ranges": data.ranges,
            "one_hot": data.one_hot if isinstance(data.one_hot, Mapping) else None,
            "background": background or data.background,
        }

    def records(
        self, points: Sequence[Point], found: Certificate | None, sets: Sequence[dict[str, Any]] | None = None
    ) -> list[dict[str, Any]]:
        """What is written of points, as plain values; of one that could not be read, its problem.

        Args:
            points: in the order in which they were given.
            found: the certificate of those that could be read; None if there are none.
            sets: what `covering_sets` gives of the same, where the run is calibrated.
        """
        answers = [] if found is None else found.records()
        if sets is not None:
            answers = [one | {"coverage_set": each} for one, each in zip(answers, sets, strict=True)]
        following = iter(answers)
        about = {"unfinished": self.unfinished} if self.unfinished else {}
        return [
            {"name": each.name, "problem": each.problem}
            if each.x is None
            else record_of_point(each, next(following), self.trained.units) | about
            for each in points
        ]

    def proof(self, points: Sequence[Point], found: Certificate, *, files: bool = True) -> dict[str, Any] | None:
        """The proof of those points that are certified, for others to check; None if none is.

        It has names and units, and says whether the checker can compare the file.

        Args:
            points: as for `records`.
            found: the certificate of those that could be read.
            files: whether their names are those of files here; names that strangers chose are not looked at.
        """
        if not bool(found.certified.any()):
            return None
        proof = proof_of(found[found.certified], self.trained.network)
        read = (point for point in points if point.x is not None)
        certified = (point for point, holds in zip(read, found.certified.tolist(), strict=True) if holds)
        for one, point in zip(proof["certificates"], certified, strict=True):
            resized = {} if point.resized_from is None else {"resized_from": size_before(point)}
            about = {"name": point.name, "units": self.trained.units, **resized}
            one |= {**about, "as in its file": files and _is_as_in_its_file(point)}
        return proof


def open_model(
    path: Path,
    *,
    network: nn.Module | Factory | None = None,
    epsilon: float | None = None,
    guarantee: str | None = None,
    device: str | None = None,
    proof: bool = False,
) -> OpenModel:
    """Open a run, or an ONNX file.

    Args:
        path: the directory of a run, or an ONNX file.
        network: as for `load`.
        epsilon: radius, to be given for an ONNX file.
        guarantee: of an ONNX file.
        device: such as ``"cuda"``.
        proof: whether proofs will be asked for, which are about weights in a file.
    """
    recipe, unfinished = None, ""
    if is_onnx(path):
        if proof:
            raise expected("a run, whose weights a proof is about", path, "Leave --proof out.")
        trained = load(path, network=network, epsilon=epsilon, guarantee=guarantee)
    else:
        run = Run(path)
        recipe, (trained, unfinished) = run.read_recipe(), load_run(run, network)
        if proof and not run.model.is_file():
            raise expected(f"weights at {run.model}, which a proof is about", "none yet", "Let the training end first.")
    net = trained.to(as_device(device)).frozen()
    coverage = None if is_onnx(path) else read_coverage(Run(path), net)
    return OpenModel(path, trained, net, recipe, unfinished, coverage)


def covering_sets(
    coverage: Coverage, points: Measured, epsilon: float, names: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """For each point the classes that hold the true one with a probability, in words that are no certificate's."""
    words = words_of_set(probability(coverage), len(coverage), epsilon)
    for row in coverage.sets(points, epsilon).tolist():
        yield covering_set(row, names, float(coverage.alpha), epsilon, words)


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
