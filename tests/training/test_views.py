"""Views that are made once, with the teachers' labels: what they are, and trainings with them."""

import os
import signal

import pytest
import torch
from safetensors.torch import load_file

from helpers.accidents import Accident
from safeset import Recipe, SafesetError, train
from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.recipes.sections import Teacher
from safeset.runs.run import Run
from safeset.system.workers import Workers
from safeset.training import views as module
from safeset.training.batches import Batches
from safeset.training.interruption import Interrupted
from safeset.training.teacher import ResNet9, Teachers
from safeset.training.views import again, make_views

MOVES = Augmentation(flips="horizontal", shift=1, rotation=8.0, edges="grey")
RECIPE = {
    "data": {"source": "digits"},
    "guarantee": "rt3",
    "epsilon": 0.3,
    "model": "shift-net",
    "sizes": {"depth": 2, "width": 16, "patch": 2, "dense": 1},
    "epochs": 4,
    "batch": 64,
    "augmentation": {"shift": 1, "rotation": 8.0, "edges": "grey"},
    "loss": {"name": "emma", "temperature": 4.0},
    "optimiser": {"name": "muon", "rate": "0.03 -> 0 cosine"},
    "teacher": {"epochs": 2, "width": 4, "noise": 0.1, "weight": 0.5, "views": 3},
}


def teachers(**settings):
    torch.manual_seed(0)
    return Teachers([ResNet9((1, 8, 8), 10, 4)], Teacher(width=4, **settings))


def test_each_view_is_the_image_moved_and_its_label_what_the_teacher_says_of_it():
    split = digits().train[torch.arange(50)]
    asked = teachers(views=4, weight=0.9)
    found = make_views(split, MOVES, 10, asked, seed=0)
    assert len(found.split) == len(found.target) == 4 * 50
    assert found.split.x.dtype == split.x.dtype
    assert found.split.y.equal(split.y.repeat(4))
    hot = torch.nn.functional.one_hot(found.split.y, 10).float()
    torch.testing.assert_close(found.target.float(), asked.soften(found.split.inputs, hot), atol=2e-3, rtol=0)
    views = found.split.inputs.view(4, 50, -1)
    assert all(not views[one].equal(views[two]) for one in range(4) for two in range(one))
    distance = (views - split.inputs.view(1, 50, -1)).norm(dim=2)
    others = (views - split.inputs.view(50, -1).roll(1, 0)).norm(dim=2)
    assert distance.mean() < others.mean()
    same = make_views(split, MOVES, 10, asked, seed=0)
    assert same.split.x.equal(found.split.x)
    assert same.target.equal(found.target)
    assert not make_views(split, MOVES, 10, asked, seed=1).split.x.equal(found.split.x)


def test_views_of_images_that_are_not_moved_are_the_images():
    split = digits().train[torch.arange(20)]
    found = make_views(split, Augmentation(), 10, teachers(views=2), seed=0)
    assert found.split.x.equal(split.x.repeat(2, 1, 1, 1))


def test_an_epoch_takes_one_view_of_each_point_with_its_own_label():
    x = torch.arange(3 * 20, dtype=torch.uint8).view(60, 1, 1, 1).expand(60, 1, 2, 2).contiguous()
    target = torch.nn.functional.one_hot(torch.arange(60), 60).float()
    split = Split(x, torch.arange(20).repeat(3))
    batches = Batches(split, Augmentation(), 60, batch=5, seeds=[0], workers=Workers(), views=3, target=target.half())
    assert batches.steps == 4
    seen = []
    for epoch in range(12):
        batches.start(epoch)
        taken = [batches.take(torch.tensor(step)) for step in range(4)]
        places = torch.cat([(each.x[:, 0, 0, 0] * 255).round().long() for each in taken])
        assert torch.cat([each.y for each in taken]).equal(places % 20)
        assert torch.cat([each.target for each in taken]).argmax(1).equal(places)
        assert (places % 20).sort().values.equal(torch.arange(20))
        seen.append(places)
    assert len(torch.cat(seen).unique()) > 50  # of 60: all views have their turn


def test_flips_and_turns_are_drawn_anew_and_nothing_else():
    assert again(Augmentation(flips="both", turns=True, shift=3, rotation=5.0, cutmix=0.2)) == Augmentation(
        flips="both", turns=True
    )


def test_trainings_with_views_learn_and_resume_bit_for_bit(tmp_path):
    train(RECIPE, out=tmp_path / "whole")
    asked = {**RECIPE, "teacher": {**RECIPE["teacher"], "views": 0}}
    train(asked, out=tmp_path / "asked")
    first, path = Run(tmp_path / "whole"), tmp_path / "run"
    losses = [record["loss"] for record in first.records()]
    assert losses[-1] < losses[0]
    with pytest.raises(Interrupted):
        train(RECIPE, out=path, watch=Accident(40, lambda: os.kill(os.getpid(), signal.SIGTERM)))
    train(RECIPE, out=path, resume=True)
    one, other, without = (load_file(Run(each).model) for each in (first.path, path, tmp_path / "asked"))
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], without[name]) for name in one)


def test_a_signal_while_views_are_made_leaves_a_run_to_continue(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", 100)
    made = []
    soften = Teachers.soften

    def ask(self, x, target):
        made.append(len(x))
        if len(made) == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        return soften(self, x, target)

    monkeypatch.setattr(Teachers, "soften", ask)
    with pytest.raises(Interrupted, match="continue with"):
        train(RECIPE, out=tmp_path / "run")
    assert len(made) == 5
    train(RECIPE, out=tmp_path / "run", resume=True)
    assert Run(tmp_path / "run").has_ended


def test_mixed_images_are_refused_before_anything_is_trained():
    with pytest.raises(SafesetError, match=r"no mixed images with `views`.*cutmix"):
        Recipe.from_table({**RECIPE, "augmentation": {"cutmix": 0.5}})


def test_too_many_views_for_the_memory_are_refused_with_a_remedy(monkeypatch):
    def full(*_, **__):
        raise RuntimeError("out of memory")

    asked, split = teachers(views=4), digits().train
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(SafesetError, match=r"GB for 4 views.*teacher.views=8"):
        make_views(split, Augmentation(), 10, asked, seed=0)
