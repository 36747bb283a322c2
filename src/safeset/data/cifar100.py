"""CIFAR-100 in its official binary layout: 60,000 images of 32 × 32 pixels, 100 classes in 20 superclasses."""

from pathlib import Path

import numpy as np
import torch

from safeset.data.dataset import PIXELS, Dataset, Split
from safeset.data.source import Archive, Source
from safeset.errors import expected

RECORD = 2 + 3 * 32 * 32  # coarse label, fine label, pixels channel by channel


def cifar100() -> Dataset:
    """The official training and test split, with superclasses as groups."""
    folder = CIFAR100.folder()
    fine, coarse = ((folder / f"{kind}_label_names.txt").read_text().split() for kind in ("fine", "coarse"))
    (train, above), (test, _) = (_read(folder / name) for name in ("train.bin", "test.bin"))
    superclass = {int(label): int(group) for label, group in zip(train.y, above, strict=True)}
    groups = tuple(coarse[superclass[label]] for label in range(len(fine)))
    return Dataset("cifar100", train, test, tuple(fine), PIXELS, groups)


def _read(path: Path) -> tuple[Split, torch.Tensor]:
    """Images with fine labels, and their coarse labels."""
    data = np.fromfile(path, dtype=np.uint8)
    if not data.size or data.size % RECORD:
        raise expected(f"{path} to hold records of {RECORD} bytes", f"{data.size} bytes", "Is the file complete?")
    records = torch.from_numpy(data.reshape(-1, RECORD))
    return Split(records[:, 2:].reshape(-1, 3, 32, 32).clone(), records[:, 1].long()), records[:, 0].long()


CIFAR100 = Source(
    "cifar100",
    "small photographs, 32 × 32 pixels, 100 classes in 20 superclasses",
    cifar100,
    folders=("cifar-100-binary",),
    archive=Archive(
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
        md5="03b5dce01913d631647c71ecec9e9cb8",
        size=168_513_733,
        folder="cifar-100-binary",
        citation="Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009",
    ),
)
