"""The command `verify`, in both forms, and `supports`: what is printed, for people and for programs."""

import numpy as np
import pytest

from helpers.commands import safeset
from helpers.properties import FIRST, NET, SECOND


@pytest.fixture
def work(tmp_path):
    (tmp_path / "net.nnet").write_text(NET)
    (tmp_path / "yes.vnnlib").write_text(FIRST.format(1.75))
    (tmp_path / "no.vnnlib").write_text(FIRST.format(2.001))
    (tmp_path / "second.vnnlib").write_text(SECOND.format("real", "real"))
    (tmp_path / "floats.vnnlib").write_text(SECOND.format("float32", "float32"))
    return tmp_path


def test_unsat(work):
    output, errors = safeset("verify", "net.nnet", "no.vnnlib", cwd=work)
    assert output == "unsat\n"
    assert "Proved in" in errors


def test_sat_with_a_witness_as_vnn_comp_reads_it(work):
    output, _ = safeset("verify", "net.nnet", "yes.vnnlib", "--witness", "found.txt", cwd=work)
    answer, text = output.split("\n", 1)
    assert answer == "sat"
    pairs = dict(line.strip(" ()").split() for line in text.splitlines())
    assert list(pairs) == ["X_0", "X_1", "Y_0", "Y_1"]
    numbers = [float(each) for each in pairs.values()]
    assert numbers[0] + numbers[1] >= 1.75
    assert numbers[2] == numbers[0] + numbers[1] == -numbers[3]
    assert (work / "found.txt").read_text() == output


def test_of_an_onnx_file_it_is_said_which_rounding_is_covered(work):
    pytest.importorskip("onnx")
    from helpers.onnx_files import model, node, save

    weights = {"w": np.array([[1.0, -1.0], [1.0, -1.0]])}
    save(model([node("MatMul", "x", "w")], (2,), constants=weights), work, "net.onnx")
    output, errors = safeset("verify", "net.onnx", "no.vnnlib", cwd=work)
    assert output == "unsat\n"
    assert errors.count("Not covered: the rounding of a runtime.") == 1
    assert errors.rstrip().endswith("runtime.")
    assert "Not covered" not in safeset("verify", "net.nnet", "no.vnnlib", cwd=work)[1]


def test_the_form_of_version_2(work):
    output, _ = safeset("verify", "second.vnnlib", "--network", "f=net.nnet", "--timeout", "20", cwd=work)
    lines = output.splitlines()
    assert (lines[0], lines[1], lines[4]) == ("sat", "X real [1,2]", "Y real [2]")
    assert len(lines) == 7
    output, _ = safeset("verify", "second.vnnlib", "--network", "f=net.nnet", "--timeout", "1e-9", cwd=work)
    assert output == "timed-out\n"
    output, _ = safeset("verify", "net.nnet", "yes.vnnlib", "--timeout", "1e-9", cwd=work)
    assert output == "unknown\n"


def test_floats_are_refused_unless_they_may_be_read_as_real(work):
    _, errors = safeset("verify", "floats.vnnlib", "--network", "f=net.nnet", cwd=work, code=1)
    assert "--real" in errors
    output, _ = safeset("verify", "floats.vnnlib", "--network", "f=net.nnet", "--real", cwd=work)
    assert output.startswith("sat\nX float32 [1,2]\n")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["yes.vnnlib"], "a property and one --network"),
        (["net.nnet", "yes.vnnlib", "--network", "f=net.nnet"], "a property and one --network"),
        (["yes.vnnlib", "--network", "net.nnet"], "NAME=FILE"),
        (["yes.vnnlib", "--network", "f=net.nnet"], "it declares none"),
        (["second.vnnlib", "--network", "g=net.nnet"], "it declares f"),
        (["none.nnet", "yes.vnnlib"], "no file"),
        (["net.nnet", "none.vnnlib"], "none.vnnlib"),
        (["yes.vnnlib", "yes.vnnlib"], ".onnx or .nnet"),
        (["yes.vnnlib", "net.nnet"], "Exchange the two files"),
        (["net.nnet", "net.nnet"], "VNN-LIB"),
        (["net.nnet", "yes.vnnlib", "--witness", "yes.vnnlib"], "to be read"),
        (["net.nnet", "yes.vnnlib", "--timeout", "0"], "above 0"),
    ],
)
def test_mistakes_are_messages(work, typed, said):
    output, errors = safeset("verify", *typed, cwd=work, code=1)
    assert said in errors
    assert not output


def test_supports_answers_other_programs(work):
    assert safeset("supports", "--vnnlib-versions", cwd=work)[0] == "1.0\n2.0\n"
    assert safeset("supports", "--onnx-element-types", cwd=work)[0] == "real\n"
    assert safeset("supports", "--hidden-node-theories", cwd=work)[0] == "NH\n"
    assert "arithmetic-complexity-theories: BND COUT LIN\n" in safeset("supports", cwd=work)[0]
    _, errors = safeset("supports", "--vnnlib-version", cwd=work, code=1)
    assert "Did you mean '--vnnlib-versions'" in errors
