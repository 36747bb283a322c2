"""What the labels of ACAS Xu allow: the advisories that the labelling network itself gives within ε of test points.

A certified answer that holds the label keeps out, at every point within ε, every advisory that is in no affinity set
with it (`joint`), or that is not in one and the same set with all others there (`uniform`). So a classifier that agrees
with the labelling network everywhere cannot have more VRA than the share of points where that is so. Advisories are
looked for by random points and by projected gradient: what is missed makes the limits here too high, never too low.

    SAFESET_DATA=FOLDER python benchmarks/acasxu_limit.py    # writes results/beyond/tries/acasxu-limit.json
"""

import time

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from common import ROOT, commit, machine, save
from safeset.data.acasxu import NnetNetwork, acasxu, nnet_file, read_nnet
from safeset.guarantees.affinity import from_neighbours
from safeset.recipes.recipe import Recipe

NETWORK, RECIPE = "1_1", "acasxu/small-targeted"
NEIGHBOURS = ["strong left", "weak left", "clear of conflict", "weak right", "strong right"]
RANDOM, STARTS, STEPS, SEED = 30, (0.0, 0.3), ((0.5, 10), (0.15, 15)), 0  # steps: (share of ε, how many)


def main() -> None:
    """Look, and write what was found."""
    started = time.perf_counter()
    epsilon = Recipe.read(ROOT / "recipes" / f"{RECIPE}.toml").epsilon
    assert epsilon is not None
    data, teacher = acasxu(NETWORK), read_nnet(nnet_file(NETWORK))
    y = data.test.y
    sets = [[data.class_names.index(name) for name in one] for one in from_neighbours(NEIGHBOURS)]
    is_in = torch.zeros(len(sets), data.classes, dtype=torch.bool)  # (sets, classes)
    for place, one in enumerate(sets):
        is_in[place, one] = True
    found = advisories_nearby(teacher, data.test.inputs.double(), epsilon)  # (points, classes)
    beside = (is_in[:, y, None] & is_in[:, None, :]).any(dim=0)  # (points, classes): together with the label in a set
    in_one_set = (~found[:, None, :] | is_in).all(dim=2).any(dim=1)
    result = {
        "command": "python benchmarks/acasxu_limit.py",
        "commit": commit(),
        "network": NETWORK,
        "epsilon": epsilon,
        "points": len(y),
        "standard": share(found.sum(dim=1) == 1),
        "uniform": share(in_one_set),
        "joint": share(~(found & ~beside).any(dim=1)),
        "searched": f"{RANDOM} random points; for each advisory, gradients from {len(STARTS)} starts",
        "seconds": round(time.perf_counter() - started),
        "machine": machine(),
    }
    print({key: result[key] for key in ("standard", "uniform", "joint")})
    save("beyond/tries/acasxu-limit.json", result)


def advisories_nearby(teacher: NnetNetwork, x: Tensor, epsilon: float) -> Tensor:
    """(points, advisories): which advisories were found within ε of each point."""
    generator = torch.Generator().manual_seed(SEED)
    found = one_hot(teacher.costs(x).argmin(dim=1), len(teacher.biases[-1])).bool()
    every = torch.arange(len(x))

    def look(change: Tensor) -> Tensor:
        """Note what is advised there, inside of the ball."""
        change = change * (epsilon / change.norm(dim=1, keepdim=True).clamp_min(epsilon))
        found[every, teacher.costs(x + change).argmin(dim=1)] = True
        return change

    def random(radius: float) -> Tensor:
        change = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        return torch.nn.functional.normalize(change, dim=1) * radius

    for _ in range(RANDOM):
        look(random(epsilon))
    for wanted in range(found.shape[1]):
        others = [each for each in range(found.shape[1]) if each != wanted]
        for start in STARTS:
            change = random(start * epsilon) if start else torch.zeros_like(x)
            for size in (size for size, count in STEPS for _ in range(count)):
                at = (x + change).requires_grad_()
                costs = teacher.costs(at)
                (slope,) = torch.autograd.grad((costs[:, wanted] - costs[:, others].amin(dim=1)).sum(), at)
                change = look(change - slope * (size * epsilon / slope.norm(dim=1, keepdim=True).clamp_min(1e-30)))
    return found


def share(which: Tensor) -> float:
    """How many of the points, in four digits."""
    return round(which.double().mean().item(), 4)


if __name__ == "__main__":
    main()
