"""What the command line shows of an audit."""

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.errors import shown_rate
from safeset.terminal.console import out, print_table

CONFIRMED = {True: "yes", False: "no", None: "–"}


def show(result: dict[str, Any]) -> None:
    """Print an audit: what was compared, proved and attacked, and the verdict."""
    _show_stored(result["checks"])
    _show_bounds(result["bounds"])
    _show_windows(result["windows"])
    _show_attack(result)
    _show_control(result)
    _show_accuracy(result["accuracy"])
    if "coverage" in result:
        _show_coverage(result["coverage"])
    _show_verdict(result)


def _show_stored(checks: list[dict[str, Any]]) -> None:
    if not checks:  # of a file without a run
        return
    rows = [[check["what"], check["verdict"], check["said"]] for check in checks]
    print_table("Stored, and found again", ["", "", ""], rows, texts=3)


def _show_bounds(bounds: list[dict[str, Any]]) -> None:
    rows = [
        [line["name"], line["type"], line["method"], line["verdict"], f"{line['bound']:.6g}", _above(line)]
        for line in bounds
    ]
    out.print()
    print_table("Bounds, proved again by other means", ["layer", "type", "by", "", "bound", "above"], rows, texts=4)


def _show_windows(windows: dict[str, Any]) -> None:
    checked = f"{windows['windows']:,} windows of {windows['points']:,} of {windows['of_points']:,} points"
    wrong = f"{windows['of_false']:,} with too large a radius"
    out.print(f"\nWindows, recomputed in integers: {checked}, {wrong}", style="bold")
    out.print(f"  logits of {windows['logits']} of these points computed exactly")
    for each in windows["false"][:5]:
        out.print(f"FALSE: point {each['point']}, k in {each['window']}, radius {each['radius']:.6g}", style="red")


def _show_attack(result: dict[str, Any]) -> None:
    attack, about = result["attack"], shorten(result["guarantee"])
    points = f"{attack['points']:,} of {attack['certified']:,} points with a certified radius"
    windows = f"{attack['windows']:,} of {attack['of_windows']:,} windows, {attack['steps']:,} gradients"
    out.print(f"\nAttack on {about}, ε = {shown_epsilon(result['epsilon'])}: {points}, {windows}", style="bold")
    _histogram(result["tightness"])


def _show_control(result: dict[str, Any]) -> None:
    rows = [
        [f"{row['factor']:g}", f"{row['windows']:,}", f"{row['broken']:,}", CONFIRMED[row["confirmed"]]]
        for row in result["control"]
    ]
    out.print()
    header = ["constants times", "windows", "broken", "confirmed exactly"]
    print_table("The same attack, where it must succeed", header, rows, texts=0)
    if result["largest_factor"]:
        out.print(f"  constants times {result['largest_factor']:g}, or less, would be found out")


def _show_accuracy(accuracy: dict[str, Any]) -> None:
    low = _rounded(accuracy["vra"], ROUND_FLOOR)
    high = _rounded(accuracy["under_attack"], ROUND_CEILING)
    out.print(
        f"\nVRA {low} ≤ the truth ≤ {high} under attack "
        f"({accuracy['attacked']:,} of {accuracy['of']:,} open points attacked); plain "
        f"{shown_rate(accuracy['clean'])}, top-1 {shown_rate(accuracy['top1'])}"
    )


def _show_coverage(found: dict[str, Any]) -> None:
    points = f"{found['points']:,} of {found['of']:,} points"
    out.print(f"\nAttack on coverage, ε = {shown_epsilon(found['epsilon'])}: {points}", style="bold")
    out.print(f"  {found['reached']:,} labels reach their threshold, {found['lost']:,} of them were lost within ε")
    if found["fall"]:
        out.print(
            f"  scores fall by {found['fall']['median']:.2f} ε in the median, {found['fall']['largest']:.3f} ε at the "
            "most; more than 1 would refute it"
        )
    lost = ", ".join(f"{row['broken']:,} for {row['factor']:g} ε" for row in found["control"])
    out.print(f"  labels that sets made for less would lose, at some threshold: {lost}")
    for each in found["violations"][:5]:
        out.print(f"LOST: point {each['point']}, class {each['class']}, {each['file']}", style="red")


def _rounded(rate: float, rounding: str) -> str:
    """A rate in three digits, down or up, so that what is said of the truth between two of them stays true.

    >>> _rounded(0.9999, ROUND_FLOOR), _rounded(0.57, ROUND_FLOOR), _rounded(0.5001, ROUND_CEILING)
    ('0.999', '0.570', '0.501')
    """
    return str(Decimal(repr(float(rate))).quantize(Decimal("0.001"), rounding=rounding))


def _show_verdict(result: dict[str, Any]) -> None:
    for each in result["violations"][:5]:
        where = "in exact arithmetic" if each["exact"] else "in float64"
        out.print(f"VIOLATION {where}: point {each['point']}, k in {each['window']}, {each['file']}", style="red")
    for note in result["notes"]:
        out.print(note)
    reasons = f": {'; '.join(result['reasons'])}" if result["reasons"] else ""
    style = {"passed": "green", "failed": "red"}.get(result["verdict"], "yellow")
    out.print(f"{result['verdict']}{reasons}", style=f"bold {style}")


def _histogram(tightness: dict[str, Any]) -> None:
    """Print how far the nearest violations were found, in certified radii."""
    edges, counts = tightness["edges"], tightness["counts"]
    most = max([*counts, 1])
    for low, high, count in zip(edges, [*edges[1:], None], counts, strict=True):
        span = f"{low:.2f} to {high:.2f}" if high else f"above {low:.2f}"
        out.print(f"  {span:>12}  {'█' * math.ceil(40 * count / most):40} {count:,}")
    none = f"; none was found for {tightness['none_found']:,} windows" if tightness["none_found"] else ""
    out.print(f"  × the certified radius: where the nearest violation was found{none}")


def _above(line: dict[str, Any]) -> str:
    """By how much a bound exceeds the lower bound of the same layer."""
    return f"{max(line['bound'] / line['lower'] - 1, 0):.0e}" if line["lower"] else "–"
