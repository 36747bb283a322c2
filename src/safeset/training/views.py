"""Views of images, made once, with the teachers' answers about them: then no step has to ask.

A teacher that is asked in each step costs a part of it. Here each image is moved in several ways once; an epoch takes
one view of each, flipped and turned anew, with the labels that the teachers gave it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Split
from safeset.errors import SafesetError
from safeset.training.batches import draw_order, moved_images
from safeset.training.teacher import Teachers

AT_ONCE = 1024  # images
SEED = 104_729  # apart from those of epochs and of teachers


@dataclass(frozen=True, eq=False)
class Views:
    """Images moved in several ways, and what teachers say of each.

    Attributes:
        split: (views · n) images: the n images in their order, once for each view.
        target: (views · n, classes) soft labels, float16.
        count: of views.
    """

    split: Split
    target: Tensor
    count: int


def again(augmentation: Augmentation) -> Augmentation:
    """What is still drawn anew for a view: flips and turns, which leave a picture what it is."""
    return Augmentation(flips=augmentation.flips, turns=augmentation.turns)


@torch.no_grad()
def make_views(
    split: Split,
    augmentation: Augmentation,
    classes: int,
    teachers: Teachers,
    *,
    seed: int,
    tick: Callable[[], None] = lambda: None,
) -> Views:
    """Move every image in as many ways as the teachers' settings say, and ask the teachers about each.

    Args:
        split: the points of the training, on the device.
        augmentation: of the training; no image can be mixed with another.
        classes: of the labels.
        teachers: who are asked.
        seed: of the training.
        tick: called after some images; it may raise an error.
    """
    count, n = teachers.settings.views, len(split)
    try:
        x = torch.empty(count * n, *split.x.shape[1:], dtype=split.x.dtype, device=split.x.device)
        target = torch.empty(count * n, classes, dtype=torch.float16, device=split.x.device)
    except RuntimeError:  # out of memory
        needed = count * n * (split.x[0].nbytes + 2 * classes) / 1e9
        raise SafesetError(
            f"Expected {needed:.1f} GB for {count} views of each image, but there is less on {split.x.device}. Take "
            "fewer (--set teacher.views=8), or none: then teachers are asked in each step."
        ) from None
    hot = functional.one_hot(split.y, classes).float()
    with torch.random.fork_rng(devices=[split.x.device] if split.x.is_cuda else []):
        for view in range(count):
            torch.manual_seed((seed + SEED) * 1_000_003 + view)  # of the teachers' noise
            _, moves, drawn = (each.to(split.x.device) for each in draw_order(augmentation, n, seed + SEED, view))
            for places in torch.split(torch.arange(n, device=split.x.device), AT_ONCE):
                some = drawn[places] if augmentation.draws else None
                moved = moved_images(split, places, moves[places], some, augmentation)
                stored = moved.mul(255).round().to(torch.uint8) if split.x.dtype == torch.uint8 else moved
                x[view * n + places] = stored.to(x.dtype)
                target[view * n + places] = teachers.soften(Split(stored, split.y[places]).inputs, hot[places]).half()
                tick()
    return Views(Split(x, split.y.repeat(count)), target, count)
