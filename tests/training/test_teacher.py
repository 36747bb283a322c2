"""Teachers, and a shift net that is trained with all that recipes offer: it learns, and resumes bit for bit."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from helpers.accidents import Accident
from safeset import ArgumentError, Recipe, load, train
from safeset.data.augmentation import Augmentation
from safeset.data.embedded import digits
from safeset.evaluation import evaluate
from safeset.recipes.sections import Teacher
from safeset.runs.run import Run
from safeset.training.interruption import Interrupted
from safeset.training.teacher import ResNet9, Teachers, train_teachers

SHIFT = {
    "data": {"source": "digits"},
    "guarantee": "rt3",
    "epsilon": 0.3,
    "model": "shift-net",
    "sizes": {"depth": 4, "width": 32, "patch": 2, "dense": 1},
    "epochs": 10,
    "batch": 64,
    "augmentation": {"rotation": 8.0, "scale": 0.1, "moved": 0.7, "edges": "grey", "mixup": 0.1, "cutmix": 0.1},
    "loss": {"name": "emma", "temperature": 4.0, "relaxation": "drop", "relaxed": 0.5},
    "optimiser": {
        "name": "muon",
        "rate": "0.03 -> 0 cosine, warm-up 0.1",
        "rate_of_others": 1e-2,
        "rate_of_positions": 3e-3,
        "average": 0.9,
        "clip": 10.0,
    },
    "teacher": {"epochs": 2, "width": 4, "noise": 0.1, "weight": 0.5},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "whole"
    return path, train(SHIFT, out=path)


def test_a_shift_net_learns_the_digits_with_a_proved_constant_of_one(whole):
    path, net = whole
    uniform, joint = evaluate(net, digits().test, methods=["uniform", "joint"])
    assert uniform["top1"] > 0.85
    assert joint["vra"] > 0.7
    assert 1 <= net.bounds().head.scale <= 1 + 1e-10
    names = {file.name for file in path.iterdir()}
    assert not [name for name in names if name.startswith(("teacher", "checkpoint"))]
    again = load(path)
    assert again.network[2].weight.dtype == torch.float64
    x = torch.rand(3, 1, 8, 8)
    assert torch.equal(again(x), net(x))
    assert torch.equal(again.certify(x).windows, net.certify(x).windows)
    rates = [record["rate"] for record in Run(path).records()]
    assert rates[-1] < 1e-3 < rates[1]


@pytest.mark.parametrize("moment", [5, 100])
def test_resumed_trainings_with_a_teacher_end_with_the_same_bits(tmp_path, whole, moment):
    path = tmp_path / "run"
    with pytest.raises(Interrupted):
        train(SHIFT, out=path, watch=Accident(moment, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    assert (path / "teacher-0.safetensors").exists()
    train(SHIFT, out=path, resume=True)
    first, second = (load_file(Run(each).model) for each in (path, whole[0]))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_an_interruption_of_the_teacher_itself_is_resumed(tmp_path, whole, monkeypatch):
    from safeset.training import teacher

    taken, take = [], teacher._Training._step

    def step(self):
        taken.append(self)
        if len(taken) == 6:  # in its second epoch
            os.kill(os.getpid(), signal.SIGTERM)
        take(self)

    monkeypatch.setattr(teacher._Training, "_step", step)
    with pytest.raises(Interrupted, match="continue with"):
        train(SHIFT, out=tmp_path / "run", checkpoint_minutes=0)
    assert len(taken) == 6
    train(SHIFT, out=tmp_path / "run", resume=True)
    assert len(taken) == 10  # four steps an epoch: the second epoch is begun again
    first, second = (load_file(Run(each).model) for each in (tmp_path / "run", whole[0]))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_teacher_learns_from_training_points_alone_and_softens_labels(tmp_path):
    split, settings = digits().train, Teacher(epochs=8, width=8, noise=0.05, weight=0.75)
    given = (split, Augmentation(), 10, settings)
    found = train_teachers(*given, seed=0, path=tmp_path / "t.safetensors", label="x")
    assert len(found) == 1
    x, y = digits().test.inputs, digits().test.y
    hot = torch.nn.functional.one_hot(y, 10).float()
    soft = Teachers(found, settings).soften(x, hot)
    torch.testing.assert_close(soft.sum(1), torch.ones(len(x)))
    assert (soft >= 0.25 * hot - 1e-6).all()
    guesses = ((soft - 0.25 * hot).argmax(1) == y).float().mean()
    assert guesses > 0.7
    again = train_teachers(*given, seed=0, path=tmp_path / "t.safetensors", label="x", tick=lambda: 1 / 0)
    assert all(torch.equal(a, b) for a, b in zip(found[0].parameters(), again[0].parameters(), strict=True))
    with pytest.raises(Exception, match="a teacher of this training"):
        train_teachers(*given, seed=0, path=tmp_path / "t.safetensors", label="y")


def test_a_folded_teacher_answers_as_it_was_trained():
    torch.manual_seed(0)
    network = ResNet9((1, 8, 8), 10, 4)
    network(torch.rand(64, 1, 8, 8))  # statistics of batch norm
    network.eval()
    x, target = torch.rand(5, 1, 8, 8), torch.full((5, 10), 0.1)
    soft = Teachers([network], Teacher(weight=1.0)).soften(x, target)
    torch.testing.assert_close(soft, network(x).softmax(1))


@pytest.mark.parametrize(
    ("teacher", "message"),
    [
        ({"epochs": 0}, "`epochs` to be an integer in 1"),
        ({"weight": 2.0}, r"`weight` to be a share in \[0, 1\]"),
        ({"noise": -1.0}, "`noise` to be a number ≥ 0"),
        ({"temperature": 0.0}, "`temperature` to be a finite number above 0"),
        ({"widht": 3}, "Did you mean 'width'"),
    ],
)
def test_mistakes_are_named(teacher, message):
    with pytest.raises(ArgumentError, match=message):
        Recipe.from_table({**SHIFT, "teacher": teacher})


def test_what_cannot_be_is_refused():
    with pytest.raises(ArgumentError, match="one seed at a time with a teacher, but got 2 seeds"):
        Recipe.from_table({**SHIFT, "seeds": 2})
    with pytest.raises(ArgumentError, match="images of at least 8 × 8 pixels for a teacher"):
        ResNet9((5,), 3, 4)
    cnn = {key: each for key, each in SHIFT.items() if key not in ("sizes", "teacher")} | {"model": "cnn-1c1f"}
    with pytest.raises(ArgumentError, match="a network with orthogonal layers for muon"):
        train(cnn)
