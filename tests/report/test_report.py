"""The report: its numbers are the evaluation's, its texts are escaped, it loads nothing, and people can use it."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from helpers.commands import safeset
from helpers.hostile_names import HOSTILE, TURNED
from safeset.evaluation import evaluate
from safeset.report import sections
from safeset.report.charts import Axis, Line, chart
from safeset.report.html import Html, element, escape, printable, table
from safeset.report.observer import EACH
from safeset.report.page import report_page
from safeset.runs.affinity_suggestion import suggest_for_net
from safeset.runs.evaluate import evaluate_run
from safeset.runs.load import load
from safeset.runs.run import Run

SECTIONS = ["summary", "numbers", "curves", "groups", "classes", "inputs", "surface", "training", "bounds"]
SECTIONS += ["provenance"]
ALLOWED = """
html head meta title style body header h1 h2 h3 h4 nav ul li a main section div article p dl dt dd b i table thead tbody
tr th td figure figcaption svg line polyline text image circle details summary form label input output fieldset legend
select option img span pre button footer script
"""


class Reader(HTMLParser):
    """The elements of a page with their attributes, the text of each kind, and what is not closed."""

    def __init__(self, page):
        super().__init__()
        self.elements, self.open, self.text = [], [], {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))
        self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.text[self.open[-1]] = self.text.get(self.open[-1], "") + data

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture(scope="module")
def read(page):
    return Reader(page)


def test_the_numbers_are_the_evaluations_own(found, work):
    for run in found:
        whole, units = evaluate_run(Run(work / run.name), per_class=True)
        for name in ("rows", "points", "guarantee", "weights", "test", "remarks"):
            assert run.evaluation[name] == whole[name]
        assert units in run.units
        net, some = load(work / run.name), run.radii[::9]
        rows = evaluate(net, run.points.test, epsilons=some)
        for row in rows:
            drawn = run.curves[row["method"]][run.radii.index(row["epsilon"])]
            for name in ("vra", "rejection_rate", "top1", "core_size", "set_size", "smallest_set_size", "points"):
                assert drawn[name] == pytest.approx(row[name], nan_ok=True) or row[name] != row[name]


def test_examples_are_of_every_kind_and_the_matrix_counts_answers(found):
    for run in found:
        places = [each.place for each in run.examples]
        assert len(places) == len(set(places)) <= 4 * EACH
        together = torch.zeros_like(run.together)
        net = load(run.name)
        certificate = net.certify(run.points.test.exact)
        for answer in certificate.whole.tolist():
            members = [place for place, is_in in enumerate(answer) if is_in]
            for one in members:
                for other in members:
                    together[one, other] += 1
        assert torch.equal(together, run.together)
        for each in run.examples:
            assert each.label == int(run.points.test.y[each.place])
            assert torch.equal(each.certificate.windows[0], certificate[each.place].windows[0])
        rejected = (~certificate.certified).nonzero()[:, 0].tolist()
        assert len(set(rejected) & set(places)) >= min(EACH, len(rejected))


def test_every_section_is_there_and_every_link_leads_to_one(read):
    assert [each["id"] for each in read.all("section")] == SECTIONS
    assert [each["href"] for each in read.all("a")] == [f"#{name}" for name in SECTIONS]
    assert not read.open  # everything is closed


def test_units_and_words_stand_in_the_page(page, found):
    for run in found:
        assert run.units in page
    for word in ("may also include", "kept out", "no certificate", "uniform", "floating", "joint", "top-1", "sets = ["):
        assert word in page


def test_the_guarantee_is_in_words_with_names_of_classes(found):
    run = found[0]
    assert "the 1, 2 or 3 best classes stay the same" in sections.summary(run)
    evaluation = {**run.evaluation, "guarantee": 'affinity:{"sets":[[0,2]]}'}
    page = report_page([replace(run, evaluation=evaluation)])
    named = f"may be confused: {{{escape(run.names[0])}, {escape(run.names[2])}}}"
    assert page.count(named) == 2  # in words, and where it comes from
    assert "[[0,2]]" not in page


def test_each_of_several_runs_has_its_own_number_of_points(found):
    run = replace(found[0], name="one", evaluation={**found[0].evaluation, "points": 9, "split": "test"})
    other = replace(run, name="other", evaluation={**run.evaluation, "points": 7})
    assert "Proved bounds, one: 9 test points, other: 7 test points" in sections.numbers([run, other])
    assert "Proved bounds, 9 test points, " in sections.numbers([run, run])


def test_epochs_and_classes_are_whole_on_their_axes(found):
    sizes = sections.curves(found[0]).partition("Classes in an answer")[2]
    marks = re.findall(r'class="end">([^<]+)<', sizes)
    assert marks
    assert all(mark.isdecimal() for mark in marks)
    records = [{**each, "epoch": 1 + place} for place, each in enumerate(found[0].records[:3])]
    drawn = sections.training(replace(found[0], records=records))
    assert re.findall(r'class="middle">([^<]+)<', drawn) == ["1", "2", "3", "1", "2", "3"]


def test_nothing_is_loaded_and_only_one_script_may_run(page, read):
    addresses = [each[name] for _, each in read.elements for name in ("src", "href", "action", "data") if name in each]
    assert addresses
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in addresses)
    assert "url(" not in page
    assert "@import" not in page
    policy = next(each["content"] for each in read.all("meta") if each.get("http-equiv"))
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_names_of_users_are_text_and_nothing_else(page, read):
    assert {name for name, _ in read.elements} <= set(ALLOWED.split())
    assert [each.get("type") for each in read.all("script")] == ["application/json", None]
    assert not any(key.startswith("on") for _, each in read.elements for key in each)
    assert "<script>alert" not in page
    shown = read.text["b"] + read.text["th"]
    for name in HOSTILE:
        assert name in shown
    assert "<i onclick=alert(3)>" in read.text["span"]
    assert "<b>x</b> = " in read.text["pre"]
    assert TURNED not in page
    assert printable(TURNED) in page
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', page, flags=re.DOTALL)[1])
    assert data[0]["names"] == sorted(HOSTILE)
    page.encode()  # lone surrogates of file names are gone


def test_what_is_no_html_is_escaped_wherever_it_stands():
    bad = "<x> & \" '"
    good = "&lt;x&gt; &amp; &quot; &#x27;"
    assert element("p", bad, title=bad) == f'<p title="{good}">{good}</p>'
    assert element("p", title=Html("<b>")) == '<p title="&lt;b&gt;"></p>'
    assert bad not in table(bad, [bad], [[bad, bad]])
    assert bad not in chart(bad, [Line(bad, [0, 1], [0, 1])], Axis(bad, str), Axis(bad, str), mark=(0.5, bad))
    assert printable("a\udcffb") == "a\ufffdb"


def test_everything_has_an_accessible_name(read):
    labels = {each["for"] for each in read.all("label") if "for" in each}
    for each in [*read.all("input"), *read.all("select")]:
        assert each.get("type") == "radio" or each["id"] in labels  # radio buttons stand in their labels
    sliders = [each for each in read.all("input") if each["type"] == "range"]
    assert len(sliders) == 2
    assert all("ε = 0.05 (L2, " in each["aria-valuetext"] for each in sliders)
    assert all(each.get("aria-hidden") or each["aria-label"] for each in read.all("svg"))
    assert all(each["alt"] for each in read.all("img"))
    assert all(each["aria-label"] for each in read.all("table"))
    assert all(each["tabindex"] == "0" for each in read.all("div") if each.get("class") == "scroll")


def test_gaps_and_lines_of_other_places():
    lines = [Line("a", [0, 1, 2, 3], [0, None, 1, 1]), Line("b", [0, 2], [None, None])]
    drawn = Reader(chart("t", lines, Axis("x", str), Axis("y", str)))
    assert len(drawn.all("polyline")) == 2
    assert len(drawn.all("table")) == 2
    flat = chart("t", [Line("a", [0, 0], [3, 3])], Axis("x", str), Axis("y", str))
    assert "nan" not in flat


def test_answers_of_one_class_and_none(found):
    run = found[0]
    for together, text in (
        (torch.eye(4).long(), "has two classes"),
        (torch.zeros(4, 4).long(), "Nothing is certified"),
    ):
        assert text in report_page([replace(run, together=together)])


def test_a_training_that_has_not_ended_and_remarks_are_notes(found):
    run = found[0]
    evaluation = {**run.evaluation, "remarks": ["The <mean> core is large."]}
    read = Reader(report_page([replace(run, unfinished="epoch 2 of 8", evaluation=evaluation, records=[])]))
    notes = [each for each in read.all("p") if each.get("class") == "note"]
    assert len(notes) == 2
    assert "has not ended (epoch 2 of 8)" in read.text["p"]
    assert "The <mean> core is large." in read.text["p"]
    assert "fewer than two epochs" in read.text["p"]


def test_sets_are_proposed_from_some_points_that_are_not_shown(found, work):
    run = found[0]
    net = load(work / "table")
    some = suggest_for_net(net, run.recipe, run.points, other=False, at_most=50)
    assert (len(some.labels), some.on) == (50, "table, 50 of 128 training points")
    assert torch.equal(some.labels, suggest_for_net(net, run.recipe, run.points, other=False, at_most=50).labels)
    assert (len(run.suggestion.labels), run.suggestion.on) == (128, "table, training points")


@pytest.mark.skipif(shutil.which("chromium") is None, reason="a browser shows the page")
def test_in_a_browser_on_a_phone_the_slider_works_and_nothing_is_too_wide(found, tmp_path):
    long = replace(found[1].points, class_names=("HerbaceousVegetationEverywhere", "b", "PermanentlyCroppedLandHere"))
    together = torch.full((3, 3), 2)
    (tmp_path / "report.html").write_text(report_page([found[0], replace(found[1], points=long, together=together)]))
    (tmp_path / "phone.html").write_text(
        '<iframe id=f width=390 height=800 src=report.html></iframe><script>f.onload = () => {'
        "const w = f.contentWindow, d = w.document, said = () => d.querySelector('.answer').textContent;"
        "const slider = d.querySelector('input[type=range]'), before = said(), own = slider.value;"
        "const seen = [];"
        "for (const place of [0, slider.max, own]) { slider.value = place;"
        "slider.dispatchEvent(new Event('input', {bubbles: true})); seen.push(said()); }"
        "document.title = JSON.stringify([d.documentElement.scrollWidth <= w.innerWidth, seen[2] === before,"
        "seen[1].includes('no certificate'), d.querySelectorAll('.cards li').length,"
        "[...d.querySelectorAll('#groups th')].filter((cell) => cell.scrollWidth > cell.clientWidth).length,"
        "d.querySelectorAll('#groups th').length]); }</script>"
    )  # fmt: skip
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += ["--virtual-time-budget=4000", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, (tmp_path / "phone.html").as_uri()], capture_output=True, text=True, timeout=120, check=False
    )
    seen = json.loads(re.search(r"<title>(.*?)</title>", done.stdout)[1])
    assert seen[:3] == [True, True, True]
    assert seen[3] > 10
    assert seen[4] == 0  # no name of a class lies over the next one
    assert seen[5] > 8


# -- the commands -----------------------------------------------------------------------------------------------------


def test_the_page_of_a_run_is_written_into_it(work):
    output, errors = safeset("report", "table", cwd=work)
    assert "Written: table/report.html" in output
    assert errors == ""
    Reader((work / "table" / "report.html").read_text())
    (work / "table" / "report.html").unlink()


def test_a_plot_is_a_png_or_an_svg_by_its_ending(work):
    safeset("plot", "table", "--out", "a.svg", cwd=work)
    assert (work / "a.svg").read_text().startswith("<?xml")
    output, _ = safeset("plot", "photo-run", cwd=work)
    assert "Drawn: photo-run/plot.png" in output
    with Image.open(work / "photo-run" / "plot.png") as picture:
        assert picture.size[0] > 900


@pytest.mark.parametrize(
    ("typed", "message"),
    [
        (["report", "nowhere"], "the directory of a run, but got nowhere"),
        (["report", "table", "photo-run"], "--out FILE for a report of 2 runs"),
        (["report", "photo-run", "table", "--out", "photo-run/README.md"], "a file of the run itself"),
        (["report", "table", "--out", "table.csv", "--data", "table.csv"], "which is to be read"),
        (["report", "table", "--out", "table.csv"], "has another ending"),
        (["report", "table", "--out", "new.pdf"], "a name that ends in .html"),
        (["report", "table", "--out", "no/where.html"], "a directory for the HTML file"),
        (["report", "table", "--data", "blobs2d"], "data as trained on"),
        (["report", "table", "nowhere", "--out", "two.html"], "the directory of a run, but got nowhere"),
        (["plot", "table", "--out", "a.pdf"], "ends in .png or .svg"),
        (["plot", "table", "--out", "table/metrics.png"], "a file of the run itself"),
        (["plot", "nowhere"], "the directory of a run"),
    ],
)
def test_mistakes_are_named_and_nothing_is_written(work, typed, message):
    before = {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}
    _, errors = safeset(*typed, cwd=work, code=1)
    assert message in " ".join(errors.split())
    assert before == {path: path.read_bytes() for path in work.rglob("*") if path.is_file()}


def test_runs_without_weights_or_data_say_what_to_do(work, tmp_path):
    shutil.copytree(work / "table", tmp_path / "run")
    (tmp_path / "run" / "model.safetensors").unlink()
    (tmp_path / "run" / "evaluation.json").unlink()
    _, errors = safeset("report", "run", cwd=tmp_path, code=1)
    assert "Continue with safeset train --resume --out run" in " ".join(errors.split())
    shutil.copytree(work / "table", tmp_path / "moved")
    recipe = tmp_path / "moved" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("table.csv", "gone.csv"))
    _, errors = safeset("report", "moved", cwd=tmp_path, code=1)
    assert "gone.csv" in errors
    safeset("plot", "moved", "--data", work / "table.csv", "--out", "again.svg", cwd=tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["again.svg", "moved", "run"]
