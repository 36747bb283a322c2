"""The package as it is installed: outside the checkout, lazily, typed."""

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import safeset
from helpers import commands

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def run(*command, cwd, **environment):
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_the_package_does_not_import_torch(tmp_path):
    code = "import sys, safeset; safeset.__version__; dir(safeset); print('torch' in sys.modules)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).strip() == "False"
    code = "import safeset; print(safeset.evaluation.vra.__name__, safeset.certificates.margins.margin.__name__)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).split() == ["vra", "margin"]


def test_every_public_name_is_there():
    for name in safeset.__all__:
        assert getattr(safeset, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = safeset.nonsense
    assert set(safeset.__all__) <= set(dir(safeset))


def test_modules_that_the_docs_name_can_be_imported():
    for name in ("data", "errors", "evaluation", "guarantees", "layers", "losses", "margins"):
        assert importlib.import_module(f"safeset.{name}") is getattr(safeset, name)
    from safeset.margins import METHODS, instrument

    assert instrument is safeset.margins.instrument
    assert "joint" in METHODS


def test_the_version_is_the_same_everywhere():
    version = safeset.__version__
    assert f'version = "{version}"' in (ROOT / "pyproject.toml").read_text()
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"version = {{{version}}}" in (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel")
    run(
        sys.executable,
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", path, ROOT),
        cwd=path,
    )
    (file,) = path.glob("safeset-*.whl")
    return file


def test_the_wheel_has_every_file_of_the_package(wheel):
    """A pattern of .gitignore that matches a room would leave it out."""
    files = (path for kind in ("py", "js", "css") for path in (ROOT / "src").rglob(f"*.{kind}"))
    source = {path.relative_to(ROOT / "src").as_posix() for path in files}
    recipes = {f"safeset/recipes/{path.relative_to(ROOT / 'recipes')}" for path in (ROOT / "recipes").rglob("*.toml")}
    with zipfile.ZipFile(wheel) as packed:
        assert source | recipes | {"safeset/py.typed"} <= set(packed.namelist())


def test_the_sdist_makes_the_same_wheel(wheel, tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path, cwd=ROOT)
    (sdist,) = tmp_path.glob("safeset-*.tar.gz")
    with tarfile.open(sdist) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = tmp_path / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", tmp_path, cwd=unpacked)
    (again,) = tmp_path.glob("safeset-*.whl")
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        assert sorted(one.namelist()) == sorted(other.namelist())
        assert all(one.read(name) == other.read(name) for name in one.namelist() if not name.endswith("RECORD"))


def test_the_wheel_s_readme_is_for_readers_elsewhere(wheel):
    with zipfile.ZipFile(wheel) as packed:
        (name,) = (name for name in packed.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = message_from_bytes(packed.read(name))
    page, readme = metadata.get_payload(decode=True).decode(), (ROOT / "README.md").read_text()
    assert metadata["Description-Content-Type"] == "text/markdown"
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert len(links) == len(re.findall(r"\]\(([^)\s]+)\)", readme)) > 20
    assert all(link.startswith("https://") for link in links), links
    own = f"https://github.com/safeset/safeset/%s/v{safeset.__version__}/"
    inside = [link for link in links if link.startswith((own % "blob", own % "raw"))]
    assert len(inside) > 15
    for link in inside:
        assert (ROOT / re.sub(r".*/(blob|raw)/v[^/]*/|#.*", "", link)).exists(), link
    assert f"({own % 'raw'}results/analyses/digits.png)" in page
    back = page.replace(own % "blob", "").replace(own % "raw", "")
    assert back.strip() == readme.strip()  # nothing but links has changed
    urls = dict(each.split(", ") for each in metadata.get_all("Project-URL"))
    assert {"Repository", "Documentation", "Changelog", "Issues", "Paper"} == set(urls)


def test_the_wheel_works_outside_the_checkout(wheel, tmp_path):
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # torch and numpy from the environment of the tests, but nothing of its own .pth files: not the checkout.
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import safeset, torch; print(safeset.__file__);"
        "print(safeset.certify_logits(torch.tensor([[2., 0.]]), torch.ones(2, 2), 1., 'standard').certified.item());"
        "print(len(safeset.data.load_data('digits').test))"
    )
    where, certified, points = run(python, "-W", "error", "-c", code, cwd=tmp_path, PYTHONPATH="").split()
    assert Path(where).is_relative_to(tmp_path)
    assert (certified, points) == ("True", "599")
    assert (packages / "safeset" / "py.typed").exists()
    listed = run(tmp_path / "env" / "bin" / "safeset", "models", cwd=tmp_path)
    assert "cifar100/rt5" in listed
    assert "cnn-2c2f" in listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_python_in_the_pages_runs(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if blocks:
        commands.safeset(script="\n".join(blocks), cwd=tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_what_the_pages_name_in_the_repository_is_there():
    """Files and folders by their paths, and tests by their names."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    missing = []
    for page in PAGES:
        text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
        named = re.findall(r"`((?:src|tests|docs|benchmarks|examples|recipes|results)/[\w./-]+)`", text)
        missing += [(page.name, path) for path in named if not (ROOT / path).exists()]
        missing += [(page.name, name) for name in re.findall(r"`(test_\w+)…?`", text) if f"def {name}" not in tests]
    assert not missing


def test_the_tables_in_the_pages_are_those_of_the_results():
    run(sys.executable, ROOT / "benchmarks" / "pages.py", "--check", cwd=ROOT)
