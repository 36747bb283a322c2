"""The auditor: passes what is sound; fails false certificates, changed files and bounds that are too small."""

import json
import os
import shutil
import time
import warnings
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from helpers.commands import safeset
from safeset import certify_logits, evaluation, train
from safeset.audit import certificate_attack as auditing
from safeset.audit.audit import audit_run
from safeset.audit.records import stored_checks
from safeset.certificates.constants import HeadConstants
from safeset.cli import show_audit
from safeset.data.dataset import Dataset, Split
from safeset.data.embedded import digits
from safeset.errors import ArgumentError, TrainingWarning
from safeset.nets.net import CertifiedNet
from safeset.numerics.multiples import rational
from safeset.program.exact import evaluate as exactly
from safeset.runs.data import load_run_data
from safeset.runs.load import load
from safeset.runs.run import Run
from safeset.system.files import read_tensors, write_tensors

QUICK = {"points": 30, "minutes": 1.0, "device": "cpu"}


RECIPE = {"data": {"source": "digits"}, "epochs": 12, "guarantee": "rt3", "epsilon": 0.3}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Dense: an audit of it takes a second."""
    path = tmp_path_factory.mktemp("audit") / "run"
    train({**RECIPE, "model": "mlp-2x32"}, out=path, device="cpu")
    return path


def test_a_sound_run_passes(tmp_path):
    train(RECIPE, out=tmp_path / "run", device="cpu")  # convolutions
    run = Run(tmp_path / "run")
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "passed", result["reasons"]
    assert result["violations"] == []
    checks = {check["what"]: check["verdict"] for check in result["checks"]}
    names = ("class names", "bounds", "weights", "recipe", "test data", "settings", "numbers")
    assert checks == dict.fromkeys(names, "same")
    assert {line["verdict"] for line in result["bounds"]} == {"proved"}
    windows = result["windows"]
    assert windows["points"] == windows["of_points"] > 20
    assert windows["windows"] > 40
    assert windows["logits"] == 3
    assert windows["false"] == windows["wrong"] == windows["open"] == []
    assert windows["smaller"] == 0
    assert "unfinished" not in result
    assert result["attack"]["points"] > 20
    assert result["attack"]["windows"] == result["attack"]["of_windows"] > 40
    assert [row["factor"] for row in result["control"]] == [0.5, 0.25, 0.1]
    assert all(row["broken"] and row["confirmed"] for row in result["control"])
    assert result["largest_factor"] == 0.5
    tightness = result["tightness"]
    assert result["attack"]["unconfirmed"] == 0
    assert sum(tightness["counts"]) + tightness["none_found"] > 20
    assert 1 <= tightness["median"] < 2
    accuracy = result["accuracy"]
    assert accuracy["vra"] <= accuracy["under_attack"] <= accuracy["clean"]
    assert accuracy["attacked"] == accuracy["of"]
    json.dumps(result, allow_nan=False)


def certify_with(factor):
    """A certifier whose constants are too small."""
    whole = CertifiedNet.certify

    def certify(self, x, *, method=None, **more):
        found = whole(self, x, method=method, **more)
        head = self.bounds().head
        false = HeadConstants(head.rows, float(head.scale) * factor)
        wrong = certify_logits(self.network(x.double()), false, self.epsilon, self.guarantee, method=method or "joint")
        return replace(found, windows=wrong.windows)

    return certify


def test_false_certificates_are_found_confirmed_and_saved(run, monkeypatch):
    monkeypatch.setattr(auditing.FrozenNet, "certify", certify_with(0.5))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert result["violations"]
    net, test = load(run.path).frozen(), digits().test
    for each in result["violations"][:2]:
        assert each["exact"]
        assert each["float64"]
        saved = np.load(each["file"])
        x, moved = torch.tensor(saved["x"]), torch.tensor(saved["violation"])
        apart = sum(Fraction(value) ** 2 for value in (moved - x).flatten().tolist())
        assert apart <= Fraction(each["radius"]) ** 2 * (1 + Fraction(1, 10**9))
        before, after = (exactly(net.network, rational(point)) for point in (x, moved))
        order = np.argsort([-float(value) for value in before])
        for k in range(each["window"][0], each["window"][1] + 1):
            assert min(after[order[:k]]) <= max(after[order[k:]])
    assert any(torch.equal(x.float(), point) for point in test.inputs)


@pytest.mark.parametrize("factor", [1.00005, 1.5])
def test_radii_that_are_a_little_too_large_are_found(run, monkeypatch, factor):
    """Also between 0.9999 of a radius and the radius, in a network where the true radius is known: a linear one."""
    network = torch.nn.Linear(2, 4).double()
    net = CertifiedNet(network, input_shape=(2,), guarantee="rt2", epsilon=1e-6).frozen()
    whole = CertifiedNet.certify

    def certify(self, x, **more):
        found = whole(self, x, **more)
        return replace(found, windows=found.windows * factor)

    monkeypatch.setattr(auditing.FrozenNet, "certify", certify)
    x = torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    split = Split(x, torch.zeros(20, dtype=torch.int64))
    auditor = auditing.Auditor(net, split, auditing.Clock(time.perf_counter(), 60))
    found = auditor.attack(run.path / "violations", None)
    assert found["violations"]
    assert all(each["exact"] for each in found["violations"])


def test_every_window_is_attacked_also_the_narrow_ones(run, monkeypatch):
    whole = CertifiedNet.certify

    def certify(self, x, **more):
        found = whole(self, x, **more)
        windows = found.windows.clone()
        windows[:, 0, 0] = 0.999999 * windows[:, 0].amax(dim=1)  # the widest of those that start there
        return replace(found, windows=windows)

    monkeypatch.setattr(auditing.FrozenNet, "certify", certify)
    result = audit_run(run, **{**QUICK, "minutes": 1.0})
    assert result["verdict"] == "failed"
    assert {tuple(each["window"]) for each in result["violations"]} == {(1, 1)}


def test_points_far_from_zero_do_not_hide_violations(monkeypatch, tmp_path):
    torch.manual_seed(0)
    net = CertifiedNet(torch.nn.Linear(2, 4).double(), input_shape=(2,), guarantee="rt2", epsilon=1e-6).frozen()
    x = 1e7 + torch.randn(20, 2, generator=torch.Generator().manual_seed(0))
    auditor = auditing.Auditor(net, Split(x, torch.zeros(20).long()), auditing.Clock(time.perf_counter(), 60))
    assert all(row["confirmed"] for row in auditor.control())
    monkeypatch.setattr(auditing, "DEAR", 0.0)
    assert [row["confirmed"] for row in auditor.control()] == [True, None, None]  # dear ones are made once


def test_what_is_no_evaluation_is_told(run):
    for text in ("garbage", "[1]", json.dumps({**json.loads(run.evaluation.read_text()), "rows": []})):
        run.evaluation.write_text(text)
        result = audit_run(run, points=2, minutes=0.1, device="cpu")
        assert result["verdict"] == "failed", text
    run.evaluation.unlink()
    os.mkfifo(run.evaluation)  # not waited for
    assert "evaluation.json: different" in audit_run(run, points=2, minutes=0.1, device="cpu")["reasons"]


def test_little_time_is_no_pass(run):
    result = audit_run(run, minutes=1e-7, device="cpu")
    assert result["verdict"] == "inconclusive"
    assert "the bound of 1 (Linear) is not proved again: no time was left" in result["reasons"]
    assert any("windows of 0 of" in reason for reason in result["reasons"])


def test_an_evaluation_that_does_not_fit_is_not_waited_for(run, monkeypatch):
    seen = []

    def shown(items, count):
        for item in items:
            seen.append(count)
            yield item

    monkeypatch.setattr(evaluation, "POINTS_AT_ONCE", 10)
    stored = json.loads(run.evaluation.read_text())
    run.evaluation.write_text(json.dumps({**stored, "rows": [{**row, "vra": 2.0} for row in stored["rows"]]}))
    loaded, data = load(run.path), load_run_data(run.read_recipe(), None, None)
    checks = [stored_checks(run, run.read_recipe(), loaded, data, seconds=each, progress=shown) for each in (0, 600)]
    assert [check[-1]["verdict"] for check in checks] == ["no time", "different"]
    assert f"{len(data.test):,} points need longer" in checks[0][-1]["said"]
    batches = -(-len(data.test) // 10)
    assert seen == [batches] * (2 + batches)  # the first, the second at which it ends; then all
    result = audit_run(run, points=2, minutes=1e-6, device="cpu")
    assert "numbers: no time to evaluate all test data again" in result["reasons"]


def test_violations_are_not_written_through_links(run, monkeypatch, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (run.path / "violations").mkdir()
    (run.path / "violations" / "0.npz").symlink_to(precious)
    monkeypatch.setattr(auditing.FrozenNet, "certify", certify_with(0.5))
    assert audit_run(run, **QUICK)["verdict"] == "failed"
    assert precious.read_text() == "precious"
    shutil.rmtree(run.path / "violations")
    (run.path / "violations").write_text("a file")
    found = audit_run(run, **QUICK)["violations"]
    assert found[0]["file"].startswith("not saved")


def test_top_k_under_attack_counts_only_its_own_k(made):
    net = CertifiedNet(load(made).network, input_shape=(1, 8, 8), guarantee="top3", epsilon=0.3).frozen()
    split = digits().test[torch.arange(40)]
    accuracy = auditing.Auditor(net, split, auditing.Clock(time.perf_counter(), 60)).accuracy()
    assert accuracy["vra"] <= accuracy["under_attack"] < 0.95 * accuracy["clean"]


def test_what_was_changed_is_told(run):
    evaluation = json.loads(run.evaluation.read_text())
    evaluation["rows"][0]["core_size"] += 0.01
    run.evaluation.write_text(json.dumps(evaluation))
    bounds = json.loads(run.bounds.read_text())
    bounds["layers"][0]["bound"] /= 2
    run.bounds.write_text(json.dumps(bounds))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert result["reasons"] == ["bounds: different", "numbers: different"]


def test_affinity_sets_have_no_order_but_other_sets_are_told(tmp_path):
    split = Split(torch.rand(30, 2), torch.arange(30) % 4)
    data = Dataset("advisories", split, split, ("clear", "weak", "strong", "none"), "metres")
    recipe = {"epochs": 1, "guarantee": {"neighbours": ["clear", "weak", "strong"]}, "epsilon": 0.01}
    with warnings.catch_warnings(action="ignore", category=TrainingWarning):  # random labels end at chance
        net, run = train(recipe, data=data, out=tmp_path / "run").frozen(), Run(tmp_path / "run")
    evaluation = json.loads(run.evaluation.read_text())

    def checked(sets):
        evaluation["recipe"]["guarantee"] = {"sets": sets}
        run.evaluation.write_text(json.dumps(evaluation))
        checks = stored_checks(run, run.read_recipe(), net, data)
        return next(check["verdict"] for check in checks if check["what"] == "recipe")

    assert checked([["clear", "weak"], ["strong", "weak"]]) == "same"
    assert checked([["weak", "strong"], ["weak", "clear"]]) == "same"
    for other in ([["clear", "weak"]], [["clear", "weak"], ["strong", "none"]], [], "affinity:sets.toml", None):
        assert checked(other) == "different"


def test_numbers_of_another_kind_of_device_are_recomputed_or_inconclusive(run):
    net, data, recipe = load(run.path).frozen(), digits(), run.read_recipe()
    evaluation, bounds = (json.loads(path.read_text()) for path in (run.evaluation, run.bounds))
    evaluation["device"], bounds["device"] = "cuda (as if)", "cuda"

    def told(lifted):
        run.bounds.write_text(json.dumps(bounds))
        rows = [{**row, "vra": row["vra"] + lifted} for row in evaluation["rows"]]
        run.evaluation.write_text(json.dumps({**evaluation, "rows": rows}))
        return {check["what"]: check["verdict"] for check in stored_checks(run, recipe, net, data)}

    assert told(0.0)["numbers"] == told(0.0)["bounds"] == "same"
    assert told(1e-3)["numbers"] == "made elsewhere"
    assert told(0.03)["numbers"] == "different"
    bounds["layers"][0]["bound"] *= 1.01  # by tori, as it were: more than today's, but a bound
    bounds["before_the_head"] *= 1.01
    assert told(-0.03)["bounds"] == told(-0.03)["numbers"] == "made elsewhere"


def test_other_weights_than_were_evaluated_are_told(run):
    tensors, metadata = read_tensors(run.model)
    first = sorted(tensors)[0]
    tensors[first] = tensors[first] * 1.001
    write_tensors(run.model, tensors, metadata)
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "failed"
    assert "weights: different" in result["reasons"]


def test_nothing_stored_is_inconclusive(run):
    run.evaluation.unlink()
    run.bounds.unlink()
    run.recipe.write_text(run.recipe.read_text().replace("epsilon = 0.3", "epsilon = 300.0"))
    result = audit_run(run, **QUICK)
    assert {check["verdict"] for check in result["checks"]} == {"same", "not stored"}
    assert result["attack"]["of_answers"] == 0
    assert result["windows"]["false"] == []  # no answer is certified at this ε, but radii are, and hold
    assert result["verdict"] == "inconclusive"
    assert result["reasons"] == ["bounds: not stored", "evaluation: not stored"]


def test_an_attack_that_cannot_find_anything_is_inconclusive(run, monkeypatch):
    monkeypatch.setattr(auditing, "attack_windows", blind(auditing.attack_windows))
    result = audit_run(run, **QUICK)
    assert result["verdict"] == "inconclusive"
    assert result["reasons"] == ["the attack finds nothing in the positive control either"]


def blind(attack):
    def attacked(*arguments, **more):
        found = attack(*arguments, **more)
        return replace(
            found, broken=torch.zeros_like(found.broken), distance=torch.full_like(found.distance, torch.inf)
        )

    return attacked


def test_the_command_line(run):
    output, _ = safeset("audit", "run", "--points", "30", "--budget", "0.3", cwd=run.path.parent)
    assert "passed" in output
    assert json.loads((run.path / "audit.json").read_text())["verdict"] == "passed"
    run.evaluation.write_text(run.evaluation.read_text().replace('"vra": 0.', '"vra": 0.9'))
    output, _ = safeset("audit", "run", "--points", "5", "--budget", "0.1", cwd=run.path.parent, code=1)
    assert "failed: numbers: different" in output
    for arguments, message in ((["--points", "0"], "an integer ≥ 1"), (["--budget", "0"], "above 0")):
        _, errors = safeset("audit", "run", *arguments, cwd=run.path.parent, code=1)
        assert message in errors


def test_where_it_has_to_stop_it_says_so(run):
    tensors, metadata = read_tensors(run.model)
    write_tensors(run.model, {name: tensor[:1] for name, tensor in tensors.items()}, metadata)
    _, errors = safeset("audit", "run", cwd=run.path.parent, code=1)
    told = json.loads((run.path / "audit.json").read_text())
    assert told["verdict"] == "inconclusive"
    assert told["reasons"][0].removeprefix("stopped: ")[:40] in errors


def test_an_interrupted_audit_leaves_no_older_verdict(run):
    (run.path / "audit.json").write_text('{"verdict": "passed"}')
    stop = "import safeset.audit.audit as audit\ndef stop(*_, **__): raise KeyboardInterrupt\naudit.prove_again = stop"
    safeset("audit", "run", cwd=run.path.parent, before=stop, code=130)
    found = json.loads((run.path / "audit.json").read_text())
    assert (found["verdict"], found["reasons"]) == ("inconclusive", ["the audit has not ended"])


@pytest.mark.parametrize("name", ["model.safetensors", "evaluation.json", "recipe.toml", "bounds.json"])
def test_no_file_of_the_run_is_replaced(run, name):
    before = (run.path / name).read_bytes()
    _, errors = safeset("audit", "run", "--out", f"run/{name}", cwd=run.path.parent, code=1)
    assert "a file of the run itself" in errors
    assert (run.path / name).read_bytes() == before


def test_the_truth_lies_between_the_numbers_that_are_shown(capsys):
    numbers = {"vra": 0.9996, "under_attack": 0.9991, "clean": 0.9999, "top1": 1.0, "attacked": 1, "of": 1}
    show_audit._show_accuracy(numbers)
    shown = capsys.readouterr().out
    assert "VRA 0.999 ≤ the truth ≤ 1.000 under attack" in shown
    assert "plain 0.999, top-1 1.000" in shown


def test_an_exact_confirmation_ends_with_its_time(made):
    net = load(made).frozen()
    auditor = auditing.Auditor(net, digits().test[torch.arange(3)], auditing.Clock(time.perf_counter() - 60, 60))
    promise = auditor.promises(auditor.certificate)[[0]]
    told = auditor.confirm(promise, auditor.x[promise.place][0], "control")
    assert told == {"exact": None, "float64": False}


def test_bad_arguments(run):
    with pytest.raises(ArgumentError, match="an integer"):
        audit_run(run, points=0)
    with pytest.raises(ArgumentError, match="minutes above 0"):
        audit_run(run, minutes=float("nan"))


@pytest.mark.slow
@pytest.mark.parametrize("guarantee", ["standard", "rt3", 'affinity:{"sets":[["3","5","8","9"],["1","4","7"]]}'])
def test_every_certified_digit_is_attacked(tmp_path, guarantee):
    train({"data": {"source": "digits"}, "epochs": 60, "guarantee": guarantee, "epsilon": 0.5}, out=tmp_path / "run")
    result = audit_run(Run(tmp_path / "run"), minutes=20)
    assert result["verdict"] == "passed", result["reasons"]
    attack = result["attack"]
    assert attack["windows"] == attack["of_windows"]
    assert attack["points"] == attack["certified"] > 400
    assert result["points"] == len(digits().test)


def test_a_network_with_roots_can_pass(tmp_path):
    """L2 pooling takes roots, which are no fractions: they are known to hundreds of digits, and the rest is exact."""
    recipe = {
        "guarantee": "rt2",
        "epsilon": 0.1,
        "epochs": 6,
        "model": "shift-net",
        "sizes": {"depth": 2, "width": 16, "dense": 1},
        "loss": {"name": "emma", "temperature": 8.0},
        "optimiser": {"name": "muon", "rate": "2e-2 -> 0 cosine"},
    }
    train({"data": {"source": "digits"}, **recipe}, out=tmp_path / "run", device="cpu")
    result = audit_run(Run(tmp_path / "run"), points=4, minutes=2, device="cpu")
    assert result["verdict"] == "passed", result["reasons"]
    assert any(row["confirmed"] for row in result["control"])
