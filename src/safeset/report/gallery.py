"""Inputs with their answers, as the page's script shows them at any ε: it only compares radii that Python proved."""

from typing import Any

import torch
from torch import Tensor

from safeset.certificates.certificate import Certificate
from safeset.certificates.promises import PREFERENCES, answers, promise, shown_epsilon
from safeset.data.dataset import Dataset
from safeset.errors import shown_rate
from safeset.report.findings import Findings
from safeset.report.html import Html, element, join, png_address, printable
from safeset.report.observer import SHOWN, Example

LARGEST = 96  # dots of a picture's side
NUMBERS = 8  # of a row that are shown
FEW = 3  # classes that are kept out are named if they are no more
FILTERS = {
    "all": "all",
    "none": "no certificate",
    "several": "more than one class",
    "wrong": "wrong: the label is not in the answer",
}


def gallery_data(found: Findings) -> dict[str, Any]:
    """What the script needs: for each ε what is said of all points, and for each example its answers as ε grows."""
    return {
        "names": [printable(name) for name in found.names],
        "few": FEW,
        "stops": [
            {"epsilon": radius, "text": _stop(radius, found.units), "all": said}
            for radius, said in zip(found.radii, _sentences(found), strict=True)
        ],
        "items": [_item(each, found.units) for each in found.examples],
    }


def answer_lines(certificate: Certificate, units: str) -> list[list[str]]:
    """What a card says of one point at the certificate's ε, as pairs of a kind and a text: what the script shows too.

    Args:
        certificate: a batch of one.
        units: of radii.
    """
    (record,) = certificate.named(certificate.names).records()
    core, optional = record["core"], record["optional"]
    holds = _with_units(record["promise"], units)
    if not record["certified"]:
        rest = holds.removeprefix("no certificate: ").removeprefix("no certificate at ε; ")
        return [["none", "⊥ no certificate"], ["holds", printable(rest)]]
    best, inside = certificate.ranking[0].tolist(), len(core) + len(optional)
    out = [name for index, name in enumerate(certificate.names) if index not in best[:inside]]
    found = [["core", ", ".join(core)]]
    if optional:
        found.append(["optional", f"may also include {', '.join(optional)}"])
    kept = ", ".join(out) if len(out) <= FEW else f"the other {len(out)} classes"
    return [[kind, printable(text)] for kind, text in (*found, ["out", f"kept out: {kept}"], ["holds", holds])]


def gallery(found: Findings, number: int) -> Html:
    """The slider, the filters and the cards of one run, as they are at its own ε; the script changes them.

    Args:
        found: a run.
        number: of the run among those of the page.
    """
    own = found.radii.index(found.epsilon)
    stop = _stop(found.epsilon, found.units)
    slider = element(
        "input", type="range", id=f"epsilon{number}", min=0, max=len(found.radii) - 1, step=1, value=own,
        aria_valuetext=stop, autocomplete="off",
    )  # fmt: skip
    choices = join(
        element("label", element("input", type="radio", name=f"filter{number}", value=kind, checked=kind == "all",
                                 autocomplete="off"), " ", text)
        for kind, text in FILTERS.items()
    )  # fmt: skip
    prefer = element(
        "select",
        *(element("option", f"the {name} certified answers", value=name) for name in PREFERENCES),
        id=f"prefer{number}",
        autocomplete="off",
    )
    controls = element(
        "form",
        element("p", element("label", "Size of change, ", for_=f"epsilon{number}"),
                element("output", stop, for_=f"epsilon{number}", class_="epsilon"), slider),
        element("fieldset", element("legend", "Show"), choices, class_="filters"),
        element("p", element("label", "Of several answers that are proved: ", for_=f"prefer{number}"), prefer),
        class_="controls",
    )  # fmt: skip
    return element(
        "div",
        controls,
        element("p", _sentences(found)[own], class_="whole"),
        element("p", f"{len(found.examples)} of {len(found.examples)} examples.", class_="count", role="status"),
        element("ul", *(_card(each, found) for each in found.examples), class_="cards"),
        class_="gallery",
        data_run=number,
    )


def _stop(epsilon: float, units: str) -> str:
    """A stop of the slider in words."""
    return printable(f"ε = {shown_epsilon(epsilon)} ({units})")


def _card(example: Example, found: Findings) -> Html:
    points, place = found.points, example.place
    x = points.test[torch.tensor([place])].exact[0]
    picture = picture_of(x, *found.brightness)
    label = points.class_names[example.label]
    name = points.names[1][place] if points.names else f"{found.evaluation['split']} point {place}"
    shown = (
        element("img", src=picture, alt=f"Input: {printable(name)}")
        if picture
        else element("pre", "\n".join(number_lines(points, x)))
    )
    lines = [element("p", text, class_=kind) for kind, text in answer_lines(example.certificate, found.units)]
    about = element("p", element("span", name, class_="name"), " label: ", element("b", label), class_="about")
    return element("li", shown, element("div", about, element("div", *lines, class_="answer"), class_="said"))


def _item(example: Example, units: str) -> dict[str, Any]:
    """An example as plain values: its best classes, and for each preference the answers as ε grows.

    An answer is the places a and b in the ranking, the radius below which it is proved (None for ∞), and what it says.
    """
    certificate = example.certificate
    best = [index for index in certificate.ranking[0].tolist() if index >= 0]
    names = [certificate.names[index] for index in best]
    ladders = {}
    for prefer in PREFERENCES:
        ladder = answers(certificate.windows[0].tolist(), prefer)
        ladders[prefer] = [
            [each.start, each.end, None if each.radius == float("inf") else each.radius,
             printable(_with_units(promise(*each.split(names), each.radius), units))]
            for each in ladder
        ]  # fmt: skip
    return {"label": example.label, "best": best, "answers": ladders}


def _with_units(promised: str, units: str) -> str:
    """A promise with units beside its radius, if it has one."""
    return f"{promised} ({units})" if " below " in promised.rpartition("for every change")[2] else promised


def _sentences(found: Findings) -> list[str]:
    """What is true of all test points at each ε, by the method that the cards show."""
    texts = []
    for row in found.curves[SHOWN]:
        sizes = row["smallest_set_size"], row["set_size"]
        size = "" if None in sizes else f", answers of {sizes[0]:.2f} (smallest) to {sizes[1]:.2f} (largest) classes"
        texts.append(
            f"All {row['points']:,} {found.evaluation['split']} points: VRA {shown_rate(row['vra'])}, "
            f"{shown_rate(row['rejection_rate'])} without a certificate{size}."
        )
    return texts


def picture_of(x: Tensor, low: float, high: float) -> str:
    """An image whose numbers go from ``low`` to ``high`` as an address; nothing where the input is none."""
    if x.ndim != 3 or x.shape[0] not in (1, 3):
        return ""
    pixels = ((x - low) / (high - low) * 255).round().clamp(0, 255).byte().permute(1, 2, 0).numpy()
    return png_address(pixels[:, :, 0] if x.shape[0] == 1 else pixels, largest=LARGEST)


def number_lines(points: Dataset, x: Tensor) -> list[str]:
    """The first numbers of an input, a line each, in the units of their column where it is known."""
    numbers = x.flatten().tolist()
    ranges = list((points.ranges or {}).items())
    found = []
    for index, number in enumerate(numbers[:NUMBERS]):
        if index < len(ranges):
            name, (low, high) = ranges[index]
            found.append(f"{name} = {low + number * ((high - low) or 1):.5g}")
        else:
            found.append(f"{number:.5g}")
    return [*found, f"and {len(numbers) - NUMBERS} more"] if len(numbers) > NUMBERS else found
