"""What a network answers by every method, stored and read; membership and targets of a net."""

import json
import math
import pickle
from dataclasses import replace

import pytest
import torch

from helpers.digits_net import digits, trained
from helpers.nets import image_network, inputs
from safeset import ArgumentError, CertifiedNet, SafesetError, certify_logits, membership_radii, target_table, train
from safeset.certificates.margins import METHODS
from safeset.data.dataset import Split
from safeset.paper.predictions import NAME, WAYS, Answers, answer, answers_of, estimate_constants
from safeset.runs.run import Run
from safeset.system.files import read_tensors, write_tensors


@pytest.fixture(scope="module")
def net():
    kept, _ = trained()
    return CertifiedNet(
        kept.network, input_shape=(1, 8, 8), guarantee="rt3", epsilon=0.3, class_names=[f"d{i}" for i in range(10)]
    )


@pytest.fixture(scope="module")
def split():
    _, (x, y) = digits()
    return Split(x[:150], y[:150])


@pytest.fixture(scope="module")
def answers(net, split):
    return answer(net, split)


def test_certificates_are_those_of_the_net(net, split, answers):
    assert set(answers.certificates) == set(WAYS)
    for method in METHODS:
        again = net.certify(split.inputs, method=method)
        assert torch.equal(answers[method].windows, again.windows)
        assert torch.equal(answers[method].ranking, again.ranking)
        assert answers.seconds[method] > 0
    guessed = certify_logits(net.measure(split.inputs).logits, estimate_constants(net), 0.3, "rt3", method="uniform")
    assert torch.equal(answers["estimate"].windows, guessed.windows)
    assert bool((guessed.radius >= answers["uniform"].radius).all())  # an estimate is a lower bound of the constants


def test_rates_by_hand(split, answers):
    for way in WAYS:
        points = list(zip(answers[way].records(), answers[way].ranking.tolist(), split.y.tolist(), strict=True))
        rates = answers.rates(way)
        small = answers[way].preferring("smallest").records()
        certified = sum(record["certified"] for record, _, _ in points)
        assert rates == {
            "vra": sum(f"d{label}" in record["core"] for record, _, label in points) / 150,
            "rejection": sum(not record["certified"] for record, _, _ in points) / 150,
            "accuracy": sum(label in best for _, best, label in points) / 150,
            "vra_top1": sum(record["certified"] and best[0] == label for record, best, label in points) / 150,
            "rejection_rate": rates["rejection"],
            "top1": sum(best[0] == label for _, best, label in points) / 150,
            "smallest_share": sum(f"d{y}" in each["core"] for each, y in zip(small, split.y.tolist(), strict=True))
            / 150,
            "core_size": sum(len(record["core"]) for record, _, _ in points) / certified,
            "set_size": sum(len(record["core"] + record["optional"]) for record, _, _ in points) / certified,
            "smallest_core_size": sum(len(record["core"]) for record in small) / certified,
            "smallest_set_size": sum(len(record["core"] + record["optional"]) for record in small) / certified,
        }
    assert 0 < answers.rates("uniform")["vra_top1"] <= answers.rates("uniform")["vra"] < 1


def test_membership_by_hand(net, split, answers):
    table = net.target_table(split.inputs)
    for place, label in enumerate(split.y.tolist()):
        best = answers["uniform"].ranking[place].tolist()
        for k in (1, 2, 3):

            def stays(j, place=place, k=k):
                return sorted(table[place, j, i].item() for i in range(10) if i != j)[k - 1]

            assert answers.stays[place, k - 1] == stays(label)
            assert answers.all_stay[place, k - 1] == min(stays(j) for j in best[:k])
    diagonal = answers["uniform"].windows.diagonal(dim1=1, dim2=2)
    assert bool((diagonal <= answers.all_stay).all())  # what pairs prove of the k best, their memberships prove too


def test_what_is_stored_is_what_is_read(answers, tmp_path):
    answers.write(tmp_path / NAME)
    again = Answers.read(tmp_path / NAME)
    for name in ("labels", "stays", "all_stay"):
        assert torch.equal(getattr(again, name), getattr(answers, name))
    for way in WAYS:
        for name in ("windows", "ranking", "eligible"):
            assert torch.equal(getattr(again[way], name), getattr(answers[way], name))
        for name in ("epsilon", "guarantee", "method", "class_names", "classes"):
            assert getattr(again[way], name) == getattr(answers[way], name)
    assert (again.seconds, again.about) == (answers.seconds, answers.about)


def test_answers_of_a_run_are_made_once(tmp_path, monkeypatch):
    recipe = {"data": {"source": "digits"}, "epochs": 1, "guarantee": {"sets": [["1", "7"]]}, "epsilon": 0.05}
    train(recipe, out=tmp_path / "run", device="cpu")
    run = Run(tmp_path / "run")
    first = answers_of(run, "cpu")
    rows = {row["method"]: row for row in json.loads(run.evaluation.read_text())["rows"]}
    for method in METHODS:
        rates = first.rates(method)
        assert (rates["vra"], rates["rejection"]) == (rows[method]["vra"], rows[method]["rejection_rate"])
        assert rates["accuracy"] == rows[method]["accuracy"]
    with monkeypatch.context() as patched:
        patched.setattr("safeset.paper.predictions.answer", lambda *_: pytest.fail("made again"))
        assert torch.equal(answers_of(run, "cpu").labels, first.labels)
    stale = replace(first, about={**first.about, "weights": "of another network"}, labels=first.labels * 0)
    stale.write(run.path / NAME)
    assert torch.equal(answers_of(run, "cpu").labels, first.labels)  # made again


def test_other_files_are_refused(answers, tmp_path):
    (tmp_path / NAME).write_bytes(b"no tensors")
    with pytest.raises(SafesetError, match="safetensors"):
        Answers.read(tmp_path / NAME)
    answers.write(tmp_path / NAME)
    tensors, texts = read_tensors(tmp_path / NAME)
    write_tensors(tmp_path / NAME, {name: tensors[name] for name in tensors if name != "joint"}, texts)
    with pytest.raises(SafesetError, match=r"joint.*Remove it"):
        Answers.read(tmp_path / NAME)


# -- of a net ---------------------------------------------------------------------------------------------------------


def test_targets_of_a_net_are_those_of_its_logits_less_rounding():
    net = CertifiedNet(image_network().eval(), input_shape=(2, 4, 4), guarantee="rt2", epsilon=0.1)
    x = inputs(20)
    logits, head = net.measure(x).logits, net.bounds().head
    assert torch.equal(logits, net.frozen()(x))
    for ours, plain in (
        (net.target_table(x), target_table(logits, head)),
        (net.membership_radii(x, 2), membership_radii(logits, head, 2)),
    ):
        assert ours.shape == plain.shape
        positive = (plain > 0) & (plain < math.inf)
        assert bool((ours <= plain).all())
        assert bool((ours < plain)[positive].all())
        assert torch.allclose(ours, plain, rtol=1e-6)
        assert bool((plain > 0).any())


def test_a_class_stays_where_it_is_promised_to(net, split):
    x = split.inputs[:40].double()
    radii = net.membership_radii(x, 2)
    make = torch.Generator().manual_seed(0)
    promised = (radii > 0).nonzero().tolist()
    assert len(promised) > 40
    for point, j in promised:
        start = x[point].clone().requires_grad_()
        logits = net.frozen()(start[None])[0]
        rivals = [each for each in logits.topk(3).indices.tolist() if each != j][:2]  # to leave the best two
        (direction,) = torch.autograd.grad(logits[rivals].sum() - 2 * logits[j], start)
        for way in (direction, torch.randn(x[point].shape, generator=make, dtype=torch.float64)):
            moved = x[point] + way / way.norm() * min(radii[point, j].item(), 10.0) * 0.9999
            assert j in net.frozen()(moved[None])[0].topk(2).indices.tolist()


def test_nothing_is_promised_at_points_that_are_none(net):
    x = torch.full((1, 1, 8, 8), math.nan)
    assert not net.membership_radii(x, 3).any()
    table = net.target_table(x)[0]
    assert torch.equal(table, torch.zeros(10, 10, dtype=torch.float64).fill_diagonal_(math.inf))
    huge = torch.full((1, 1, 8, 8), 1e300, dtype=torch.float64)
    assert not net.membership_radii(huge, 3).any()
    assert net.membership_radii(x[:0], 3).shape == (0, 10)
    with pytest.raises(ArgumentError, match=r"1\.\.9"):
        net.membership_radii(torch.zeros(1, 1, 8, 8), 10)


def test_what_is_measured_once_says_what_the_net_says(net):
    x = torch.rand(20, *net.input_shape)
    points = net.measure(x)
    for guarantee, epsilon in (("rt3", 0.05), ("top2", 0.2)):
        for method in METHODS:
            chosen = {"guarantee": guarantee, "epsilon": epsilon, "method": method}
            got, wanted = points.certificate(**chosen), net.certify(x, **chosen)
            assert torch.equal(got.windows, wanted.windows)
            assert (got.covers, got.layers, str(got.guarantee)) == (wanted.covers, wanted.layers, guarantee)
    assert str(points.certificate().guarantee) == str(net.guarantee)
    several = points.membership_table(4)
    for k in range(1, 5):
        assert torch.equal(several[:, k - 1], net.membership_radii(x, k))
        assert torch.equal(several[:, k - 1], points.membership_radii(k))
    assert torch.equal(points.target_table(), net.target_table(x))


def test_what_is_measured_can_not_be_changed(net):
    x = torch.rand(20, *net.input_shape)
    with torch.inference_mode():
        points = net.measure(x)
    before, table = points.certificate(), points.membership_table(2)
    for handed in (points.logits, points.certificate().windows, points.membership_table(2), points.target_table()):
        handed.mul_(1000)
    assert torch.equal(points.certificate().windows, before.windows)
    assert torch.equal(points.membership_table(2), table)
    assert torch.equal(net.certify(x).windows, before.windows)
    assert "tensor" not in repr(points)
    with pytest.raises(ArgumentError, match=r"Take points.certificate"):
        pickle.dumps(points)
