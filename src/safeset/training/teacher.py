"""Teachers: plain networks that are trained first, and tell the certified one which classes look alike.

They see training points only, and are information for the loss alone: no proof knows of them. One that is trained and
asked with noise answers as a smoothed classifier does, which is what a robust network can know.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from safeset.data.augmentation import Augmentation
from safeset.data.dataset import Split
from safeset.errors import SafesetError, expected
from safeset.losses import soft_cross_entropy
from safeset.numerics.threads import FEW_PRODUCTS, one_thread
from safeset.recipes.sections import Teacher
from safeset.system.files import read_tensors, write_tensors
from safeset.system.workers import Workers
from safeset.training.batches import Batches
from safeset.training.capture import capture_step, entry

BATCH, CUTMIX, SMOOTHING = 256, 0.5, 0.1
PEAK, RISING, DECAY, MOMENTUM = 0.2, 0.2, 5e-4, 0.9  # of the rate: its peak, and the share of the steps before it
SHARPNESS = 0.125  # of logits
LEAST_SIDE = 8  # of images: three times they become half as large
SEED = 7919  # apart from the student's


class ResNet9(nn.Module):
    """Nine layers: not robust, but trained in seconds."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int) -> None:
        super().__init__()
        if len(shape) != 3 or min(shape[1:]) < LEAST_SIDE:
            raise expected(f"images of at least {LEAST_SIDE} × {LEAST_SIDE} pixels for a teacher", shape)
        self.stem = _block(shape[0], width, max(1, min(shape[1:]) // 32))
        self.first = nn.Sequential(_block(width, 2 * width), nn.MaxPool2d(2))
        self.beside = nn.Sequential(_block(2 * width, 2 * width), _block(2 * width, 2 * width))
        self.second = nn.Sequential(_block(2 * width, 4 * width), nn.MaxPool2d(2))
        self.third = nn.Sequential(_block(4 * width, 8 * width), nn.MaxPool2d(2))
        self.behind = nn.Sequential(_block(8 * width, 8 * width), _block(8 * width, 8 * width))
        self.head = nn.Linear(8 * width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Images in [0, 1] → logits."""
        z = self.first(self.stem(x - 0.5))
        z = self.third(self.second(z + self.beside(z)))
        z = z + self.behind(z)
        found: Tensor = self.head(z.amax((2, 3)))
        return found * SHARPNESS


class Teachers:
    """Teachers that are asked: the mean of their probabilities, each asked with noise of its own."""

    def __init__(self, networks: Sequence[ResNet9], settings: Teacher) -> None:
        self.settings, self._answer = settings, [_folded(each) for each in networks]

    @torch.no_grad()
    def soften(self, x: Tensor, target: Tensor) -> Tensor:
        """Soft labels: the teachers' answers about images (batch, …), and the rest of the weight on the labels."""
        total = torch.zeros_like(target)
        for answer in self._answer:
            noisy = x + self.settings.noise * torch.randn_like(x) if self.settings.noise else x
            noisy = noisy.to(answer.head.weight.dtype).contiguous(memory_format=torch.channels_last)
            total += torch.softmax(answer(noisy).to(target.dtype) / self.settings.temperature, dim=1)
        return torch.lerp(target, total / len(self._answer), self.settings.weight)


class _Training:
    """One teacher in training: SGD with Nesterov's momentum, one cycle of rates, cutmix, noise, smoothed labels."""

    def __init__(self, split: Split, augmentation: Augmentation, classes: int, settings: Teacher, seed: int) -> None:
        self.settings, self.seed, self.device = settings, SEED + seed, split.y.device
        milder = replace(augmentation, rotation=0.0, scale=0.0, brightness=0.0, contrast=0.0, mixup=0.0, cutmix=CUTMIX)
        self.batches = Batches(split, milder, classes, batch=BATCH, seeds=[self.seed], workers=Workers())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            network = ResNet9(tuple(split.x.shape[1:]), classes, settings.width)
        self.network = network.to(self.device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._weights = list(self.network.parameters())
        self._momenta = [torch.zeros_like(each) for each in self._weights]
        self._place = torch.zeros((), dtype=torch.int64, device=self.device)
        self._rates = torch.zeros(self.batches.steps, device=self.device)
        work = min(BATCH, len(split)) * 64 * settings.width**2 * split.x[0].numel()
        self._small = self.device.type == "cpu" and work <= 32 * FEW_PRODUCTS  # which counts a whole pass
        self._take: Callable[[], None] | None = None

    def tensors(self) -> dict[str, Tensor]:
        """All that changes, by name."""
        momenta = {f"momentum/{place}": each for place, each in enumerate(self._momenta)}
        return {**{f"network/{name}": each for name, each in self.network.state_dict().items()}, **momenta}

    def take_epoch(self, epoch: int, tick: Callable[[], None]) -> None:
        """All steps of an epoch; what is drawn depends on its number alone."""
        steps, total = self.batches.steps, self.batches.steps * self.settings.epochs
        self.network.train()
        self.batches.start(epoch)
        done = torch.arange(epoch * steps, (epoch + 1) * steps) / total
        self._rates.copy_(PEAK * torch.minimum(done / RISING, (1 - done) / (1 - RISING)).clamp(min=1e-4))
        self._place.zero_()
        if self._take is None:
            changed = [*self.tensors().values(), self._place]
            self._take = capture_step(self._step, changed) if self.device.type == "cuda" else self._step
        with torch.random.fork_rng(), one_thread(self._small):
            torch.manual_seed(self.seed * 1_000_003 + epoch)  # of the noise
            for _ in range(steps):
                self._take()
                tick()

    def _step(self) -> None:
        points, rate = self.batches.take(self._place), entry(self._rates, self._place)
        assert points.target is not None  # cutmix makes labels soft
        x = points.x + self.settings.noise * torch.randn_like(points.x) if self.settings.noise else points.x
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            logits = self.network(x.contiguous(memory_format=torch.channels_last))
        target = (1 - SMOOTHING) * points.target + SMOOTHING / logits.shape[1]
        gradients = torch.autograd.grad(soft_cross_entropy(logits.float(), target), self._weights)
        with torch.no_grad():
            for weight, gradient, momentum in zip(self._weights, gradients, self._momenta, strict=True):
                gradient = gradient + DECAY * weight
                momentum.mul_(MOMENTUM).add_(gradient)
                weight.sub_(rate * (gradient + MOMENTUM * momentum))
            self._place.add_(1)


def train_teachers(
    split: Split,
    augmentation: Augmentation,
    classes: int,
    settings: Teacher,
    *,
    seed: int,
    path: Path | None,
    label: str,
    tick: Callable[[], None] = lambda: None,
    due: Callable[[], bool] = lambda: True,
) -> list[ResNet9]:
    """Train the teachers of a recipe, or go on where their file stands; an epoch that was not ended is begun again.

    Args:
        split: the points that the student is trained on, on the device.
        augmentation: the student's; the teachers' is milder, with cutmix.
        classes: of the labels.
        settings: of the teachers.
        seed: of the student.
        path: their file, written after an epoch when it is ``due``, and at the end; None: none.
        label: what the file must have been trained on.
        tick: called after each step; it may raise an error, and nothing is lost that was written.
        due: whether to write the file now.
    """
    found = []
    for number in range(settings.count):
        training = _Training(split, augmentation, classes, settings, seed + 31 * number)
        file = None if path is None else path.with_stem(f"{path.stem}-{number}")
        first = _restore(training.tensors(), file, label)
        for epoch in range(first, settings.epochs):
            training.take_epoch(epoch, tick)
            if file is not None and (due() or epoch + 1 == settings.epochs):
                write_tensors(file, training.tensors(), {"trained on": label, "epochs": str(epoch + 1)})
        Workers.here().align(list(training.tensors().values()))
        found.append(training.network)
    return found


@torch.no_grad()
def _restore(tensors: dict[str, Tensor], file: Path | None, label: str) -> int:
    """Take over what a file holds; the number of epochs that are done."""
    stored = Workers.here().decide(lambda: read_tensors(file) if file is not None and file.exists() else None)
    if stored is None:
        return 0
    given, about = stored
    fits = given.keys() == tensors.keys() and all(given[name].shape == each.shape for name, each in tensors.items())
    if about.get("trained on") != label or not fits or not about.get("epochs", "").isdecimal():
        raise SafesetError(f"Expected a teacher of this training at {file}, but got something else. Remove it.")
    for name, each in tensors.items():
        each.copy_(given[name])
    return int(about["epochs"])


def _block(into: int, out: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out), nn.ReLU())


def _folded(network: ResNet9) -> ResNet9:
    """A copy for answers only: batch norm inside the convolutions; on a GPU in bfloat16."""
    found = copy.deepcopy(network).eval().requires_grad_(False)
    for part in list(found.modules()):
        if isinstance(part, nn.Sequential) and isinstance(part[1], nn.BatchNorm2d):
            convolution: nn.Conv2d = part[0]  # type: ignore[assignment]
            part[0], part[1] = fuse_conv_bn_eval(convolution, part[1]), nn.Identity()
    found.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return found.bfloat16() if found.head.weight.is_cuda else found
