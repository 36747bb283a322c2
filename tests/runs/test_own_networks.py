"""A user's own network by --network: found, made, trained, evaluated; and run by that flag alone."""

import json
import sys

import numpy as np
import pytest
import torch
from torch import nn

from helpers.commands import safeset
from safeset import ArgumentError, SafesetError, load, train
from safeset.runs.own_networks import find_factory, make_network
from safeset.runs.run import Run

CODE = """
from torch import nn

class Trouble(Exception):
    pass

def small(input_shape, classes):
    return nn.Sequential(nn.Linear(input_shape[0], 8), nn.ReLU(), nn.Linear(8, classes))

def plain():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))

def everything(**known):
    return small(**known)

def broken(input_shape, classes):
    raise Trouble("no such width")

def nothing():
    return None

def strange():
    return nn.Sequential(nn.Linear(3, 8), nn.GELU(), nn.Softmax(dim=1), nn.Linear(8, 2))

def wants(width):
    return None

number = 5
ready = plain()
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with code and data of a user."""
    (tmp_path / "mynets.py").write_text(CODE)
    (tmp_path / "faulty.py").write_text("import nonexistent_package")
    (tmp_path / "unreadable.py").write_text("def f(:\n")
    x = torch.rand(80, 3, generator=torch.Generator().manual_seed(0))
    np.savez(tmp_path / "points.npz", x=x.numpy(), y=(x[:, 0] > 0.5).long().numpy())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mynets", "faulty", "unreadable"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.parametrize("name", ["small", "plain", "everything", "ready"])
def test_a_factory_is_called_with_what_it_takes(here, name):
    network = make_network(find_factory(f"mynets:{name}"), (3,), 2, seed=0)
    assert network(torch.zeros(1, 3)).shape == (1, 2)


def test_the_seed_decides_and_the_caller_s_random_numbers_stay(here):
    factory = find_factory("mynets:small")
    torch.manual_seed(7)
    expected = torch.rand(2)
    torch.manual_seed(7)
    one, two, other = (make_network(factory, (3,), 2, seed=seed)[0].weight for seed in (0, 0, 1))
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(one, two)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mynets", "package.module:factory, but got 'mynets'"),
        ("mynets.py:small", "a module mynets.py, but got none"),
        ("my nets:small", "package.module:factory"),
        ("nosuch:small", "a module nosuch, but got none"),
        ("mynets:smal", "'smal' in mynets, but got nothing of that name. Did you mean 'small'"),
        ("mynets:number", "a function that makes a network, but got int"),
        ("mynets:nothing", "to return a torch.nn.Module, but got NoneType"),
        ("mynets:wants", "input_shape and classes at most, but got the parameter 'width'"),
        ("faulty:small", r"importing faulty, in .*faulty.py, line 1:(.|\n)*No module named 'nonexistent_package'"),
        ("unreadable:f", r"importing unreadable, in .*unreadable.py, line 1"),
        ("mynets:broken", r"calling broken, in .*mynets.py, line 17:(.|\n)*Trouble: no such width"),
    ],
)
def test_mistakes_are_named_with_their_place(here, name, message):
    with pytest.raises(SafesetError, match=message):
        make_network(find_factory(name), (3,), 2, seed=0)


def test_python_takes_a_factory_too(here):
    net = train(
        {"epochs": 3, "guarantee": "standard", "epsilon": 0.01},
        network=lambda input_shape, classes: nn.Sequential(
            nn.Linear(*input_shape, 4), nn.ReLU(), nn.Linear(4, classes)
        ),
        data=(torch.rand(50, 3), torch.arange(50) % 2),
    )
    assert net.network[0].in_features == 3


def test_own_code_runs_only_by_the_flag(here):
    common = ["--data", "points.npz", "--guarantee", "standard", "--epsilon", "0.01", "--epochs", "5", "--out", "run"]
    safeset("train", *common, "--network", "mynets:small", cwd=here)
    recipe = Run(here / "run").read_recipe()
    assert (recipe.model, recipe.network) == ("own", "mynets:small")
    for command in (["evaluate", "run"], ["certify", "run", "points.npz"], ["audit", "run"]):
        _, errors = safeset(*command, cwd=here, code=1)
        assert "Give --network mynets:small again" in errors
    safeset("evaluate", "run", "--network", "mynets:small", cwd=here)
    output, _ = safeset("certify", "run", "points.npz", "--json", "--network", "mynets:small", cwd=here)
    assert len([json.loads(line) for line in output.splitlines()]) == 80
    output, _ = safeset("audit", "run", "--points", "3", "--budget", "0.02", "--network", "mynets:small", cwd=here)
    assert "passed" in output or "inconclusive" in output
    with pytest.raises(ArgumentError, match="Give --network mynets:small again"):
        load(here / "run")
    assert load(here / "run", network=find_factory("mynets:small")).classes == 2

    _, errors = safeset("train", "--resume", "--out", "run", cwd=here, code=1)
    assert "Give --network mynets:small" in errors
    _, errors = safeset("train", *common[:-1], "other", "--network", "mynets:broken", cwd=here, code=1)
    assert "mynets.py, line 17" in errors
    assert "Trouble" in errors
    _, errors = safeset("train", *common[:-1], "other", "--network", "mynets:strange", cwd=here, code=1)
    assert "softmax" in errors
    _, errors = safeset("train", *common, "--network", "mynets:small", "--model", "mlp-2x32", cwd=here, code=1)
    assert "one of --model and --network" in errors
    (here / "recipe.toml").write_text('network = "mynets:broken"\n[data]\nsource = "points.npz"')
    _, errors = safeset("train", "recipe.toml", "--out", "other", cwd=here, code=1)
    assert "Give --network mynets:broken" in errors
    assert not (here / "other").exists()
