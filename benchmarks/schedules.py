"""Draws each schedule of the paper's table, over 200 epochs, into docs/schedules.png.

python benchmarks/schedules.py
"""

import matplotlib

from common import ROOT
from safeset.recipes.schedules import Schedule

SHOWN = {
    "learning rate": ["1e-3 -> 1e-6 after half", "2.5e-5 -> 5e-6 after half", "1e-3 -> 5e-6 after half"],
    "λ of TRADES": ["0.01 -> 1.2 log half", "1.0 -> 1.2"],
    "λ of TRADES, Tiny-ImageNet": ["1.0 -> 10.0 half"],
}
EPOCHS = 200


def main() -> None:
    """One panel for each quantity."""
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(SHOWN), figsize=(12, 3.4), layout="constrained")
    for axis, (title, texts) in zip(axes, SHOWN.items(), strict=True):
        for text in texts:
            schedule = Schedule.parse(text)
            axis.plot(range(1, EPOCHS + 1), [schedule(epoch, EPOCHS) for epoch in range(EPOCHS)], label=text)
        axis.set_title(title, fontsize=11)
        axis.set_xlabel("epoch")
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(frameon=False, fontsize=9)
    axes[0].set_yscale("log")
    figure.savefig(ROOT / "docs" / "schedules.png", dpi=100)


if __name__ == "__main__":
    main()
