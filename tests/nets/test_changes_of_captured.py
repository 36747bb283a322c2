"""Networks with a forward of their own that change between two certificates: each is noticed, whatever they hold."""

import functools
import threading
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from safeset import CertifiedNet, UnsupportedLayerError


class Small(nn.Module):
    """With a forward of its own, and an attribute of any kind."""

    def __init__(self, held: Any = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.head, self.held = nn.Linear(3, 4), nn.Linear(4, 2), held

    def forward(self, x: Tensor) -> Tensor:
        """As a method of its own has it."""
        return self.factor() * self.head(self.first(x).relu())

    def factor(self) -> float:
        """Of the logits."""
        return float(getattr(self.held, "factor", 1.0))


class Plain:
    """Equals nothing but itself."""

    def __init__(self) -> None:
        self.factor = 2.0
        self.me = self


def _certified(network: nn.Module) -> CertifiedNet:
    net = CertifiedNet(network.double(), input_shape=(3,), guarantee="standard", epsilon=0.01)
    net.certify(torch.ones(1, 3))
    return net


def _fifty_times(method: Any) -> Any:
    if method.__code__.co_argcount == 1:
        return lambda self: 50 * method(self)
    return lambda self, x: 50 * method(self, x)


def _check_current(net: CertifiedNet) -> None:
    x = torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.allclose(net.frozen()(x), net(x), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    "held",
    [
        np.array([1.0, float("nan")]),
        functools.partial(nn.ReLU, inplace=True),
        float("nan"),
        Plain(),
        SimpleNamespace(inside=Plain(), factor=3.0),
        nn.Linear(2, 2).extra_repr,
    ],
    ids=["array", "partial", "nan", "object", "nested", "method"],
)
def test_attributes_that_equal_no_copy_of_themselves(held: Any) -> None:
    net = _certified(Small(held))
    _check_current(net)
    assert net._seal() is net._seal()  # nothing has changed, so nothing is made again


def test_a_change_inside_an_object_is_noticed() -> None:
    network = Small(Plain())
    net = _certified(network)
    network.held.factor = 50.0
    _check_current(net)


@pytest.mark.parametrize("name", ["factor", "forward"])
def test_a_method_replaced_in_a_class_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Inherits(Small):
        pass

    net, before = _certified(Inherits()), getattr(Small, name)
    monkeypatch.setattr(Small, name, _fifty_times(before))
    _check_current(net)
    assert isinstance(net.network.forward, MethodType)


class WithClassValues(Small):
    """Whose factor all of its kind have, and one is a default."""

    SCALE = 2.0

    def factor(self, more: float = 1.0) -> float:
        """Of the logits."""
        return self.SCALE * more


def test_values_of_classes_and_defaults_are_noticed(monkeypatch):
    net = _certified(WithClassValues())
    monkeypatch.setattr(WithClassValues, "SCALE", 50.0)
    _check_current(net)
    monkeypatch.setattr(WithClassValues.factor, "__defaults__", (3.0,))
    _check_current(net)


@pytest.mark.parametrize(
    "held", [threading.Lock(), (x for x in "ab"), nn.Parameter(torch.ones(2)) * 2], ids=["lock", "generator", "history"]
)
def test_networks_that_cannot_be_copied_are_refused(held: Any) -> None:
    with pytest.raises(UnsupportedLayerError, match="can be copied"):
        _certified(Small(held))


class WithClassLists(Small):
    """Whose factor stands in a list that all of its kind have."""

    SCALES = (2.0, [3.0])

    def factor(self) -> float:
        """Of the logits."""
        return self.SCALES[1][0]


def test_a_change_inside_a_value_of_a_class_is_noticed():
    """Once the copy that is certified held the same list, and what torch.export had seen of it was taken again."""
    net = _certified(WithClassLists())
    WithClassLists.SCALES[1][0] = 50.0
    _check_current(net)


class Settings:
    """A class as a place for values, as it is or by an object."""

    factor = 2.0

    class Inside:
        """One more."""

        factor = 2.0

    def scaled(self) -> float:
        """By a method."""
        return 2.0


class Holding(Small):
    """Takes its factor from what it holds."""

    def factor(self) -> float:
        """Of the logits."""
        held = self.held[0] if isinstance(self.held, list) else self.held
        return held.factor * held.Inside.factor * (1.0 if isinstance(held, type) else held.scaled())


@pytest.mark.parametrize("held", [Settings, Settings(), [Settings()]], ids=["class", "object", "in a list"])
def test_values_of_classes_that_are_held_are_noticed(held: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    net = _certified(Holding(held))
    assert net._seal() is net._seal()
    monkeypatch.setattr(Settings, "factor", 50.0)
    _check_current(net)
    monkeypatch.setattr(Settings.Inside, "factor", 50.0)
    _check_current(net)
    monkeypatch.setattr(Settings, "scaled", lambda self: 50.0)
    _check_current(net)
