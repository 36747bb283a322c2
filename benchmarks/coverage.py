"""Sets that hold the true class: coverage and sizes of safeset's scores and of others' on the networks of runs.

    python benchmarks/coverage.py runs/digits-rt3 [more runs] [--device cuda] [--name digits-rt3]
    python benchmarks/coverage.py runs/digits-rt3 --no-mapie --keep FILE         # on a machine without MAPIE, and then
    python benchmarks/coverage.py --mapie-from FILE --name digits-rt3            # on one that has it
    python benchmarks/coverage.py --draw digits-rt3

Writes results/coverage/NAME.json, and docs/figures/coverage.png with --draw. A third of the run's test points, drawn at
random, serves only to choose k, τ and β; the others are split into calibration and test points ten times. Where MAPIE
is installed, its sets stand beside ours, clean and under attack.
"""

import argparse
import json
import math
import shlex
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from common import ROOT, commit, machine, save
from coverage_scores import Head, Method, log_softmax, peers
from safeset import Coverage, fit_logits, load
from safeset.coverage.fit import ENOUGH
from safeset.coverage.ranks import as_level, rank
from safeset.data.dataset import Split
from safeset.inputs import as_device
from safeset.nets.frozen import FrozenNet
from safeset.runs.data import load_run_data
from safeset.runs.run import Run

EPSILONS, ALPHAS = (0.0, 0.03, 0.141, 0.25), ("0.05", "0.1")
SPLITS, CHOICE_SPLITS, SEED = 10, 20, 0
TAUS, BETAS, LARGEST_K = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0), (0.5, 0.75, 0.9, 1.0), 10
RIDGES = (100.0, 300.0, 1000.0)
STEPS, ATTACKED = 30, 500
TIMED, REPEATS = 256, 20
CHOICE = (
    "a third of the test points, drawn at random, which is in no split: mean log size over all ε, α = 0.1, 20 splits"
)


class Points:
    """Points with labels and logits, and the scores that methods give them."""

    def __init__(self, net: FrozenNet, x: Tensor, y: Tensor) -> None:
        self.net, self.x, self.y = net, x, y
        self.measured = net.measure(x)
        self.logits = self.measured.logits

    def below(self, method: Method) -> Tensor:
        """Scores of all classes from below, for calibration: (n, classes)."""
        if method.coverage is not None:
            return method.coverage.scores(self.measured, round="down")
        return method.above(self.logits, 0.0)

    def above(self, method: Method, epsilon: float) -> Tensor:
        """Bounds of the scores within ε, for prediction."""
        if method.coverage is not None:
            return method.coverage.scores(self.measured, epsilon=epsilon)
        return method.above(self.logits, epsilon)


def own_methods(points: Points, trained: Split) -> dict[str, list[Method]]:
    """Safeset's scores, with every parameter; calibrated on points that nothing else is said of.

    The map of the score ``fitted`` is fitted to training points.
    """
    order = torch.from_numpy(np.random.default_rng([SEED, 3]).permutation(len(trained.y)))[:ENOUGH]
    seen = trained[order]
    logits = points.net.measure(seen.exact.to(points.y.device))
    fits = {ridge: fit_logits(points.net, logits, seen.y, ridge=ridge) for ridge in RIDGES}

    def method(name: str, **settings: Any) -> Method:
        coverage = Coverage.calibrate(points.net, points.measured, points.y, **settings)
        return Method(
            name,
            lambda logits, _: coverage.plain_scores(logits),
            {key: settings[key] for key in ("k", "tau") if key in settings},
            coverage,
        )

    def fitted(ridge: float) -> Method:
        return replace(method("fitted", score="fitted", fit=fits[ridge]), parameters={"ridge": ridge})

    most = min(LARGEST_K, points.net.classes - 1)
    return {
        "r_1": [method("r_1", k=1)],
        "r_k": [method("r_k", k=k) for k in range(1, most + 1)],
        "soft-min": [method("soft-min", score="soft-min", tau=tau) for tau in TAUS],
        "fitted": [fitted(ridge) for ridge in RIDGES],
    }


def head_of(net: FrozenNet) -> Head:
    """Rows and proved scale."""
    head = net.bounds().head
    return Head(head.rows, float(head.scale))


def choose(points: Points, methods: list[Method]) -> Method:
    """The method whose sets are smallest on points that are in no split: mean log size over all ε."""
    alpha = as_level("0.1", "`alpha`")
    half, sizes = len(points.y) // 2, []
    orders = [np.random.default_rng([SEED, 7, split]).permutation(len(points.y)) for split in range(CHOICE_SPLITS)]
    for method in methods:
        own = points.below(method).gather(1, points.y[:, None])[:, 0]
        bounds = [points.above(method, epsilon) for epsilon in EPSILONS]
        logs = [
            math.log(float(_sets(bound[order[half:]], _threshold(own[order[:half]], alpha)).sum(dim=1).double().mean()))
            for order in orders
            for bound in bounds
        ]
        sizes.append(float(np.mean(logs)))
    return methods[int(np.argmin(sizes))]


def _threshold(scores: Tensor, alpha: Any) -> float:
    place = rank(len(scores), alpha)
    return float(scores.sort(descending=True).values[place - 1]) if place <= len(scores) else -math.inf


def _sets(scores: Tensor, threshold: float) -> Tensor:
    """Sets that are never empty."""
    member = ~(scores < threshold)
    best = torch.nn.functional.one_hot(scores.argmax(dim=1), scores.shape[1]).bool()
    return torch.where(member.any(dim=1, keepdim=True), member, best)


def attack(points: Points, method: Method, epsilon: float, many: int, steps: int) -> Tensor:
    """Inputs within ε at which the true class's score is as small as projected gradient finds."""
    x, y = points.x[:many].double(), points.y[:many]
    if not epsilon:
        return x
    z, best, place = torch.zeros_like(x), torch.full((len(x),), torch.inf, device=x.device, dtype=torch.float64), x
    for step in range(steps + 1):
        moved = (x + z).detach().requires_grad_()
        own = method.above(points.net(moved), 0.0).gather(1, y[:, None])[:, 0]
        (slope,) = torch.autograd.grad(own.sum(), moved)
        with torch.no_grad():
            better = own < best
            best = torch.where(better, own, best)
            place = torch.where(_column(better, x), moved.detach(), place)
            reach = epsilon * (1.0 if step == 0 else 0.05 + 0.5 * (1 - step / steps))
            unit = slope / _column(slope.flatten(1).norm(dim=1).clamp(min=1e-300), x)
            z = z - unit * reach
            z = z * _column(epsilon * (1 - 1e-10) / z.flatten(1).norm(dim=1).clamp(min=epsilon), x)
    return place


def orders_of(points: int) -> list[Any]:
    """Of calibration and test points: one order for each split."""
    return [np.random.default_rng([SEED, 2, split]).permutation(points) for split in range(SPLITS)]


def _column(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1))


def measure(
    path: Path, device: torch.device, *, mapie: bool, keep: Path | None, attacked: int, steps: int
) -> dict[str, Any]:
    """All methods on one run; what MAPIE needs is kept in a file if asked."""
    started = time.perf_counter()
    net = load(path).to(device).frozen()
    data = load_run_data(Run(path).read_recipe())
    x, y = data.test.exact.to(device), data.test.y.to(device)
    epsilons = sorted({*EPSILONS, net.epsilon})
    order = torch.from_numpy(np.random.default_rng([SEED, 1]).permutation(len(y))).to(device)
    third = len(y) // 3
    choice, rest = (Points(net, x[part], y[part]) for part in (order[:third], order[third:]))
    candidates = own_methods(choice, data.train)
    head = head_of(net)
    softmaxes = [log_softmax(head, beta, tau) for beta in BETAS for tau in TAUS]
    every = [*peers(head), choose(choice, softmaxes), *(choose(choice, each) for each in candidates.values())]
    many = min(attacked, len(rest.y))
    orders = orders_of(len(rest.y))
    rows, probabilities = [], {}
    known: dict[str, list[dict[str, Any]]] = {}  # the k that was chosen may be 1
    for method in every:
        score = str(method.coverage.score) if method.coverage else method.name
        if score in known:
            rows += [{**row, "method": name_of(method)} for row in known[score]]
            continue
        own = rest.below(method).gather(1, rest.y[:, None])[:, 0]
        for epsilon in epsilons:
            radius = epsilon if method.is_protected else 0.0
            bounds = rest.above(method, radius)
            worst = Points(net, attack(rest, method, epsilon, many, steps), rest.y[:many]).above(method, radius)
            if not method.is_protected:
                probabilities[epsilon] = worst
            for alpha in ALPHAS:
                found = [_split(own, bounds, worst, rest.y, order, alpha) for order in orders]
                row = {"method": name_of(method), "parameters": method.parameters, "epsilon": epsilon, "alpha": alpha}
                rows.append({**row, **summary(found)})
        known[score] = [row for row in rows if row["method"] == name_of(method)]
        print(f"{name_of(method):24} {time.perf_counter() - started:6.0f} s", flush=True)
    result = {
        "command": f"python benchmarks/coverage.py {shlex.join(sys.argv[1:])}",
        "commit": commit(),
        "run": path.name,
        "data": data.name,
        "classes": net.classes,
        "accuracy": float((rest.logits.argmax(dim=1) == rest.y).double().mean()),
        "lipschitz": head.scale,
        "points": {"choice": third, "calibration": len(rest.y) // 2, "test": len(rest.y) - len(rest.y) // 2},
        "attacked": many,
        "attack": f"projected gradient on the true class's own score, {steps} steps",
        "trained_for": net.epsilon,
        "splits": SPLITS,
        "chosen_on": CHOICE,
        "rounding": "of safeset's own scores accounted for; others in plain float64",
        "empty_sets": "hold the class with the largest score; not in coverage_bare and coverage_attacked_bare",
        "rows": rows,
        "by_class": conditional(rest, every, orders),
        "seconds_per_point": timing(net, rest, every),
    }
    table = {"clean": rest.logits.softmax(dim=1), **{str(epsilon): each for epsilon, each in probabilities.items()}}
    tables: dict[str, Any] = {name: each.cpu().numpy() for name, each in table.items()} | {
        "labels": rest.y.cpu().numpy()
    }
    if keep:
        np.savez_compressed(keep, **tables)
    if mapie:
        result["mapie"] = mapie_rows(tables, orders)
    return {**result, "seconds": round(time.perf_counter() - started, 1), "machine": machine(), "device": str(device)}


def name_of(method: Method) -> str:
    """What a row is called."""
    return f"{method.name}{' (k chosen)' if method.name == 'r_k' else ''}"


def _split(own: Tensor, bounds: Tensor, worst: Tensor, y: Tensor, order: Any, alpha: str) -> dict[str, Any]:
    """One split: coverage clean and under attack, sizes."""
    half = len(order) // 2
    threshold = _threshold(own[order[:half]], as_level(alpha, "`alpha`"))
    test = torch.from_numpy(order[half:]).to(y.device)
    sets = _sets(bounds[test], threshold)
    hit = test[test < len(worst)]  # the points that were attacked
    after = _sets(worst[hit], threshold)
    sizes = sets.sum(dim=1).double()
    return {
        "coverage": float(sets.gather(1, y[test, None]).double().mean()),
        "coverage_bare": float((bounds[test] >= threshold).gather(1, y[test, None]).double().mean()),
        "coverage_attacked_bare": float((worst[hit] >= threshold).gather(1, y[hit, None]).double().mean()),
        "coverage_attacked": float(after.gather(1, y[hit, None]).double().mean()) if len(hit) else math.nan,
        "size": float(sizes.mean()),
        "size_attacked": float(after.sum(dim=1).double().mean()),
        "size_quantiles": [float(sizes.quantile(share)) for share in (0.1, 0.5, 0.9)],
        "singletons": float((sizes == 1).double().mean()),
        "empty_before": float((~(bounds[test] >= threshold).any(dim=1)).double().mean()),
    }


def summary(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over the splits, and the spread of coverage and size."""
    means = {key: np.mean([one[key] for one in found], axis=0).round(4).tolist() for key in found[0]}
    spread = {f"{key}_std": round(float(np.std([one[key] for one in found])), 4) for key in ("coverage", "size")}
    return {**means, **spread}


def conditional(points: Points, methods: list[Method], orders: list[Any]) -> dict[str, Any]:
    """Clean coverage at ε = 0.141, α = 0.1, of the class and of the third of difficulty where it is least."""
    found = {}
    probability = points.logits.softmax(dim=1).gather(1, points.y[:, None])[:, 0]
    thirds = torch.bucketize(probability, probability.quantile(torch.tensor([1 / 3, 2 / 3]).to(probability)))
    for method in methods:
        own = points.below(method).gather(1, points.y[:, None])[:, 0]
        bounds = points.above(method, 0.141 if method.is_protected else 0.0)
        hits, counts = torch.zeros_like(own), torch.zeros_like(own)
        for order in orders:
            half = len(order) // 2
            test = torch.from_numpy(order[half:]).to(own.device)
            sets = _sets(bounds[test], _threshold(own[order[:half]], as_level("0.1", "`alpha`")))
            hits[test] += sets.gather(1, points.y[test, None])[:, 0].double()
            counts[test] += 1
        classes = [
            float(hits[points.y == y].sum() / counts[points.y == y].sum())
            for y in torch.bincount(points.y).nonzero()[:, 0].tolist()
        ]
        hard = [float(hits[thirds == third].sum() / counts[thirds == third].sum()) for third in range(3)]
        found[name_of(method)] = {
            "least_class": round(min(classes), 4),
            "by_difficulty": [round(one, 4) for one in hard],
        }
    return found


def timing(net: FrozenNet, points: Points, methods: list[Method]) -> dict[str, float]:
    """Seconds for each point: the network alone, and with sets at ε = 0.141."""
    x = points.x[:TIMED]

    def seconds(call: Any) -> float:
        call()
        times = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            call()
            if x.is_cuda:
                torch.cuda.synchronize()
            times.append(time.perf_counter() - started)
        return min(times) / len(x)  # others may use the machine too

    own = [method for method in methods if method.coverage is not None]
    return {
        "network": seconds(lambda: net.measure(x)),
        **{name_of(each): seconds(lambda each=each: each.coverage.sets(x, 0.141)) for each in own},
    }


def mapie_rows(tables: dict[str, Any], orders: list[Any]) -> list[dict[str, Any]] | str:
    """MAPIE's split conformal sets, clean and under the attack on the unprotected score.

    Args:
        tables: probabilities of all points, ``clean``; of those that were attacked, by ε as text; and ``labels``.
        orders: of the points, one for each split.
    """
    try:
        import mapie  # type: ignore[import-not-found]
        from mapie.classification import SplitConformalClassifier  # type: ignore[import-not-found]
    except ImportError:
        return "not installed"
    from sklearn.base import BaseEstimator, ClassifierMixin

    labels, clean = tables["labels"], tables["clean"]
    attacked = {float(name): each for name, each in tables.items() if name not in ("labels", "clean")}
    many = len(next(iter(attacked.values())))
    table = np.concatenate([clean, *attacked.values()])
    table = table / table.sum(axis=1, keepdims=True)

    class Known(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
        """Probabilities that were computed before: an input is the number of its row."""

        def __init__(self) -> None:
            self.classes_ = np.arange(table.shape[1])
            self.is_fitted_ = True

        def fit(self, x: Any, y: Any) -> "Known":
            return self

        def predict_proba(self, x: Any) -> Any:
            return table[np.asarray(x)[:, 0].astype(int)]

        def predict(self, x: Any) -> Any:
            return self.predict_proba(x).argmax(axis=1)

    rows = []
    starts = {epsilon: len(labels) + place * many for place, epsilon in enumerate(attacked)}
    for alpha in ALPHAS:
        found: dict[float, list[tuple[float, float]]] = {epsilon: [] for epsilon in attacked}
        for order in orders:
            half = len(order) // 2
            classifier = SplitConformalClassifier(Known(), confidence_level=1 - float(alpha), prefit=True)
            classifier.conformalize(order[:half, None], labels[order[:half]])
            test = order[half:][order[half:] < many]
            for epsilon, start in starts.items():
                sets = classifier.predict_set(start + test[:, None])[1][:, :, 0]
                found[epsilon].append((sets[np.arange(len(test)), labels[test]].mean(), sets.sum(axis=1).mean()))
        for epsilon, pairs in found.items():
            mean = np.mean(pairs, axis=0)
            rows.append(
                {
                    "method": f"MAPIE {mapie.__version__}, LAC",
                    "epsilon": epsilon,
                    "alpha": alpha,
                    "coverage_attacked": round(float(mean[0]), 4),
                    "size_attacked": round(float(mean[1]), 4),
                }
            )
    return rows


def add_mapie(name: str, kept: Path) -> None:
    """Add MAPIE's rows to a result that was measured where it is not installed."""
    file = f"coverage/{name}.json"
    with np.load(kept) as tables:
        result = json.loads((ROOT / "results" / file).read_text())
        orders = orders_of(len(tables["labels"]))
        save(file, {**result, "mapie": mapie_rows(dict(tables), orders)})


def draw(name: str) -> None:
    """Coverage under attack and mean size against ε: ours, lip-rcp, and an unprotected method."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot as plt

    result = json.loads((ROOT / "results" / "coverage" / f"{name}.json").read_text())
    kinds = {
        "fitted": ("safeset, fitted", "#7c3aed", "D"),
        "soft-min": ("safeset, soft-min", "#1d4ed8", "o"),
        "r_1": ("safeset, membership (k = 1)", "#0d9488", "s"),
        "centred": ("centred", "#b45309", "^"),
        "lip-rcp, one constant": ("one constant (lip-rcp)", "#d97706", "v"),
        "unprotected (LAC)": ("unprotected", "#991b1b", "x"),
    }
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for method, (label, colour, mark) in kinds.items():
        rows = [row for row in result["rows"] if row["method"] == method and row["alpha"] == "0.1"]
        radii = [row["epsilon"] for row in rows]
        for axis, key in ((left, "coverage_attacked"), (right, "size")):
            axis.plot(radii, [row[key] for row in rows], color=colour, marker=mark, label=label, linewidth=1.6)
    left.axhline(0.9, color="#64748b", linewidth=1, linestyle="--")
    left.set(xlabel="ε, the attacker's radius (L2)", ylabel="coverage under attack", title="how often the truth is in")
    right.set(xlabel="ε", ylabel="classes in a set, on average", title="how large the sets are")
    left.legend(fontsize=8)
    target = ROOT / "docs" / "figures" / "coverage.png"
    figure.savefig(target, dpi=110)
    print(f"wrote {target.relative_to(ROOT)}")


def main() -> None:
    """Parse, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--name", help="of the JSON file; by default that of the run")
    parser.add_argument("--no-mapie", action="store_true")
    parser.add_argument("--attacked", type=int, default=ATTACKED, help="points that are attacked at most")
    parser.add_argument("--steps", type=int, default=STEPS, help="of projected gradient")
    parser.add_argument("--keep", type=Path, help="what MAPIE needs: an .npz file to write")
    parser.add_argument("--mapie-from", type=Path, metavar="FILE", help="add MAPIE's rows from what was kept")
    parser.add_argument("--draw", metavar="NAME")
    given = parser.parse_args()
    for path in given.runs:
        about = {"mapie": not given.no_mapie, "attacked": given.attacked, "steps": given.steps, "keep": given.keep}
        save(f"coverage/{given.name or path.name}.json", measure(path, as_device(given.device), **about))
    if given.mapie_from:
        add_mapie(given.name, given.mapie_from)
    if given.draw:
        draw(given.draw)


if __name__ == "__main__":
    main()
