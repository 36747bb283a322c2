"""The points of each step: their order in an epoch, how they are moved and mixed; all of it on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from safeset.data.augmentation import Augmentation, move_images
from safeset.data.dataset import Split
from safeset.data.warping import DRAWN, mix_images, warp_images
from safeset.errors import expected
from safeset.system.workers import Workers


@dataclass(frozen=True, eq=False)
class Points:
    """What a step sees: (batch, …), or (seeds, batch, …).

    Attributes:
        x: inputs, float32.
        y: labels.
        target: soft labels, (…, batch, classes), where images are mixed.
    """

    x: Tensor
    y: Tensor
    target: Tensor | None = None

    def soft(self, classes: int) -> Tensor:
        """Soft labels, (…, batch, classes): one-hot where nothing is mixed."""
        return functional.one_hot(self.y, classes).to(self.x.dtype) if self.target is None else self.target


class Batches:
    """Deals out the points of each epoch, one batch after another, for one network or for several seeds.

    Args:
        split: what to train on, on the device.
        augmentation: how images are moved and mixed.
        classes: of the labels.
        batch: points in a step, of all workers.
        seeds: one for each network: its order of points, and how they are moved.
        workers: who shares the batches.
        views: how often the split holds each point, one after another; an epoch takes one of them.
        target: soft labels of each point of the split, if they are known already.
    """

    def __init__(
        self,
        split: Split,
        augmentation: Augmentation,
        classes: int,
        *,
        batch: int,
        seeds: Sequence[int],
        workers: Workers,
        views: int = 1,
        target: Tensor | None = None,
    ) -> None:
        self.split, self.augmentation, self.classes, self.seeds = split, augmentation, classes, tuple(seeds)
        self.views, self.target, self.points = views, target, len(split) // views
        self.size = min(batch, self.points)
        if self.size < workers.count:
            raise expected(f"a batch of at least a point for each of {workers.count} workers", self.size)
        if augmentation.mixes and workers.count > 1:
            raise expected("one worker where images are mixed (`mixup`, `cutmix`)", f"{workers.count} workers")
        device, count = split.y.device, len(self.seeds)
        self._order = torch.zeros(count, self.points, dtype=torch.int64, device=device)
        self._moves = torch.zeros(count, self.points, 5, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(count, self.points if augmentation.draws else 0, DRAWN, device=device)
        self._within = torch.arange(self.size, device=device)[workers.share(self.size)]

    @property
    def steps(self) -> int:
        """Steps in an epoch: a last batch that is not full is left out."""
        return max(1, self.points // self.size)

    @property
    def own(self) -> int:
        """Points of a batch that this worker takes."""
        return len(self._within)

    def start(self, epoch: int) -> None:
        """Begin an epoch."""
        for place, seed in enumerate(self.seeds):
            order, moves, drawn = draw_order(self.augmentation, self.points, seed, epoch)
            if self.views > 1:
                order += self.points * draw_views(self.points, self.views, seed, epoch)
            self._order[place].copy_(order)
            self._moves[place].copy_(moves)
            self._drawn[place].copy_(drawn)

    def take(self, step: Tensor) -> Points:
        """The points of a step of this epoch, by its number on the device."""
        some = step * self.size + self._within
        places = self._order.index_select(1, some).flatten()
        y = self.split.y[places]
        moves = self._moves.index_select(1, some).flatten(0, 1)
        drawn = self._drawn.index_select(1, some).flatten(0, 1) if self.augmentation.draws else None
        x = moved_images(self.split, places, moves, drawn, self.augmentation)
        if self.target is not None:
            return Points(x, y, self.target[places].to(x.dtype))
        if drawn is not None and self.augmentation.mixes:
            each = [self._mix(*one) for one in zip(*(t.chunk(len(self.seeds)) for t in (x, y, drawn)), strict=True)]
            if len(each) == 1:
                return each[0]
            parts = [(one.x, one.y, one.target) for one in each]
            return Points(*(torch.stack(part) for part in zip(*parts, strict=True)))
        if len(self.seeds) == 1:
            return Points(x, y)
        return Points(x.view(len(self.seeds), -1, *x.shape[1:]), y.view(len(self.seeds), -1))

    def _mix(self, x: Tensor, y: Tensor, drawn: Tensor) -> Points:
        """Images with their neighbours, and soft labels; the label is that of which there is more."""
        mixed, own = mix_images(x, drawn)
        hot = functional.one_hot(y, self.classes).to(x.dtype)
        target = torch.lerp(hot.roll(1, 0), hot, own[:, None])
        return Points(mixed, torch.where(own >= 0.5, y, y.roll(1, 0)), target)


def moved_images(
    split: Split, places: Tensor, moves: Tensor, drawn: Tensor | None, augmentation: Augmentation
) -> Tensor:
    """Some of the images as inputs, moved as drawn: (batch, …), float32."""
    if drawn is not None and augmentation.warps:
        return warp_images(split[places].inputs, moves, drawn, augmentation.edges)
    if augmentation:
        return Split(move_images(split.x, places, moves), split.y[places]).inputs
    return split[places].inputs


def draw_order(augmentation: Augmentation, count: int, seed: int, epoch: int) -> tuple[Tensor, Tensor, Tensor]:
    """The order of ``count`` points in an epoch, how each place of it is moved, and what else is drawn for it.

    (count,), (count, 5) and (count, 8), the last empty where nothing else is drawn.

    Drawn on the CPU from seed and epoch alone, so that every device and every resumed run sees the same.
    """
    generator = torch.Generator().manual_seed(seed * 1_000_003 + epoch)
    order = torch.randperm(count, generator=generator)
    moves = augmentation.draw(count, generator)
    return order, moves, augmentation.draw_more(count, generator) if augmentation.draws else torch.zeros(0, DRAWN)


def draw_views(count: int, views: int, seed: int, epoch: int) -> Tensor:
    """Which view of each of ``count`` points an epoch takes: (count,), drawn on the CPU as `draw_order` does."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + epoch) * 31 + 7)
    return torch.randint(views, (count,), generator=generator)
