"""A person's journey through the page, in a real browser: what is seen is what Python certifies."""

import re

import numpy as np
import pytest
from PIL import Image

from helpers.browser import chromium, needs_browser
from helpers.hostile_names import HOSTILE

pytestmark = needs_browser
IDLE = "body:not([aria-busy])"


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


@pytest.fixture
def visit(browser):
    """Open an address; at the end, nothing was asked of another place and no script has failed."""
    strange, contexts = [], []

    def opened(address, width=1280, height=900, scheme="light"):
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        refused = "the server responded with a status of 422"  # the browser's own words of what the server refused
        is_bad = lambda message: message.type == "error" and refused not in message.text  # noqa: E731
        page.on("console", lambda message: strange.append(message.text) if is_bad(message) else None)
        page.on("pageerror", lambda error: strange.append(str(error)))
        page.on("dialog", lambda dialog: (strange.append(dialog.message), dialog.dismiss()))
        inside = lambda url: url.startswith((address, "data:"))  # noqa: E731
        page.on("request", lambda request: None if inside(request.url) else strange.append(request.url))
        page.goto(address)
        page.wait_for_selector("#bar-list li")
        page.wait_for_selector(IDLE)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert strange == []


def certified(shown, place, epsilon):
    return shown.net.certify(shown.samples()[0][place].x[None], epsilon=epsilon)


def settle(page):
    page.wait_for_timeout(50)
    page.wait_for_selector(IDLE)


def attack(page):
    page.get_by_role("button", name="Attack").click()
    page.wait_for_selector("#attack-words:not(.waiting):not([hidden])", timeout=30_000)
    settle(page)
    return page.inner_text("#attack-words")


def strong(shown):
    """A sample that is certified far, and one that is not certified at 0.3."""
    radii = [float(certified(shown, place, 0.3).radius[0]) for place in range(20)]
    return radii.index(max(radii)), radii.index(min(radii))


def test_a_sample_a_larger_epsilon_noise_and_an_attack(visit, digits, digits_address):
    place, _ = strong(digits)
    page = visit(digits_address)
    page.get_by_role("button", name=re.compile(f"^Sample {place + 1}:")).click()
    settle(page)
    certificate = certified(digits, place, 0.3)
    (record,) = certificate.records()
    assert page.inner_text("#said .core") == ", ".join(record["core"])
    assert f"labelled {digits.samples()[0][place].label}" in page.inner_text("#chosen")
    assert page.locator("#bar-list li").count() == 10
    assert page.locator("#bar-list li.is-core").count() == len(record["core"])
    assert page.locator("#bar-list li.is-out").first.inner_text().endswith("beyond ε")

    assert page.inner_text("#verdict-words") == "Nothing is changed yet."
    page.get_by_label("Noise of norm").fill("0.25")
    page.get_by_role("button", name="Add noise").click()
    settle(page)
    assert 0.2499 < float(page.inner_text("#norm").split()[0]) < 0.2502
    assert page.inner_text("#verdict-words").startswith("Inside the ball: the promise holds, as proved")

    assert "as proved" in attack(page)
    norm = float(page.inner_text("#norm").split()[0])
    assert norm > certificate.radius[0] > 0.3
    assert "the promise may break, and here it does: " in page.inner_text("#verdict-words")
    page.get_by_role("button", name="Pull into the ball").click()
    settle(page)
    assert page.inner_text("#verdict-words").startswith("Inside the ball: the promise holds, as proved")
    assert page.locator("#attack-words").is_hidden()

    page.get_by_label("Largest change, ε, as a number").fill("9")
    settle(page)
    assert "no certificate" in page.inner_text("#said")
    assert page.locator("#epsilon").input_value() == page.locator("#epsilon").get_attribute("max")
    page.get_by_role("button", name="Undo the change").click()
    settle(page)
    assert page.inner_text("#norm").startswith("0 ")


def test_drawing_by_mouse_and_by_keys(visit, digits, digits_address):
    page = visit(digits_address)
    page.get_by_role("button", name=re.compile(f"^Sample {strong(digits)[0] + 1}:")).click()
    settle(page)
    page.get_by_label("strength").fill("0.1")
    canvas = page.locator("#changed")
    canvas.focus()
    for key in ("ArrowLeft", "ArrowUp", "Space"):
        page.keyboard.press(key)
    settle(page)
    assert page.inner_text("#cursor") == "Cursor at column 4, row 4: space paints."
    small = float(page.inner_text("#norm").split()[0])
    assert 0 < small <= 0.1001
    page.get_by_label("strength").fill("1")
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 3, box["y"] + box["height"] - 3)
    page.mouse.up()
    settle(page)
    assert float(page.inner_text("#norm").split()[0]) > 1 > small
    assert "Beyond" in page.inner_text("#verdict-words")


def test_an_image_of_ones_own(visit, digits, digits_address, tmp_path):
    random = np.random.default_rng(3)
    Image.fromarray(random.integers(0, 256, (16, 16)).astype(np.uint8)).save(tmp_path / "mine.png")
    page = visit(digits_address)
    page.get_by_label("Drop an image here").set_input_files(tmp_path / "mine.png")
    page.wait_for_selector("#chosen:has-text('mine.png')")
    settle(page)
    assert "resized from 16 × 16 to 8 × 8 pixels" in page.inner_text("#chosen")
    assert page.locator("#samples [aria-pressed=true]").count() == 0
    (tmp_path / "no.png").write_text("nothing")
    page.get_by_label("Drop an image here").set_input_files(tmp_path / "no.png")
    page.wait_for_selector("#message:has-text('Expected an image that can be read')")


def test_coverage_follows_alpha(visit, digits_address):
    page = visit(digits_address)
    few = len(page.inner_text("#covered").split(","))
    page.get_by_label("Share α as a number").fill("0.005")
    settle(page)
    assert len(page.inner_text("#covered").split(",")) > few


def test_a_table_with_hostile_names_by_the_keyboard(visit, table, table_address):
    page = visit(table_address)
    assert set(page.locator("#bar-list .class b").all_inner_texts()) == {HOSTILE[0], HOSTILE[1], HOSTILE[2]}
    field = page.get_by_label("y, changed, as a number")
    before = float(field.input_value())
    page.get_by_label("y, changed", exact=True).focus()
    for _ in range(4):
        page.keyboard.press("ArrowRight")
    settle(page)
    assert float(field.input_value()) > before
    assert page.locator("#changed-fields .was >> nth=1").inner_text() == f"was {before:g}"
    low, high = table.form.ranges["y"]
    norm = float(page.inner_text("#norm").split()[0])
    assert norm == pytest.approx((float(field.input_value()) - before) / (high - low), abs=2e-4)
    page.get_by_role("button", name="Add noise").press("Enter")
    settle(page)
    assert page.locator("#changed-fields select").input_value() == "-1"
    page.get_by_label("y, input, as a number").fill(str(high))
    settle(page)
    assert page.inner_text("#chosen") == "an input of your own"
    assert page.inner_text("#verdict-words") == "Nothing is changed yet."


def test_without_samples_one_begins_in_the_middle(visit, table, bare_address):
    page = visit(bare_address)
    assert page.inner_text("#samples-why") == "No samples: this server shows none"
    assert page.inner_text("#chosen") == "the middle of each range"
    low, high = table.form.ranges["y"]
    assert float(page.get_by_label("y, input, as a number").input_value()) == pytest.approx((low + high) / 2, rel=1e-4)
    assert page.get_by_label("colour, input").input_value() == "0"


def test_on_a_phone_nothing_is_too_wide_light_or_dark(visit, digits_address, table_address):
    for address, scheme, paper in ((digits_address, "dark", "20, 23, 27"), (table_address, "light", "255, 255, 255")):
        page = visit(address, width=390, height=844, scheme=scheme)
        page.locator("summary").click()
        attack(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == f"rgb({paper})"


def test_every_control_has_a_name_and_is_reached_by_tab(visit, digits_address, table_address):
    for address, presses in ((digits_address, 45), (table_address, 50)):
        page = visit(address)
        seen = set()
        for _ in range(presses):
            page.keyboard.press("Tab")
            seen.add(page.evaluate("document.activeElement.id"))
        shown = page.locator("button:visible, input:visible, select:visible, canvas[tabindex]:visible")
        named = shown.evaluate_all("all => all.map(e => e.ariaLabel || e.labels?.length || e.textContent.trim())")
        assert len(named) > 20
        assert all(named)
        assert set(shown.evaluate_all("all => all.map(e => e.id).filter(Boolean)")) <= seen


def test_without_an_answer_nothing_is_shown_as_certified(visit, digits_address):
    page = visit(digits_address)
    assert page.locator("#said.proved, #said.unproved").count() == 1
    page.route("**/page/answer", lambda route: route.fulfill(status=200, json={"lines": []}))
    page.get_by_label("Largest change, ε, as a number").fill("0.01")
    page.wait_for_selector("#said:has-text('No answer came.')")
    assert page.locator("#said.proved").count() == 0
    assert page.locator("#bars").is_hidden()
    assert page.locator("#verdict").is_hidden()


def test_a_number_that_is_none_is_marked_and_goes_back(visit, digits_address):
    page = visit(digits_address)
    number = page.get_by_label("Largest change, ε, as a number")
    number.fill("0.125")
    settle(page)
    said = page.inner_text("#said")
    for wrong in ("-1", "", "1e200"):
        number.fill(wrong)
        assert page.locator("#epsilon-number:invalid").count() == 1
        settle(page)
        assert (page.inner_text("#said"), page.locator("#message").is_hidden()) == (said, True)
        number.press("Tab")
        assert number.input_value() == "0.125"
    page.get_by_label("Noise of norm").fill("")
    page.get_by_role("button", name="Add noise").click()
    settle(page)
    assert page.locator("#verdict").get_attribute("class") == "unchanged"
