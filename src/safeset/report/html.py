"""HTML in which whatever comes from users is escaped: only what is an `Html` already is taken as it is."""

import base64
import html
import io
import json
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

SHORT = 8  # letters of a heading that is never broken, such as top-1
VOID = {"input", "img", "meta", "image", "circle", "line", "polyline", "rect"}


class Html(str):
    """A text that is HTML. Every other text is escaped before it becomes part of one."""


def printable(value: object) -> str:
    r"""A text without control characters, lone surrogates and marks that turn the direction of writing.

    >>> printable("a\x00b\u202ec")
    'a�b�c'
    """
    return "".join(each if each.isprintable() or each == "\n" else "\ufffd" for each in str(value))


def escape(value: object) -> Html:
    """Any value as HTML.

    >>> escape("<b> & co")
    '&lt;b&gt; &amp; co'
    >>> escape(Html("<b>"))
    '<b>'
    """
    return value if isinstance(value, Html) else Html(html.escape(printable(value)))


def join(parts: Iterable[object], between: str = "") -> Html:
    """Parts beside each other, each escaped unless it is HTML."""
    return Html(between.join(map(escape, parts)))


def element(name: str, /, *children: object, **attributes: object) -> Html:
    """An element; children and attributes are escaped. ``_`` in an attribute's name is ``-``, ``class_`` is ``class``.

    >>> element("p", "1 < 2 ", element("b", "&"), class_="note", hidden=True, title=None)
    '<p class="note" hidden>1 &lt; 2 <b>&amp;</b></p>'
    """
    given = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        given += f" {key}" if value is True else f' {key}="{escape(str(value))}"'
    return Html(f"<{name}{given}/>" if name in VOID else f"<{name}{given}>{join(children)}</{name}>")


def paragraph(text: str, **attributes: object) -> Html:
    """A paragraph; no option of a command is broken at its hyphens.

    >>> paragraph("or --hold-out 0.1")
    '<p>or <span class="unbroken">--hold-out</span> 0.1</p>'
    """
    parts = re.split(r"(--[a-z][a-z-]*)", text)
    shown = (element("span", part, class_="unbroken") if place % 2 else part for place, part in enumerate(parts))
    return element("p", *shown, **attributes)


def table(caption: str, header: Iterable[object], rows: Iterable[Iterable[object]], *, texts: int = 1) -> Html:
    """A table that scrolls by itself where it is wider than the page; the first column names the rows.

    Args:
        caption: what it shows.
        header: names of columns.
        rows: their cells; one that is HTML of a ``td`` is taken as it is.
        texts: columns from the left that hold words; the others hold numbers.
    """

    def cell(place: int, value: object) -> Html:
        if isinstance(value, Html) and value.startswith("<td"):
            return value
        kind = None if place < texts else "number"
        return element("td", value, class_=kind) if place else element("th", value, scope="row")

    def heading(place: int, name: object) -> Html:
        kind = None if place < texts else "number unbroken" if len(str(name)) <= SHORT else "number"
        return element("th", name, scope="col", class_=kind)

    head = join(heading(place, name) for place, name in enumerate(header))
    body = join(element("tr", *(cell(place, value) for place, value in enumerate(row))) for row in rows)
    content = element("table", element("thead", element("tr", head)), element("tbody", body), aria_label=caption)
    scrolled = element("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)
    return join([element("p", caption, class_="caption"), scrolled])


def json_data(value: Any, name: str) -> Html:
    r"""Values for the page's script, in an element that no text in them can end.

    >>> json_data(["</script>"], "data")
    '<script type="application/json" id="data">["\\u003c/script\\u003e"]</script>'
    """
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for each in "<>&":
        text = text.replace(each, f"\\u{ord(each):04x}")
    return Html(f'<script type="application/json" id="{escape(name)}">{text}</script>')


def png_address(pixels: "np.ndarray[Any, np.dtype[np.uint8]]", *, largest: int | None = None) -> str:
    """Pixels (rows, columns, 3) or (rows, columns) as the address of an image that is part of the page.

    Args:
        pixels: bytes.
        largest: side above which the picture is made smaller.
    """
    from PIL import Image

    picture = Image.fromarray(pixels)
    if largest is not None:
        picture.thumbnail((largest, largest))
    content = io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
