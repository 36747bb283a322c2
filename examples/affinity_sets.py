"""Affinity sets for your labels: say which classes may be confused, or let safeset propose it from held-out points.

    python examples/affinity_sets.py

docs/affinity.md has every way to say it: lists, groups, neighbours on a scale, hierarchies, costs.
"""

import tempfile
from pathlib import Path

import safeset
from safeset.data.embedded import digits
from safeset.evaluation import evaluate
from safeset.guarantees.guarantee import Guarantee
from safeset.runs.affinity_suggestion import suggest_affinity
from safeset.runs.run import Run

EPSILON = 0.5
OF_OURS = safeset.Affinity([["1", "4", "7"], ["3", "5", "8", "9"]])


def main() -> None:
    """Train once, evaluate the same network by sets that people made and by sets that were found."""
    data = digits()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        recipe = {"data": {"source": "digits"}, "guarantee": "rt3", "epsilon": EPSILON, "epochs": 20, "hold_out": 0.2}
        trained = safeset.train(recipe, out=run, progress=False)
        found = suggest_affinity(Run(run), pairs=4)
    print("Found on held-out points:", "; ".join(" + ".join(each) for each in found.named_sets), "\n")
    guarantees: dict[str, Guarantee] = {
        "standard": safeset.Standard(),
        "made by hand": OF_OURS,
        "found": safeset.Affinity(found.named_sets),
        "relaxed top-3": safeset.RelaxedTopK(3),
    }
    print("guarantee        VRA   classes in an answer")
    for name, guarantee in guarantees.items():
        net = safeset.CertifiedNet(
            trained.network,
            input_shape=data.input_shape,
            guarantee=guarantee,
            epsilon=EPSILON,
            class_names=data.class_names,
        )
        (row,) = evaluate(net, data.test, methods=["joint"])
        print(f"{name:<14} {row['vra']:.3f}   {row['smallest_set_size']:.2f}")


if __name__ == "__main__":
    main()
