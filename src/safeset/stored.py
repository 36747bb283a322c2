"""What a run has stored, held against what is found anew."""

import math
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from safeset.data.dataset import Dataset, Progress
from safeset.errors import ArgumentError, SafesetError
from safeset.evaluation import evaluate
from safeset.guarantees import as_guarantee, names_a_file
from safeset.integers import OutOfTimeError
from safeset.jobs import plain, written
from safeset.net import CertifiedNet
from safeset.provenance import weights_digest
from safeset.runs import Run
from safeset.texts import parse_json, read_text
from safeset.training.recipe import Recipe

SAME, DIFFERENT, UNKNOWN, NO_TIME = "same", "different", "not stored", "no time"


def stored_checks(
    run: Run,
    recipe: Recipe,
    net: CertifiedNet,
    data: Dataset,
    *,
    own_data: bool = True,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> list[dict[str, str]]:
    """Each thing that a run has stored, ``same``, ``different``, ``not stored`` or ``no time``, and what is wrong.

    Args:
        run: a run whose training has ended.
        recipe: its recipe.
        net: its net, as loaded.
        data: its data, or other data: then stored numbers are not compared.
        own_data: whether it is its own.
        seconds: time to evaluate the test data anew; if that does not suffice, stored numbers are not compared.
        progress: wraps the batches of that evaluation.
    """
    evaluation, bounds = _read(run.evaluation), _read(run.bounds)
    unreadable = [name for name, found in (("evaluation.json", evaluation), ("bounds.json", bounds)) if found is None]
    evaluation, bounds = evaluation or {}, bounds or {}
    checks = [
        *({"what": name, "verdict": DIFFERENT, "said": "it is not what safeset writes"} for name in unreadable),
        _check("weights", evaluation.get("weights"), weights_digest(net.network.state_dict())),
        _check("recipe", _recipe(evaluation.get("recipe")), written(recipe)),
        _check("class names", list(recipe.task.class_names if recipe.task else ()), list(data.class_names)),
        _check("bounds", *_bounds(bounds, net)),
    ]
    if not own_data or evaluation.get("test") != data.test.digest():
        return [*checks, {"what": "numbers", "verdict": UNKNOWN, "said": "no evaluation of this data is stored"}]
    try:
        return [*checks, _check("numbers", *_numbers(evaluation, bounds, net, data, _within(seconds, progress)))]
    except OutOfTimeError:
        said = f"{len(data.test):,} points need longer than {seconds:.0f} s"
        return [*checks, {"what": "numbers", "verdict": NO_TIME, "said": said}]


def _within(seconds: float, progress: Progress | None) -> Progress:
    """Lets batches go by while all of them promise to fit into a time, judged by those that have gone by."""

    def batches(items: Iterable[Any], count: int) -> Iterator[Any]:
        started = time.perf_counter()
        for done, item in enumerate(progress(items, count) if progress else items):
            if done and (time.perf_counter() - started) / done * count > seconds:
                raise OutOfTimeError
            yield item

    return batches


def _recipe(stored: Any) -> Any:
    """A stored recipe as it is written now: affinity sets, and the classes in them, have no order."""
    try:
        return stored if names_a_file(stored["guarantee"]) else written(Recipe.from_table(stored))
    except (KeyError, TypeError, ValueError, SafesetError):
        return stored


def _numbers(
    evaluation: dict[str, Any], bounds: dict[str, Any], net: CertifiedNet, data: Dataset, progress: Progress
) -> tuple[Any, Any]:
    """The rows of a stored evaluation, and the same rows evaluated anew; where they agree, the latter twice.

    Another device than theirs may have proved other bounds (`_bounds` tells if they are far off). Margins are about ε
    times them alone, so that rows are compared at the ε at which today's bounds are worth the stored ones at theirs;
    a few points at the edge may differ.
    """
    names = ["points", "vra", "rejection_rate", "accuracy", "core_size", "set_size"]
    try:
        later = ("top1", "smallest_share", "smallest_core_size", "smallest_set_size")  # since safeset 0.2
        names += [name for name in later if any(name in row for row in evaluation["rows"])]
        keys = [(row["method"], row["epsilon"]) for row in evaluation["rows"]]
        stored = [[row[name] for name in names] for row in evaluation["rows"]]
        if names_a_file(evaluation["guarantee"]) or not stored or evaluation["points"] != len(data.test):
            return "other rows", "rows of an evaluation"
        elsewhere = _device(evaluation) != _device_of(net)
        worth = float(bounds["before_the_head"]) / float(net.bounds().head.scale) if elsewhere and bounds else 1.0
        rows = evaluate(
            net,
            data.test,
            epsilons=list(dict.fromkeys(worth * epsilon for _, epsilon in keys)),
            methods=list(dict.fromkeys(method for method, _ in keys)),
            guarantee=as_guarantee(evaluation["guarantee"]),
            progress=progress,
        )
        found = {(row["method"], row["epsilon"]): [plain(row[name]) for name in names] for row in rows}
        fresh = [found[method, worth * epsilon] for method, epsilon in keys]
        room = 2e-3 if elsewhere else 0.0
        agree = all(
            one == two or (room and None not in (one, two) and math.isclose(one, two, rel_tol=room, abs_tol=room))
            for was, now in zip(stored, fresh, strict=True)
            for one, two in zip(was, now, strict=True)
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, SafesetError) as error:
        return f"{type(error).__name__}: {error}", "rows of an evaluation"
    return (fresh if agree else stored), fresh


def _bounds(stored: dict[str, Any], net: CertifiedNet) -> tuple[Any, Any]:
    """Stored bounds, and those proved now; where they agree, the latter twice.

    To a millionth on the device where they were proved; others may prove convolutions by tori, which give away more.
    """
    bounds = net.bounds()
    proved = [*((line.name, line.bound) for line in bounds.layers), ("", float(bounds.head.scale))]
    if not stored:
        return None, proved
    try:
        lines = [(str(line["name"]), float(line["bound"])) for line in stored["layers"]]
        lines.append(("", float(stored["before_the_head"])))
        room = 1e-6 if _device(stored) == _device_of(net) else 0.05
        agree = [name for name, _ in lines] == [name for name, _ in proved] and all(
            math.isclose(one, two, rel_tol=room) for (_, one), (_, two) in zip(lines, proved, strict=True)
        )
    except (KeyError, TypeError, ValueError):
        return "no bounds", proved
    return (proved if agree else lines), proved


def _device(stored: dict[str, Any]) -> str:
    """The kind of device that something stored was made on."""
    return str(stored.get("device")).partition(" ")[0]


def _device_of(net: CertifiedNet) -> str:
    return next(net.parameters()).device.type


def _check(what: str, stored: Any, found: Any) -> dict[str, str]:
    if stored is None:
        return {"what": what, "verdict": UNKNOWN, "said": ""}
    if stored == found:
        return {"what": what, "verdict": SAME, "said": ""}
    return {"what": what, "verdict": DIFFERENT, "said": f"stored {str(stored)[:200]}, found {str(found)[:200]}"}


def _read(path: Path) -> dict[str, Any] | None:
    """What a JSON file holds: nothing if there is none, None if it holds something else."""
    if not path.exists() and not path.is_symlink():
        return {}
    try:
        found = parse_json(read_text(path), str(path))
    except ArgumentError:
        return None
    return found if isinstance(found, dict) else None
