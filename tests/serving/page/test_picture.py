"""The page's arithmetic, run by node."""

import json
import math
import shutil
import subprocess
from pathlib import Path

import pytest

import safeset.serving.page

SCRIPT = Path(safeset.serving.page.__file__).parent / "picture.js"
pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")


@pytest.mark.parametrize("count", [2, 3 * 224 * 224, 3 * 512 * 512])
def test_norms_of_images_of_any_size(count):
    asked = f"\nconsole.log(JSON.stringify(lengthOf(new Array({count}).fill(-0.25))));"
    ended = subprocess.run(
        ["node", "--input-type=module", "-"],
        input=SCRIPT.read_text() + asked,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(ended.stdout) == pytest.approx(math.sqrt(count) / 4)


def test_the_page_spreads_no_numbers_over_arguments():
    for script in SCRIPT.parent.glob("*.js"):
        assert "Math.hypot(" not in script.read_text()
