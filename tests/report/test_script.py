"""The page's script, run by node: at every ε a card says what Python's certificate says there."""

import json
import math
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

import safeset.report.page as page_module
from helpers.random_certificates import batch
from safeset.certificates.promises import PREFERENCES
from safeset.report.gallery import FEW, FILTERS, _item, answer_lines, gallery_data
from safeset.report.html import printable
from safeset.report.observer import Example

SCRIPT = Path(page_module.__file__).parent / "page.js"
RUN = """
const script = require(process.argv[1]);
const asked = JSON.parse(require("fs").readFileSync(0, "utf8"));
const found = asked.items.map((item) => asked.epsilons.map((epsilon) => asked.prefer.map((prefer) => ({
  ...script.setsOf(item, epsilon, prefer),
  lines: script.linesOf(item, epsilon, prefer, asked.names, asked.few),
  shown: asked.filters.filter((filter) => script.isShown(filter, item, epsilon, prefer)),
}))));
console.log(JSON.stringify(found));
"""

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node runs the page's script")


def in_node(items, epsilons, names):
    asked = {
        "items": items,
        "epsilons": epsilons,
        "names": names,
        "prefer": PREFERENCES,
        "filters": list(FILTERS),
        "few": FEW,
    }
    command = ["node", "-e", RUN, str(SCRIPT)]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=True, timeout=60)
    return json.loads(done.stdout)


def by_python(example, epsilon, prefer, units):
    """What a card must say, from the certificate's own sets."""
    certificate = example.certificate.at(epsilon).preferring(prefer)
    core, optional = (each[0].nonzero()[:, 0].tolist() for each in (certificate.core, certificate.optional))
    whole = {*core, *optional}
    shown = ["all"]
    shown += ["none"] if not bool(certificate.certified[0]) else []
    shown += ["several"] if len(whole) > 1 else []
    shown += ["wrong"] if whole and example.label not in whole else []
    return sorted(core), sorted(optional), answer_lines(certificate, units), shown


def check_all(examples, epsilons, names, units):
    items = json.loads(json.dumps([_item(each, units) for each in examples], allow_nan=False))
    found = in_node(items, epsilons, names)
    seen = set()
    for example, at in zip(examples, found, strict=True):
        for epsilon, both in zip(epsilons, at, strict=True):
            for prefer, said in zip(PREFERENCES, both, strict=True):
                core, optional, lines, shown = by_python(example, epsilon, prefer, units)
                assert (sorted(said["core"]), sorted(said["optional"])) == (core, optional)
                assert said["lines"] == lines
                assert said["shown"] == shown
                seen.update(shown)
    return seen


def test_at_five_epsilons_every_card_says_what_python_says(found):
    for run in found:
        place = run.radii.index(run.epsilon)
        epsilons = [0.0, run.epsilon, run.radii[place // 2], run.radii[(place + len(run.radii)) // 2], run.radii[-1]]
        assert len(run.examples) > 5
        check_all(run.examples, epsilons, [printable(name) for name in run.names], run.units)


@pytest.mark.parametrize("method", ["uniform", "floating", "joint"])
def test_random_certificates_at_and_around_their_own_radii(method):
    certificate, labels = batch(3, points=25, guarantee="rt4", method=method)
    windows = certificate.windows.clone()
    windows[0, :, -1] = math.inf
    windows[1] = 0.0
    certificate = replace(certificate, windows=windows)
    radii = sorted({radius for radius in certificate.windows.flatten().tolist() if 0 < radius < math.inf})
    some = radii[:: len(radii) // 5]
    epsilons = [0.0, *some, *(math.nextafter(radius, 0.0) for radius in some), 1e6]
    examples = [Example(place, int(labels[place]), certificate[place]) for place in range(len(certificate))]
    assert check_all(examples, epsilons, list(certificate.names), "L2, units") == set(FILTERS)


def test_every_stop_of_the_slider_is_an_epsilon_of_the_curves(found):
    for run in found:
        data = json.loads(json.dumps(gallery_data(run), allow_nan=False))
        assert [stop["epsilon"] for stop in data["stops"]] == run.radii
        assert run.epsilon in run.radii
        assert run.radii == sorted(set(run.radii))
        assert all(run.units in stop["text"] for stop in data["stops"])
        assert len(data["items"]) == len(run.examples)
