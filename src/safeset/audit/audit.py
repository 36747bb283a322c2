"""The auditor: attacks what a run certifies, proves its bounds again, compares what is stored with what is found."""

import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from safeset.audit.certificate_attack import Auditor, Clock, some_of
from safeset.audit.coverage_attack import attack_coverage, coverage_verdict
from safeset.audit.coverage_records import compare_coverage, find_calibration, load_named
from safeset.audit.recheck import SHOWN
from safeset.audit.records import DIFFERENT, OPEN, stored_checks
from safeset.audit.second_proof import Reproof, prove_again
from safeset.coverage.coverage import Coverage
from safeset.data.dataset import Dataset, Progress
from safeset.errors import expected
from safeset.inputs import as_count, as_device, as_number
from safeset.nets.frozen import FrozenNet
from safeset.nets.net import CertifiedNet
from safeset.runs.data import load_run_data
from safeset.runs.evaluate import open_with_data
from safeset.runs.library import is_shipped
from safeset.runs.load import load_run
from safeset.runs.onnx_models import about_file
from safeset.runs.own_networks import Factory
from safeset.runs.run import Run
from safeset.system.files import plain
from safeset.system.provenance import provenance, weights_digest

Calibrated = Callable[[FrozenNet], tuple[Coverage | None, list[dict[str, str]]]]


def audit_run(
    run: Run,
    *,
    points: int | None = None,
    minutes: float = 5.0,
    source: str | None = None,
    calibration: str | None = None,
    network: nn.Module | Factory | None = None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Audit a run on its test data, by the method ``joint`` at its own ε: what is written to audit.json.

    What is missing, does not match or could not be looked at is never passed: it fails, or is inconclusive.

    Args:
        run: a run; of a training that has not ended the weights so far are audited.
        points: how many test points, chosen at random but always the same; by default all.
        minutes: how long it may take, 30 % of it at most for proofs, and for the evaluation of all test data; what is
            not reached is said. Loading, the library's own proof of the bounds, and a first batch of each kind of work
            take what they take.
        source: other data, in the same form as the run's own.
        calibration: the user's own points that the run was calibrated with, if they are not where its
            calibration.json says.
        network: as for `load`.
        device: such as ``"cuda"``.
        progress: wraps the batches of the evaluation, and of the attack.

    Returns:
        A table with ``verdict`` (``passed``, ``failed`` or ``inconclusive``), ``checks``, ``bounds``, ``windows``,
        ``attack``, ``violations``, ``control``, ``tightness``, ``accuracy``, ``coverage`` where the run is calibrated,
        and ``unfinished`` where the training has not ended.
    """
    check_arguments(points, minutes)
    started = time.perf_counter()
    recipe, (own, unfinished) = run.read_recipe(), load_run(run, network)
    own = own.to(as_device(device))
    own.remember({})  # an audit searches for its own proofs
    data = load_run_data(recipe, source, progress)
    named = None if calibration is None else load_named(run, recipe, calibration, progress)

    def compare(bounds: Sequence[Reproof]) -> list[dict[str, str]]:
        return stored_checks(
            run,
            recipe,
            own,
            data,
            unfinished=unfinished,
            bounds=bounds,
            own_data=source is None,
            seconds=18 * minutes,
            progress=progress,
        )

    about = {**({"unfinished": unfinished} if unfinished else {}), "recipe": recipe.json_table()}

    def calibrated(net: FrozenNet) -> tuple[Coverage | None, list[dict[str, str]]]:
        coverage, checks = find_calibration(run, recipe, net, named)
        if coverage is not None:
            checks += compare_coverage(run, coverage, data, seconds=6 * minutes, progress=progress)
        return coverage, checks

    folder = _elsewhere() if is_shipped(run.path) else run.path / "violations"
    return _audited(own, data, compare, folder, points, minutes, started, progress, calibrated) | about


def audit_file(
    path: Path,
    *,
    epsilon: float | None,
    guarantee: str | None = None,
    points: int | None = None,
    minutes: float = 5.0,
    source: str | None,
    device: str | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Audit the network of an ONNX file on labelled points; arguments and what comes back as for `audit_run`.

    Nothing is stored beside such a file, so nothing is compared; violations go into a new folder for temporary files.
    """
    check_arguments(points, minutes)
    started = time.perf_counter()
    own, data = open_with_data(path, epsilon, guarantee, source, progress)
    own = own.to(as_device(device))
    return _audited(own, data, lambda bounds: [], _elsewhere(), points, minutes, started, progress) | about_file(path)


def _elsewhere() -> Path:
    """A folder for violations of what has no directory of its own to write into."""
    return Path(tempfile.gettempdir()) / f"safeset-violations-{os.getpid()}"


def _audited(
    own: CertifiedNet,
    data: Dataset,
    compare: Callable[[Sequence[Reproof]], list[dict[str, str]]],
    folder: Path,
    points: int | None,
    minutes: float,
    started: float,
    progress: Progress | None,
    calibrated: Calibrated = lambda net: (None, []),
) -> dict[str, Any]:
    """Audit a net on the test points of data; ``compare`` says what is stored of it, given what is proved again."""
    net = own.frozen()
    net.bounds()
    bounds = prove_again(net, seconds=18 * minutes)
    coverage, checked = calibrated(net)
    checks = [*compare(bounds), *checked]
    chosen = some_of(len(data.test), points or len(data.test))
    split, now = data.test[chosen], time.perf_counter()
    clock = Clock(now, max(60 * minutes - (now - started), 24 * minutes))
    auditor = Auditor(net, split, clock)
    windows = auditor.recheck()
    control = auditor.control()
    found = auditor.attack(folder, progress)
    covered = None
    if coverage is not None:
        covered = attack_coverage(coverage, split, net.epsilon, folder, clock.end("coverage"))
        found["coverage"] = covered
    result: dict[str, Any] = {
        "verdict": "",
        "data": data.name,
        "guarantee": str(net.guarantee),
        "epsilon": net.epsilon,
        "method": "joint",
        "points": len(split),
        "checks": checks,
        "bounds": [vars(line) for line in bounds],
        "windows": vars(windows) | {"false": windows.false[:SHOWN], "of_false": len(windows.false)},
        "control": control,
        "largest_factor": max((row["factor"] for row in control if row["broken"]), default=None),
        **found,
        "accuracy": auditor.accuracy(),
        "dtype": "float64",
        "minutes": minutes,
        "seconds": 0.0,
        "weights": weights_digest(own.network.state_dict()),
        **provenance(net.device),
    }
    result["verdict"], result["reasons"], result["notes"] = verdict(result)
    lost = covered["violations"] if covered else []
    for each in (*result["violations"], *result["windows"]["false"], *lost):
        each["point"] = int(chosen[each["point"]])
    result["seconds"] = round(time.perf_counter() - started, 3)
    return plain(result)  # type: ignore[no-any-return]


def check_arguments(points: int | None, minutes: float) -> None:
    """Complain of arguments with which nothing can be audited."""
    if points is not None and as_count(points) is None:
        raise expected("`points` to be an integer ≥ 1", points)
    if not (as_number(minutes) or 0) > 0:
        raise expected("a time in minutes above 0", minutes)


def inconclusive(reason: str) -> dict[str, Any]:
    """What is written to audit.json where an audit has to stop, or has not ended: it is inconclusive, and why."""
    return {
        "verdict": "inconclusive",
        "reasons": [reason],
        "notes": [],
        **provenance(torch.device("cpu")),
    }


def verdict(result: dict[str, Any]) -> tuple[str, list[str], list[str]]:
    """The verdict of an audit, what led to it, and what else is to be known."""
    attack, bounds, checks, windows = (result[name] for name in ("attack", "bounds", "checks", "windows"))
    bad = [f"{len(result['violations'])} violations"] if result["violations"] else []
    bad += [f"the bound of {line['name']}: refuted" for line in bounds if line["verdict"] == "refuted"]
    bad += [f"{check['what']}: {check['verdict']}" for check in checks if check["verdict"] == DIFFERENT]
    if windows["of_false"]:
        bad.append(f"{windows['of_false']:,} windows whose radius is more than what is proved of them again")
    bad += windows["wrong"]
    lost, not_attacked = coverage_verdict(result.get("coverage"))
    bad += lost
    notes = []
    if windows["smaller"]:
        notes.append(f"{windows['smaller']:,} windows could have a larger radius")
    if attack["windows"] < attack["of_windows"]:
        notes.append(f"{attack['windows']:,} of {attack['of_windows']:,} windows attacked")
    open_ = [f"{check['what']}: {OPEN[check['verdict']]}" for check in checks if check["verdict"] in OPEN]
    open_ += [
        f"the bound of {line['name']} ({line['type']}) is not proved again: {line['method']}"
        for line in bounds
        if line["verdict"] == "not covered"
    ]
    open_ += windows["open"] + not_attacked
    if not attack["points"]:
        open_.append("nothing is certified")
    if attack["answers"] < attack["of_answers"]:
        open_.append(f"time for {attack['answers']:,} of {attack['of_answers']:,} answers only")
    if attack["unconfirmed"]:
        open_.append(f"{attack['unconfirmed']} violations could not be confirmed")
    if not any(row["broken"] for row in result["control"]):
        open_.append("the attack finds nothing in the positive control either")
    elif not any(row["confirmed"] for row in result["control"]):
        open_.append("nothing that the attack finds in the positive control was confirmed exactly")
    if bad:
        return "failed", bad, [*open_, *notes]
    return ("inconclusive" if open_ else "passed"), open_, notes
