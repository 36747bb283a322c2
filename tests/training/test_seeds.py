"""Several seeds at once: each learns what it would learn alone."""

import json
import os
import signal
import statistics
from dataclasses import replace

import pytest
import torch

from helpers.accidents import Accident
from safeset import ArgumentError, load, train
from safeset.data.embedded import digits
from safeset.recipes.recipe import Recipe
from safeset.runs.load import build_net
from safeset.runs.run import Run
from safeset.training.engine import Engine
from safeset.training.interruption import Interrupted
from safeset.training.state import State

SEEDS = [3, 4, 5]


def losses(recipe, split, seeds, steps=20):
    nets = [build_net(replace(recipe, seed=seed)) for seed in seeds]
    state = State.start(nets, recipe, seeds)
    engine = Engine(nets[0], recipe, split, state, seeds, captured=False)
    found = []
    for step in range(steps):
        if step % engine.steps == 0:
            engine.start(step // engine.steps)
        engine.step()
        found.append(engine.last.clone())
    return torch.stack(found), state


@pytest.mark.parametrize(
    ("guarantee", "loss", "margins"),
    [
        ("standard", "cross-entropy", "uniform"),
        ("rt3", "trades", "floating"),
        ('affinity:{"sets":[["1","4","7"],["3","5","8","9"]]}', "trades", "uniform"),
    ],
)
def test_seeds_at_once_have_the_losses_of_single_runs(guarantee, loss, margins):
    data = digits()
    table = {"guarantee": guarantee, "epsilon": 0.3, "batch": 100, "epochs": 4, "seed": 3, "data": {"source": "digits"}}
    table |= {"loss": {"name": loss, "margins": margins}, "augmentation": {"flips": "both", "shift": 1}}
    recipe = Recipe.from_table(table).fit(data)
    together, state = losses(recipe, data.train, SEEDS)
    assert together.shape == (20, 3)
    for place, seed in enumerate(SEEDS):
        alone, single = losses(recipe, data.train, [seed])
        torch.testing.assert_close(together[:, place], alone[:, 0], rtol=2e-4, atol=1e-5)
        parameters, vectors = state.one(place, 3)
        for name, tensor in single.parameters.items():
            torch.testing.assert_close(parameters[name], tensor, rtol=5e-3, atol=5e-4)
        assert vectors.keys() == single.vectors.keys()
    assert not torch.allclose(together[0, 0], together[0, 1])


def test_a_run_of_several_seeds_holds_one_for_each_and_can_be_resumed(tmp_path):
    recipe = {"data": {"source": "digits"}, "epochs": 2, "guarantee": "rt3", "epsilon": 0.3, "seeds": 2, "seed": 5}
    first = train(recipe, out=tmp_path / "run")
    names = [load(tmp_path / "run" / f"seed{seed}") for seed in (5, 6)]
    assert torch.equal(names[0].network[0].weight, first.network[0].weight)
    assert not torch.equal(names[0].network[0].weight, names[1].network[0].weight)
    assert [Run(tmp_path / "run" / f"seed{seed}").read_recipe().seed for seed in (5, 6)] == [5, 6]
    group = Run(tmp_path / "run")
    assert group.has_ended
    result = json.loads(group.evaluation.read_text())
    each = [json.loads(Run(group.path / f"seed{seed}").evaluation.read_text())["rows"] for seed in (5, 6)]
    assert result["seeds"] == [5, 6]
    own = {seed: json.loads(Run(group.path / f"seed{seed}").evaluation.read_text()) for seed in (5, 6)}
    assert result["weights"] == {str(seed): one["weights"] for seed, one in own.items()}
    assert (result["recipe"]["seed"], result["recipe"]["seeds"], "seed" in result) == (5, 2, False)
    assert result["rows"][0]["vra"] == pytest.approx((each[0][0]["vra"] + each[1][0]["vra"]) / 2)
    record = group.records()[-1]
    assert record["loss"] == pytest.approx(statistics.fmean(one["loss"] for one in record["seeds"].values()))

    def stop():
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted):
        train(recipe, out=tmp_path / "again", watch=Accident(25, stop))
    train(recipe, out=tmp_path / "again", resume=True)
    for seed in (5, 6):
        weights = [load(tmp_path / run / f"seed{seed}").state_dict() for run in ("run", "again")]
        assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    with pytest.raises(ArgumentError, match="a model by its name and a directory"):
        train(recipe)
