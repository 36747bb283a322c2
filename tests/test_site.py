"""The site: it builds without a warning, needs no network, and has every public name."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import safeset
from safeset.program.registry import RULES

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site as `make docs` builds it: links and anchors that lead nowhere are errors."""
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", out]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        list(map(str, command)), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return {path.relative_to(out).as_posix(): path.read_text() for path in out.rglob("*.html")}


def test_nothing_is_loaded_from_elsewhere(site):
    loaded = {
        (name, address)
        for name, page in site.items()
        for tag in re.findall(r"<(?:script|link|img|iframe|source)\b[^>]*>", page)
        for address in re.findall(r'(?:src|href)="?((?:https?:)?//[^"\s>]+)', tag)
    }
    assert not loaded
    assert not any('data-md-component="source"' in page for page in site.values())  # asks GitHub for stars


def test_every_public_name_is_in_the_reference(site):
    reference = "".join(page for name, page in site.items() if name.startswith("reference/"))
    named = set(re.findall(r'id="?(safeset\.[\w.]+)', reference))
    public = {f"safeset.{name}" for name in safeset.__all__ if name != "__version__"}
    public |= {f"safeset.layers.{name}" for name in ("MinMax", "Abs", "Normalize", "Residual")}
    public |= {f"safeset.losses.{name}" for name in ("cross_entropy", "trades")}
    public |= {f"safeset.evaluation.{name}" for name in ("vra", "rejection_rate", "accuracy", "Metrics", "evaluate")}
    public |= {"safeset.data.load_data", "safeset.guarantees.parse", "safeset.CertifiedNet.certify"}
    assert public <= named, public - named


def test_every_command_is_in_the_reference(site):
    commands = site["reference/commands.html"]
    names = (
        "train",
        "evaluate",
        "certify",
        "calibrate",
        "suggest",
        "report",
        "plot",
        "audit",
        "check",
        "reproduce",
        "figures",
    )
    for name in (*names, "data get"):
        assert f"safeset {name}</code>" in commands, name


def test_tables_of_sentences_have_a_heading_in_every_cell_and_tables_of_numbers_stay_tables(site):
    labels = re.findall(r'<td data-label="([^"]*)"', site["layers.html"])
    headings = ["how it is bounded", "how tight", "what the proof costs"]
    rows = [labels[start : start + 4] for start in range(0, len(labels), 4)]
    assert len(rows) > 20
    assert all(row[0] in ("layer", "operation") and row[1:] == headings for row in rows)
    assert "data-label" not in re.search(r"VRA: the paper.*?</table>", site["paper.html"], flags=re.DOTALL)[0]


def test_every_supported_layer_is_in_the_table_of_layers():
    assert safeset.register_layer  # torch's layers are registered with it; other tests may have added their own
    supported = [kind.__name__ for kind in RULES if kind.__module__.startswith(("torch.", "safeset."))]
    assert len(supported) > 15
    table = (ROOT / "docs" / "layers.md").read_text()
    missing = [name for name in supported if not re.search(rf"`(nn\.|safeset\.layers\.)?{name.split('.')[-1]}`", table)]
    assert not missing
