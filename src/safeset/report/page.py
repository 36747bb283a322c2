"""The page of one or several runs: every section for every run, script and style inside, nothing from outside."""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from safeset import __version__
from safeset.report import sections
from safeset.report.coverage import coverage_section
from safeset.report.findings import Findings
from safeset.report.gallery import gallery, gallery_data
from safeset.report.groups import groups, surface_figure
from safeset.report.html import Html, element, join, json_data

HERE = Path(__file__).parent


def report_page(several: Sequence[Findings]) -> str:
    """One self-contained HTML file.

    Args:
        several: runs, which stand beside each other where the page is wide enough.
    """
    runs = list(several)
    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    title = f"Certified answers: {', '.join(found.name for found in runs)}"
    parts = _sections(runs)
    anchors = [element("li", element("a", name, href=f"#{key}")) for key, name, _ in parts]
    links = element("nav", element("ul", *anchors), aria_label="Sections")
    body = element(
        "body",
        element("header", element("h1", title), links),
        element("main", *(element("section", element("h2", name), content, id=key) for key, name, content in parts)),
        element("footer", element("p", f"Made by safeset {__version__}. This file is complete: it loads nothing.")),
        json_data([gallery_data(found) for found in runs], "data"),
        Html(f"<script>{script}</script>"),
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_policy(script)),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", title),
        Html(f"<style>{style}</style>"),
    )
    return f"<!DOCTYPE html>\n{element('html', head, body, lang='en')}\n"


def _sections(runs: list[Findings]) -> list[tuple[str, str, Html]]:
    """Each section: its anchor, its title, its content."""
    found = [
        ("summary", "In words", join([_beside(runs, [sections.summary(run) for run in runs]), sections.words()])),
        ("numbers", "The numbers", sections.numbers(runs)),
        ("curves", "Against ε", join([sections.comparison(runs), _beside(runs, map(sections.curves, runs))])),
        *_coverage(runs),
        ("groups", "Classes that go together", _beside(runs, map(groups, runs))),
        ("classes", "By class", _beside(runs, map(sections.classes, runs))),
        ("inputs", "Inputs and their answers", _beside(runs, (gallery(run, place) for place, run in enumerate(runs)))),
    ]
    flat = [run for run in runs if run.surface is not None]
    if flat:
        pictures = (surface_figure(run, run.surface) for run in flat if run.surface is not None)
        found.append(("surface", "The plane", _beside(flat, pictures, titles=len(runs) > 1)))
    found += [
        ("training", "Training", _beside(runs, map(sections.training, runs))),
        ("bounds", "Bounds, layer by layer", _beside(runs, map(sections.bounds, runs))),
        ("provenance", "Provenance", _beside(runs, map(sections.provenance, runs))),
    ]
    return found


def _coverage(runs: list[Findings]) -> list[tuple[str, str, Html]]:
    """The section of those runs that are calibrated, if any is."""
    calibrated = [run for run in runs if run.coverage is not None]
    contents = (
        coverage_section(run.coverage, epsilon=run.epsilon, units=run.units, kind=run.evaluation["split"])
        for run in calibrated
        if run.coverage is not None
    )
    content = _beside(calibrated, contents, titles=len(runs) > 1)
    return [("coverage", "Sets that hold the true class", content)] if calibrated else []


def _beside(runs: Sequence[Findings], contents: Iterable[Html], titles: bool | None = None) -> Html:
    """The same of several runs beside each other, each with its name; of one run it has none unless asked for."""
    named = len(runs) > 1 if titles is None else titles
    return element(
        "div",
        *(
            element("article", element("h3", run.name) if named else "", content)
            for run, content in zip(runs, contents, strict=True)
        ),
        class_="runs",
    )


def _policy(script: str) -> str:
    """Only this very script may run, and nothing is ever loaded: whatever a text in the page says."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:"
