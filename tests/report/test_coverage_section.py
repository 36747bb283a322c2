"""The section about sets that hold the true class: of calibrated runs alone, with the numbers of `Coverage`."""

import io
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from helpers.calibrated import trained_run
from helpers.served import run_path
from safeset.coverage.words import covered_cells
from safeset.data.embedded import digits
from safeset.report.findings import look_at
from safeset.report.page import report_page
from safeset.report.plot import draw_plot
from safeset.runs.calibrate import calibrate_run, read_coverage, write_calibration
from safeset.runs.data import load_run_data
from safeset.runs.evaluate import evaluate_run
from safeset.runs.evaluate_coverage import SEEN
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


def test_its_table_has_the_numbers_of_an_evaluation(calibrated):
    found = evaluate_run(Run(run_path()), per_class=True, device="cpu")[0]["coverage"]
    own = [row for row in calibrated.coverage["rows"] if row["epsilon"] in (0.0, 0.3)]
    assert own == found["rows"]
    assert own[1]["under_attack"] < own[1]["clean"]
    assert {**calibrated.coverage, "rows": 0, "curve": 0} == {**found, "rows": 0, "curve": 0}
    page = report_page([calibrated])
    assert f"<p>Covers: {found['words']}.</p>" in page
    for row in found["rows"]:
        for name, part in (("0" if not row["epsilon"] else "0.3", row), *row["classes"].items()):
            first = [name] if part is row else [name, f"{part['points']:,}"]
            head = f'<th scope="row">{first[0]}</th>'
            cells = "".join(f'<td class="number">{cell}</td>' for cell in (*first[1:], *covered_cells(part)))
            assert (f"{head}{cells}</tr>" in page) == (part is row or row["epsilon"] > 0)
    assert 0 < found["rows"][1]["under_attack"] < 1
    radii = [0.3, calibrated.radii[5]]
    whole = evaluate_run(Run(run_path()), epsilons=radii, per_class=True, device="cpu")[0]["coverage"]["rows"]
    for row in whole:  # the curve's numbers at other ε too, but for the attack
        (same,) = (one for one in calibrated.coverage["rows"] if one["epsilon"] == row["epsilon"])
        assert plainly(same) == plainly(row)


def plainly(row):
    """A row without what the attack found."""
    classes = {name: {**part, "under_attack": 0} for name, part in row["classes"].items()}
    return {**row, "under_attack": 0, "classes": classes}


def test_points_that_were_calibrated_with_are_noted(tmp_path):
    run, test = trained_run(tmp_path), digits().test
    x = test.x[:100].clone()
    x[:, 0, 0, 0] = 3
    source = str(tmp_path / "mine.npz")
    np.savez(source, x=x.numpy(), y=test.y[:100].numpy(), class_names=digits().class_names)
    write_calibration(run, calibrate_run(run, source=source, device="cpu")[1])
    assert SEEN not in report_page([look_at(run, device="cpu")])
    assert f'<p class="note"><b>Note. </b>{SEEN}</p>' in report_page([look_at(run, source=source, device="cpu")])


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
