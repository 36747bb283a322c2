import math
import subprocess
import sys

import pytest
import torch

from helpers.random_certificates import batch
from safeset import Affinity, ArgumentError, RelaxedTopK, Standard, TopK, certify_logits
from safeset.data.dataset import Split
from safeset.evaluation import (
    Metrics,
    accuracy,
    core_size,
    evaluate,
    rejection_rate,
    remarks,
    set_size,
    smallest_core_size,
    smallest_set_size,
    smallest_share,
    top1,
    vra,
    vra_curve,
)


def test_by_hand():
    # Constants 1, ε = .5: the first is top-1 robust, the second only as {0, 1}, the third not at all.
    logits = [[2.0, 1.0, 0.0, -1.0], [2.0, 1.9, 0.0, -1.0], [2.0, 1.9, 1.8, 1.7]]
    certificate = certify_logits(logits, torch.ones(4, 4), 0.5, "rt2", method="uniform")
    assert certificate.preferring("largest").core.sum(dim=1).tolist() == [2, 2, 0]
    assert certificate.core.sum(dim=1).tolist() == [1, 2, 0]
    labels = torch.tensor([1, 1, 1])
    assert vra(certificate, labels) == 2 / 3
    assert rejection_rate(certificate) == rejection_rate(certificate, labels) == pytest.approx(1 / 3)
    assert accuracy(certificate, labels) == 1.0
    assert vra(certificate, torch.tensor([2, 0, 0])) == 1 / 3
    assert accuracy(certificate, torch.tensor([2, 0, 0])) == 2 / 3
    assert core_size(certificate) == set_size(certificate) == 2.0
    assert smallest_core_size(certificate) == smallest_set_size(certificate) == 1.5
    assert smallest_share(certificate, labels) == 1 / 3
    assert top1(certificate, labels) == 0
    assert top1(certificate, torch.tensor([0, 0, 1])) == 2 / 3
    floating = certify_logits(logits, torch.ones(4, 4), 1.5, "rt2", method="floating")
    assert (core_size(floating), set_size(floating)) == (1.5, 2.0)


def test_affinity_accuracy_needs_everything_above_the_label_in_one_set():
    values = [[3.0, 2.0, 1.0, 0.0]] * 4
    certificate = certify_logits(values, torch.ones(4, 4), 0.1, Affinity([[0, 1], [1, 2]]))
    assert certificate.correct(torch.arange(4)).tolist() == [True, True, False, False]


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_the_curve_is_vra_at_each_epsilon(method):
    certificate, labels = batch(0, method=method)
    epsilons = [0.0, 0.05, 0.1, 0.3, 1.0, 10.0]
    curve = vra_curve(certificate, labels, epsilons)
    assert curve == [vra(certificate.at(epsilon), labels) for epsilon in epsilons]
    assert curve == sorted(curve, reverse=True)
    assert curve[0] > curve[-1]


def test_batches_add_up_exactly():
    parts = [batch(seed, points) for seed, points in enumerate((1, 7, 40, 3))]
    metrics = Metrics(epsilons=[0.05, 0.2])
    for certificate, labels in parts:
        metrics.update(certificate, labels)
    got = metrics.compute()
    points = sum(len(labels) for _, labels in parts)
    verified = sum(int(certificate.verified(labels).sum()) for certificate, labels in parts)
    certified = sum(int(certificate.certified.sum()) for certificate, _ in parts)
    cores = sum(int(certificate.preferring("largest").core.sum()) for certificate, _ in parts)
    assert got["points"] == points == 51
    assert got["vra"] == verified / points
    assert got["rejection_rate"] == (points - certified) / points
    assert got["core_size"] == cores / certified
    assert got["set_size"] >= got["core_size"]
    assert metrics.curve()[0] == sum(int(c.at(0.05).verified(y).sum()) for c, y in parts) / points
    metrics.reset()
    with pytest.raises(ArgumentError, match="at least one point"):
        metrics.compute()


def test_functions_agree_with_the_accumulator():
    certificate, labels = batch(1)
    got = Metrics().update(certificate, labels).compute()
    assert got["vra"] == vra(certificate, labels)
    assert got["rejection_rate"] == rejection_rate(certificate)
    assert got["accuracy"] == accuracy(certificate, labels)
    assert got["top1"] == top1(certificate, labels)
    assert got["smallest_share"] == smallest_share(certificate, labels)
    assert got["core_size"] == core_size(certificate) > got["smallest_core_size"] == smallest_core_size(certificate)
    assert got["set_size"] == set_size(certificate) > got["smallest_set_size"] == smallest_set_size(certificate)


def test_the_smallest_answers_by_a_slow_reference():
    certificate, labels = batch(4, points=60)
    held = sizes = cores = 0
    for record, label in zip(certificate.records(), labels.tolist(), strict=True):
        held += label in record["core"]
        cores += len(record["core"])
        sizes += len(record["core"]) + len(record["optional"])
    certified = int(certificate.certified.sum())
    got = Metrics().update(certificate.preferring("largest"), labels).compute()
    assert got["smallest_share"] == held / 60
    assert got["smallest_core_size"] == cores / certified
    assert got["smallest_set_size"] == sizes / certified


def test_the_baseline_is_the_best_answer_that_never_changes(net):
    x = torch.rand(10, 2, 4, 4)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2, 0])
    for guarantee, wanted in (("standard", 0.5), ("rt2", 0.8), ("top2", 0.8), (Affinity([[1, 2], [0]]), 0.5)):
        rows = evaluate(net, Split(x, labels), guarantee=guarantee, methods=["uniform"])
        assert rows[0]["baseline"] == wanted


def row(**numbers):
    usual = {"method": "joint", "epsilon": 0.1, "vra": 0.8, "baseline": 0.3, "core_size": 1.5, "top1": 0.7}
    return usual | {"smallest_core_size": 1.2, "smallest_share": 0.75} | numbers


def test_remarks_name_answers_that_say_little():
    relaxed = RelaxedTopK(3)
    assert remarks([row()], relaxed, 6) == []
    (hardly,) = remarks([row(vra=0.31)], relaxed, 6)
    assert "VRA 0.310 (joint at ε = 0.1) hardly beats 0.300" in hardly
    (below,) = remarks([row(vra=0.2)], relaxed, 6)
    assert "VRA 0.200 (joint at ε = 0.1) is below 0.300" in below
    (large,) = remarks([row(core_size=2.99, top1=0.44), row(core_size=2.8, vra=0.5)], relaxed, 6)
    assert "2.99 of at most 3 classes" in large
    assert "Top-1 accuracy is 0.440" in large
    assert remarks([row(core_size=None)], relaxed, 6) == []
    assert remarks([row(core_size=3.0)], TopK(3), 6) == []  # has that size by definition
    assert remarks([row(core_size=1.0)], Standard(), 6) == []


def test_nothing_certified_has_no_size():
    certificate, labels = batch(2)
    nothing = certificate.at(1e9)
    assert math.isnan(core_size(nothing))
    assert math.isnan(set_size(nothing))
    assert Metrics().update(nothing, labels).compute()["rejection_rate"] == 1.0


def test_no_points():
    certificate, labels = batch(3, points=0)
    with pytest.raises(ArgumentError, match="at least one point"):
        vra(certificate, labels)
    with pytest.raises(ArgumentError, match="at least one point"):
        rejection_rate(certificate)


WORKER = """
import sys, torch
sys.path.insert(0, {tests!r})
from helpers.random_certificates import batch
from safeset.evaluation import Metrics, accuracy, rejection_rate, vra

rank = int(sys.argv[1])
torch.distributed.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
metrics = Metrics(epsilons=[0.05])
for seed in range(rank, 5, 2):
    metrics.update(*batch(seed, 10 + seed))
print(metrics.compute() | {{"curve": metrics.curve()}})
if rank == 0:  # functions of one certificate are about this process alone: no one else is asked
    print([one(*batch(0, 10)) for one in (vra, accuracy, rejection_rate)])
torch.distributed.destroy_process_group()
"""


def test_two_processes_sum_exactly(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(tests=str(__import__("pathlib").Path(__file__).parent)))
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "meet")], stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    metrics = Metrics(epsilons=[0.05])
    for seed in range(5):
        metrics.update(*batch(seed, 10 + seed))
    wanted = str(metrics.compute() | {"curve": metrics.curve()})
    alone = str([one(*batch(0, 10)) for one in (vra, accuracy, rejection_rate)])
    assert [output.splitlines() for output in outputs] == [[wanted, alone], [wanted]]
