"""Mutants for the auditor: forged runs, and a library that is wrong, none of which it may pass."""

import copy
import json
from dataclasses import replace

import pytest

from safeset import train
from safeset.audit import attacks
from safeset.audit import certificate_attack as auditor
from safeset.audit import records as stored
from safeset.audit.audit import audit_run, verdict
from safeset.audit.records import stored_checks
from safeset.certificates.radii import ClassError
from safeset.data.embedded import digits
from safeset.evaluation import evaluate
from safeset.nets import sealed
from safeset.nets.points import Measured
from safeset.proofs.prove import Proof
from safeset.runs.load import load
from safeset.system.files import read_tensors, write_tensors

QUICK = {"points": 8, "minutes": 0.2, "device": "cpu"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    path = tmp_path_factory.mktemp("mutants") / "run"
    train({"data": {"source": "digits"}, "epochs": 4, "guarantee": "rt3", "epsilon": 0.1}, out=path, device="cpu")
    return path


@pytest.fixture(autouse=True)
def brief_attacks(monkeypatch):
    """What is found here is not found by attacks."""
    for name, value in (("STEPS_NEAR", 1), ("STEPS_DOWN", 1), ("RESTARTS", 1)):
        monkeypatch.setattr(attacks, name, value)
    monkeypatch.setattr(auditor, "CONTROL_WINDOWS", 2)
    monkeypatch.setattr(auditor, "MOST_CONFIRMED", 0)


# -- a library that is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1.01, 1.001])
def test_radii_that_are_too_large(run, monkeypatch, factor):
    whole = Measured.certificate

    def lie(self, **more):
        found = whole(self, **more)
        return replace(found, windows=found.windows * factor)

    monkeypatch.setattr(Measured, "certificate", lie)
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert result["windows"]["of_false"] == result["windows"]["windows"] > 20


def test_a_rounding_allowance_of_0(run, monkeypatch):
    whole = Proof.allowance

    def none(self, norms):
        error, room = whole(self, norms)
        return ClassError(0 * error.offset, 0 * error.slope), room

    monkeypatch.setattr(Proof, "allowance", none)
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert result["windows"]["of_false"] > result["windows"]["windows"] / 2


@pytest.mark.parametrize("layer", [0, 4, None])
def test_bounds_that_are_a_little_too_small(run, monkeypatch, layer):
    """Of one layer, with all that rests on it; or of the product alone."""
    whole = sealed.prove

    def prove(*given):
        found = whole(*given)
        lines = tuple(
            replace(line, bound=0.999 * line.bound) if place == layer else line
            for place, line in enumerate(found.bounds.layers)
        )
        head = replace(found.bounds.head, scale=0.999 * found.bounds.head.scale)
        return replace(found, bounds=replace(found.bounds, head=head, layers=lines))

    monkeypatch.setattr(sealed, "prove", prove)
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert f"the bound of {'features' if layer is None else layer}: refuted" in result["reasons"]


def test_logits_of_another_network(run, monkeypatch):
    whole = sealed.Sealed.logits
    monkeypatch.setattr(sealed.Sealed, "logits", lambda self, x: 1.0001 * whole(self, x))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert "logits that the network does not have" in result["reasons"]
    assert "logits further from the exact ones than rounding can be" in result["reasons"]


# -- forged runs ------------------------------------------------------------------------------------------------------


def changed(path, change):
    table = json.loads(path.read_text())
    change(table)
    path.write_text(json.dumps(table))


def lifted(table):
    for row in table["rows"]:
        row["vra"] = min(1.0, row["vra"] + 0.028)


def test_a_forged_vra_with_another_test_digest(run):
    changed(run.evaluation, lambda table: (lifted(table), table.update(test="0" * 64)))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert {"test data: different", "numbers: different"} <= set(result["reasons"])


def test_swapped_weights_without_digests(run):
    tensors, about = read_tensors(run.model)
    write_tensors(run.model, {name: 1.001 * tensor for name, tensor in tensors.items()}, about)
    changed(run.evaluation, lambda table: [table.pop(name) for name in ("weights", "test")])
    assert audit_run(run, **QUICK)["verdict"] == "failed"


def test_a_forged_device_and_scale(run):
    changed(run.evaluation, lambda table: (lifted(table), table.update(device="cuda (NVIDIA H200)")))
    changed(run.bounds, lambda table: table.update(device="cuda", before_the_head=0.97 * table["before_the_head"]))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert "bounds: different" in result["reasons"]

    def consistent(table):
        table["layers"][0]["bound"] *= 0.97

    changed(run.bounds, consistent)
    assert "bounds: different" in audit_run(run, **QUICK)["reasons"]  # smaller than the norm can be


def numbers_of(table, path=()):
    """Where the numbers and texts of a table are."""
    for key, value in table.items() if isinstance(table, dict) else enumerate(table):
        if isinstance(value, dict | list):
            yield from numbers_of(value, (*path, key))
        else:
            yield (*path, key)


INFORMATION = {"seconds", "safeset", "commit", "python", "torch", "remarks", "bound_method"}


def test_nothing_that_is_stored_can_be_changed_or_left_out(run, monkeypatch):
    loaded, data, recipe = load(run.path), digits(), run.read_recipe()
    rows = evaluate(loaded, data.test)
    monkeypatch.setattr(stored, "evaluate", lambda *given, **more: copy.deepcopy(rows))

    def told(table):
        run.evaluation.write_text(json.dumps(table))
        found = {check["verdict"] for check in stored_checks(run, recipe, loaded, data)}
        return found == {"same"}

    table = json.loads(run.evaluation.read_text())
    assert told(table)
    for path in list(numbers_of(table)):
        if path[0] in INFORMATION:
            continue
        other = copy.deepcopy(table)
        place = other
        for key in path[:-1]:
            place = place[key]
        value = place[path[-1]]
        place[path[-1]] = value + 1e-9 if isinstance(value, int | float) else f"{value}x"
        if path == ("device",):  # made elsewhere, it says, but found to be the same here
            continue
        assert not told(other), path
        del place[path[-1]]
        assert not told(other), path


@pytest.mark.parametrize("found", ["not stored", "no time", "made elsewhere", "other data"])
def test_what_cannot_be_told_is_never_passed(found):
    good = {"windows": 1, "of_windows": 1, "points": 1, "answers": 1, "of_answers": 1, "unconfirmed": 0}
    result = {
        "attack": good,
        "bounds": [{"name": "0", "type": "Linear", "verdict": "proved", "method": ""}],
        "checks": [{"what": "numbers", "verdict": "same", "said": ""}],
        "windows": {"of_false": 0, "wrong": [], "open": [], "smaller": 0},
        "violations": [],
        "control": [{"confirmed": True, "broken": 1}],
    }
    assert verdict(result)[0] == "passed"
    assert verdict({**result, "checks": [{"what": "numbers", "verdict": found, "said": ""}]})[0] == "inconclusive"
    open_bound = [{"name": "0", "type": "Mine", "verdict": "not covered", "method": "no second proof"}]
    assert verdict({**result, "bounds": open_bound})[0] == "inconclusive"
    assert verdict({**result, "windows": {**result["windows"], "open": ["time"]}})[0] == "inconclusive"
    assert verdict({**result, "attack": {**good, "of_answers": 2}})[0] == "inconclusive"
    for confirmed in (None, False):  # no time, no exact form, or none
        assert verdict({**result, "control": [{"confirmed": confirmed, "broken": 1}]})[0] == "inconclusive"
    assert verdict({**result, "windows": {**result["windows"], "of_false": 1}})[0] == "failed"
    assert verdict({**result, "windows": {**result["windows"], "wrong": ["x"]}})[0] == "failed"


def test_another_training_forgets_what_was_found_of_the_last_one(run):
    for name in ("audit.json", "suggest.png"):
        (run.path / name).write_text("{}")
    run.forget_model()
    assert not any((run.path / name).exists() for name in ("audit.json", "suggest.png", "model.safetensors"))
