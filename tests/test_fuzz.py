"""The parsers, fed with anything: each gives a value or says what was expected, in time, and nothing else happens.

Each is tried on random bytes, and on good files that were spoilt: cut, repeated, overwritten, put together again.
"""

import io
import json
import math
import os
import signal
import struct
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from helpers.onnx_files import photo_network
from helpers.own_files import CSV, NNET
from helpers.properties import FIRST, SECOND
from safeset import Affinity, CertifiedNet, Recipe, SafesetError, create_model, export_onnx
from safeset.capture.from_onnx import read_onnx
from safeset.certificates.certificate import Certificate
from safeset.coverage.record import FORMAT, from_values, to_values
from safeset.data.acasxu import read_nnet
from safeset.data.npz import read_npz
from safeset.data.points import read_points
from safeset.data.tables import read_table
from safeset.export.file import find_exported
from safeset.guarantees.affinity import from_description, read, read_edges
from safeset.guarantees.text import parse
from safeset.recipes.library import assemble_recipe, find_recipe, list_recipes
from safeset.recipes.toml import literal
from safeset.runs.load import load
from safeset.system.files import read_tensors
from safeset.system.untrusted import read_json
from safeset.verification.vnnlib import read_vnnlib

SECONDS = 20  # for one example; a parser that needs more hangs


@contextmanager
def in_time():
    """Ends what hangs."""

    def late(number, frame):
        raise AssertionError(f"not done in {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


# -- what is fed ------------------------------------------------------------------------------------------------------


def array_file(**arrays):
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


TOKENS = [
    *b"[ ] [[ ]] { } {} = . , : \" ' \\ # // null true nan inf -inf 1e999 -1 0 1e-320 1979-05-27 a.a.a \\ud800".split(),
    *(b"\n", b"\t", b"\r\n", b"\0", b"\xff", b"\xf0\x9f\x90\x88", b"\xef\xbb\xbf", b'"' * 3, b"'" * 3),
    *(b"9" * 400, b"0x" + b"f" * 400, b"[" * 60),
]
RECIPE = b"""guarantee = "rt2"
epsilon = 0.5
epochs = 3
batch = 8
model = "mlp-2x32"
[data]
source = "t.csv"
ranges = { a = [0, 1], b = [0.5, 2] }
[loss]
name = "trades"
weight = "0.01 -> 1.2 log half"
[optimiser]
rate = "1e-3 -> 1e-6 after half"
[task]
input_shape = [2]
class_names = ["x", "y", "z"]
units = "cm"
"""
SETS = b"""sets = [["a", "b"], ["c"]]
neighbours = ["a", "b", "c"]
everyone_with = ["d"]
groups = { a = "x", b = "y" }
[hierarchy]
edges = [["r", "a"], ["r", "b"], ["s", "r"], ["s", "c"]]
max_leaves = 2
"""
LISTS = json.dumps(
    {"sets": [[0, 1], [2]], "everyone_with": [3], "hierarchy": {"edges": [["a", "b"]], "depth": 1}}
).encode()
COSTS = b"""[costs]
classes = ["a", "b", "c"]
matrix = [[0, 1, inf], [0.5, 0, 1], [9, 1, 0]]
most = 1
"""
TENSORS = save({"1.weight": torch.ones(2, 3), "1.bias": torch.zeros(2)}, {"format": "safeset 1"})
ARRAYS = array_file(x=np.arange(24.0).reshape(12, 2), y=np.array(["a", "b"] * 6), class_names=np.array(["a", "b"]))


@st.composite
def spoilt(draw, good):
    """A good file with a few changes, or any bytes, or tokens in any order."""
    kind = draw(st.sampled_from(["changed", "changed", "changed", "tokens", "bytes"]))
    if kind == "bytes":
        return draw(st.binary(max_size=300))
    if kind == "tokens":
        return b"".join(draw(st.lists(st.sampled_from([*TOKENS, *good.split()[:20]]), max_size=40)))
    content = good
    for _ in range(draw(st.integers(1, 4))):
        start, length = draw(st.integers(0, len(content))), draw(st.integers(0, 12))
        piece = draw(
            st.one_of(st.sampled_from(TOKENS), st.binary(max_size=8), st.just(content[start : start + 40] * 2))
        )
        change = draw(st.sampled_from(["put", "over", "cut", "drop"]))
        before, after = content[:start], content[start:]
        content = {
            "put": before + piece + after,
            "over": before + piece + after[len(piece) :],
            "cut": before,
            "drop": before + after[length:],
        }[change]
    return content


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


def told(function, *arguments, **options):
    """The value, or None where it was said what was expected."""
    with in_time(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*arguments, **options)
        except SafesetError as error:
            message = str(error)
    assert 0 < len(message) < 10_000
    return None


# -- what reads -------------------------------------------------------------------------------------------------------


def nnet(write, content):
    network = told(read_nnet, write("x.nnet", content))
    assert network is None or all(weight.isfinite().all() for weight in network.weights)


def recipe(write, content):
    path = write("x.toml", content)
    found = told(Recipe.read, path)
    told(assemble_recipe, str(path), {"epochs": 3})
    if found is not None:
        assert told(Recipe.from_table, found.table()) == found
    told(literal, content.decode(errors="replace"))
    told(parse, "affinity:" + content.decode(errors="replace"))


def sets(write, content):
    for name in ("x.toml", "x.json"):
        found = told(read, write(name, content))
        guarantee = told(Affinity, *found) if found else None
        if guarantee is not None:
            told(guarantee.bind, ["a", "b", "c", "d", "e"])
            assert parse(str(guarantee)) == guarantee


def edges(write, content):
    pairs = told(read_edges, write("x.tsv", content))
    if pairs:
        for options in ({"max_leaves": 2}, {"depth": 1}):
            told(from_description, {"hierarchy": {"edges": [list(pair) for pair in pairs], **options}})


def tensors(write, content):
    found = told(read_tensors, write("x.safetensors", content))
    if found is not None:
        assert all(isinstance(text, str) for text in found[1].values())


def run(write, content):
    """A run with a spoilt recipe, and the model of a good one."""
    path = write("recipe.toml", content)
    write("model.safetensors", MODEL)
    net = told(load, path.parent)
    if net is not None:
        assert isinstance(told(net.certify, torch.zeros(1, *net.input_shape)), Certificate)


def archive(write, content):
    path = write("x.npz", content)
    data = told(read_npz, path)
    assert data is None or data.train.x.isfinite().all()
    points(path)


def rows(write, content):
    path = write("x.csv", content)
    data = told(read_table, path)
    assert data is None or data.train.x.isfinite().all()
    points(path, {"height": (0.0, 9.0), "width": (0.0, 99.0)})


def points(path, ranges=None):
    found = list(read_points([str(path)], input_shape=(2,), units="cm", ranges=ranges, stdin=None))
    for point in found:
        assert bool(point.problem) == (point.x is None)
        assert point.x is None or (point.x.shape == (2,) and np.isfinite(point.x).all())
    content = path.read_bytes()
    if any(os.path.isdir(line.strip()) for line in content.decode(errors="replace").splitlines() if line.strip()):
        return  # the name of a folder, of which all images would be meant
    standard = io.BytesIO(content)
    told(lambda: list(read_points(["-"], input_shape=(2,), units="cm", ranges=ranges, stdin=standard)))


def onnx(write, content):
    program = told(read_onnx, write("x.onnx", content))
    if program is not None:
        assert program.run(torch.zeros(2, *program.input_shape, dtype=torch.float64)).shape == (2, program.classes)


def exported(write, content):
    found = told(find_exported, write("x.onnx", content))
    if found is not None:
        answer = told(found.run, np.zeros((2, *found.input_shape)), 0.1)
        assert answer is None or answer["certified"].shape == (2,)


def exported_file():
    """A network of our own as one ONNX graph that certifies."""
    torch.manual_seed(0)
    net = CertifiedNet(torch.nn.Linear(2, 3), input_shape=(2,), guarantee="rt2", epsilon=0.1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.onnx"
        export_onnx(net, path)
        return path.read_bytes()


def vnnlib(write, content):
    query = told(read_vnnlib, write("x.vnnlib", content))
    if query is not None:
        for each in (*query.common, *(one for case in query.cases for one in case)):
            assert each.x or each.y
            assert max((place for place, _ in each.x), default=0) < query.inputs.size
            assert max((place for place, _ in each.y), default=0) < query.outputs.size


def calibration(write, content):
    found = told(lambda path: from_values(read_json(path)), write("x.json", content))
    if found is not None:
        assert not any(map(math.isnan, found.scores))
        assert told(from_values, json.loads(json.dumps(to_values(found)))) == found


CALIBRATION = {
    "format": FORMAT,
    **dict.fromkeys(("program", "weights"), "0" * 64),
    "scale": 1.5,
    "classes": 3,
    "score": "membership",
    "k": 1,
    "tau": None,
    "alpha": "1/10",
    "confidence": None,
    "poisoned": 0,
    "by_class": False,
    "scores": [0.5, "-inf"],
    "labels": [0, 2],
    "made_with": {"torch": "2"},
}
MODEL = save(create_model("mlp-2x32", input_shape=(2,), classes=3).state_dict())
PARSERS = {
    "nnet": (nnet, NNET.encode()),
    "recipe": (recipe, RECIPE),
    "sets": (sets, SETS),
    "lists": (sets, LISTS),
    "costs": (sets, COSTS),
    "calibration": (calibration, json.dumps(CALIBRATION).encode()),
    "edges": (edges, b"a\tb\nb\tc\na\td\nd\tc\n"),
    "tensors": (tensors, TENSORS),
    "run": (run, RECIPE),
    "archive": (archive, ARRAYS),
    "rows": (rows, CSV.encode()),
    "onnx": (onnx, photo_network().SerializeToString()),
    "exported": (exported, exported_file()),
    "vnnlib": (vnnlib, FIRST.format("(- (* 2 X_0) 1e-3)").encode()),
    "vnnlib 2": (vnnlib, SECOND.format("real", "float32").encode()),
}


@pytest.mark.parametrize("name", PARSERS)
def test_good_files_are_read(name, write):
    """Else nothing would be tried."""
    parser, good = PARSERS[name]
    parser(write, good)
    readers = {
        "nnet": read_nnet,
        "recipe": Recipe.read,
        "tensors": read_tensors,
        "archive": read_npz,
        "rows": read_table,
        "onnx": read_onnx,
        "exported": find_exported,
        "calibration": lambda path: from_values(read_json(path)),
        "vnnlib": read_vnnlib,
        "vnnlib 2": read_vnnlib,
    }
    suffix = {"nnet": "nnet", "recipe": "toml", "tensors": "safetensors", "archive": "npz", "rows": "csv"}
    suffix |= {"onnx": "onnx", "exported": "onnx", "calibration": "json"}
    suffix |= dict.fromkeys(("vnnlib", "vnnlib 2"), "vnnlib")
    if name in readers:
        assert readers[name](write(f"good.{suffix[name]}", good)) is not None
    if name == "run":
        assert load(write("recipe.toml", good).parent).classes == 3


@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser(name, write):
    _fuzz(name, write, settings(max_examples=60))


@pytest.mark.slow
@pytest.mark.parametrize("name", PARSERS)
def test_no_bytes_crash_a_parser_for_minutes(name, write):
    _fuzz(name, write, settings(max_examples=20_000))


def _fuzz(name, write, chosen):
    parser, good = PARSERS[name]

    @settings(chosen, deadline=None, suppress_health_check=list(HealthCheck))
    @given(spoilt(good))
    def fuzzed(content):
        parser(write, content)

    fuzzed()


@pytest.mark.parametrize(
    "text",
    [
        ".".join(["a"] * 200_000) + " = 1",
        '"x".' * 100_000 + "y = 1",
        "[" + "a." * 100_000 + "a]",
        "x = " + "{ a = " * 5000 + "1" + " }" * 5000,
        "x = " + "[" * 100_000,
        'x = """' + '\\"""\n' * 100_000,
        "x = '''" + "a'b\n" * 100_000,
        "x = " + '"\\"' * 100_000,
        "x = " + "9" * 10**6,
        "x = 0x" + "f" * 10**6,
        "a = 1\n" * 100_000,
        "\n".join(f"[t{place}]" for place in range(5000)),
        "x = [" + "1.5, " * 20_000 + "]",
    ],
)
def test_texts_that_take_other_parsers_for_ever_are_told(write, text):
    path = write("x.toml", text.encode())
    assert told(Recipe.read, path) is None
    assert told(read, path) is None


def test_hierarchies_that_fill_the_memory_are_told(write):
    comb = "".join(f"n{place}\tn{place + 1}\nn{place}\tleaf{place}\n" for place in range(20_000)).encode()
    pairs = read_edges(write("x.tsv", comb))
    with in_time(), pytest.raises(SafesetError, match="leaves below all its nodes together"):
        Affinity.from_hierarchy(pairs, max_leaves=2)


@given(st.binary(max_size=64))
@settings(max_examples=50)
def test_headers_of_any_length_are_judged_by_the_file(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("header") / "x.safetensors"
    for length in (0, 1, len(content), 2**31, 2**63, 2**64 - 1):
        path.write_bytes(struct.pack("<Q", length) + content)
        told(read_tensors, path)


def test_every_recipe_that_comes_with_safeset_is_read_in_time():
    for name in list_recipes():
        assert told(Recipe.read, find_recipe(name)) is not None
