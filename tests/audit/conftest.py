import shutil

import pytest

from safeset.runs.run import Run


@pytest.fixture
def run(made, tmp_path):
    """A copy of the run that a module has made, to be spoilt."""
    shutil.copytree(made, tmp_path / "run")
    return Run(tmp_path / "run")
