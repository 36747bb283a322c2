"""The section about sets that hold the true class: of calibrated runs alone, with the numbers of `Coverage`."""

import io
from dataclasses import replace

import pytest
from PIL import Image

from helpers.served import run_path
from safeset.report.findings import look_at
from safeset.report.page import report_page
from safeset.report.plot import draw_plot
from safeset.runs.calibrate import read_coverage
from safeset.runs.data import load_run_data
from safeset.runs.load import load_run
from safeset.runs.run import Run


@pytest.fixture(scope="module")
def calibrated():
    return look_at(Run(run_path()), device="cpu")


def test_the_curves_are_those_of_python(calibrated):
    run = Run(run_path())
    coverage = read_coverage(run, load_run(run)[0])
    test = load_run_data(run.read_recipe()).test
    points = coverage.net.measure(test.exact)
    rows = calibrated.coverage["rows"]
    assert [row["epsilon"] for row in rows] == calibrated.radii
    for row in rows[:: len(rows) // 5]:
        sets = coverage.sets(points, row["epsilon"])
        assert row["clean"] == sets.gather(1, test.y[:, None]).double().mean().item()
        assert row["size"] == pytest.approx(sets.sum(dim=1).double().mean().item(), rel=1e-12)
        (share,) = coverage.curve(points, test.y, [row["epsilon"]], rule=row["epsilon"]).shares
        assert row["guaranteed"] == share


def test_it_is_shown_of_calibrated_runs_alone(calibrated, found):
    page = report_page([calibrated])
    assert 'id="coverage"' in page
    assert "promised, 1 − α = 0.9" in page
    assert 'id="coverage"' not in report_page(found)
    assert report_page([calibrated, *found]).count("<h2>Sets that hold the true class</h2>") == 1


def test_a_plot_of_a_calibrated_run_has_its_curves_in_a_second_row(calibrated):
    def height(found):
        with Image.open(io.BytesIO(draw_plot(found, ".png"))) as picture:
            return picture.height

    assert height(calibrated) > 1.5 * height(replace(calibrated, coverage=None))
