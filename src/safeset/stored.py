"""What a run has stored, held against what is found anew."""

import json
import math
from typing import Any

from safeset.data.dataset import Dataset
from safeset.errors import SafesetError
from safeset.evaluation import evaluate
from safeset.guarantees import as_guarantee
from safeset.jobs import plain
from safeset.net import FrozenNet
from safeset.provenance import weights_digest
from safeset.runs import Run, load

SAME, DIFFERENT, UNKNOWN = "same", "different", "not stored"


def stored_checks(run: Run, net: FrozenNet, data: Dataset, *, own_data: bool = True) -> list[dict[str, str]]:
    """Each thing that a run has stored, ``same`` or ``different`` or ``not stored``, and what is wrong with it.

    Args:
        run: a run whose training has ended.
        net: its net, frozen.
        data: its data, or other data: then stored numbers are not compared.
        own_data: whether it is its own.
    """
    recipe = run.read_recipe()
    evaluation, bounds = _read(run.evaluation), _read(run.bounds)
    weights = weights_digest(load(run.path).network.state_dict())
    checks = [
        _check("weights", evaluation.get("weights"), weights),
        _check("recipe", evaluation.get("recipe"), json.loads(json.dumps(recipe.table(), default=str))),
        _check("class names", list(recipe.task.class_names if recipe.task else ()), list(data.class_names)),
        _check("bounds", *_bounds(bounds, net)),
    ]
    if own_data and evaluation.get("data") == data.name and isinstance(evaluation.get("rows"), list):
        checks.append(_check("numbers", *_numbers(evaluation, net, data)))
    else:
        checks.append({"what": "numbers", "verdict": UNKNOWN, "said": "no evaluation of this data is stored"})
    return checks


def _numbers(evaluation: dict[str, Any], net: FrozenNet, data: Dataset) -> tuple[Any, Any]:
    """The rows of a stored evaluation, and the same rows evaluated anew."""
    names = ("method", "epsilon", "vra", "rejection_rate", "accuracy", "points")
    try:
        rows = [[row[name] for name in names] for row in evaluation["rows"]]
        methods = list(dict.fromkeys(row[0] for row in rows))
        epsilons = list(dict.fromkeys(row[1] for row in rows))
        guarantee = as_guarantee(evaluation["guarantee"])
        found = evaluate(net, data.test, epsilons=epsilons, methods=methods, guarantee=guarantee)
    except (KeyError, TypeError, ValueError, SafesetError) as error:
        return f"{type(error).__name__}: {error}", "rows of an evaluation"
    return rows, [[plain(row[name]) for name in names] for row in found]


def _bounds(stored: dict[str, Any], net: FrozenNet) -> tuple[Any, Any]:
    """Stored bounds, and those proved now; where they agree to a millionth, the latter twice."""
    proved = [(line.name, line.bound) for line in net.bounds().layers]
    if not stored:
        return None, proved
    try:
        lines = [[line["name"], float(line["bound"])] for line in stored["layers"]]
        agree = len(lines) == len(proved) and all(
            one[0] == two[0] and math.isclose(one[1], two[1], rel_tol=1e-6)
            for one, two in zip(lines, proved, strict=True)
        )
    except (KeyError, TypeError, ValueError):
        return "no bounds", proved
    return (proved if agree else lines), proved


def _check(what: str, stored: Any, found: Any) -> dict[str, str]:
    if stored is None:
        return {"what": what, "verdict": UNKNOWN, "said": ""}
    if stored == found:
        return {"what": what, "verdict": SAME, "said": ""}
    return {"what": what, "verdict": DIFFERENT, "said": f"stored {str(stored)[:200]}, found {str(found)[:200]}"}


def _read(path: Any) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
