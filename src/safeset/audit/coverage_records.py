"""What a calibrated run has stored of its coverage, compared with what is found now."""

import math
from typing import Any

from safeset.audit.records import DIFFERENT, ELSEWHERE, NO_TIME, OTHER, SAME, UNKNOWN, Check, within
from safeset.coverage.coverage import Coverage
from safeset.data.dataset import Dataset, Progress
from safeset.errors import ArgumentError, SafesetError
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import OutOfTimeError
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.calibrate import draw_points, read_coverage
from safeset.runs.evaluate_coverage import evaluate_coverage
from safeset.runs.run import Run
from safeset.system.files import plain, read_tensors
from safeset.system.provenance import weights_digest
from safeset.system.untrusted import read_json_table

CLOSE = 1e-9  # stored scores and those found again: another processor may round differently
ABOUT = ("alpha", "confidence", "by_class", "score", "calibration_points", "thresholds")  # of an evaluation's coverage


def find_calibration(run: Run, recipe: FittedRecipe, net: FrozenNet) -> tuple[Coverage | None, list[Check]]:
    """The calibration of a run, if it has one that fits, and whether its points give the same scores again."""
    try:
        coverage = read_coverage(run, net)
    except ArgumentError as error:
        elsewhere = _is_elsewhere(run, net)
        return None, [{"what": "calibration", "verdict": ELSEWHERE if elsewhere else DIFFERENT, "said": str(error)}]
    if coverage is None:
        return None, []
    stored = coverage.to_record()
    try:
        points = draw_points(run, recipe, None).points
    except ArgumentError:  # the run kept none, or they cannot be found again
        points = None
    about = _points_of(run)
    if points is None or len(points) != len(coverage) or about.get("digest", points.digest()) != points.digest():
        source = str(about.get("from", "points that are not named"))[:100]
        said = (
            f"made with {source}, which the run has not kept, so it was not made again; to calibrate with kept "
            f"points: safeset calibrate {run.path} --overwrite"
        )
        return coverage, [{"what": "calibration", "verdict": OTHER, "said": said}]
    score = coverage.score
    again = Coverage.calibrate(
        net, points.exact, points.y, score=score.kind, k=score.k, tau=score.tau, fit=score.fit
    ).to_record()
    same = sorted(zip(stored["labels"], _numbers(stored), strict=True))
    found = sorted(zip(again["labels"], _numbers(again), strict=True))
    holds = stored["scale"] == again["scale"] and all(
        one == other and math.isclose(was, now, rel_tol=CLOSE, abs_tol=CLOSE)
        for (one, was), (other, now) in zip(same, found, strict=True)
    )
    said = "" if holds else "the points that the run has kept have other scores"
    return coverage, [{"what": "calibration", "verdict": SAME if holds else DIFFERENT, "said": said}]


def _points_of(run: Run) -> dict[str, Any]:
    """What calibration.json says of its points: their digest, and where they came from."""
    found = read_json_table(run.calibration).get("points")
    return found if isinstance(found, dict) else {}


def _is_elsewhere(run: Run, net: FrozenNet) -> bool:
    """Whether a calibration that does not fit was made with the same weights on another kind of device."""
    found = read_json_table(run.calibration)
    inner = found.get("coverage")
    made = str(found.get("device")).partition(" ")[0]
    own = weights_digest(read_tensors(run.model)[0])
    return (
        isinstance(inner, dict) and inner.get("weights") == own and made in ("cpu", "cuda") and made != net.device.type
    )


def _numbers(record: dict[str, Any]) -> list[float]:
    return [float(one) for one in record["scores"]]


def compare_coverage(
    run: Run, coverage: Coverage, data: Dataset, *, seconds: float = math.inf, progress: Progress | None = None
) -> list[Check]:
    """The coverage of a stored evaluation against what the same points give now; nothing where it has none.

    What an attack found is not looked for again: it must lie between what is guaranteed and what is clean.

    Args:
        run: a calibrated run.
        coverage: its own.
        data: its own, or other data: then nothing is compared.
        seconds: time to evaluate the test data again.
        progress: wraps the batches.
    """
    evaluation = read_json_table(run.evaluation)
    stored = evaluation.get("coverage")
    if stored is None or evaluation.get("test") != data.test.digest():
        return []
    try:
        radii = [row["epsilon"] for row in stored["rows"]]
        by_class = any("classes" in row for row in stored["rows"])
        found = plain(
            evaluate_coverage(
                coverage, data.test, radii, per_class=by_class, attack=False, progress=within(seconds, progress)
            )
        )
        if any(stored[name] != found[name] for name in ABOUT):
            said = f"of another calibration; safeset evaluate {run.path} writes it again"
            return [{"what": "coverage", "verdict": UNKNOWN, "said": said}]
        said = "; ".join(_different(stored, found)[:3])
    except OutOfTimeError:
        said = f"{len(data.test):,} points need longer than {seconds:.0f} s"
        return [{"what": "coverage", "verdict": NO_TIME, "said": said}]
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, SafesetError) as error:
        said = f"no coverage of an evaluation ({type(error).__name__}: {str(error)[:100]})"
    elsewhere = str(evaluation.get("device")).partition(" ")[0] != coverage.net.device.type
    verdict = SAME if not said else ELSEWHERE if elsewhere else DIFFERENT
    return [{"what": "coverage", "verdict": verdict, "said": said}]


def _different(stored: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """The numbers that differ, in words; those of an attack must lie between the others."""
    wrong = [] if stored["curve"] == found["curve"] else ["the curve"]
    for was, now in zip(stored["rows"], found["rows"], strict=True):
        pairs = [("", was, now)]
        if was.keys() != now.keys() or was.get("classes", {}).keys() != now.get("classes", {}).keys():
            wrong.append(f"other keys at ε = {now['epsilon']:g}")
            continue
        pairs += [(f" of {name}", was["classes"][name], part) for name, part in now.get("classes", {}).items()]
        for whose, one, other in pairs:
            names = [name for name in other if name not in ("classes", "under_attack") and one.get(name) != other[name]]
            wrong += [f"{name}{whose}: stored {str(one.get(name))[:40]}, found {other[name]}" for name in names]
            if not other["guaranteed"] <= one["under_attack"] <= other["clean"]:
                wrong.append(f"under_attack{whose} is not between guaranteed and clean")
    return wrong
