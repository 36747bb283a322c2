"""Data given in Python: arrays, torch's data sets and loaders, read once into tensors."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from safeset.errors import expected

Points = Any  # a tensor, an array or nested lists: checked where it is used
Source = TorchDataset[Any] | DataLoader[Any]
Given = Source | tuple[Source, Source] | tuple[Points, Points] | tuple[Points, Points, Points, Points]
FORMS = "`data` to be a Dataset, or inputs and labels (x, y), (x, y, x_test, y_test), or a data set or loader of torch"


def read_given(data: Given) -> tuple[list[tuple[Points, Points]], tuple[str, ...] | None]:
    """Read inputs and labels to train on, and those to test on if they are given; names of classes if there are any.

    Args:
        data: ``(x, y)``, ``(x, y, x_test, y_test)``, a `TensorDataset`, a map-style data set of pairs, a `DataLoader`
            of batches of pairs, or two of those: to train, and to test.
    """
    if _is_source(data):
        return [_read(data)], _names(data)
    if isinstance(data, tuple | list) and len(data) == 2 and all(map(_is_source, data)):
        return [_read(each) for each in data], _names(data[0])
    if isinstance(data, tuple | list) and len(data) in (2, 4) and not any(map(_is_source, data)):
        return [(data[place], data[place + 1]) for place in range(0, len(data), 2)], None
    raise expected(FORMS, f"{len(data)} things" if isinstance(data, tuple | list) else type(data).__name__)


def _is_source(data: object) -> bool:
    return isinstance(data, TorchDataset | DataLoader)


def _read(source: Any) -> tuple[Tensor, Tensor]:
    """All points and labels of a data set or loader, read once."""
    if isinstance(source, TensorDataset) and len(source.tensors) == 2:
        return source.tensors
    if isinstance(source, IterableDataset):
        raise expected("a data set whose points have numbers", type(source).__name__, "Give a DataLoader of it.")
    batches = _in_order(source) if isinstance(source, DataLoader) else ([x[None], y[None]] for x, y in _pairs(source))
    parts = [_batch(batch) for batch in batches]
    if not parts:
        raise expected("points in the data that is given", "none")
    x, y = zip(*parts, strict=True)
    if len({part.shape[1:] for part in x}) > 1 or len({part.dtype for part in x}) > 1:
        raise expected("points of one shape and type", "several", "Resize or convert them in the data set.")
    return torch.cat(x), torch.cat(y)


def _in_order(loader: DataLoader[Any]) -> Iterable[Any]:
    """The batches of a loader; shuffled points in their original order, so that a run can be continued."""
    everything = type(loader.sampler) is SequentialSampler or (
        type(loader.sampler) is RandomSampler
        and not loader.sampler.replacement
        and len(loader.sampler) == _count(loader)
    )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_size is None or not everything:
        return loader
    return DataLoader(
        loader.dataset, batch_size=loader.batch_size, collate_fn=loader.collate_fn, num_workers=loader.num_workers
    )


def _count(loader: DataLoader[Any]) -> int:
    return len(loader.dataset)  # type: ignore[arg-type]


def _pairs(source: Any) -> Iterable[tuple[Tensor, Tensor]]:
    for place in range(len(source)):
        pair = source[place]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise expected("a data set of pairs: an input and its label", type(pair).__name__)
        yield _point(pair[0]), torch.as_tensor(pair[1])


def _point(x: Any) -> Tensor:
    """One input; an image of Pillow as bytes (channels, height, width)."""
    if hasattr(x, "convert"):
        pixels = np.asarray(x if x.mode in ("L", "RGB") else x.convert("RGB"))
        return torch.tensor(pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1))
    return torch.as_tensor(x)


def _batch(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise expected("batches of two: inputs and labels", type(batch).__name__)
    x, y = (torch.as_tensor(part) for part in batch)
    return x, y


def _names(source: Any) -> tuple[str, ...] | None:
    """Names of the classes where the data set has a list of them, as those of torchvision do."""
    names = getattr(getattr(source, "dataset", source), "classes", None)
    texts = isinstance(names, Sequence) and not isinstance(names, str) and all(isinstance(each, str) for each in names)
    return tuple(names) if names and texts else None
