"""Certificates of users' own files by an exported network, without torch: the same records as a run's."""

import math
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from safeset.certificates.promises import check_preference
from safeset.certificates.records import record_of
from safeset.coverage.words import covering_set, words_of_set
from safeset.data.decoding import colour
from safeset.data.points import Point, read_points
from safeset.data.records import record_of_point
from safeset.errors import expected
from safeset.export.file import COVERAGE, Exported, find_exported
from safeset.runs.library import is_onnx

POINTS_AT_ONCE = 64


def open_exported(path: Path) -> Exported | None:
    """The exported network at a path; None for what is no ONNX file, and for one that something else has written."""
    return find_exported(path) if is_onnx(path) and path.is_file() else None


def certify_exported(
    model: Exported,
    files: Sequence[str],
    *,
    epsilon: float | None = None,
    method: str | None = None,
    guarantee: str | None = None,
    prefer: str = "smallest",
    background: str | None = None,
    alpha: float | str | None = None,
    stdin: BinaryIO | None,
) -> Iterator[dict[str, Any]]:
    """A record for each point, as `certify_files` gives them; ``estimate`` is true in those of a float32 file.

    Args:
        model: an exported network.
        files: images, folders, .csv or .npz files; ``-`` for standard input.
        epsilon: radius; by default the file's own.
        method: the file's own, or None: windows were proved by one method.
        guarantee: likewise.
        prefer: which certified answer is shown.
        background: the colour behind images with transparency.
        alpha: of the coverage sets, the file's own, or None.
        stdin: standard input.
    """
    says = model.says
    check_preference(prefer)
    radius = float(says["epsilon"]) if epsilon is None else epsilon
    if not 0 <= radius < math.inf:
        raise expected("`epsilon` to be a finite number ≥ 0", radius)
    for name, given in (("method", method), ("guarantee", guarantee)):
        if given is not None and given.strip() != says[name]:
            remedy = f"Leave --{name} out, or certify the run itself."
            raise expected(f"the {name} that {model.path} was exported with, {says[name]!r}", repr(given)[:80], remedy)
    _check_alpha(model, alpha)
    if background is not None:
        colour(background)  # a mistake in it is reported before anything is computed
    points = read_points(files, stdin=stdin, **_reading(model, background))
    while some := list(islice(points, POINTS_AT_ONCE)):
        yield from _records(model, some, radius, prefer)


def _check_alpha(model: Exported, alpha: float | str | None) -> None:
    """Refuse another level than that of the thresholds in the file."""
    if alpha is None:
        return
    found = model.says["coverage"]
    if found is None or str(alpha).strip() != str(found["alpha"]):
        got = "one that is not calibrated" if found is None else f"alpha {found['alpha']}, not {alpha}"
        raise expected(f"a network that was exported with alpha {alpha}", got, "Leave --alpha out.")


def _reading(model: Exported, background: str | None) -> dict[str, Any]:
    """How points become inputs of the network, as `read_points` takes it."""
    found = model.says["reading"] or {}
    ends = {name: tuple(map(float, each)) for name, each in (found.get("ranges") or {}).items()}
    return {
        "input_shape": model.input_shape,
        "units": model.says["units"],
        "seen": None if found.get("seen") is None else tuple(found["seen"]),
        "ranges": ends or None,
        "one_hot": {name: tuple(each) for name, each in (found.get("one_hot") or {}).items()} or None,
        "background": background or found.get("background"),
    }


def _records(model: Exported, points: Sequence[Point], epsilon: float, prefer: str) -> Iterator[dict[str, Any]]:
    """The records of some points, in their order."""
    says = model.says
    names: Sequence[Any] = says["class_names"] or range(says["classes"])
    about = {"epsilon": epsilon, "guarantee": says["guarantee"], "method": says["method"], "prefer": prefer}
    unfinished = (says["reading"] or {}).get("unfinished")
    more = {"unfinished": unfinished} if unfinished else {}
    more |= {} if model.is_proved else {"estimate": True}
    read = [each.x for each in points if each.x is not None]
    found = iter(zip(*_computed(model, np.stack(read), epsilon), strict=True)) if read else iter(())
    for point in points:
        if point.x is None:
            yield {"name": point.name, "problem": point.problem}
            continue
        best, windows, members = next(found)
        answer = record_of([names[each] for each in best], windows, **about)
        if members is not None:
            level = says["coverage"]
            words = words_of_set(level["probability"], level["points"], epsilon)
            answer["coverage_set"] = covering_set(members, list(map(str, names)), level["alpha"], epsilon, words)
        yield record_of_point(point, answer, says["units"]) | more


def _computed(model: Exported, x: Any, epsilon: float) -> tuple[list[Any], list[Any], list[Any]]:
    """Of each point its best classes, best first, its windows, and its coverage set or None."""
    found = model.run(x, epsilon)
    windows, logits = found["windows"], found["logits"]
    order = np.argsort(-logits, axis=1, kind="stable")[:, : windows.shape[1]]  # equal logits by index, as in the graph
    best = [row.tolist() if np.isfinite(own).all() else [] for row, own in zip(order, logits, strict=True)]
    members = found[COVERAGE].tolist() if COVERAGE in found else [None] * len(x)
    return best, windows.tolist(), members
