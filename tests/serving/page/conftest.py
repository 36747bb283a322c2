"""Two small runs as the page shows them: images of digits, calibrated, and a table with a column of texts."""

import json
import urllib.error
import urllib.request

import numpy as np
import pytest

from helpers.browser import served
from helpers.hostile_names import HOSTILE
from helpers.served import model
from safeset import train
from safeset.runs.opened import open_model
from safeset.serving.app import create_app
from safeset.serving.guard import Limits
from safeset.serving.page.shown import Shown
from safeset.serving.service import Service


def shown_of(opened, name):
    return Shown(opened.net, name=name, weights=opened.weights, recipe=opened.recipe, coverage=opened.coverage)


@pytest.fixture(scope="session")
def digits():
    """Digits, with coverage."""
    return shown_of(model(), "digits")


@pytest.fixture(scope="session")
def table_path(tmp_path_factory):
    """A table whose classes, columns and texts are named by someone who wants to break the page."""
    path = tmp_path_factory.mktemp("table")
    random = np.random.default_rng(0)
    labels = np.arange(120) % 3
    x = random.normal(size=(120, 2)) * 0.3 + np.array([[0, 0], [0, 9], [9, 0]])[labels]
    quoted = ['"' + name.replace('"', '""') + '"' for name in HOSTILE]
    lines = [f"{a:.4f},{b:.4f},{quoted[label - 1]},{quoted[label]}" for (a, b), label in zip(x, labels, strict=True)]
    (path / "table.csv").write_text("\n".join(["<b>x</b>,y,colour,kind", *lines]) + "\n")
    data = {"source": str(path / "table.csv"), "label": "kind", "one_hot": ["colour"]}
    small = {"model": "mlp-2x32", "guarantee": "rt2", "epsilon": 0.05, "epochs": 8, "batch": 32, "data": data}
    train({**small, "optimiser": {"rate": 0.01}}, out=path / "run", progress=False)
    return path / "run"


@pytest.fixture(scope="session")
def table(table_path):
    return shown_of(open_model(table_path, device="cpu"), "table")


@pytest.fixture(scope="session")
def digits_address():
    limits = Limits(bytes=100_000, pixels=1000)
    with served(create_app(Service(model(), name="digits"), limits=limits)) as address:
        yield address


@pytest.fixture(scope="session")
def table_address(table_path):
    with served(create_app(Service(open_model(table_path, device="cpu"), name="table"))) as address:
        yield address


@pytest.fixture
def bare_address(table_path):
    """Without test points of the data."""
    with served(create_app(Service(open_model(table_path, device="cpu"), name="table"), samples=False)) as address:
        yield address


@pytest.fixture(scope="session")
def ask(digits_address):
    """Ask the page's server as its script does: a status, and what is said."""

    def asked(path, body=None):
        content = json.dumps(body).encode() if isinstance(body, dict) else body
        kind = {"Content-Type": "application/json"} if isinstance(body, dict) else {}
        request = urllib.request.Request(f"{digits_address}/{path}", data=content, headers=kind)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return reply.status, json.load(reply)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    return asked
