"""What a recipe leaves open, chosen by the data: network, ε, batch, epochs, and how many points are held out."""

import torch

from safeset.data.dataset import PIXELS, Dataset
from safeset.errors import expected
from safeset.guarantees.guarantee import Guarantee, RelaxedTopK, Standard

IMAGE_EPSILON, TABLE_EPSILON = 36 / 255, 0.05
HELD_OUT = 0.1  # of the training data
LEAST_OF_A_CLASS, LEAST_HELD_OUT = 20, 20  # points: estimates from fewer say too little to choose an epoch by
STEPS = 3000  # for which small data is seen more often than 100 times
SMALL_STEPS, FEWEST_EPOCHS, MOST_EPOCHS = 1000, 40, 1000
SMALL = 5000  # images; more of them keep a large network busy


def is_image(data: Dataset) -> bool:
    """Whether the points are images."""
    return len(data.input_shape) == 3


def suited_guarantee(classes: int) -> Guarantee:
    """Relaxed top-3, or less where there are fewer classes."""
    return RelaxedTopK(min(3, classes - 1)) if classes > 2 else Standard()


def suited_epsilon(data: Dataset) -> float:
    """The paper's radius for images, as a part of the range of their numbers; a twentieth of a column's for tables."""
    low, high = (0.0, 1.0) if data.units == PIXELS else data.train.range
    return IMAGE_EPSILON * (high - low) if is_image(data) else TABLE_EPSILON


def suited_batch(points: int) -> int:
    """Points in a step."""
    return 256 if points >= 5000 else 64 if points >= 1000 else 32


def suited_epochs(data: Dataset, batch: int, *, own: bool) -> int:
    """How often each point is seen: small data more often, but few images not for hours.

    Args:
        data: what is trained on.
        batch: points in a step.
        own: whether it is a user's own data.
    """
    steps = max(1, len(data.train) // batch)
    if own and is_image(data):
        return max(FEWEST_EPOCHS, min(SMALL_STEPS // steps, MOST_EPOCHS))
    return max(100, min(STEPS // steps, MOST_EPOCHS))


def suited_model(data: Dataset, *, own: bool) -> str:
    """A network that suits the shape of the points, and their number where they are a user's own."""
    shape = data.input_shape
    few = own and len(data.train) < SMALL
    if is_image(data) and few and min(shape[1:]) >= 32 and not any(side % 8 for side in shape[1:]):
        return "cnn-2c1f"
    if is_image(data) and min(shape[1:]) >= 16 and not any(side % 4 for side in shape[1:]):
        return "cnn-2c2f"
    if is_image(data) and min(shape[1:]) >= 4 and not any(side % 2 for side in shape[1:]):
        return "cnn-1c1f"
    return "mlp-2x256"


def suited_hold_out(data: Dataset) -> float:
    """The share of the training data that is held out to choose the best epoch: 0 where a class has too few points."""
    counts = torch.bincount(data.train.y, minlength=data.classes)
    enough = int(counts.min()) >= LEAST_OF_A_CLASS and HELD_OUT * len(data.train) >= LEAST_HELD_OUT
    return HELD_OUT if enough else 0.0


def check_hold_out(share: float, data: Dataset) -> None:
    """Complain about a share that leaves no points to hold out, or none to train on."""
    counts = torch.bincount(data.train.y, minlength=data.classes)
    held = sum(round(share * count) for count in counts.tolist())  # as `stratify` counts them
    if not 0 < held < len(data.train):
        got = f"{held} with a share of {share:g}"
        raise expected(
            f"some of {len(data.train)} training points to hold out", got, "Give --hold-out 0, or more data."
        )
