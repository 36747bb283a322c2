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


def computed(expression):
    ended = subprocess.run(
        ["node", "--input-type=module", "-"],
        input=f"{SCRIPT.read_text()}\nconsole.log(JSON.stringify({expression}));",
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(ended.stdout)


@pytest.mark.parametrize("count", [2, 3 * 224 * 224, 3 * 512 * 512])
def test_norms_of_images_of_any_size(count):
    assert computed(f"lengthOf(new Array({count}).fill(-0.25))") == pytest.approx(math.sqrt(count) / 4)


def test_a_change_that_is_none_can_be_made_to_fit():
    pairs = [(0, 0), (0.5, 0), (0, 2), (0.5, 0.1), (0.5, 1)]  # ε and the norm; 0/0 would be a change by NaN
    shares = computed("[" + ", ".join(f"shareWithin({epsilon}, {norm})" for epsilon, norm in pairs) + "]")
    assert shares == [1, 1, 0, 1, 0.4995]


def test_the_page_spreads_no_numbers_over_arguments():
    for script in SCRIPT.parent.glob("*.js"):
        assert "Math.hypot(" not in script.read_text()
