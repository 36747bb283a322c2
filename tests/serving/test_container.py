"""The container file: a linter reads it, and what it names is there. No daemon is needed."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from safeset.cli.app import app

ROOT = Path(__file__).parents[2]
FILE = ROOT / "Containerfile"


def test_a_linter_has_nothing_to_say():
    found = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if found is None:
        pytest.skip("hadolint is not installed")
    done = subprocess.run([found, "--format", "json", str(FILE)], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout) == [], done.stdout


def instructions(name):
    lines = FILE.read_text().replace("\\\n", " ").splitlines()
    return [line.partition(" ")[2] for line in lines if line.startswith(f"{name} ")]


def test_what_it_copies_and_starts_is_there():
    (copied,) = instructions("COPY")
    constraints, wheel, _ = copied.split()
    assert (ROOT / constraints).is_file()
    assert re.fullmatch(r"dist/safeset-\*\.whl", wheel)
    (installed,) = re.findall(r'/wheels/safeset-\*\.whl\)\[(\w+)\]"', FILE.read_text())
    assert f"\n{installed} = [" in (ROOT / "pyproject.toml").read_text()
    program, command, *options = json.loads(instructions("ENTRYPOINT")[0])
    assert program == "safeset"
    shown = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "200"}).output
    for option in options[::2]:
        assert option in shown
    assert instructions("USER") == ["1000"]
    (probe,) = re.findall(r"CMD (\[.*\])", instructions("HEALTHCHECK")[0])
    compile(json.loads(probe)[2], "probe", "exec")
