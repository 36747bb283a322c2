"""The package as it is installed: outside the checkout, lazily, typed."""

import os
import re
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

import safeset
from pages import pages

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


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
    code = "import safeset; print(safeset.evaluation.vra.__name__, safeset.margins.margin.__name__)"
    assert run(sys.executable, "-c", code, cwd=tmp_path).split() == ["vra", "margin"]


def test_every_public_name_is_there():
    for name in safeset.__all__:
        assert getattr(safeset, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = safeset.nonsense
    assert set(safeset.__all__) <= set(dir(safeset))


def test_the_version_is_that_of_the_project():
    assert f'version = "{safeset.__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_the_wheel_works_outside_the_checkout(tmp_path):
    run(
        sys.executable,
        *("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT),
        cwd=tmp_path,
    )
    (wheel,) = tmp_path.glob("safeset-*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    # torch and numpy from the environment of the tests, but nothing of its own .pth files: not the checkout.
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=tmp_path).strip())
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    code = (
        "import safeset, torch; print(safeset.__file__);"
        "print(safeset.certify_logits(torch.tensor([[2., 0.]]), torch.ones(2, 2), 1., 'standard').certified.item())"
    )
    where, certified = run(python, "-W", "error", "-c", code, cwd=tmp_path).split()
    assert Path(where).is_relative_to(tmp_path)
    assert certified == "True"
    assert (packages / "safeset" / "py.typed").exists()
    listed = run(tmp_path / "env" / "bin" / "safeset", "models", cwd=tmp_path)
    assert "cifar100/rt5" in listed
    assert "cnn-2c2f" in listed


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_the_python_in_the_pages_runs(page, tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    if blocks:
        run(sys.executable, "-W", "error", "-c", "\n".join(blocks), cwd=tmp_path)


@pytest.mark.parametrize(
    "page", [*ROOT.glob("*.md"), *sorted((ROOT / "docs").glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!https?://|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_the_tables_in_the_pages_are_those_of_the_results():
    for path, text in pages().items():
        assert path.read_text() == text, f"{path.name} differs from its results: run python benchmarks/pages.py"
