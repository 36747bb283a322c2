"""What the command line shows of certificates and evaluations: tables for people, rows of CSV for programs."""

import csv
import io
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.coverage.words import ABOUT_COVERED, COVERED, covered_cells, percent
from safeset.errors import counted, shown_rate
from safeset.terminal.console import err, out, print_table

RATES = {
    "VRA": "vra",
    "rejected": "rejection_rate",
    "accuracy": "accuracy",
    "top-1": "top1",
    "core": "core_size",
    "answer": "set_size",
    "label in smallest core": "smallest_share",
    "smallest core": "smallest_core_size",
    "smallest answer": "smallest_set_size",
}
COLUMNS = ["name", "certified", "core", "optional", "core_radius", "radius", "promise", "epsilon", "units"]
COLUMNS += ["guarantee", "method", "prefer", "resized_from", "composited", "grey", "unfinished"]
COLUMNS += ["coverage_set", "coverage_alpha", "estimate", "problem"]
ESTIMATE = " as float32 estimates them: nothing is proved"
SHOWN = 8  # of the classes of a coverage set


def rates(row: dict[str, Any], columns: Mapping[str, str] = RATES) -> list[str]:
    """The metrics of a row of an evaluation, as texts; – for one that an older file does not have."""
    spread = {name: f" ± {value:.3f}" for name, value in row.get("std", {}).items()}

    def text(name: str) -> str:
        value = row.get(name)
        if value is None:
            return "–"
        return f"{value:.2f}" if name.endswith("_size") else f"{shown_rate(value)}{spread.get(name, '')}"

    return [text(name) for name in columns.values()]


def show_evaluation(result: dict[str, Any], units: str) -> None:
    """Print the rows of an evaluation; by class where it has them."""
    rows = result["rows"]
    about = shorten(result["guarantee"])
    points = counted(result["points"], f"{result['split']} point")
    title = f"{result['data']}, {about}: {points}, proved bounds, ε in {units}"
    if "seeds" in result:
        title += f", means of {len(result['seeds'])} seeds"
    body = [[row["method"], shown_epsilon(row["epsilon"]), *rates(row)] for row in rows]
    print_table(title, ["method", "ε", *RATES], body, texts=1)
    baseline = rows[0].get("baseline") if rows else None
    same = " The same answer at every point would hold at most"
    constant = "" if baseline is None else f"{same} {shown_rate(baseline)} of them."
    out.print(
        "VRA: labels in the core of the largest certified answer, as in the paper; core and answer are its mean sizes, "
        f"then those of the smallest, which `certify` shows. Accuracy: labels among the best classes that {about} "
        f"allows; top-1: the best class alone.{constant}",
        style="dim",
    )
    for remark in result.get("remarks", ()):
        err.print(f"Note: {remark}", style="yellow")
    for row in rows:
        if "classes" in row:
            body = [[name, f"{part['points']:,}", *rates(part)] for name, part in row["classes"].items()]
            out.print()
            title = f"{row['method']}, ε = {shown_epsilon(row['epsilon'])}, by class"
            print_table(title, ["class", "points", *RATES], body)
    if "coverage" in result:
        show_coverage(result["coverage"])


def show_coverage(found: dict[str, Any]) -> None:
    """Print how often the sets of a calibrated run hold the true class."""
    body = [[shown_epsilon(row["epsilon"]), *covered_cells(row)] for row in found["rows"]]
    about = f"{counted(found['calibration_points'], 'calibration point')}, {found['score']}"
    out.print()
    print_table(f"Sets that cover ≥ {_promised(found['alpha'])}: {about}", ["ε", *COVERED], body, texts=0)
    out.print(
        f"{ABOUT_COVERED} Covers: {found['words']}.",
        style="dim",
    )
    for note in found.get("notes", ()):
        err.print(f"Note: {note}", style="yellow")
    for row in found["rows"]:
        if "classes" in row:
            body = [[name, f"{part['points']:,}", *covered_cells(part)] for name, part in row["classes"].items()]
            out.print()
            print_table(f"Sets for ε = {shown_epsilon(row['epsilon'])}, by class", ["class", "points", *COVERED], body)


def _promised(alpha: float) -> str:
    """1 − α in per cent, rounded down: all is never promised.

    >>> _promised(0.1), _promised(1e-9)
    ('90 %', '99.9999 %')
    """
    return percent(1 - Fraction(repr(alpha)))


def show_certificates(records: list[dict[str, Any]]) -> int:
    """Print certificates as a table; returns how many points could not be read."""
    good = [record for record in records if "problem" not in record]
    for record in records:
        if "problem" in record:
            err.print(f"{record['name']}: {record['problem']}", style="yellow")
    if good:
        one = good[0]
        title = (
            f"ε = {shown_epsilon(one['epsilon'])} (L2, {one['units']}), {shorten(one['guarantee'])}, {one['method']}: "
            f"the {one['prefer']} certified answers{ESTIMATE if one.get('estimate') else ''}"
        )
    else:
        title = ""
    covering = [record["coverage_set"] for record in good if "coverage_set" in record]
    header = ["point", "answer", "may also include", "what holds", *["coverage set"] * bool(covering)]
    body = [[*_certificate_cells(record), *[_covering(record)] * bool(covering)] for record in records]
    print_table(title, header, body, texts=len(header))
    if covering:
        out.print(_certified_words([record["certified"] for record in good], covering[0]["epsilon"]), style="dim")
        out.print(f"Covers: {covering[0]['words']}. It is a probability, and no certificate.", style="dim")
    return len(records) - len(good)


def _certified_words(certified: Sequence[bool], epsilon: float) -> str:
    """What the certificates of some points say, beside sets that cover; where there is none, that there is none.

    >>> _certified_words([False], 0.5)[:57]
    'Certified: nothing at ε = 0.5. What is said to hold is so'
    """
    shown = shown_epsilon(epsilon)
    about = "It is proved of the network, and does not say which class is true."
    if not any(certified):
        return f"Certified: nothing at ε = {shown}. What is said to hold is so for smaller changes only. {about}"
    rest = "" if all(certified) else " Beside ⊥ it holds for smaller changes only."
    return f"Certified: no perturbation of L2 norm ≤ {shown} can change what holds of an answer.{rest} {about}"


def _covering(record: dict[str, Any]) -> str:
    """The coverage set, as a cell.

    >>> _covering({"coverage_set": {"classes": ["cat", "dog"]}})
    '{cat, dog}'
    """
    classes = record["coverage_set"]["classes"] if "coverage_set" in record else []
    more = len(classes) - SHOWN
    text = _names(classes) if more <= 1 else f"{_names(classes[:SHOWN])} and {more} more"
    return f"{{{text}}}" if classes else ""


def _certificate_cells(record: dict[str, Any]) -> list[str]:
    """A record as cells of the table."""
    if "problem" in record:
        return [record["name"], "not read", "", ""]
    name = record["name"]
    if record["resized_from"]:
        name += f" (resized from {_size(record['resized_from'])})"
    if record["composited"]:
        name += " (transparent, put on a background)"
    if record["grey"]:
        name += " (grey, repeated in 3 channels: a change of its greys counts √3 times)"
    if record["certified"]:
        return [name, f"{{{_names(record['core'])}}}", _names(record["optional"]), record["promise"]]
    rest = record["promise"].removeprefix("no certificate: ").removeprefix("no certificate at ε; what does hold: ")
    return [name, "⊥ no certificate", "", rest]


def _size(found: Mapping[str, int]) -> str:
    """A size in words.

    >>> _size({"width": 640, "height": 480})
    '640 × 480 pixels, width × height'
    """
    return f"{found['width']} × {found['height']} pixels, width × height"


def row(cells: Sequence[Any]) -> str:
    """A line of CSV.

    >>> row(["a,b", 0.5])
    '"a,b",0.5'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(cells)
    return text.getvalue()


def cells(record: dict[str, Any]) -> list[Any]:
    """A record of a certificate as cells of a CSV row; lists are joined by |, an infinite radius is inf."""
    covering = record.get("coverage_set", {})
    record = {**record, "coverage_set": covering.get("classes", []), "coverage_alpha": covering.get("alpha", "")}

    def cell(name: str) -> Any:
        value = record.get(name, "")
        if isinstance(value, dict):
            return _size(value)
        if isinstance(value, list):
            return "|".join(map(str, value))
        if value is None:
            return "inf" if name.endswith("radius") else ""
        return value

    return [cell(name) for name in COLUMNS]


def evaluation_cells(result: dict[str, Any]) -> list[list[Any]]:
    """An evaluation as rows of CSV, the header first: one for each method and ε, each followed by those of its classes.

    >>> row = {"method": "joint", "vra": 0.5, "core_size": None, "classes": {"cat": {"vra": 0.5, "core_size": 1.0}}}
    >>> evaluation_cells({"rows": [row]})
    [['class', 'method', 'vra', 'core_size'], ['', 'joint', 0.5, ''], ['cat', 'joint', 0.5, 1.0]]
    """
    rows: list[dict[str, Any]] = []
    for row in result["rows"]:
        plain = {name: value for name, value in row.items() if not isinstance(value, dict | list)}
        parts = row.get("classes", {})
        rows += [{"class": "", **plain} if parts else plain]
        rows += [{"class": name, **dict.fromkeys(plain), **_kept(row), **part} for name, part in parts.items()]
    return [list(rows[0]), *(["" if value is None else value for value in row.values()] for row in rows)]


def _kept(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in ("method", "epsilon") if name in row}


def _names(classes: list[str]) -> str:
    return ", ".join(map(str, classes))
