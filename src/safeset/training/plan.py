"""What is about to be trained, in words; and whether something came of it."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.data.dataset import Dataset, Split
from safeset.errors import Advice, counted
from safeset.nets.net import CertifiedNet
from safeset.recipes.recipe import FittedRecipe

POINTS_AT_ONCE = 256
FEWEST = 20  # points: fewer cannot show whether something was learnt
DEVIATIONS = 1.645  # above the mean: of guesses one in twenty is better


def describe_training(recipe: FittedRecipe, points: Dataset, held: int, nets: Sequence[CertifiedNet]) -> str:
    """The line before the first step: points, classes, network, epochs, guarantee, ε with its units, device.

    Args:
        recipe: what is trained.
        points: the data.
        held: training points that are held out.
        nets: one for each seed, on the device to train on.
    """
    apart = [f"{held:,} held out"] if held else []
    apart += [f"{len(points.set_apart):,} for calibration"] if points.set_apart else []
    also = f" and {' and '.join(apart)}" if apart else ""
    parameters = sum(parameter.numel() for parameter in nets[0].parameters())
    parts = [
        f"Training on {counted(len(points.train) - held, 'point')}{also}, {points.classes} classes",
        f"{recipe.network or recipe.model} with {parameters:,} parameters" + f" × {len(nets)} seeds" * (len(nets) > 1),
        counted(recipe.epochs, "epoch"),
        f"{shorten(recipe.guarantee, 30)}, ε = {shown_epsilon(recipe.epsilon)} ({points.units})",
        f"on {_device_name(nets[0].device)}",
    ]
    return ", ".join(parts)


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@torch.no_grad()
def count_right(net: CertifiedNet, split: Split) -> int:
    """How many points a net classifies rightly."""
    device, right = net.device, 0
    for places in torch.split(torch.arange(len(split)), POINTS_AT_ONCE):
        part = split[places.to(split.y.device)].to(device)
        right += int((net(part.inputs).argmax(dim=1) == part.y).sum())
    return right


def at_chance(right: int, labels: Tensor) -> str | None:
    """What to say of a net that does no better than naming the most frequent class always; None if it does.

    Args:
        right: points that it classifies rightly.
        labels: (n,) of all of them.
    """
    count = len(labels)
    if count < FEWEST:
        return None
    share = int(torch.bincount(labels.cpu()).max()) / count
    if right > share * count + DEVIATIONS * math.sqrt(count * share * (1 - share)):
        return None
    start = (
        f"This training has ended about at chance: {right / count:.3f} of {count:,} points are classified rightly, "
        f"{share:.3f} by always naming the most frequent class. The learning rate may be too high, ε too large for "
        "this data, or the training too short; or the labels do not fit the points. Try "
    )
    return Advice(
        f'{start}a lower rate ("optimiser": {{"rate": 1e-4}} in the recipe), a smaller epsilon, more epochs.',
        typed=f"{start}--set optimiser.rate=1e-4, a smaller --epsilon, more --epochs.",
    )
