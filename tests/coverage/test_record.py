"""Calibrations as JSON: they come back the same, in another process too, and damaged ones are refused."""

import json
import math
import subprocess
import sys
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from safeset import ArgumentError, CertifiedNet, Coverage, ExactRule, register_layer
from safeset.coverage.record import KEYS, from_values
from safeset.program import registry, rules


def small_net():
    layer = nn.Linear(2, 3, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[1.0, 0.3], [0.1, -1.0], [-0.7, 0.2]]))
        layer.bias.zero_()
    return CertifiedNet(nn.Sequential(layer), input_shape=(2,), guarantee="standard", epsilon=0.1)


@cache
def stored():
    return calibrated()[0].to_record()


def calibrated(**changes):
    x = torch.randn(40, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x[0] = math.nan
    net = small_net()
    with torch.no_grad():
        y = net(x).argmax(dim=1)
    return Coverage.calibrate(net, x, y, **changes), net, x


@pytest.mark.parametrize(
    "changes", [{}, {"k": 2, "by_class": True}, {"score": "soft-min", "tau": 0.2, "confidence": 0.9}]
)
def test_a_record_comes_back(changes):
    coverage, net, x = calibrated(**changes)
    coverage = coverage.poisoned(1)
    text = json.dumps(coverage.to_record(), allow_nan=False)
    for other in (net, net.frozen()):
        again = Coverage.from_record(json.loads(text), other)
        assert repr(again) == repr(coverage)
        assert again.promise == coverage.promise
        assert torch.equal(again.thresholds, coverage.thresholds)
        assert torch.equal(again.sets(x, 0.2), coverage.sets(x, 0.2))
        assert again.to_record() == coverage.to_record()


NETWORK = """
import torch
from torch import nn
from safeset import CertifiedNet
torch.manual_seed(0)
layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 16), nn.ReLU()]
network = nn.Sequential(*layers, nn.Linear(16, 3)).eval()
net = CertifiedNet(network, input_shape=(1, 8, 8), guarantee="standard", epsilon=0.1)
x = torch.rand(40, 1, 8, 8)
"""
READ = """
import json, sys
from safeset import Coverage
print(Coverage.from_record(json.load(open(sys.argv[1])), net).sets(x, 0.1).long().sum(dim=1).tolist())
"""


def test_a_record_is_read_in_another_process_with_other_threads(tmp_path):
    """Batch norm is folded and channels are rebalanced there again: with the same numbers."""
    made = {}
    with torch.random.fork_rng():
        exec(NETWORK, made)
    net, x = made["net"], made["x"]
    coverage = Coverage.calibrate(net, x, net(x).argmax(dim=1))
    (tmp_path / "record.json").write_text(json.dumps(coverage.to_record()))
    code = f"import torch\ntorch.set_num_threads({torch.get_num_threads() + 1})\n{NETWORK}{READ}"
    command = [sys.executable, "-c", code, str(tmp_path / "record.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(coverage.sets(x, 0.1).long().sum(dim=1).tolist())


DAMAGE = {
    "format": ["safeset coverage 2", None, 1],
    "program": ["", "x" * 64, 5, None],
    "weights": ["", None],
    "scale": [-1, "1", None, math.nan, math.inf, True],
    "classes": [1, "3", None, 3.0, 10**30],
    "score": ["margin", None, 1],
    "k": [None, 0, 3, "1", 1.5, True, 10**40],
    "tau": [0.1, "x"],
    "alpha": [0.1, "0", "1", "x", None, "1/0", "9" * 1000],
    "confidence": [0.9, "2", True],
    "poisoned": [-1, 0.5, "0", True, 10**30],
    "by_class": [0, "false", None],
    "scores": [[], None, "abc", [math.nan] * 40, ["NaN"] * 40, [None] * 40, [True] * 40, [1.0], [10**400] * 40],
    "labels": [[], None, [0.0] * 40, [-1] * 40, [3] * 40, [True] * 40],
    "made_with": [None, {"a": 1}, [1], {"a": "b" * 1000}],
}


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in DAMAGE.items() for value in values])
def test_damaged_records_are_refused(key, value):
    record, net = {**stored(), key: value}, small_net()
    with pytest.raises(ArgumentError, match="Expected"):
        Coverage.from_record(record, net)


def test_missing_and_unknown_keys_are_named():
    coverage, net, _ = calibrated()
    record = coverage.to_record()
    assert set(record) == set(KEYS)
    for key in KEYS[1:]:
        with pytest.raises(ArgumentError, match=f"'{key}' missing"):
            Coverage.from_record({name: value for name, value in record.items() if name != key}, net)
    with pytest.raises(ArgumentError, match="'more' unknown"):
        Coverage.from_record({**record, "more": 1}, net)
    for other in (None, [], "x", 3):
        with pytest.raises(ArgumentError, match="format"):
            Coverage.from_record(other, net)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(KEYS), PLAIN, max_size=4))
@settings(max_examples=200)
def test_any_values_are_refused_politely(changes):
    try:
        from_values({**stored(), **changes})
    except ArgumentError as error:
        refused = str(error)
    else:
        refused = ""
    assert refused.startswith("Expected") or not refused


class Order(nn.Module):
    """A permutation as a plain attribute, which is printed with most of it left out."""

    def __init__(self, order):
        super().__init__()
        self.order = order

    def forward(self, x):
        return x[:, self.order]


def test_an_own_layer_with_other_numbers_is_another_network(monkeypatch):
    """Once a calibration was accepted for a network whose layer looked the same when it was printed."""
    monkeypatch.setattr(rules, "RULES", dict(rules.RULES))
    monkeypatch.setattr(registry, "RULES", rules.RULES)
    register_layer(Order, ExactRule())
    one = torch.arange(1200)
    two = torch.cat([one[:3], one[3:-3].flip(0), one[-3:]])
    head = nn.Linear(1200, 3)
    nets = [
        CertifiedNet(nn.Sequential(Order(order), head), input_shape=(1200,), guarantee="standard", epsilon=0.1)
        for order in (one, one.clone(), two)
    ]
    record = Coverage.calibrate(nets[0], torch.rand(20, 1200), torch.arange(20) % 3).to_record()
    assert len(Coverage.from_record(record, nets[1])) == 20
    with pytest.raises(ArgumentError, match="the network that was calibrated"):
        Coverage.from_record(record, nets[2])
