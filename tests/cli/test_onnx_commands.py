"""Commands on an ONNX file instead of a run: the same answers, and nothing written that nobody asked for."""

import json
import re

import numpy as np
import pytest
import torch

import safeset as package
from helpers.commands import safeset
from helpers.onnx_files import photo_network, save
from helpers.workplace import CLASSES


@pytest.fixture
def work(tmp_path):
    random = np.random.default_rng(0)
    save(photo_network(), tmp_path)
    x = random.random((20, 3, 8, 8))
    np.savez(tmp_path / "points.npz", x=x)
    labels = package.load(tmp_path / "model.onnx", epsilon=0.01)(torch.tensor(x)).argmax(dim=1).numpy()
    np.savez(tmp_path / "labelled.npz", x=x, y=labels, x_test=x, y_test=labels, class_names=np.array(CLASSES))
    return tmp_path


def files(folder):
    return sorted(each.name for each in folder.iterdir())


def test_certify_answers_as_the_library_does(work):
    before = files(work)
    output, errors = safeset("certify", "model.onnx", "points.npz", "--epsilon", "0.01", "--json", cwd=work)
    assert errors.count("Not covered: the rounding of a runtime in float32.") == 1  # not for each point
    assert errors.rstrip().endswith("float32.")
    records = [json.loads(line) for line in output.splitlines()]
    net = package.load(work / "model.onnx", epsilon=0.01)
    found = net.certify(np.load(work / "points.npz")["x"])
    assert [each["certified"] for each in records] == found.certified.tolist()
    assert [each["core"] for each in records] == [each["core"] for each in found.records()]
    assert records[0]["guarantee"] == "standard"
    assert records[0]["units"] == "pixels in [0, 1]"
    assert files(work) == before


def test_what_is_covered_is_whole_words_on_a_terminal(work):
    given = ("certify", "model.onnx", "points.npz", "--epsilon", "0.01")
    shown, _ = safeset(*given, cwd=work, terminal=80)
    lines = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown).splitlines()
    assert "Covered: the file's network in exact arithmetic, and as safeset runs it in" in lines
    assert "dim" not in shown.split()  # a style, and no word


def test_another_guarantee_and_a_table(work):
    output, _ = safeset("certify", "model.onnx", "points.npz", "--epsilon", "0.01", "--guarantee", "rt2", cwd=work)
    assert "rt2, joint" in output
    assert "points.npz[19]" in output


def test_evaluate_and_audit_write_only_where_they_are_told(work):
    before = files(work)
    given = ("--data", "labelled.npz", "--epsilon", "0.01")
    output, _ = safeset("evaluate", "model.onnx", *given, "--per-class", cwd=work)
    assert "20 test points" in output
    assert CLASSES[0] in output or CLASSES[1] in output
    assert "--out FILE" in output
    audited, _ = safeset("audit", "model.onnx", *given, "--points", "4", "--budget", "0.05", cwd=work)
    assert "VIOLATION" not in audited
    assert "Attack on standard" in audited
    assert files(work) == before
    safeset("evaluate", "model.onnx", *given, "--out", "evaluation.json", cwd=work)
    safeset("audit", "model.onnx", *given, "--points", "4", "--budget", "0.05", "--out", "audit.json", cwd=work)
    for name in ("evaluation.json", "audit.json"):
        assert json.loads((work / name).read_text())["model"] == "model.onnx"
    assert json.loads((work / "evaluation.json").read_text())["rows"][0]["top1"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("certify", "model.onnx", "points.npz"), "Give epsilon"),
        (("certify", "none.onnx", "points.npz", "--epsilon", "1"), "none.onnx"),
        (("certify", "model.onnx", "points.npz", "--epsilon", "1", "--proof", "p.json"), "Leave --proof out"),
        (("evaluate", "model.onnx", "--epsilon", "1"), "--data"),
        (("evaluate", "model.onnx", "--data", "labelled.npz"), "Give epsilon"),
        (("evaluate", "model.onnx", "--data", "digits", "--epsilon", "1"), "points of shape (3, 8, 8)"),
        (("evaluate", "model.onnx", "--data", "labelled.npz", "--epsilon", "1", "--network", "a:b"), "has its own"),
        (("audit", "model.onnx", "--data", "labelled.npz"), "Give epsilon"),
        (("audit", "model.onnx", "--epsilon", "1"), "--data"),
        (("evaluate", "model.onnx", "--data", "few.npz", "--epsilon", "1"), "to test in few.npz, but got none among 3"),
        (("audit", ".", "--epsilon", "1"), "for an .onnx file alone"),
        (
            ("certify", "points.npz", "model.onnx", "--epsilon", "1"),
            "the file points.npz. It comes first",
        ),
        (("evaluate", "model.onnx", "--data", "labelled.npz", "--epsilon", "1", "--out", "model.onnx"), "to be read"),
    ],
)
def test_mistakes_are_messages(work, arguments, message):
    np.savez(work / "few.npz", x=np.zeros((3, 3, 8, 8)), y=[0, 1, 2])
    _, errors = safeset(*arguments, cwd=work, code=1)
    assert message in " ".join(errors.split())


def test_labels_that_are_no_numbers_of_logits_are_said(work):
    """Once the labels 0, 1, 2 and 4 of a network of four logits were taken for 0, 1, 2 and 3 without a word."""
    x, labels = np.random.default_rng(1).random((40, 3, 8, 8)), np.arange(40) % 4
    for name, y in (("own", labels), ("others", np.where(labels == 3, 4, labels))):
        np.savez(work / f"{name}.npz", x=x, y=y)
        _, errors = safeset("evaluate", "model.onnx", "--data", f"{name}.npz", "--epsilon", "0.1", cwd=work)
        told = "labels 0, 1, 2, 4 are not the numbers of logits, 0 to 3" in " ".join(errors.split())
        assert told == (name == "others")
