"""Affinity sets on points that chose nothing: pairs that safeset proposes, sets made by hand, and WordNet's.

    python benchmarks/affinity_gains.py eurosat/rt3 [--pairs 8]
    python benchmarks/affinity_gains.py RUN --hierarchy tiny-imagenet-200.is_a.tsv [--heights 2,5,10,20,50]

Writes results/affinity/NAME.json, by default named after the data. Pairs are chosen by `joint` on the points that the
run held out; where it held out none, on a third of its test points, drawn at random, which is then in no number. All
guarantees are certified from one forward pass.
"""

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

from common import ROOT, machine, save
from safeset import Affinity
from safeset.data.dataset import Dataset, Split
from safeset.errors import expected
from safeset.evaluation import POINTS_AT_ONCE, Metrics
from safeset.guarantees.affinity import complete, read_edges
from safeset.guarantees.guarantee import Guarantee, RelaxedTopK, Standard
from safeset.guarantees.merging import choose_pairs, pairs_of, sets_of
from safeset.inputs import as_device
from safeset.nets.net import CertifiedNet
from safeset.recipes.library import assemble_recipe
from safeset.recipes.recipe import FittedRecipe
from safeset.runs.affinity_suggestion import certify_relaxed, needed_groups
from safeset.runs.data import load_run_data, load_whole
from safeset.runs.library import find_run, title_of
from safeset.runs.load import load_run
from safeset.runs.run import Run
from safeset.runs.suggestion import held_out_points
from safeset.system.files import plain
from safeset.system.provenance import provenance, weights_digest
from safeset.system.untrusted import read_json_table

METHODS = ("uniform", "joint")
SEED = 0
THIRD = "a third of the test points, drawn at random, which is in no number"
BY_HAND = {"eurosat": ("highway-river", "highway-river-agriculture")}  # recipes of the paper's sets


class Points:
    """Points that a net has seen once, in the batches of `evaluate`, so that any guarantee gets the same numbers."""

    def __init__(self, net: CertifiedNet, split: Split) -> None:
        self.net, self.labels = net, split.y
        self.batches = []
        for places in torch.split(torch.arange(len(split)), POINTS_AT_ONCE):
            part = split[places].to(net.device)
            self.batches.append((net.measure(part.exact), part.y))

    def row(self, name: str, guarantee: Guarantee, **about: Any) -> dict[str, Any]:
        """A guarantee, and the metrics of `safeset evaluate` by each method."""
        started, classes = time.perf_counter(), self.net.classes
        counts = torch.bincount(self.labels.cpu(), minlength=classes).tolist()
        best = guarantee.baseline(counts) / len(self.labels)  # of answers that never change
        found: dict[str, Any] = {"name": name, **about, "baseline": best}
        for method in METHODS:
            metrics = Metrics()
            for measured, labels in self.batches:
                metrics.update(measured.certificate(guarantee=guarantee, method=method), labels)
            found[method] = metrics.compute()
        found["seconds"] = round(time.perf_counter() - started, 1)
        print(f"{name}: VRA", *(f"{method} {found[method]['vra']:.4f}" for method in METHODS), flush=True)
        return found

    def ends(self, k: int) -> list[dict[str, Any]]:
        """The rows of standard and of relaxed top-K, whose gain over it is what sets are to recover."""
        return [self.row("standard", Standard()), self.row(f"rt{k}", RelaxedTopK(k))]


def about_sets(sets: Affinity, classes: int) -> dict[str, Any]:
    """How much affinity sets allow: how many there are, the largest, and the pairs of classes that share one."""
    every = complete(sets.sets, sets.everyone_with, classes)
    return {
        "sets": sum(len(one) > 1 for one in every),
        "largest": max(map(len, every)),
        "alone": classes - len({each for one in every if len(one) > 1 for each in one}),
        "pairs": len({pair for one in every for pair in pairs_of(one)}),
    }


def split_points(recipe: FittedRecipe, whole: Dataset) -> tuple[Split, str, Split, str]:
    """Points that choose, and points on which numbers are reported, with what they are in words."""
    if recipe.validation or recipe.hold_out:
        held = held_out_points(recipe, load_run_data(recipe), other=False)
        assert held is not None
        return *held, whole.test, "test"
    order = torch.randperm(len(whole.test), generator=torch.Generator().manual_seed(SEED))
    chosen, rest = (each.sort().values for each in order.tensor_split([len(order) // 3]))
    return whole.test[chosen], THIRD, whole.test[rest], "the other test points"


def pairs_found(net: CertifiedNet, recipe: FittedRecipe, whole: Dataset, k: int, most: int) -> dict[str, Any]:
    """What 1, …, `most` proposed pairs certify, and as many as the sets made by hand allow, beside these."""
    choice, chosen_on, report, reported_on = split_points(recipe, whole)
    groups = needed_groups(certify_relaxed(net, choice, k, method="joint"), choice.y)
    points, names = Points(net, report), whole.class_names
    rows = points.ends(k)
    for name in BY_HAND.get(whole.name, ()):
        sets = assemble_recipe(f"{whole.name}/{name}", {}).resolve_guarantee(whole)
        assert isinstance(sets, Affinity)
        rows.append(points.row(name, sets, by_hand=True, **about_sets(sets, net.classes)))
    last = 0
    for count in sorted({*range(1, most + 1), *(row["pairs"] for row in rows[2:])}):
        pairs = [pair for step in choose_pairs(groups, most=count, largest=k) for pair in step.pairs]
        if len(pairs) == last:  # nothing more is gained, or what is lacking needs several pairs at once
            continue
        last, sets = len(pairs), Affinity(sets_of(frozenset(pairs)))
        rows.append(points.row(f"{len(pairs)} proposed", sets, by_hand=False, **about_sets(sets, net.classes)))
        rows[-1]["together"] = [[names[each] for each in pair] for pair in pairs]
    chosen = {"points": len(choice), "which": chosen_on, "method": "joint", "digest": choice.digest()}
    return {
        "k": k,
        "most_pairs": most,
        "chosen_on": chosen,
        "reported_on": {"points": len(report), "which": reported_on, "digest": report.digest()},
        "rows": recovered(rows),
    }


def hierarchy(net: CertifiedNet, whole: Dataset, k: int, file: Path, heights: list[int]) -> dict[str, Any]:
    """What sets below nodes of at most so many classes certify, and what the same sizes do with classes at random."""
    edges, points = read_edges(file), Points(net, whole.test)
    order, rows = torch.randperm(net.classes, generator=torch.Generator().manual_seed(SEED)).tolist(), points.ends(k)
    for height in heights:
        sets = Affinity.from_hierarchy(edges, max_leaves=height).bind(whole.identifiers or whole.class_names)
        drawn = Affinity([[order[int(each)] for each in one] for one in sets.sets])
        about = {"max_leaves": height, **about_sets(sets, net.classes)}
        rows.append(points.row(f"at most {height}", sets, by_hand=True, **about))
        rows.append(points.row(f"at most {height}, drawn at random", drawn, by_hand=False, **about))
    return {
        "k": k,
        "hierarchy": file.name,
        "reported_on": {"points": len(whole.test), "which": "test", "digest": whole.test.digest()},
        "rows": recovered(rows),
    }


def recovered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with the share of the gain in VRA from the first, standard, to the second, relaxed top-K, by method.

    None where nothing is gained. It exceeds 1 where sets larger than K let more be certified than relaxed top-K.
    """
    for row in rows:
        gains = {way: [each[way]["vra"] - rows[0][way]["vra"] for each in (row, rows[1])] for way in METHODS}
        row["recovered"] = {way: gain / whole if whole else None for way, (gain, whole) in gains.items()}
    return rows


def measure(path: Path, given: argparse.Namespace) -> dict[str, Any]:
    """All of a run, with where it comes from."""
    started, run = time.perf_counter(), Run(path)
    recipe, (net, unfinished) = run.read_recipe(), load_run(run)
    net, whole = net.to(as_device(given.device)), load_whole(recipe)
    own = net.guarantee.k if isinstance(net.guarantee, RelaxedTopK) else 5 if given.hierarchy else 3
    if given.hierarchy:
        found = hierarchy(net, whole, given.k or own, given.hierarchy, given.heights)
    else:
        found = pairs_found(net, recipe, whole, given.k or own, given.pairs)
    return {
        "run": title_of(path),
        "data": whole.name,
        "trained_for": str(net.guarantee),
        "epsilon": net.epsilon,
        "units": whole.units,
        **({"unfinished": unfinished} if unfinished else {}),
        **plain(found),
        "seed": SEED,
        "dtype": "float64",
        "bound_method": sorted({layer.method for layer in net.bounds().layers}),
        "weights": weights_digest(net.network.state_dict()),
        "recipe": recipe.json_table(),
        "seconds": round(time.perf_counter() - started, 1),
        "machine": machine(),
        **provenance(net.device),
    }


def file_of(given: argparse.Namespace, command: str) -> str:
    """The file of the result under results/; without a name, numbers by another command are not replaced.

    Raises:
        ArgumentError: saying which option gives it another name.
    """
    path = f"affinity/{given.name or Path(Run(find_run(given.run)).read_recipe().data.source).name}.json"
    made_by = read_json_table(ROOT / "results" / path).get("command", command)
    if given.name is None and made_by != command:
        raise expected("a --name for these numbers", "none", f"results/{path} has those of: {made_by}")
    return path


def main() -> None:
    """Parse, measure, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="a run, or a model that comes with safeset")
    parser.add_argument("--device")
    parser.add_argument("--name", help="of the JSON file; by default that of the data, if no other command made it")
    parser.add_argument("--k", type=int, help="of relaxed top-K; by default the run's own, or 3, and 5 for WordNet")
    parser.add_argument("--pairs", type=int, default=8, help="to propose at the most")
    parser.add_argument("--hierarchy", type=Path, help="parent, tab, child in each line")
    parser.add_argument("--heights", type=lambda text: [int(each) for each in text.split(",")], default="2,5,10,20,50")
    given = parser.parse_args()
    command = f"python {shlex.join(sys.argv)}"
    path = file_of(given, command)  # before anything is measured
    save(path, {"command": command, **measure(find_run(given.run), given)})


if __name__ == "__main__":
    main()
