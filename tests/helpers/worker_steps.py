"""What several workers do together, for tests and for the processes that these start."""

from dataclasses import replace

import torch

from safeset import SafesetError
from safeset.data.embedded import digits
from safeset.recipes.recipe import Recipe
from safeset.runs.load import build_net
from safeset.training.engine import Engine
from safeset.training.state import State


def steps(workers, seeds=1):
    """Losses of 20 steps, and the state after them."""
    data = digits()
    recipe = Recipe.from_table(
        {
            "data": {"source": "digits"},
            "guarantee": "rt3",
            "epsilon": 0.3,
            "batch": 51,
            "epochs": 9,
            "augmentation": {"shift": 1},
        }
    ).fit(data)
    numbers = list(range(seeds))
    nets = [build_net(replace(recipe, seed=number)) for number in numbers]
    state = State.start(nets, recipe, numbers)
    engine = Engine(nets[0], recipe, data.train, state, numbers, captured=False, workers=workers)
    engine.start(0)
    losses = []
    for _ in range(20):
        engine.step()
        losses.append(engine.last.tolist())
    return losses, state


def told(workers):
    """What workers tell each other."""

    def fails():
        raise SafesetError("no such thing")

    messages = []
    for attempt in (lambda: workers.check_same(workers.rank, "number"), lambda: workers.decide(fails)):
        try:
            attempt()
        except SafesetError as error:
            messages.append(f"{type(error).__name__}: {error}")
    tensor = torch.tensor([1, workers.rank])
    workers.add([tensor])
    return {
        "messages": messages,
        "largest": workers.largest(workers.rank * 7),
        "decided": workers.decide(lambda: f"by {workers.rank}"),
        "turns": workers.in_turn(lambda: workers.rank),
        "sum": tensor.tolist(),
        "everyones": workers.everyones(str(workers.rank)),
    }
