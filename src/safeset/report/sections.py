"""The sections of the page about numbers: in words, in a table, against ε, by class, layer by layer."""

from typing import Any

from safeset.certificates.promises import shorten, shown_epsilon
from safeset.errors import counted, shown_rate
from safeset.guarantees.text import parse
from safeset.report.charts import Axis, Line, chart
from safeset.report.findings import Findings
from safeset.report.html import Html, element, join, table
from safeset.report.observer import SHOWN

COLUMNS = {
    "VRA": "vra",
    "no certificate": "rejection_rate",
    "accuracy": "accuracy",
    "top-1": "top1",
    "core": "core_size",
    "answer": "set_size",
    "label in smallest core": "smallest_share",
    "smallest core": "smallest_core_size",
    "smallest answer": "smallest_set_size",
}
SIZES = {
    "smallest answer": "smallest_set_size",
    "smallest core": "smallest_core_size",
    "largest answer": "set_size",
    "largest core": "core_size",
}
OF_CLASSES = ("vra", "rejection_rate", "accuracy", "top1", "smallest_share", "smallest_set_size")
OF_TRAINING = {"VRA": "vra", "accuracy": "accuracy", "top-1": "top1", "no certificate": "rejection_rate"}
EPOCHS = 200  # points along a training curve, at the most
ABOUT_TABLE = (
    "VRA: the share of points that are certified with the label in the core of the largest answer, as in the paper; "
    "core and answer are its mean numbers of classes. Then the same of the smallest certified answer, which is the one "
    "to show to people. Accuracy and top-1 ask for no robustness. Uniform is the paper's method; floating and joint "
    "certify the same network, and more of it."
)


def percent(rate: float) -> str:
    """A rate in percent; one below 1 is never shown as 100, one above 0 never as 0.

    >>> percent(0.5), percent(0.99999), percent(1.0), percent(1e-5)
    ('50.0 %', '99.9 %', '100.0 %', '0.1 %')
    """
    return f"{min(max(100 * rate, 0.1), 99.9) if 0 < rate < 1 else 100 * rate:.1f} %"


def number(row: dict[str, Any], name: str) -> str:
    """A metric as text; – where nothing is certified."""
    value = row.get(name)
    if value is None:
        return "–"
    return f"{value:.2f}" if name.endswith("_size") else shown_rate(value)


def summary(found: Findings) -> Html:
    """What the run is and what it promises, in plain words."""
    evaluation, row = found.evaluation, _own_row(found)
    epsilon = f"ε = {shown_epsilon(found.epsilon)} ({found.units})"
    kind = evaluation["split"]
    sentences = [
        f"A classifier of {found.points.name} into {counted(len(found.names), 'class', 'classes')}, looked at on "
        f"{counted(evaluation['points'], f'{kind} point')}. Its answer to an input is a set of classes. Where it has a "
        f"certificate, it is proved that for every change of the input up to {epsilon} "
        f"{parse(evaluation['guarantee']).in_words(found.names)} ({shorten(evaluation['guarantee'], 0)}).",
        f"{percent(1 - row['rejection_rate'])} of the points have a certificate at that ε, "
        f"{percent(row['rejection_rate'])} have no certificate (method {row['method']}). {percent(row['vra'])} are "
        "certified with the true class in the core of the largest answer (VRA).",
        f"The best class alone, without any promise, is right for {percent(row['top1'])}. The same answer at every "
        f"point would hold {percent(row['baseline'])} of the labels at most.",
    ]
    if row["smallest_set_size"] is not None:
        sentences.insert(
            2,
            f"Certified answers have {row['smallest_set_size']:.2f} classes on average where the smallest is taken, "
            f"{row['set_size']:.2f} where the largest is.",
        )
    parts = [element("p", sentence) for sentence in sentences]
    if found.unfinished:
        parts.insert(0, _note(f"The training has not ended ({found.unfinished}): these are its weights so far."))
    return join([*parts, *(_note(remark) for remark in evaluation["remarks"])])


def words() -> Html:
    """What the words of an answer mean."""
    meaning = {
        "core": "these classes stay in the answer, whatever happens in the ball of radius ε around the input",
        "may also include": "these classes may or may not join the core",
        "kept out": "no other class ever outranks the whole core",
        "no certificate": "written ⊥: at this ε nothing is proved of the input that the guarantee asks for",
        "radius": "the promise holds for every change whose L2 norm is below it, in the units that stand beside it",
    }
    return element("dl", *(element("div", element("dt", word), element("dd", text)) for word, text in meaning.items()))


def numbers(several: list[Findings]) -> Html:
    """One table of all runs: three methods each."""
    every = list(dict.fromkeys(found.units for found in several))
    named = ["run", "method"] if len(several) > 1 else ["method"]
    header = [*named, "ε", *(["units of ε"] if len(every) > 1 else []), *COLUMNS]
    rows = []
    for found in several:
        for row in found.evaluation["rows"]:
            about = [found.name, row["method"]] if len(several) > 1 else [row["method"]]
            about += [shown_epsilon(row["epsilon"]), *([found.units] if len(every) > 1 else [])]
            rows.append([*about, *(number(row, name) for name in COLUMNS.values())])
    counts = {
        found.name: counted(found.evaluation["points"], f"{found.evaluation['split']} point") for found in several
    }
    alike = len(set(counts.values())) == 1
    points = next(iter(counts.values())) if alike else ", ".join(f"{name}: {count}" for name, count in counts.items())
    caption = f"Proved bounds, {points}{f', ε: {every[0]}' if len(every) == 1 else ''}"
    return join([table(caption, header, rows, texts=len(named)), element("p", ABOUT_TABLE, class_="dim")])


def curves(found: Findings) -> Html:
    """VRA, points without a certificate, and sizes of answers against ε."""
    mark = (found.epsilon, f"the run's own ε = {shown_epsilon(found.epsilon)}")
    across = Axis(f"ε ({found.units})", shown_epsilon)
    shares = Axis("share of the points", _share, 0.0, 1.0)

    def by_method(name: str) -> list[Line]:
        return [Line(method, found.radii, [row[name] for row in rows]) for method, rows in found.curves.items()]

    sizes = [Line(name, found.radii, [row[metric] for row in found.curves[SHOWN]]) for name, metric in SIZES.items()]
    return element(
        "div",
        chart("VRA", by_method("vra"), across, shares, mark=mark),
        chart("Without a certificate", by_method("rejection_rate"), across, shares, mark=mark),
        chart(f"Classes in an answer, {SHOWN}", sizes, across, Axis("classes", _size, 0.0, integers=True), mark=mark),
        class_="charts",
    )


def comparison(several: list[Findings]) -> Html:
    """VRA and points without a certificate of all runs whose ε has the same units, in one picture each."""
    groups = {found.units: [other for other in several if other.units == found.units] for found in several}
    shares = Axis("share of the points", _share, 0.0, 1.0)
    parts = [
        chart(f"{title}, {SHOWN}, {units}",
              [Line(one.name, one.radii, [row[name] for row in one.curves[SHOWN]]) for one in same],
              Axis(f"ε ({units})", shown_epsilon), shares)
        for units, same in groups.items()
        if len(same) > 1
        for title, name in (("VRA", "vra"), ("Without a certificate", "rejection_rate"))
    ]  # fmt: skip
    return element("div", *parts, class_="charts") if parts else Html("")


def classes(found: Findings) -> Html:
    """The metrics of each class as a heat map."""
    names = {title: name for title, name in COLUMNS.items() if name in OF_CLASSES}
    row = _own_row(found)
    rows = [
        [name, f"{part['points']:,}", *(_warm(part, metric) for metric in names.values())]
        for name, part in row["classes"].items()
    ]
    caption = f"By class: {row['method']}, ε = {shown_epsilon(row['epsilon'])} ({found.units})"
    return table(caption, ["class", "points", *names], rows)


def training(found: Findings) -> Html:
    """The loss and the estimated metrics of each epoch."""
    needed = ("loss", "vra", "accuracy", "rejection_rate")
    whole = [each for each in found.records if all(isinstance(each.get(name), int | float) for name in needed)]
    if len(whole) < 2:
        return element("p", "No curves: fewer than two epochs were recorded.", class_="dim")
    records = whole[:: max(1, len(whole) // EPOCHS)]
    epochs = [float(each["epoch"]) for each in records]
    across = Axis("epoch", lambda value: f"{value:g}", integers=True)
    shares = [Line(title, epochs, [_known(each.get(name)) for each in records]) for title, name in OF_TRAINING.items()]
    on = whole[-1].get("on", "training")
    return element(
        "div",
        chart("Loss, on training points", [Line("loss", epochs, [_known(each["loss"]) for each in records])], across,
              Axis("loss", lambda value: f"{value:.3g}", 0.0)),
        chart(f"On {on} points, estimated by the power method: not proved", shares, across,
              Axis("share of the points", _share, 0.0, 1.0)),
        class_="charts",
    )  # fmt: skip


def bounds(found: Findings) -> Html:
    """The proved bound of each layer, and what it gives away."""
    explanation = found.explanation
    if explanation is None:
        return Html("")
    header = ["layer", "type", "bound", "at least", "gives away", "so far"]
    rows = [
        [each.name, each.type, *map(_four, (each.bound, each.lower, each.gives_away, each.so_far))]
        for each in explanation.layers
    ]
    caption = "Lipschitz bounds, proved, and how much each layer stretches at least, found by search"
    about = (
        "Gives away: the bound over what was found; 1 where nothing can be gained. So far: the proved bound of all "
        f"layers up to here. ε is in {found.units}."
    )
    sentences = [element("p", sentence) for sentence in explanation.sentences()]
    return join([table(caption, header, rows, texts=2), element("p", about, class_="dim"), *sentences])


def provenance(found: Findings) -> Html:
    """With what all of it was made."""
    evaluation = found.evaluation
    facts = {
        "run": found.name,
        "safeset": f"{evaluation['safeset']} ({evaluation['commit']})",
        "Python, torch, device": f"{evaluation['python']}, {evaluation['torch']}, {evaluation['device']}",
        "data": f"{evaluation['data']}, {counted(evaluation['points'], evaluation['split'] + ' point')}",
        "digest of the test points": evaluation["test"],
        "digest of the weights": evaluation["weights"],
        "network": found.recipe.network or found.recipe.model,
        "seed": evaluation["seed"],
        "guarantee": f"{shorten(evaluation['guarantee'], 0)}: {parse(evaluation['guarantee']).in_words(found.names)}",
        "trained for": f"ε = {shown_epsilon(found.epsilon)} ({found.units})",
        "the proof is about": found.covers,
        "bounds by": ", ".join(evaluation["bound_method"]),
        "arithmetic": evaluation["dtype"],
    }
    listed = element("dl", *(element("div", element("dt", name), element("dd", fact)) for name, fact in facts.items()))
    recipe = element("details", element("summary", "The recipe"), element("pre", found.recipe_text, tabindex="0"))
    return join([listed, recipe])


def _own_row(found: Findings) -> dict[str, Any]:
    """The row of the method that is shown, at the run's own ε."""
    (row,) = (each for each in found.evaluation["rows"] if each["method"] == SHOWN)
    return dict(row)


def _warm(row: dict[str, Any], name: str) -> Html:
    """A cell of a heat map."""
    value = row.get(name)
    warmth = value if value is not None and not name.endswith("_size") else 0.0
    return element("td", number(row, name), class_="number warm", style=f"--warm:{warmth:.3f}")


def _note(text: str) -> Html:
    return element("p", element("b", "Note. "), text, class_="note")


def _known(value: object) -> float | None:
    """A recorded number if it can be drawn."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _share(value: float) -> str:
    return f"{value:.1f}" if round(value, 1) == value else shown_rate(value)


def _size(value: float) -> str:
    return f"{value:g}" if value == int(value) else f"{value:.2f}"


def _four(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
