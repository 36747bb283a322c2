"""Closed streams, broken pipes, full disks, directories that cannot be written: reported, and nothing is lost."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

from helpers.commands import ENVIRONMENT, safeset
from safeset import SafesetError, train
from safeset.data.embedded import blobs2d
from safeset.runs.certify_files import certify_files
from safeset.runs.run import Run
from safeset.system.files import write_whole

RECIPE = {"data": {"source": "blobs2d"}, "epochs": 1, "guarantee": "rt2", "epsilon": 0.1, "model": "mlp-2x32"}


@pytest.fixture(scope="module")
def work():
    """A directory that everybody may read, with a run and 300 points."""
    with tempfile.TemporaryDirectory() as name:
        path = Path(name)
        path.chmod(0o755)
        train(RECIPE, out=path / "run")
        np.savez(path / "some.npz", x=blobs2d().test.x[:300].numpy())
        yield path


def shell(text, cwd):
    command = text.replace("safeset", f"{sys.executable} -m safeset", 1)
    arguments = {"cwd": cwd, "env": ENVIRONMENT, "timeout": 120, "check": False}
    return subprocess.run(["bash", "-c", command], capture_output=True, text=True, **arguments)


def content(folder):
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir()) if file.name != ".lock"}


# -- pipes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["--json", "--csv"])
def test_a_reader_that_has_seen_enough_ends_it_quietly(work, form):
    output, errors = safeset("certify", "run", "some.npz", form, cwd=work, lines=1, code=141)
    assert output.count("\n") == 1
    assert errors == ""


@pytest.mark.parametrize("arguments", [["certify", "run", "some.npz"], ["models"], ["version"]])
def test_a_reader_that_sees_nothing_ends_it_quietly(work, arguments):
    assert safeset(*arguments, cwd=work, lines=0, code=141) == ("", "")


def test_an_evaluation_is_kept_though_nobody_reads_it(work):
    safeset("evaluate", "run", "--method", "joint", "--out", "e.json", cwd=work, lines=0, code=141)
    assert json.loads((work / "e.json").read_text())["rows"]


def test_a_training_goes_on_though_nobody_listens(work, tmp_path):
    for place, options in enumerate(({"error_lines": 0}, {"stderr": "/dev/full"})):
        flags = ("--data", "blobs2d", "--epochs", "2", "--out", tmp_path / str(place))
        output, _ = safeset("train", *flags, cwd=work, **options)
        assert "The run is" in output
        assert Run(tmp_path / str(place)).has_ended


# -- closed streams ---------------------------------------------------------------------------------------------------


def test_closed_streams_are_reported(work):
    done = shell("safeset certify run some.npz --csv >&-", work)
    assert done.returncode == 1
    assert done.stderr == "error: Expected standard output for the answers, but got none: it is closed.\n"
    (record,) = certify_files(work / "run", ["-"], stdin=None)
    assert "Expected an image, an .npz file or names of files on standard input, but got nothing" in record["problem"]
    done = shell("safeset version 2>&- <&-", work)
    assert (done.returncode, done.stdout[:8]) == (0, "safeset ")


def test_a_file_is_never_opened_as_a_closed_stream(work):
    """What is meant for the terminal would be written into it."""
    code = (
        "import os, sys\nfrom safeset.cli import app as cli\n"
        "os.close(0), os.close(2)\nsys.argv = ['safeset', 'version']\n"
        "try:\n    cli.main()\nfinally:\n    print(os.open('some.npz', os.O_RDONLY) > 2)"
    )
    command = [sys.executable, "-c", code]
    output = subprocess.check_output(command, cwd=work, env=ENVIRONMENT, text=True, timeout=60)
    assert output.splitlines()[-1] == "True"


@pytest.mark.parametrize(
    "stdin",
    [
        b"\0\0\0\n",
        b"a\0b.npz\n",
        b"x" * 5000 + b"\n",
        b"-\n",
        b"\xff\xfe.png\n",
        b"PK\x03\x04",
        b"\x89PNG",
        b"/dev/null\n",
    ],
)
def test_nonsense_on_standard_input_is_reported(work, stdin):
    output, errors = safeset("certify", "run", "-", "--json", cwd=work, stdin=stdin, code=1)
    (record,) = map(json.loads, output.splitlines())
    assert record["problem"]
    assert "1 of the points could not be read" in errors


# -- full disks -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        ["version"],
        ["certify", "run", "some.npz"],
        ["certify", "run", "some.npz", "--csv"],
        ["certify", "run", "some.npz", "--json"],
    ],
)
def test_a_full_disk_for_the_output_is_reported(work, arguments):
    _, errors = safeset(*arguments, cwd=work, stdout="/dev/full", code=1)
    assert errors == "error: No space left on device\n"


def test_a_full_disk_leaves_what_was_there(work):
    before = content(work / "run")
    output, errors = safeset("evaluate", "run", cwd=work, largest_file=100, code=1)
    assert "VRA" in output  # it is not lost
    assert "File too large" in errors
    assert content(work / "run") == before
    safeset("data", "show", "blobs2d", "--out", "d.png", cwd=work, largest_file=100, code=1)
    assert not [file.name for file in work.iterdir() if file.name.startswith((".d", "d."))]


def test_what_is_no_file_is_not_replaced_by_one(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(SafesetError, match="a file to write at"):
        write_whole(tmp_path / "pipe", "x")
    assert (tmp_path / "pipe").is_fifo()


# -- directories that cannot be written -------------------------------------------------------------------------------


def test_a_directory_that_cannot_be_written_is_reported(work):
    shutil.copytree(work / "run", work / "locked")
    before = content(work / "locked")
    (work / "locked").chmod(0o555)
    try:
        output, _ = safeset("certify", "locked", "some.npz", "--json", cwd=work, unprivileged=True)
        assert len(output.splitlines()) == 300
        output, errors = safeset("evaluate", "locked", cwd=work, unprivileged=True, code=1)
        assert "VRA" in output
        assert "error: Permission denied" in errors
        _, errors = safeset("train", "--data", "blobs2d", "--out", "locked/x", cwd=work, unprivileged=True, code=1)
        assert "Expected a directory that can be written at locked/x, but got: Permission denied" in errors
        picture = ("data", "show", "blobs2d", "--out", "locked/x.png")
        _, errors = safeset(*picture, cwd=work, unprivileged=True, code=1)
        assert "error: Permission denied" in errors
    finally:
        (work / "locked").chmod(0o755)
    assert content(work / "locked") == before
