"""A network of deel-torchlip, trained by its own layers and loss, gets certified sets and coverage sets.

    pip install deel-torchlip
    python examples/torchlip_digits.py

Nothing of the network is rewritten. What it prints is in docs/other-libraries.md.
"""

import warnings
from textwrap import fill

import torch
from torch import nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it was written for earlier Pythons
    from deel import torchlip

from safeset import Affinity, CertifiedNet, Coverage, RelaxedTopK, Standard
from safeset.data.dataset import Split
from safeset.data.embedded import digits
from safeset.evaluation import evaluate
from safeset.guarantees.guarantee import Guarantee

EPSILON = 0.5
ALPHA, CALIBRATION_POINTS = 0.1, 300
LOOKALIKES = Affinity([["1", "4", "7"], ["3", "5", "8", "9"]])
GUARANTEES: dict[str, Guarantee] = {
    "standard": Standard(),
    "relaxed top-2": RelaxedTopK(2),
    "relaxed top-3": RelaxedTopK(3),
    "{1,4,7} {3,5,8,9}": LOOKALIKES,
}


def trained(epochs: int) -> nn.Module:
    """Their layers, their loss, a plain loop."""
    torch.manual_seed(0)
    network: nn.Module = torchlip.Sequential(
        nn.Flatten(),
        torchlip.SpectralLinear(64, 64),
        torchlip.GroupSort2(),
        torchlip.SpectralLinear(64, 64),
        torchlip.GroupSort2(),
        torchlip.SpectralLinear(64, 10),
    )
    train = digits().train
    loss = torchlip.TauCrossEntropyLoss(tau=8.0)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    for _ in range(epochs):
        order = torch.randperm(len(train))
        for start in range(0, len(train), 64):
            batch = order[start : start + 64]
            optimiser.zero_grad()
            loss(network(train.inputs[batch]), train.y[batch]).backward()
            optimiser.step()
    return network.eval()


def covered(net: CertifiedNet, points: Split) -> list[str]:
    """Sets that hold the true class with a probability, calibrated on half of the points, counted on the others."""
    order = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))
    held_out, new = points[order[:CALIBRATION_POINTS]], points[order[CALIBRATION_POINTS:]]
    coverage = Coverage.calibrate(net, held_out.exact, held_out.y, alpha=ALPHA)
    measured = coverage.net.measure(new.exact)
    promise = fill(f"{coverage.promise[0].upper()}{coverage.promise[1:]}.", 110)
    lines = ["", promise, f"On the {len(new)} test digits that were not used for calibration:\n"]
    lines += ["     ε  true class in the set  mean classes of a set"]
    for epsilon in (0.0, EPSILON / 2, EPSILON):
        sets = coverage.sets(measured, epsilon)
        share = sets.gather(1, new.y[:, None]).double().mean()
        lines.append(f"{epsilon:>6.2f}                  {share:.3f}  {sets.sum(1).double().mean():.2f}")
    return lines


def said(epochs: int = 30) -> str:
    """Train, certify, and say what came out."""
    network, data = trained(epochs), digits()
    nets = {
        name: CertifiedNet(
            network, input_shape=(1, 8, 8), guarantee=guarantee, epsilon=EPSILON, class_names=data.class_names
        )
        for name, guarantee in GUARANTEES.items()
    }
    bounds = nets["standard"].bounds()
    lines = ["Layer by layer, deel-torchlip says 1. Proved:"]
    lines += [f"  {layer.name:<10} {layer.type:<15} {layer.bound:.9f}" for layer in bounds.layers]
    lines += [f"\n{len(data.test)} test digits, ε = {EPSILON:g} (L2, pixels in [0, 1]), method joint:\n"]
    lines += ["guarantee           top-1    VRA  rejected  mean classes of an answer"]
    for name, net in nets.items():
        (row,) = evaluate(net, data.test, methods=["joint"])
        lines.append(
            f"{name:<18}  {row['top1']:.3f}  {row['vra']:.3f}     {row['rejection_rate']:.3f}  "
            f"{row['smallest_set_size']:.2f}"
        )
    return "\n".join(lines + covered(nets["standard"], data.test))


if __name__ == "__main__":
    print(said())
