"""Sets that hold the true class with probability ≥ 90 %, also after an attack: from one calibration, for every ε.

    python examples/coverage_sets.py

docs/coverage.md says what is promised, and what is not.
"""

import torch

import safeset
from safeset.data.embedded import digits

ALPHA = 0.1


def main() -> None:
    """Train, calibrate on digits that training has not seen, count on others."""
    data = digits()
    net = safeset.train({"guarantee": "rt3", "epsilon": 0.5, "epochs": 12}, data=data, progress=False)

    order = torch.randperm(len(data.test), generator=torch.Generator().manual_seed(0))  # drawn at random: it must be
    calibration, new = order[: len(order) // 2], order[len(order) // 2 :]
    coverage = safeset.Coverage.calibrate(net, data.test.exact[calibration], data.test.y[calibration], alpha=ALPHA)
    print(coverage, "\n")

    x, y = data.test.exact[new], data.test.y[new]
    print("ε       true class in the set   classes in a set")
    for epsilon in (0.0, 0.1, 0.25, 0.5):
        sets = coverage.sets(x, epsilon=epsilon)
        print(f"{epsilon:<8g}{sets[range(len(y)), y].double().mean():>21.3f}{sets.sum(1).double().mean():>19.2f}")
    print(f"\nAt least {1 - ALPHA:.0%} on average over calibration sets, whatever an attacker adds within ε.")


if __name__ == "__main__":
    main()
