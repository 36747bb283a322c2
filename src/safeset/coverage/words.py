"""What a calibration promises, in words that are never those of certificates: *covers*, not *certified*."""

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from safeset.certificates.promises import shown_epsilon
from safeset.errors import shown_rate, some_of

if TYPE_CHECKING:
    from safeset.coverage.coverage import Coverage

SHOWN = 8  # classes by name
COVERED = ("clean", "guaranteed", "under attack", "mean size", "10 %", "median", "90 %", "one class")
ABOUT_COVERED = (
    "Clean: labels in the sets for ε of unchanged points; guaranteed: those that no change within ε gets out; under "
    "attack: those that an attack did not get out. A set that would be empty has the class with the largest score, "
    "which guaranteed alone does not count. Sizes in classes: the mean and quantiles; one class: sets of just one."
)


def percent(level: Fraction) -> str:
    """A level in per cent, rounded down: more is not promised.

    >>> percent(Fraction(9, 10)), percent(Fraction(2, 3)), percent(1 - Fraction(1, 10**9))
    ('90 %', '66.6666 %', '99.9999 %')
    """
    return f"{math.floor(level * 10**6) / 10**4:g} %"


def probability(coverage: "Coverage") -> str:
    """Of what kind the probability is: on average over calibration sets, or of this one."""
    least = f"with probability ≥ {percent(1 - coverage.alpha)}"
    if coverage.confidence is None:
        said = f"{least}, on average over calibration sets"
        said += ", for each true class by itself" if coverage.by_class else ""
    else:
        whose = "for each true class by itself, with" if coverage.by_class else "with"
        once = " for each of them, not for all at once," if coverage.by_class else ""
        said = f"{least}, {whose} {percent(coverage.confidence)} confidence{once} in this calibration set"
    if coverage.poison:
        said += f", also if {coverage.poison} of the calibration points are an attacker's"
    return said


def promise_of(coverage: "Coverage", assumptions: Sequence[str], device: str) -> str:
    """What is promised, of what inputs, and what is assumed."""
    drawn = "independently as" if coverage.confidence is not None else "as"
    said = (
        f"{probability(coverage)}, the set of an input holds its true class, for inputs that are drawn {drawn} the "
        f"{len(coverage)} calibration points were, after any change by at most ε in L2, for every ε at once; the sets "
        f"are those of the float64 program as run on {device}"
    )
    return f"{said}, assuming that {'; that '.join(assumptions)}" if assumptions else said


def describe(coverage: "Coverage") -> str:
    """A calibration in one line."""
    thresholds = coverage.thresholds
    everywhere = int((thresholds == -math.inf).sum())
    if everywhere == len(thresholds):
        which = f"every class is in every set: {why_everywhere(coverage)}"
    elif coverage.by_class:
        which = f"thresholds {thresholds[thresholds > -math.inf].min():.4g} to {thresholds.max():.4g}"
        if everywhere:
            which += f", {some_of(everywhere, len(thresholds), 'classes')} in every set: {why_everywhere(coverage)}"
    else:
        which = f"threshold {thresholds[0]:.4g}"
    about = f"{len(coverage)} points, score {coverage.score}, {which}"
    return f"Coverage(the true class is in the set {probability(coverage)}; {about})"


def in_every_set(coverage: "Coverage") -> str:
    """Which classes are in every set, and why, as a sentence; nothing where there are none."""
    names = coverage.net.class_names or tuple(map(str, range(len(coverage.thresholds))))
    found = [name for name, least in zip(names, coverage.thresholds.tolist(), strict=True) if least == -math.inf]
    if not found:
        return ""
    shown = ", ".join(found[:SHOWN]) + (", …" if len(found) > SHOWN else "")
    some = f"{some_of(len(found), len(names), 'classes')} in every set ({shown})"
    return f"{'Every class is in every set' if len(found) == len(names) else some}: {why_everywhere(coverage)}."


def why_everywhere(coverage: "Coverage") -> str:
    """Why classes are in every set: too few points, or too many of which nothing is known."""
    counts = coverage.counts[coverage.thresholds == -math.inf]
    few = f"at least {coverage.fewest:,} points{' of a class' if coverage.by_class else ''} are needed"
    low = "too many calibration points have the score −∞, as inputs with NaN or too large numbers have"
    reasons = [(few, counts < coverage.fewest), (low, counts >= coverage.fewest)]
    return " or ".join(said for said, of in reasons if bool(of.any()))


def words_of_set(probability: str, points: int, epsilon: float) -> str:
    """What the set of one input means, with `probability` in words."""
    return (
        f"{probability}, for inputs like the {points:,} calibration points, the true class is among these, also after "
        f"any change of L2 norm ≤ {shown_epsilon(epsilon)}"
    )


def covering_set(
    members: Sequence[bool], names: Sequence[str], alpha: float, epsilon: float, words: str
) -> dict[str, Any]:
    """The set of one input as plain values, as records have it."""
    classes = [name for name, member in zip(names, members, strict=True) if member]
    return {"classes": classes, "alpha": alpha, "epsilon": epsilon, "words": words}


def covered_cells(row: dict[str, Any]) -> list[str]:
    """The numbers of an evaluated coverage's row, or of a class in it, as texts: those of `COVERED`."""
    quantiles = [str(size) for size in row["size_quantiles"].values()]
    shares = [shown_rate(row[name]) for name in ("clean", "guaranteed", "under_attack")]
    return [*shares, f"{row['size']:.2f}", *quantiles, shown_rate(row["singletons"])]
