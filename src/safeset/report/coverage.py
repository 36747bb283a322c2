"""The section about a calibrated run's other sets: how often they hold the true class, in numbers and against ε."""

from typing import Any

from safeset.certificates.promises import shown_epsilon
from safeset.coverage.words import ABOUT_COVERED, COVERED, covered_cells
from safeset.errors import counted, shown_rate
from safeset.report.charts import Axis, Line, chart
from safeset.report.html import Html, element, join, table

SHARES = {
    "on the points as they are": "clean",
    "whatever a change within ε does": "guaranteed",
}


def coverage_section(found: dict[str, Any], *, epsilon: float, units: str, kind: str) -> Html:
    """What is promised, what is found of it, and two pictures: shares of labels in the sets, and sizes.

    Args:
        found: what `evaluate_coverage` gives, with a row for each ε of the curves, by class, and an attack at the run's
            own ε.
        epsilon: the run's own.
        units: of ε, with the norm.
        kind: of the points.
    """
    about = (
        "These sets are about the true class, on average over inputs like the calibration points; they are no "
        "certificates. What is promised of a set for ε stays true whatever a change up to ε does."
    )
    own = [row for row in found["rows"] if row["epsilon"] in (0.0, epsilon)]
    return element(
        "div",
        element("p", f"Covers: {found['words']}."),
        element("p", about, class_="dim"),
        *(element("p", element("b", "Note. "), note, class_="note") for note in found.get("notes", ())),
        _numbers(found, own, units, kind),
        _charts(found, epsilon, units, kind),
        _classes(own[-1], units),
    )


def _numbers(found: dict[str, Any], rows: list[dict[str, Any]], units: str, kind: str) -> Html:
    """ε = 0 and the run's own ε, as `safeset evaluate` prints them."""
    made = f"{counted(found['calibration_points'], 'calibration point')}, score {found['score']}"
    caption = f"True classes in their sets, {counted(rows[0]['points'], f'{kind} point')}; {made}; ε: {units}"
    body = [[shown_epsilon(row["epsilon"]), *covered_cells(row)] for row in rows]
    return join([table(caption, ["ε", *COVERED], body), element("p", ABOUT_COVERED, class_="dim")])


def _classes(row: dict[str, Any], units: str) -> Html:
    """The same of each class, to unfold."""
    title = f"By class, sets for ε = {shown_epsilon(row['epsilon'])}"
    body = [[name, f"{part['points']:,}", *covered_cells(part)] for name, part in row["classes"].items()]
    unfolded = table(f"{title} ({units})", ["class", "points", *COVERED], body)
    return element("details", element("summary", title), unfolded)


def _charts(found: dict[str, Any], epsilon: float, units: str, kind: str) -> Html:
    rows = found["rows"]
    radii = [row["epsilon"] for row in rows]
    across = Axis(f"ε that the sets are made for ({units})", shown_epsilon)
    mark = (epsilon, f"the run's own ε = {shown_epsilon(epsilon)}")
    lines = [Line(name, radii, [row[key] for row in rows]) for name, key in SHARES.items()]
    lines.append(Line(f"promised, 1 − α = {shown_rate(1 - found['alpha'])}", radii, [1 - found["alpha"]] * len(radii)))
    sizes = [Line("mean size", radii, [row["size"] for row in rows])]
    return element(
        "div",
        chart(f"True classes in their sets, {kind} points", lines, across,
              Axis("share of the points", lambda value: f"{value:g}" if round(value, 1) == value else
                   shown_rate(value), 0.0, 1.0), mark=mark),
        chart("Classes in a set", sizes, across,
              Axis("classes", lambda value: f"{value:.4g}", 0.0, integers=True), mark=mark),
        class_="charts",
    )  # fmt: skip
