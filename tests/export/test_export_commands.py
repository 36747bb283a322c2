"""`safeset export` and `safeset certify` on its files: without torch, and with messages for what is damaged."""

import json
import math
import subprocess
import sys

import numpy as np
import onnx
import pytest
from sklearn.datasets import load_digits

from helpers.calibrated import trained_run
from helpers.commands import ENVIRONMENT, safeset
from safeset.export.file import digest_of

BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, Blocked())
from safeset.cli.app import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.fixture(scope="module")
def work(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    trained_run(folder, alpha=0.1)
    np.savez(folder / "x.npz", x=load_digits().images[:30, None] / 16)
    safeset("export", "run", "model.onnx", cwd=folder)
    return folder


def without_torch(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-c", BLOCKED, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True
    )


def test_certify_without_torch_gives_the_records_of_the_run(work):
    ended = without_torch("certify", "model.onnx", "x.npz", "--json", "--epsilon", "0.1", cwd=work)
    assert ended.returncode == 0, ended.stderr
    assert "Proved where it was exported" in ended.stderr
    found = [json.loads(line) for line in ended.stdout.splitlines()]
    output, _ = safeset("certify", "run", "x.npz", "--json", "--epsilon", "0.1", cwd=work)
    wanted = [json.loads(line) for line in output.splitlines()]
    assert len(found) == len(wanted) == 30
    for own, other in zip(found, wanted, strict=True):
        assert set(own) == set(other)
        for key in set(own) - {"radius", "core_radius", "answers"}:
            assert own[key] == other[key]
        assert own["radius"] == pytest.approx(other["radius"], abs=1e-6)
        assert own["core_radius"] == pytest.approx(other["core_radius"], abs=1e-6)


def test_everything_else_needs_torch_and_says_so(work):
    ended = without_torch("certify", "run", "x.npz", cwd=work)
    assert ended.returncode == 1
    assert "PyTorch" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--guarantee", "rt5"], "Leave --guarantee out"),
        (["--method", "uniform"], "Leave --method out"),
        (["--alpha", "0.2"], "Leave --alpha out"),
        (["--epsilon", "nan"], "finite number"),
        (["--epsilon", "-1"], "finite number"),
        (["--proof", "p.json"], "no --proof"),
        (["--background", "nocolour"], "colour"),
    ],
)
def test_what_an_exported_file_cannot_do(work, arguments, message):
    _, errors = safeset("certify", "model.onnx", "x.npz", *arguments, cwd=work, code=1)
    assert message in " ".join(errors.split())


def test_only_certify_takes_exported_files(work):
    _, errors = safeset("evaluate", "model.onnx", "--data", "digits", "--epsilon", "0.1", cwd=work, code=1)
    assert "certifies by itself" in errors


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("weight", "It is damaged"),
        ("half", "Expected"),
        ("operator", "but got Softmax"),
        ("claim", "'classes' as an export has it"),
        ("twice", "2 times"),
        ("output", "other inputs and outputs"),
    ],
)
def test_damaged_files_are_refused(work, tmp_path, damage, message):
    content = (work / "model.onnx").read_bytes()
    model = onnx.load_from_string(content)
    if damage == "half":
        (tmp_path / "m.onnx").write_bytes(content[: len(content) // 2])
    else:
        if damage == "weight":
            largest = max(model.graph.initializer, key=lambda each: len(each.raw_data))
            largest.raw_data = bytes([largest.raw_data[0] ^ 1]) + largest.raw_data[1:]
        elif damage == "operator":
            model.graph.node[0].op_type = "Softmax"
        elif damage == "claim":
            says = json.loads(model.metadata_props[0].value)
            model.metadata_props[0].value = json.dumps({**says, "classes": "ten"})
        elif damage == "twice":
            model.metadata_props.append(model.metadata_props[0])
        else:
            model.graph.output.pop()
        if damage in ("operator", "output"):  # forged: the digest is that of the graph
            says = json.loads(model.metadata_props[0].value)
            model.metadata_props[0].value = json.dumps({**says, "graph": digest_of(model.graph)})
        (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    _, errors = safeset("certify", str(tmp_path / "m.onnx"), "x.npz", cwd=work, code=1)
    assert errors.startswith("error:")
    assert message in " ".join(errors.split())


@pytest.mark.parametrize(
    "claim",
    [
        {"classes": 2, "class_names": None},
        {"classes": 2**20, "class_names": None},
        {"input_shape": [1, 8, 9]},
        {"input_shape": [1, 30000, 30000]},  # an image is made as large before the graph sees it
        {"input_shape": [1] * 10000},
        {"reading": {"ranges": [[0, 1]]}},
        {"reading": {"ranges": "01"}},
        {"reading": {"ranges": {"a": None}}},
        {"reading": {"seen": [0, math.nan]}},
    ],
    ids=str,
)
def test_what_a_file_says_fits_what_it_computes(work, tmp_path, claim):
    model = onnx.load_from_string((work / "model.onnx").read_bytes())
    says = json.loads(model.metadata_props[0].value)
    model.metadata_props[0].value = json.dumps({**says, **claim})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    output, errors = safeset("certify", str(tmp_path / "m.onnx"), "x.npz", cwd=work, code=1)
    assert errors.startswith("error:")
    assert not output


@pytest.mark.parametrize("output", ["windows", "logits"])
def test_a_forged_graph_that_computes_no_radii_is_refused(work, tmp_path, output):
    model = onnx.load_from_string((work / "model.onnx").read_bytes())
    (last,) = (node for node in model.graph.node if node.output[0] == output)
    last.op_type = "Log" if output == "windows" else "Sqrt"  # of 0, and of numbers below 0
    says = json.loads(model.metadata_props[0].value)
    model.metadata_props[0].value = json.dumps({**says, "graph": digest_of(model.graph)})
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    _, errors = safeset("certify", str(tmp_path / "m.onnx"), "x.npz", cwd=work, code=1)
    assert errors.startswith("error: Expected radii")


def test_nothing_is_written_where_something_is_wrong(work):
    before = sorted(each.name for each in work.iterdir())
    pairs = ("run", "model.bin"), ("run", "run/recipe.toml"), ("nothing", "new.onnx"), ("run", "no/new.onnx")
    for run, file in pairs:
        safeset("export", run, file, cwd=work, code=1)
    safeset("export", "run", "new.onnx", "--method", "none", cwd=work, code=1)
    assert sorted(each.name for each in work.iterdir()) == before


def test_what_float32_estimates_is_never_written_as_proved(work):
    safeset("export", "run", "estimate.onnx", "--float32", cwd=work)
    table, errors = safeset("certify", "estimate.onnx", "x.npz", cwd=work)
    assert "nothing is proved" in table
    assert "Float32." in errors
    output, _ = safeset("certify", "estimate.onnx", "x.npz", "--json", cwd=work)
    assert all(json.loads(line)["estimate"] is True for line in output.splitlines())
    output, _ = safeset("certify", "model.onnx", "x.npz", "--json", cwd=work)
    assert not any("estimate" in json.loads(line) for line in output.splitlines())
