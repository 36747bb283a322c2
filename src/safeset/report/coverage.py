"""The section about a calibrated run's other sets: how often they hold the true class, against ε."""

from typing import Any

from safeset.certificates.promises import shown_epsilon
from safeset.errors import shown_rate
from safeset.report.charts import Axis, Line, chart
from safeset.report.html import Html, element

SHARES = {
    "on the points as they are": "clean",
    "whatever a change within ε does": "guaranteed",
}


def coverage_section(found: dict[str, Any], *, epsilon: float, units: str, kind: str) -> Html:
    """What is promised, and two pictures: shares of labels in the sets, and sizes.

    Args:
        found: what `evaluate_coverage` gives, with a row for each ε of the curves.
        epsilon: the run's own.
        units: of ε, with the norm.
        kind: of the points.
    """
    rows = found["rows"]
    radii = [row["epsilon"] for row in rows]
    across = Axis(f"ε that the sets are made for ({units})", shown_epsilon)
    mark = (epsilon, f"the run's own ε = {shown_epsilon(epsilon)}")
    lines = [Line(name, radii, [row[key] for row in rows]) for name, key in SHARES.items()]
    lines.append(Line(f"promised, 1 − α = {shown_rate(1 - found['alpha'])}", radii, [1 - found["alpha"]] * len(radii)))
    sizes = [Line("mean size", radii, [row["size"] for row in rows])]
    about = (
        "These sets are about the true class, on average over inputs like the calibration points; they are no "
        "certificates. What is promised of a set for ε stays true whatever a change up to ε does. A set that would be "
        "empty has the class with the largest score, which only the curve of the points as they are counts."
    )
    return element(
        "div",
        element("p", f"Promised: {found['words']}."),
        element("p", about, class_="dim"),
        element(
            "div",
            chart(f"True classes in their sets, {kind} points", lines, across,
                  Axis("share of the points", lambda value: f"{value:g}" if round(value, 1) == value else
                       shown_rate(value), 0.0, 1.0), mark=mark),
            chart("Classes in a set", sizes, across,
                  Axis("classes", lambda value: f"{value:.4g}", 0.0, integers=True), mark=mark),
            class_="charts",
        ),
    )  # fmt: skip
