"""What a run has stored, compared with what is found now."""

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from safeset.audit.second_proof import Reproof, product_of
from safeset.certificates.margins import METHODS
from safeset.data.dataset import Dataset, Progress
from safeset.errors import ArgumentError, SafesetError
from safeset.evaluation import evaluate
from safeset.guarantees.text import as_guarantee, names_a_file
from safeset.nets.net import CertifiedNet
from safeset.numerics.integers import OutOfTimeError
from safeset.proofs.prove import LayerBound
from safeset.recipes.recipe import FittedRecipe, Recipe
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.provenance import weights_digest
from safeset.system.untrusted import read_json

SAME, DIFFERENT, UNKNOWN, NO_TIME = "same", "different", "not stored", "no time"
ELSEWHERE, OTHER, GONE = "made elsewhere", "other data", "not made again"
SEEN, UNSEEN = "points trained on", "not compared"
OPEN = {  # what is neither right nor wrong, in words
    UNKNOWN: "not stored",
    NO_TIME: "no time to evaluate all test data again",
    ELSEWHERE: "made on another kind of device, and not the same here: evaluate the run here, or audit it there",
    OTHER: "stored of other data than is audited",
    GONE: "not made again, because the points that it was made with were not found",
    SEEN: "points of it are in the training data too; if they are the same things, sets hold the true class too rarely",
    UNSEEN: "not known whether its points were trained on, because the data of the run was not found",
}
CLOSE, FAR = 1e-6, 0.05  # bounds of the same way of proving, and of others
EDGE = 2e-3  # of points that another device may see on the other side of a radius

Check = dict[str, str]


def stored_checks(
    run: Run,
    recipe: FittedRecipe,
    net: CertifiedNet,
    data: Dataset,
    *,
    unfinished: str = "",
    bounds: Sequence[Reproof] = (),
    own_data: bool = True,
    seconds: float = math.inf,
    progress: Progress | None = None,
) -> list[Check]:
    """Each thing that a run has stored, and whether it is the ``same`` now: what, verdict, and what is wrong.

    Verdicts are ``same``, ``different``, and the keys of `OPEN`, which say that it cannot be decided.

    Args:
        run: a run.
        recipe: its recipe.
        net: its net, as loaded.
        data: its data, or other data: then stored numbers are not compared.
        unfinished: where its training stands, if it has not ended.
        bounds: what became of the bounds when they were proved again.
        own_data: whether the data is its own.
        seconds: time to evaluate the test data again; if that does not suffice, stored numbers are not compared.
        progress: wraps the batches of that evaluation.
    """
    evaluation, proved = _read(run.evaluation), _read(run.bounds)
    checks = [
        {"what": name, "verdict": DIFFERENT, "said": "it is not what safeset writes"}
        for name, found in (("evaluation.json", evaluation), ("bounds.json", proved))
        if found is None
    ]
    evaluation, proved = evaluation or {}, proved or {}
    checks.append(_check("class names", list(recipe.task.class_names), list(data.class_names)))
    checks.append(_bounds(proved, net, bounds))
    if not evaluation:
        return [*checks, {"what": "evaluation", "verdict": UNKNOWN, "said": f"safeset evaluate {run.path} writes one"}]
    checks += [
        _check("weights", evaluation.get("weights"), weights_digest(net.network.state_dict())),
        _check("recipe", _recipe(evaluation.get("recipe")), recipe.json_table()),
    ]
    digest = evaluation.get("test")
    if not own_data and digest != data.test.digest():
        return [*checks, {"what": "numbers", "verdict": OTHER, "said": "no evaluation of this data is stored"}]
    checks += [
        _check("test data", digest, data.test.digest()),
        *_settings(evaluation, recipe, net, data, unfinished),
    ]
    try:
        return [*checks, _numbers(evaluation, checks, recipe, net, data, within(seconds, progress))]
    except OutOfTimeError:
        said = f"{len(data.test):,} points need longer than {seconds:.0f} s"
        return [*checks, {"what": "numbers", "verdict": NO_TIME, "said": said}]


def _settings(
    evaluation: dict[str, Any], recipe: FittedRecipe, net: CertifiedNet, data: Dataset, unfinished: str
) -> list[Check]:
    """With what an evaluation says that it was made."""
    found: dict[str, Any] = {
        "data": data.name,
        "split": recipe.split,
        "points": len(data.test),
        "units": data.units,
        "guarantee": str(net.guarantee),
        "prefer": "largest",
        "dtype": "float64",
        "seed": recipe.seed,
    }
    checks = [_check(name, evaluation.get(name), value) for name, value in found.items()]
    checks.append(_check("unfinished", evaluation.get("unfinished", ""), unfinished))
    if not isinstance(evaluation.get("device"), str):
        checks.append({"what": "device", "verdict": UNKNOWN, "said": ""})
    return [check for check in checks if check["verdict"] != SAME] or [_check("settings", found, found)]


def within(seconds: float, progress: Progress | None) -> Progress:
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
        return stored if names_a_file(stored["guarantee"]) else Recipe.from_table(stored).json_table()
    except (KeyError, TypeError, ValueError, SafesetError):
        return stored


def _numbers(
    evaluation: dict[str, Any],
    before: Sequence[Check],
    recipe: FittedRecipe,
    net: CertifiedNet,
    data: Dataset,
    progress: Progress,
) -> Check:
    """The rows of a stored evaluation against the same rows evaluated again: every number of them.

    Those of another kind of device are the same, or nothing can be said: a few points at the edge may differ.
    """
    try:
        stored = evaluation["rows"]
        keys = [(row["method"], row["epsilon"]) for row in stored]
        own = {(method, recipe.epsilon) for method in METHODS}
        if names_a_file(evaluation["guarantee"]) or not own <= set(keys) or len(set(keys)) < len(keys):
            said = f"not a row for each of {', '.join(METHODS)} at the run's own ε"
            return {"what": "numbers", "verdict": DIFFERENT, "said": said}
        rows = evaluate(
            net,
            data.test,
            epsilons=list(dict.fromkeys(epsilon for _, epsilon in keys)),
            methods=list(dict.fromkeys(method for method, _ in keys)),
            guarantee=as_guarantee(evaluation["guarantee"]),
            per_class=any("classes" in row for row in stored),
            progress=progress,
        )
        fresh = {(row["method"], row["epsilon"]): plain(row) for row in rows}
        pairs = [
            (f"{name} of {row['method']}", row.get(name), fresh[key].get(name))
            for key, row in zip(keys, stored, strict=True)
            for name in dict.fromkeys([*fresh[key], *row])
        ]
        missing = [what for what, was, now in pairs if was is None and now is not None]
        other = [each for each in pairs if each[1] != each[2] and each[1] is not None]
        near = all(
            isinstance(was, int | float) and isinstance(now, int | float) and math.isclose(was, now, abs_tol=EDGE)
            for _, was, now in other
        )
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, SafesetError) as error:
        said = f"no rows of an evaluation ({type(error).__name__}: {str(error)[:100]})"
        return {"what": "numbers", "verdict": DIFFERENT, "said": said}
    if other:
        said = "; ".join(f"{what}: stored {str(was)[:40]}, found {str(now)[:40]}" for what, was, now in other[:3])
        same_bounds = any(check["what"] == "bounds" and check["verdict"] == SAME for check in before)
        doubt = _device(evaluation) != _device_of(net) and (near or not same_bounds)
        return {"what": "numbers", "verdict": ELSEWHERE if doubt else DIFFERENT, "said": said}
    if missing:
        return {"what": "numbers", "verdict": UNKNOWN, "said": ", ".join(missing[:3])}
    return _check("numbers", keys, keys)


def _bounds(stored: dict[str, Any], net: CertifiedNet, reproofs: Sequence[Reproof]) -> Check:
    """Stored bounds against those proved now, to a millionth.

    Another kind of device may have proved convolutions another way: then nothing can be said, as long as the bounds can
    be bounds, near those of today, and the whole is their product.
    """
    bounds = net.bounds()
    proved = [(line.name, line.type, line.bound) for line in bounds.layers]
    if not stored:
        return {"what": "bounds", "verdict": UNKNOWN, "said": ""}
    try:
        lines = [(str(line["name"]), str(line["type"]), float(line["bound"])) for line in stored["layers"]]
        scale, kind = float(stored["before_the_head"]), str(stored["device"])
        read = [LayerBound(*line, "", 0.0) for line in lines]
        if [line[:2] for line in lines] != [line[:2] for line in proved]:
            return {"what": "bounds", "verdict": DIFFERENT, "said": "other layers"}
        product = product_of(net.frozen().program, read)
        whole = math.isclose(scale, float(product), rel_tol=1e-9)
        pairs = [*zip((line[2] for line in lines), (line[2] for line in proved), strict=True)]
        pairs.append((scale, float(bounds.head.scale)))
        least = [line.lower or 0.0 for line in reproofs[: len(lines)]]
        possible = all(line[2] >= low * (1 - 1e-9) for line, low in zip(lines, least, strict=False))
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
        return {"what": "bounds", "verdict": DIFFERENT, "said": f"no bounds ({type(error).__name__})"}
    if whole and possible and all(math.isclose(one, two, rel_tol=CLOSE) for one, two in pairs):
        return _check("bounds", lines, lines)
    near = all(math.isclose(one, two, rel_tol=FAR) for one, two in pairs)
    doubt = whole and possible and near and kind != _device_of(net)
    said = "not the product of the layers'" if not whole else "" if possible else "smaller than a norm"
    said = said or f"stored {scale:.9g} before the head, found {pairs[-1][1]:.9g}"
    return {"what": "bounds", "verdict": ELSEWHERE if doubt else DIFFERENT, "said": said}


def _device(stored: dict[str, Any]) -> str:
    """The kind of device that something stored was made on."""
    return str(stored.get("device")).partition(" ")[0]


def _device_of(net: CertifiedNet) -> str:
    return net.device.type


def _check(what: str, stored: Any, found: Any) -> Check:
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
        found = read_json(path)
    except ArgumentError:
        return None
    return found if isinstance(found, dict) else None
