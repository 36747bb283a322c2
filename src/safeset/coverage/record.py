"""A calibration as plain values for JSON, and back: what is read comes from anywhere, so all of it is checked."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from safeset.coverage.logit_map import LogitMap
from safeset.coverage.ranks import as_level
from safeset.coverage.scores import Score
from safeset.errors import expected, first_few
from safeset.inputs import as_number

FORMAT = "safeset coverage 1"
MOST_POINTS, MOST_CLASSES = 2**22, 2**20
INFINITE = {"-inf": -math.inf, "inf": math.inf}  # JSON has no infinity
KEYS = (
    "format",
    "program",
    "weights",
    "scale",
    "classes",
    "score",
    "k",
    "tau",
    "alpha",
    "confidence",
    "poisoned",
    "by_class",
    "scores",
    "labels",
    "made_with",
)


class Stored(NamedTuple):
    """What a record holds, checked in form; whether it is true of a network is another question."""

    program: str
    weights: str
    scale: float
    classes: int
    score: Score
    alpha: Fraction
    confidence: Fraction | None
    poisoned: int
    by_class: bool
    scores: list[float]
    labels: list[int]
    made_with: dict[str, str]


def to_values(stored: Stored) -> dict[str, Any]:
    """Values for JSON."""
    score, confidence = stored.score, stored.confidence
    return {
        **({} if score.fit is None else {"fit": score.fit.to_values()}),
        **stored._asdict(),
        "format": FORMAT,
        "score": score.kind,
        "k": score.k,
        "tau": score.tau,
        "alpha": str(stored.alpha),
        "confidence": None if confidence is None else str(confidence),
        "scores": [one if math.isfinite(one) else "inf" if one > 0 else "-inf" for one in stored.scores],
    }


def from_values(record: Any) -> Stored:
    """The same from what JSON gave.

    Raises:
        ArgumentError: for whatever `to_values` does not write.
    """
    if not isinstance(record, Mapping) or record.get("format") != FORMAT:
        got = repr(record.get("format"))[:80] if isinstance(record, Mapping) else type(record).__name__
        raise expected(f"a calibration of the format {FORMAT!r}", got, "Calibrate again.")
    wrong = [f"{key!r} missing" for key in KEYS if key not in record]
    known = {*KEYS, "fit"} if record.get("score") == "fitted" else KEYS
    wrong += [f"{str(key)[:40]!r} unknown" for key in record if key not in known]
    if wrong:
        raise expected("a calibration with all of its keys and no others", first_few(wrong))
    classes = _integer(record, "classes", 2, MOST_CLASSES)
    labels, scores = record["labels"], record["scores"]
    if not isinstance(labels, list) or not isinstance(scores, list) or not 1 <= len(labels) <= MOST_POINTS:
        raise expected(f"lists of `labels` and `scores` of 1..{MOST_POINTS} calibration points", "something else")
    if len(labels) != len(scores):
        raise expected("a label for each score of a calibration", f"{len(labels)} and {len(scores)}")
    if not all(type(one) is int and 0 <= one < classes for one in labels):
        raise expected(f"`labels` of a calibration to be integers in 0..{classes - 1}", "others")
    if record["confidence"] is not None and not isinstance(record["confidence"], str):
        raise expected("`confidence` of a calibration to be null or a text such as '19/20'", record["confidence"])
    made_with = record["made_with"]
    if not isinstance(made_with, dict) or not all(
        isinstance(text, str) and len(text) <= 200 for pair in made_with.items() for text in pair
    ):
        raise expected("`made_with` of a calibration to be a table of texts", "something else")
    return Stored(
        program=_digest(record, "program"),
        weights=_digest(record, "weights"),
        scale=_scale(record["scale"]),
        classes=classes,
        score=_which(record, classes),
        alpha=as_level(_text(record, "alpha"), "`alpha` of a calibration"),
        confidence=None
        if record["confidence"] is None
        else as_level(record["confidence"], "`confidence` of a calibration"),
        poisoned=_integer(record, "poisoned", 0, MOST_POINTS),
        by_class=_flag(record, "by_class"),
        scores=[_score(one) for one in scores],
        labels=list(labels),
        made_with=dict(made_with),
    )


def _which(record: Mapping[str, Any], classes: int) -> Score:
    """The score, with its own parameter and no other."""
    fit = LogitMap.from_values(record.get("fit"), classes) if record["score"] == "fitted" else None
    score = Score.of(record["score"], classes, record["k"], record["tau"], fit)
    if (score.k, score.tau) != (record["k"], record["tau"]):
        raise expected("`k` of a calibration for 'membership', `tau` for 'soft-min', and null for the other", "others")
    return score


def _integer(record: Mapping[str, Any], key: str, least: int, most: int) -> int:
    value = record[key]
    if type(value) is not int or not least <= value <= most:
        raise expected(f"`{key}` of a calibration to be an integer in {least}..{most}", repr(value)[:80])
    return value


def _flag(record: Mapping[str, Any], key: str) -> bool:
    value = record[key]
    if not isinstance(value, bool):
        raise expected(f"`{key}` of a calibration to be true or false", repr(value)[:80])
    return value


def _text(record: Mapping[str, Any], key: str) -> str:
    value = record[key]
    if not isinstance(value, str):
        raise expected(f"`{key}` of a calibration to be a text", repr(value)[:80])
    return value


def _digest(record: Mapping[str, Any], key: str) -> str:
    value = _text(record, key)
    if len(value) != 64 or not set(value) <= set("0123456789abcdef"):
        raise expected(f"`{key}` of a calibration to be a digest of 64 hexadecimal digits", repr(value)[:80])
    return value


def _scale(value: Any) -> float:
    number = as_number(value)
    if number is None or not 0 <= number < math.inf:
        raise expected("`scale` of a calibration to be a finite number ≥ 0", repr(value)[:80])
    return number


def _score(value: Any) -> float:
    if isinstance(value, str) and value in INFINITE:
        return INFINITE[value]
    number = as_number(value)
    if number is None or not math.isfinite(number):
        raise expected("`scores` of a calibration to be finite numbers, 'inf' or '-inf'", repr(value)[:80])
    return number
