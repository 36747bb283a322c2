"""What a calibrated run has stored of its coverage, compared with what is found now."""

import math
from typing import Any

from safeset.audit.records import DIFFERENT, ELSEWHERE, GONE, NO_TIME, SAME, SEEN, UNKNOWN, UNSEEN, Check, within
from safeset.coverage.coverage import Coverage
from safeset.coverage.record import from_values
from safeset.data.dataset import Dataset, Progress, Split
from safeset.errors import ArgumentError, SafesetError, counted, expected
from safeset.nets.frozen import FrozenNet
from safeset.numerics.integers import OutOfTimeError
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.calibrate import (
    MOST_KNOWN,
    OWN,
    count_known,
    draw_points,
    how_to_calibrate,
    load_own_points,
    read_coverage,
    table_of_points,
)
from safeset.runs.evaluate_coverage import evaluate_coverage
from safeset.runs.run import Run
from safeset.system.files import plain, read_tensors
from safeset.system.provenance import weights_digest
from safeset.system.untrusted import read_json_table

CLOSE = 1e-9  # stored scores and those found again: another processor may round differently
ABOUT = ("alpha", "confidence", "by_class", "score", "calibration_points", "thresholds")  # of an evaluation's coverage


def find_calibration(
    run: Run, recipe: FittedRecipe, net: FrozenNet, named: Split | None = None
) -> tuple[Coverage | None, list[Check]]:
    """The calibration of a run, if it has one that fits, and whether its points give the same scores again.

    Args:
        run: a run.
        recipe: its recipe.
        net: its net.
        named: the user's own points that it was made with, where they are named; otherwise they are looked for where
            calibration.json says.
    """
    try:
        coverage = read_coverage(run, net)
    except ArgumentError as error:
        elsewhere = _is_elsewhere(run, net)
        return None, [_check(ELSEWHERE if elsewhere else DIFFERENT, str(error))]
    if coverage is None:
        if "coverage" not in read_json_table(run.evaluation):
            return None, []
        return None, [_check(UNKNOWN, "the evaluation has coverage, but there is no calibration.json")]
    points = _find_points(run, recipe, len(coverage), named)
    if not isinstance(points, Split):
        return coverage, [points]
    if len(points) != len(coverage):
        said = f"it has {len(coverage):,} scores of {len(points):,} points"
        return coverage, [_check(DIFFERENT, said)]
    stored, labels = coverage.to_record(), points.y.tolist()
    reached = coverage.scores(points.exact, round="down").cpu().gather(1, points.y.cpu()[:, None])[:, 0]
    same = sorted(zip(stored["labels"], map(float, stored["scores"]), strict=True))
    found = sorted(zip(labels, reached.tolist(), strict=True))
    holds = all(
        one == other and math.isclose(was, now, rel_tol=CLOSE, abs_tol=CLOSE)
        for (one, was), (other, now) in zip(same, found, strict=True)
    )
    seen = _trained_on(points, run, recipe, coverage)
    if holds or seen["verdict"] == DIFFERENT:
        return coverage, [seen]
    return coverage, [_check(DIFFERENT, "its points have other scores now")]


def load_named(run: Run, recipe: FittedRecipe, source: str, progress: Progress | None = None) -> Split:
    """The points that an auditor names as those of a calibration.

    Raises:
        ArgumentError: where the run has none that was made with points of the user's own.
    """
    about = table_of_points(run)
    if not run.calibration.exists() or (about and OWN not in about):
        got = "points that the run has kept" if about else "none"
        remedy = "Leave it out: an audit finds these by itself." if about else how_to_calibrate(run)
        raise expected("--calibration-data for a calibration that was made with points of your own", got, remedy)
    return load_own_points(recipe, source, progress)


def _find_points(run: Run, recipe: FittedRecipe, count: int, named: Split | None) -> Split | Check:
    """The points that a calibration was made with; where they are not found, what is to be said of it.

    calibration.json says where the user's own lie, as a recipe says where its data lies: nothing but an audit reads
    them there, and only points with the stored digest are used.
    """
    about = table_of_points(run)
    digest, source = about.get("digest"), about.get("source")
    if not isinstance(digest, str) or about.get("count") != count:
        return _check(DIFFERENT, f"it has {count:,} scores, and does not say of which {count:,} points")
    if OWN not in about:
        if digest != recipe.task.set_apart:
            return _check(DIFFERENT, "it does not say that it was made with the points that the run has kept")
        try:
            return draw_points(run, recipe, None).points
        except (SafesetError, OSError) as error:
            return _check(GONE, f"the points that the run has kept are not found again: {str(error)[:200]}")
    points, shown = named, str(source)[:200]
    if points is None:
        try:
            points = load_own_points(recipe, source) if isinstance(source, str) else None
        except (SafesetError, OSError):
            points = None
    if points is None:
        said = f"its points are not found at {shown}" if source else "it does not say where its points lie"
        return _check(GONE, f"{said}; to name them: --calibration-data FILE")
    if points.digest() != digest:
        if named is not None:
            got = counted(len(points), "point")
            return _check(DIFFERENT, f"--calibration-data has {got}, not the {count:,} that it says it has")
        return _check(GONE, f"{shown} has other points now; to name its own: --calibration-data FILE")
    return points


def _trained_on(points: Split, run: Run, recipe: FittedRecipe, coverage: Coverage) -> Check:
    """Whether points of the user's own were trained on; as few as may be an attacker's do no harm."""
    if OWN not in table_of_points(run):
        return _check(SAME)
    known = count_known(points, recipe)
    if known is None:
        return _check(UNSEEN)
    if known.anywhere > MOST_KNOWN * len(points):
        return _check(DIFFERENT, f"{known.anywhere:,} of its {len(points):,} points are in the data of the run")
    if known.trained > coverage.poison:
        return _check(SEEN, f"{known.trained:,} of its {len(points):,} points are in the training data too")
    return _check(SAME)


def _check(verdict: str, said: str = "") -> Check:
    return {"what": "calibration", "verdict": verdict, "said": said}


def _is_elsewhere(run: Run, net: FrozenNet) -> bool:
    """Whether a calibration that does not fit was made with the same weights on another kind of device."""
    found = read_json_table(run.calibration)
    inner = found.get("coverage")
    try:
        from_values(inner)
    except ArgumentError:  # it is damaged, wherever it was made
        return False
    made = str(found.get("device")).partition(" ")[0]
    own = weights_digest(read_tensors(run.model)[0])
    return (
        isinstance(inner, dict) and inner.get("weights") == own and made in ("cpu", "cuda") and made != net.device.type
    )


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
                coverage, data.test, radii, per_class=by_class, attacked=[], progress=within(seconds, progress)
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
