"""Data as programs have it: arrays, torch's data sets and loaders."""

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, IterableDataset, SubsetRandomSampler, TensorDataset
from torch.utils.data import Dataset as TorchDataset

from safeset import ArgumentError, train
from safeset.data.from_python import as_dataset, read_given

X = torch.rand(60, 3, generator=torch.Generator().manual_seed(0))
Y = torch.arange(60) % 3


class Photos(TorchDataset):
    """Images of Pillow with labels, and names of classes, as torchvision has them."""

    classes = ("cat", "dog", "owl")

    def __init__(self, mode="RGB"):
        self.mode = mode

    def __len__(self):
        return 12

    def __getitem__(self, place):
        return Image.new(self.mode, (4, 6), place), place % 3


class Stream(IterableDataset):
    def __iter__(self):
        yield from zip(X, Y, strict=True)


class Odd(TorchDataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, place):
        return self.items[place]


@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        [X.numpy(), Y.numpy()],
        (X.tolist(), Y.tolist()),
        TensorDataset(X, Y),
        Odd([(x.numpy(), int(y)) for x, y in zip(X, Y, strict=True)]),
        DataLoader(TensorDataset(X, Y), batch_size=7),
        DataLoader(TensorDataset(X, Y), batch_size=7, shuffle=True, drop_last=True),  # in order, so that runs go on
        DataLoader(Stream(), batch_size=7),
    ],
    ids=lambda data: type(data).__name__,
)
def test_every_form_gives_the_same_points(data):
    found, wanted = as_dataset(data), as_dataset((X, Y))
    for ours, theirs in ((found.train, wanted.train), (found.test, wanted.test)):
        assert torch.equal(ours.exact, theirs.exact)  # Python's own floats are float64
        assert torch.equal(ours.y, theirs.y)
    assert found.class_names == ("0", "1", "2")


@pytest.mark.parametrize(
    "data",
    [
        (X[:40], Y[:40], X[40:].numpy(), Y[40:].numpy()),
        (TensorDataset(X[:40], Y[:40]), DataLoader(TensorDataset(X[40:], Y[40:]), batch_size=6)),
    ],
    ids=["tensors", "data sets"],
)
def test_test_points_may_be_given(data):
    found = as_dataset(data, ["a", "b", "c"])
    assert torch.equal(found.train.x, X[:40])
    assert torch.equal(found.test.y, Y[40:])
    assert found.class_names == ("a", "b", "c")


@pytest.mark.parametrize(("mode", "channels"), [("RGB", 3), ("L", 1), ("RGBA", 3)])
def test_pillow_s_images_and_names_are_taken(mode, channels):
    found = as_dataset(Photos(mode))
    assert found.input_shape == (channels, 6, 4)
    assert found.train.x.dtype == torch.uint8
    assert found.class_names == Photos.classes
    assert as_dataset(DataLoader(Odd([(torch.rand(2), 0), (torch.rand(2), 1)] * 5))).classes == 2


def test_a_sampler_that_chooses_is_listened_to():
    loader = DataLoader(TensorDataset(X, Y), batch_size=4, sampler=SubsetRandomSampler(range(10)))
    ((x, _),), _ = read_given(loader)
    assert len(x) == 10


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (X, "a Dataset, or inputs and labels"),
        ((X, Y, X), "a Dataset, or inputs and labels .* but got 3 things"),
        ((X, TensorDataset(X, Y)), "a Dataset, or inputs and labels"),
        (Stream(), "Give a DataLoader of it"),
        (Odd([]), "points in the data that is given, but got none"),
        (Odd([X[0]]), "pairs: an input and its label, but got Tensor"),
        (DataLoader(Odd([X[0]])), "batches of two"),
        (Odd([(torch.rand(2), 0), (torch.rand(3), 1)]), "points of one shape"),
        ((X, Y.float()), "a label, an integer"),
        ((X, Y, X[:, :2], Y), "training and test points of one shape"),
        ((np.full((4, 2), np.nan), [0, 1, 0, 1]), "finite inputs"),
    ],
)
def test_mistakes_are_named(data, message):
    with pytest.raises(ArgumentError, match=message):
        as_dataset(data)


def test_names_must_fit():
    with pytest.raises(ArgumentError, match=r"labels in 0\.\.1"):
        as_dataset((X, Y), ["a", "b"])
    with pytest.raises(ArgumentError, match="class names in the Dataset"):
        as_dataset(as_dataset((X, Y)), ["a", "b", "c"])


def test_training_takes_them():
    net = train(
        {"epochs": 1, "guarantee": "rt2", "epsilon": 0.01, "model": "mlp-2x32"},
        data=TensorDataset(X, Y),
        class_names=["a", "b", "c"],
    )
    assert net.class_names == ("a", "b", "c")
